"""What one runs: jobs for `ray job submit`, and the `sondage` command line. Jobs compose; nothing imports them."""
