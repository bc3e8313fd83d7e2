"""A builder's process that ends at once, for `test_building.py`."""

import sys


def main() -> None:
    """Read the settings and die."""
    sys.stdin.readline()
    sys.exit(3)
