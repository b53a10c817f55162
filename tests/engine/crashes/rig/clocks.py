"""Wrong clocks, and storages without wake-ups, for a forked process."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, tzinfo
from typing import Any

from perdure.model.records import WakeUp
from perdure.storage.stores import SQLStorage
from perdure.storage.wakeups import Wakeups

SWING_SEC = 0.7  # how often the clock is set, at that


class Wrong:
    """A wall clock that is off, and is set back and forth: half of the time it is right.

    The monotonic clock stays, since it cannot be set. So does SQLite's own, which is the database's clock.
    """

    def __init__(self, off_sec: float) -> None:
        self._off_sec = off_sec
        self._now, self._ns = time.time, time.time_ns

    def off(self) -> float:
        return self._off_sec if int(time.monotonic() / SWING_SEC) % 4 else 0.0

    def time(self) -> float:
        return self._now() + self.off()

    def time_ns(self) -> int:
        return self._ns() + int(self.off() * 1e9)

    def datetime(self) -> type[datetime]:
        """Return a class that reads the wrong time, and whose instances are true datetimes."""
        clock = self

        class Kind(type):
            def __instancecheck__(cls, value: object) -> bool:
                return isinstance(value, datetime)

        class Wrongly(datetime, metaclass=Kind):
            def __new__(cls, *args: Any, **kwargs: Any) -> Any:
                return datetime(*args, **kwargs)

            @classmethod
            def now(cls, tz: tzinfo | None = None) -> Any:
                return datetime.now(tz) + timedelta(seconds=clock.off())

            @classmethod
            def utcnow(cls) -> Any:
                return cls.now(None)

        return Wrongly


def shift(off_sec: float) -> None:
    """Let all of perdure read a wrong clock from now on."""
    clock = Wrong(off_sec)
    wrongly = clock.datetime()
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "perdure" and getattr(module, "datetime", None) is datetime:
            vars(module)["datetime"] = wrongly
    vars(time).update(time=clock.time, time_ns=clock.time_ns)


def block_notifications(storage: SQLStorage | None = None) -> None:
    """Let no notification come, to one storage or to any in this process."""

    async def silence(*_: object) -> AsyncIterator[WakeUp]:
        await asyncio.Event().wait()
        yield WakeUp("scan")

    if storage is None:
        vars_of: Any = Wakeups
        vars_of.wakeups = silence
    else:
        vars(storage)["wakeups"] = silence
