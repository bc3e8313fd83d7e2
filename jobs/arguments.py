"""The command line of a job: argparse's, which guesses what was meant, and says errors as JSON where that is asked for."""

import argparse
import re
import sys
from typing import NoReturn

from jobs.failing import ERROR, tell_usage, wants_json
from jobs.suggesting import meant


class Parser(argparse.ArgumentParser):
    """As argparse's; a wrong line ends with 2."""

    def error(self, message: str) -> NoReturn:
        known = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
        words = re.findall(r"--[\w-]+", message) if message.startswith("unrecognized arguments") else []
        guess = "".join(meant(word, known) for word in words).rstrip()
        tell_usage(f"{message}. {guess}" if guess else message, wants_json(sys.argv[1:]), self.format_usage(), self.prog)
        self.exit(ERROR)
