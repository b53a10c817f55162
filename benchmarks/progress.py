"""Show what a benchmark measures at the moment."""

import sys


def show(text: str) -> None:
    """Print a line that the next one overwrites; in a log, a line of its own."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)
