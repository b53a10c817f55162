"""Repeating the output of a command, with `--watch`."""

import asyncio
import io
import shutil
from collections.abc import Awaitable, Callable, Sequence
from typing import TextIO

from perdure.cli.exits import UsageError
from perdure.cli.options import Common, Watching
from perdure.cli.output import Output, width_of

CLEAR, HOME, LINE_END, SCREEN_END = "\x1b[2J", "\x1b[H", "\x1b[K\n", "\x1b[J"
FASTEST_SEC = 0.1


async def repeat(
    options: Watching, common: Common, show: Callable[[Output], Awaitable[bool]], *, keep_end: bool = False
) -> None:
    """Call `show` once or, with `--watch`, again and again until it returns False, which means that nothing follows.

    A terminal shows as much as it has room for: the begin, or with `keep_end` the first line and the end.
    """
    if options.every < FASTEST_SEC:
        raise UsageError(f"--every must be at least {FASTEST_SEC} seconds, not {options.every:g}")
    output = Output(common)
    screen = _Screen(output.stream) if options.watch and output.is_table and output.stream.isatty() else None
    while True:
        page = None if screen is None else _Page()
        goes_on = await show(Output(common, page, page))
        if screen is not None and page is not None:
            lines = page.getvalue().splitlines()
            screen.show(fitted(lines, *shutil.get_terminal_size(), keep_end=keep_end) if goes_on else lines)
        if not goes_on or not options.watch:
            return
        await asyncio.sleep(options.every)


class _Screen:
    """A terminal of which each line replaces the one that is there: nothing flickers, and nothing else is deleted."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._clear = stream, CLEAR

    def show(self, lines: Sequence[str]) -> None:
        self._stream.write(f"{self._clear}{HOME}{''.join(f'{line}{LINE_END}' for line in lines)}{SCREEN_END}")
        self._stream.flush()
        self._clear = ""


class _Page(io.StringIO):
    """What the terminal will show."""

    def isatty(self) -> bool:
        return True


def fitted(lines: Sequence[str], columns: int, rows: int, *, keep_end: bool) -> list[str]:
    """Return as many of the lines as a terminal has room for, with a remark if some are left out."""
    room = rows - 1  # the cursor stands below them
    heights = [max(1, -(-width_of(line) // columns)) for line in lines]
    if sum(heights) <= room:
        return list(lines)
    kept, room = [0] if keep_end else [], room - 1 - (heights[0] if keep_end else 0)
    for place in reversed(range(1, len(lines))) if keep_end else range(len(lines)):
        if heights[place] > room:
            break
        room -= heights[place]
        kept.append(place)
    missing = f"… {len(lines) - len(kept)} more lines: enlarge the terminal, or leave out --watch"
    if keep_end:
        return [lines[0], missing, *(lines[place] for place in reversed(kept[1:]))]
    return [*(lines[place] for place in kept), missing]
