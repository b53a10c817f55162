"""The effect log: the executions of activities in all processes.

A line is one write to a file opened for appending, so lines of many processes never mix, and the order of the lines is
the order of the writes. A process that is killed at the end of a page may leave half a line; the next starts a new one.
"""

import json
import os
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from perdure import activity_info
from perdure.hooks import HookEvent

TOKENS = count(1)


@dataclass(frozen=True, slots=True)
class Line:
    """One line: a `begin`, `end` or `fail` of an activity, a hook event (`hook.…`), or a worker's `ready`."""

    what: str
    pid: int
    at: float  # on the monotonic clock, which all processes of a machine share
    run: str = ""
    step: str = ""
    attempt: int = 0
    fence: int = 0
    key: str = ""
    token: str = ""


class Writer:
    """This process's end of the log."""

    def __init__(self) -> None:
        self._file = -1

    def open(self, path: Path) -> None:
        """Write there from now on."""
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
        self._file = -1

    def write(self, what: str, **fields: object) -> None:
        """Append a line."""
        line = {"what": what, "pid": os.getpid(), "at": time.monotonic(), **fields}
        os.write(self._file, b"\n" + json.dumps(line).encode() + b"\n")

    def activity(self, what: str, token: str) -> None:
        """Append a line of the activity that calls."""
        info = activity_info()
        about = {"step": info.step, "attempt": info.attempt, "fence": info.fence, "key": info.idempotency_key}
        self.write(what, run=info.workflow_id, token=token, **about)

    def hook(self, event: HookEvent) -> None:
        """Append a line of a hook event."""
        self.write(f"hook.{type(event).__name__}", run=event.run_id, step=getattr(event, "step", None) or "")


EFFECTS = Writer()


def new_token() -> str:
    """Identifies this execution of an activity."""
    return f"{os.getpid()}-{next(TOKENS)}"


class Effects:
    """The log as a reader sees it; every look reads what came since the last one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Line] = []
        self._offset = 0
        path.touch()

    def look(self) -> list[Line]:
        """All lines so far."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        self.lines += [Line(**fields) for text in whole.splitlines() if (fields := _fields(text))]
        return self.lines


def _fields(text: bytes) -> dict[str, Any]:
    """Nothing of an empty line, and of half a line."""
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError:
        return {}
    return found
