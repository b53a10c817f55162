"""Notice what the body of a workflow does outside activities: files, connections and processes.

A replay repeats it. Python reports such calls as audit events. An audit hook cannot be removed, so there is one for the
process, which does nothing while no play is watched.
"""

import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from perdure.engine.replay.context import current_run
from perdure.testing.crashes.wall_clock import is_of_user

_EVENTS = frozenset(
    "os.mkdir os.remove os.rename os.rmdir os.link os.symlink os.truncate os.system os.exec os.posix_spawn "
    "subprocess.Popen socket.bind socket.connect socket.sendto socket.sendmsg sqlite3.connect smtplib.send".split()
)
_WRITING = os.O_WRONLY | os.O_RDWR

_watching: "list[set[str]]" = []  # where the effects that are noticed go
_is_hooked: "list[bool]" = []


@contextmanager
def watched(found: set[str]) -> Iterator[None]:
    """Add what bodies do outside activities to a set, while the block lasts."""
    if not _is_hooked:
        sys.addaudithook(_audit)
        _is_hooked.append(True)
    _watching.append(found)
    try:
        yield
    finally:
        _watching.remove(found)


def _audit(event: str, args: tuple[object, ...]) -> None:
    if not _watching or not (event in _EVENTS or (event == "open" and _is_writing(args))):
        return
    run = current_run()
    place = None if run is None else _place(inspect.currentframe())
    if run is not None and place is not None:
        _watching[-1].add(
            f"the body of workflow {run.workflow.name!r} calls {event}({args[0]!r}) at {place}, and each replay does "
            "it again: move the call into an activity"
        )


def _is_writing(args: tuple[object, ...]) -> bool:
    """Return whether a file is opened to write; the arguments are its path, its mode or None, and its flags."""
    mode, flags = args[1], args[2]
    return any(each in mode for each in "wax+") if isinstance(mode, str) else bool(int(str(flags or 0)) & _WRITING)


def _place(frame: FrameType | None) -> str | None:
    """Return the line of the user's code that makes the call; None for log messages, which may be repeated."""
    while frame is not None:
        name, file = str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename
        if name.partition(".")[0] == "logging":
            return None
        if is_of_user(name, file):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return None
