"""Where shards live: hosts, placement, routing. Deciding is pure; Ray is used in actors.py, controller.py and searcher.py only."""
