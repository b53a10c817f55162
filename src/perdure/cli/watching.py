"""Repeating the output of a command, with `--watch`."""

import asyncio
from collections.abc import Awaitable, Callable

from perdure.cli.exits import UsageError
from perdure.cli.options import Watching
from perdure.cli.output import Output

CLEAR = "\x1b[H\x1b[2J\x1b[3J"
FASTEST_SEC = 0.1


async def repeat(options: Watching, output: Callable[[], Output], show: Callable[[Output], Awaitable[bool]]) -> None:
    """Call `show` once or, with `--watch`, again and again until it returns False, which means that nothing follows."""
    if options.every < FASTEST_SEC:
        raise UsageError(f"--every must be at least {FASTEST_SEC} seconds, not {options.every:g}")
    while True:
        printer = output()
        if options.watch and printer.is_table and printer.stream.isatty():
            printer.line(CLEAR)
        if not await show(printer) or not options.watch:
            return
        await asyncio.sleep(options.every)
