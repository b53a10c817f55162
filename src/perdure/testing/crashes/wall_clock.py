"""A wall clock that a crash moves, as bodies of workflows see it.

A worker that resumes a run reads another time than the one that died. So a body that reads the wall clock, and not
`perdure.now()`, may take another branch. To show this, the names `time`, `datetime` and `date` are replaced in the
user's modules while a play lasts. Only code of a body sees a difference: activities and tests read the real time.
"""

import datetime as datetime_module
import sys
import sysconfig
import time as time_module
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta, tzinfo
from pathlib import Path
from types import ModuleType
from typing import Any

from perdure.engine.replay.context import current_run

_IN_SECONDS = "time monotonic perf_counter".split()
_LIBRARIES = tuple(str(Path(sysconfig.get_path(name))) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


class WallClock:
    """How far the wall clock of bodies is ahead of the real one."""

    def __init__(self) -> None:
        self.shift = timedelta(0)

    def ahead(self) -> timedelta:
        """Return the shift for the code that asks: none outside a body."""
        return self.shift if current_run() is not None else timedelta(0)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let the user's modules use this clock while the block lasts."""
        replacements = {id(original): ours for original, ours in self._replacements()}
        replaced: list[tuple[ModuleType, str, object]] = []
        for module in _user_modules():
            for name, value in list(vars(module).items()):
                if id(value) in replacements:
                    replaced.append((module, name, value))
                    setattr(module, name, replacements[id(value)])
        try:
            yield
        finally:
            for module, name, value in replaced:
                setattr(module, name, value)

    def _replacements(self) -> Iterator[tuple[object, object]]:
        """Return pairs of what a module may have imported, and what replaces it."""
        functions = {name: self._seconds(getattr(time_module, name)) for name in _IN_SECONDS}
        functions |= {f"{name}_ns": self._nanoseconds(getattr(time_module, f"{name}_ns")) for name in _IN_SECONDS}
        for name, function in functions.items():
            yield getattr(time_module, name), function
        classes = {"datetime": _shifted_datetime(self), "date": _shifted_date(self)}
        yield datetime, classes["datetime"]
        yield date, classes["date"]
        yield time_module, _Module(time_module, functions)
        yield datetime_module, _Module(datetime_module, classes)

    def _seconds(self, read: Callable[[], float]) -> Callable[[], float]:
        return lambda: read() + self.ahead().total_seconds()

    def _nanoseconds(self, read: Callable[[], int]) -> Callable[[], int]:
        return lambda: read() + int(self.ahead().total_seconds()) * 1_000_000_000


class _Module(ModuleType):
    """A module with some of its contents replaced."""

    def __init__(self, original: ModuleType, replaced: "dict[str, Any]") -> None:
        super().__init__(original.__name__, original.__doc__)
        self._original = original
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> object:
        return getattr(self._original, name)


class _Same(type):
    """The type of classes that pass for the class that they replace."""

    original: type

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.original)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.original)


def _shifted_datetime(clock: WallClock) -> type:
    class Shifted(datetime, metaclass=_Same):
        original = datetime

        def __new__(cls, *args: Any, **kwargs: Any) -> datetime:  # type: ignore[misc]
            return datetime(*args, **kwargs)

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + clock.ahead()

        @classmethod
        def utcnow(cls) -> datetime:  # type: ignore[override]
            return datetime.now(datetime_module.UTC).replace(tzinfo=None) + clock.ahead()

        @classmethod
        def today(cls) -> datetime:  # type: ignore[override]
            return cls.now()

    return Shifted


def _shifted_date(clock: WallClock) -> type:
    class Shifted(date, metaclass=_Same):
        original = date

        def __new__(cls, *args: Any, **kwargs: Any) -> date:  # type: ignore[misc]
            return date(*args, **kwargs)

        @classmethod
        def today(cls) -> date:  # type: ignore[override]
            return (datetime.now() + clock.ahead()).date()

    return Shifted


def _user_modules() -> list[ModuleType]:
    """Return the modules that are neither perdure nor installed with Python or as a package."""
    found = [each for each in list(sys.modules.values()) if isinstance(each, ModuleType)]
    return [each for each in found if is_of_user(each.__name__, getattr(each, "__file__", None))]


def is_of_user(name: str, file: str | None) -> bool:
    """Return whether a module is the user's own, by its name and file."""
    return bool(file) and name.partition(".")[0] != "perdure" and not str(file).startswith(_LIBRARIES)
