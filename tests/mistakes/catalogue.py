"""The catalogue of mistakes: each is a small function, kept with what a person sees after making it.

The functions are in one module for each group. Everything that is raised, warned of, or logged at WARNING or above
becomes a part of an entry, without what differs between two executions: paths, ids, ports, times.
"""

import ast
import asyncio
import gc
import inspect
import logging
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure import App, RunHandle, activity, workflow
from perdure.engine.replay.definitions import ACTIVITIES, COMPENSATIONS, UNDOABLE_WORKFLOWS, WORKFLOWS
from perdure.model.schedules import _cronsim
from perdure.model.states import TERMINAL
from tests.engine.waiting import until, waiting

LIMIT_SEC = 20.0
SNAPSHOTS = Path(__file__).parent / "snapshots"
REGISTRIES: tuple[dict[str, Any], ...] = WORKFLOWS, ACTIVITIES, COMPENSATIONS, UNDOABLE_WORKFLOWS


@dataclass(frozen=True)
class Mistake:
    """A mistake: the group it belongs to, its title, and the function that makes it."""

    group: str
    title: str
    function: Callable[..., Any]

    @property
    def needs(self) -> list[str]:
        """The names of the fixtures that the function asks for."""
        return list(inspect.signature(self.function).parameters)


MISTAKES: list[Mistake] = []


def mistake(title: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a function to the catalogue."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        MISTAKES.append(Mistake(function.__module__.rpartition(".")[2], title, function))
        return function

    return add


@contextmanager
def definitions_of_its_own() -> Iterator[None]:
    """Begin with no workflows and activities, and have those back that were defined before."""
    kept = [dict(registry) for registry in REGISTRIES]
    for registry in REGISTRIES:
        registry.clear()
    try:
        yield
    finally:
        for registry, known in zip(REGISTRIES, kept, strict=True):
            registry.clear()
            registry.update(known)


async def watch(run: RunHandle[Any]) -> None:
    """Wait until a run has ended, and raise what it ended with, or until it is stuck."""

    async def has_ended_or_is_stuck() -> bool:
        info = await run.info()
        return info.status in TERMINAL or info.stuck is not None

    await until(has_ended_or_is_stuck)
    if (await run.info()).status in TERMINAL:
        await run.result()


async def changed(url: str, old: Callable[..., Any], new: Callable[..., Any]) -> None:
    """Start a run of the old code, deploy the new one, and send the run what it waits for."""
    before = workflow(name="ship")(old)
    async with App(url, workflows=[before]) as app:
        run = await before.options(id="order-1").start()
        await waiting(app, run.id)
    del WORKFLOWS["ship"]
    async with App(url, workflows=[workflow(name="ship")(new)]) as app:
        await app.send_event("packed", None, to="order-1")
        await watch(app.get("order-1"))


@contextmanager
def without(package: str) -> Iterator[None]:
    """Have a package as if it was not installed."""
    kept = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == package}
    for name in kept:
        del sys.modules[name]
    sys.modules[package] = None  # type: ignore[assignment]
    _cronsim.cache_clear()
    try:
        yield
    finally:
        del sys.modules[package]
        sys.modules.update(kept)


# What a program of a beginner consists of; defined again for each mistake, so that none sees those of another.


class Shop:
    """The workflow and the activity that most mistakes are about."""

    def __init__(self) -> None:
        self.charge = activity(charge)
        self.order = workflow(order)


async def charge(order_id: str, amount: float) -> str:
    """An activity."""
    return f"paid {amount} for {order_id}"


async def order(order_id: str, amount: float = 9.5) -> str:
    """A workflow."""
    return f"{order_id} {amount}"


# What a person sees.


