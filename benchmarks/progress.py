"""Show what a benchmark measures at the moment."""

import sys

BAR = 20  # characters


def show(text: str) -> None:
    """Print a line that the next one overwrites; in a log, a line of its own."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def show_share(done: int, total: int, text: str) -> None:
    """Print what is measured now after a bar with the share of measurements that are done."""
    filled = BAR * done // max(1, total)
    show(f"[{'#' * filled}{'.' * (BAR - filled)}] {done}/{total} {text}")
