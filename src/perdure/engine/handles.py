"""Handles: how a program looks at a run, wherever it runs."""

from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, NoReturn, Protocol, TypeVar

from perdure.engine.codec import decode
from perdure.model.records import HistoryEvent, WorkflowInstance
from perdure.model.states import WorkflowStatus

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
        """The output of a run once it is finished; raises what it ended with."""

    async def describe(self, instance_id: str) -> WorkflowInstance:
        """The row of a run."""

    async def state(self, instance_id: str) -> Any:
        """What the run last gave to set_state()."""

    def history(self, instance_id: str) -> AsyncIterator[HistoryEvent]:
        """The events of a run, in order."""

    async def cancel(self, instance_id: str, reason: str = "") -> None:
        """Cancel a run."""


class Handle(Generic[R]):
    """A run, seen from outside. It holds nothing open: keep it or make it again with `app.get(id)`."""

    __slots__ = ("_decode", "_runs", "id")

    def __init__(self, started: tuple[Runs, str], decode: Callable[[bytes], R]) -> None:
        self._runs, self.id = started
        self._decode = decode

    async def result(self, timeout: timedelta | float | None = None) -> R:
        """Wait for the run's end and give what it returned.

        Raises `WorkflowFailedError`, whose cause is the run's error, `WorkflowCancelledError`, or `TimeoutError`.
        """
        span = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
        return self._decode(await self._runs.finished(self.id, span))

    async def status(self) -> WorkflowStatus:
        """Where the run stands."""
        return (await self._runs.describe(self.id)).status

    async def describe(self) -> WorkflowInstance:
        """The run's whole row: its input, when it began, who drives it."""
        return await self._runs.describe(self.id)

    async def state(self) -> Any:
        """What the run last gave to `set_state()`, or None."""
        return await self._runs.state(self.id)

    async def cancel(self, reason: str = "") -> None:
        """Cancel the run: no new step starts, what was done is undone, then it is cancelled."""
        await self._runs.cancel(self.id, reason)

    def history(self) -> AsyncIterator[HistoryEvent]:
        """The run's events, in order, page by page."""
        return self._runs.history(self.id)

    def __repr__(self) -> str:
        return f"<handle on {self.id}>"


class Started(Handle[R], Coroutine[Any, Any, Handle[R]]):
    """A handle on a run that is stored already: it may be awaited like any start, and need not be."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, Handle[R]]:
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