class Seen(logging.Handler):
    """What was raised, warned of and logged, in this order of time."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.name}: {record.getMessage()}")

    def warn(self, message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        """Take the place of `warnings.showwarning`."""
        self.lines.append(f"{category.__name__}: {message}")

    def raised(self, error: BaseException) -> None:
        """Take what the function raised."""
        name = "" if isinstance(error, ProgramEnded) else f"{type(error).__qualname__}: "
        self.lines.append(f"{name}{error}".removeprefix("perdure.errors."))


def make(mistake: Mistake, given: dict[str, object]) -> list[str]:
    """Make a mistake and return what a person sees of it; `TimeoutError` if it hangs."""
    seen, root = Seen(), logging.getLogger()
    root.addHandler(seen)
    gc.freeze()  # what is collected in the end is only what the mistake left behind
    try:
        with definitions_of_its_own(), warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = seen.warn
            if "shop" in mistake.needs:
                given = {**given, "shop": Shop()}
            error = _error_of(mistake.function, given)
            if error is not None:
                seen.raised(error)
                error.__traceback__ = None
            del error
            gc.collect()  # "was never retrieved", "was never awaited"
    finally:
        gc.unfreeze()
        root.removeHandler(seen)
    return list(dict.fromkeys(map(normalised, seen.lines)))


def _error_of(function: Callable[..., Any], given: dict[str, object]) -> BaseException | None:
    try:
        answer = function(**given)
        if inspect.iscoroutine(answer):
            asyncio.run(_within_limit(answer))
    except HangError:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return error
    return None


class ProgramEnded(Exception):
    """A program in a process of its own ended with this line."""


class HangError(BaseException):
    """A mistake that did not show itself in time."""


async def _within_limit(answer: Any) -> None:
    limit = asyncio.timeout(LIMIT_SEC)
    try:
        async with limit:
            await answer
    except TimeoutError:
        if limit.expired():
            raise HangError(f"no answer after {LIMIT_SEC:g} s") from None
        raise


_NORMAL = [
    (r"[\w.]*<locals>\.", ""),
    (r"\btests\.mistakes\.\w+", "shop"),
    (r"[^\s'\"(]*/(test_mistake_\w+|pytest-of-)[^\s'\"]*?/(?=[\w.]+(?:[\s'\":]|$))", "/srv/"),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", "<id>"),
    (r"at 0x[0-9a-f]+", "at 0x…"),
    (r"\bline \d+", "line N"),
    (r"process \d+", "process N"),
    (r"\. Did you mean '\w+'\?$", ""),  # since Python 3.13
    (r"object (\w+) can't be used in 'await' expression", r"'\1' object can't be awaited"),  # until Python 3.13
    (r"\bTask-\d+\b", "Task-N"),
    (r"[^\s'\"<]*/(src/perdure|tests/mistakes)/[\w/]+\.py:\d+", "/srv/shop.py:N"),
    (r"\bworker \S+:\d+:[0-9a-f]{8}", "worker <id>"),
    (r"(?<=127\.0\.0\.1):\d{4,}", ":5432"),
    (r"\b\d+(\.\d+)?(e-\d+)? s\b", "N s"),
    (r"\b\d+ (try|tries)\b", "N tries"),
]


def normalised(line: str) -> str:
    """Return a line without what differs between two executions."""
    for pattern, text in _NORMAL:
        line = re.sub(pattern, text, line)
    return line.rstrip()


# Snapshots.


def entry(mistake: Mistake, lines: list[str]) -> str:
    """Return a mistake as it stands in its snapshot: title, code, and what a person sees."""
    shown = "\n".join(f"    > {line}" for text in lines for line in text.splitlines())
    return f"{mistake.title}\n{textwrap.indent(_code(mistake.function), '    ')}\n{shown}\n"


def _code(function: Callable[..., Any]) -> str:
    """Return the body of a function."""
    text = textwrap.dedent(inspect.getsource(function))
    (definition,) = ast.parse(text).body
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    first = definition.body[0]
    line = min([first.lineno, *(each.lineno for each in getattr(first, "decorator_list", []))])
    return textwrap.dedent("\n".join(text.splitlines()[line - 1 :]))


def snapshot(group: str) -> Path:
    """Return the file of a group."""
    return SNAPSHOTS / f"{group}.txt"


def read_snapshot(group: str) -> dict[str, str]:
    """Return the entries of a group, by title."""
    path = snapshot(group)
    entries = re.split(r"\n(?=\S)", path.read_text("utf-8")) if path.exists() else []
    return {each.partition("\n")[0]: each.rstrip("\n") + "\n" for each in entries}


def write_snapshot(group: str, entries: dict[str, str]) -> None:
    """Write the entries of a group, in the order of the catalogue."""
    titles = [each.title for each in MISTAKES if each.group == group]
    text = "\n".join(entries[title] for title in titles if title in entries)
    snapshot(group).write_text(text, "utf-8")
