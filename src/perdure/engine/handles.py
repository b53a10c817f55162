"""Handles: how a program looks at a run, wherever it runs."""

from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, NoReturn, Protocol, TypeVar

from perdure.engine.codec import decode
from perdure.engine.run_info import RunInfo
from perdure.engine.step_info import HistoryEntry, StepInfo

R = TypeVar("R", covariant=True)

IfExists = Literal["same", "error"]


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A run to be started."""

    workflow_name: str
    input_data: bytes
    id: str | None
    at: datetime | None
    after: timedelta | None
    if_exists: IfExists
    source_hash: str
    source: str
    timeout: timedelta | None
    read: Callable[[bytes], object]  # what the input says, to compare it with another

    def asks_for(self, input_data: bytes) -> bool:
        """Whether a run with this input is the one."""
        return self.read(input_data) == self.read(self.input_data)


class BlockingConnection(Protocol):
    """A connection that is not awaited, of whatever driver."""

    def commit(self) -> None: ...


class Runs(Protocol):
    """What a handle asks of an app or a client."""

    async def finished(self, instance_id: str, timeout: timedelta | None) -> bytes:
        """Wait for the end of a run and return its result; raise what it ended with."""

    async def info(self, instance_id: str) -> RunInfo:
        """Return everything that is known of a run."""

    async def steps(self, instance_id: str) -> list[StepInfo]:
        """Return the steps of a run."""

    async def state(self, instance_id: str) -> Any:
        """Return what the run last passed to `set_state()`."""

    def history(self, instance_id: str) -> AsyncIterator[HistoryEntry]:
        """Iterate over the history of a run, in order."""

    async def cancel(self, instance_id: str, reason: str = "") -> None:
        """Cancel a run."""


class RunHandle(Generic[R]):
    """A run, seen from outside. It holds nothing open: keep it, or get it again with `app.get(id)`."""

    __slots__ = ("_decode", "_runs", "id")

    def __init__(self, started: tuple[Runs, str], decode: Callable[[bytes], R]) -> None:
        self._runs, self.id = started
        self._decode = decode

    async def result(self, timeout: timedelta | float | None = None) -> R:
        """Wait for the end of the run and return its result.

        `timeout` is in seconds, or a timedelta. Raises `WorkflowFailedError`, whose cause is the run's error,
        `WorkflowCancelledError`, `TimeoutError`, or `RunNotFoundError`. Logs a warning after some seconds if no live
        worker serves the run's workflow.
        """
        span = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
        return self._decode(await self._runs.finished(self.id, span))

    async def info(self) -> RunInfo:
        """Return everything that is known of the run; its status, input, result and error among it."""
        return await self._runs.info(self.id)

    async def steps(self) -> list[StepInfo]:
        """Return the steps of the run, as far as its history tells."""
        return await self._runs.steps(self.id)

    async def state(self) -> Any:
        """Return what the run last passed to `set_state()`, or None."""
        return await self._runs.state(self.id)

    def history(self) -> AsyncIterator[HistoryEntry]:
        """Iterate over the rows of the run's history, in order; they are read page by page."""
        return self._runs.history(self.id)

    async def cancel(self, reason: str = "") -> None:
        """Cancel the run: no new step starts, completed steps are compensated, then the run is cancelled."""
        await self._runs.cancel(self.id, reason)

    def __repr__(self) -> str:
        return f"<run {self.id}>"


class Started(RunHandle[R], Coroutine[Any, Any, RunHandle[R]]):
    """A handle on a run that is stored already: it may be awaited like any start, and need not be."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, RunHandle[R]]:
        yield from ()
        return self

    def send(self, value: object, /) -> NoReturn:
        raise StopIteration(self)

    def throw(self, *error: Any) -> NoReturn:
        raise error[0]

    def close(self) -> None:
        return


def plain(data: bytes) -> Any:
    """The result of a run whose workflow is not known here: JSON."""
    return decode(data)
