"""Handles: how a program looks at a run, wherever it runs."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, Protocol, TypeVar

from perdure.engine.codec import decode
from perdure.engine.durations import Duration, seconds
from perdure.errors import RunExistsError
from perdure.model.records import HistoryEvent, WorkflowInstance
from perdure.model.states import WorkflowStatus

R = TypeVar("R", covariant=True)

SHOWN_MAX = 200  # bytes of an input in an error

IfExists = Literal["return", "error"]


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

    def differs_from(self, id: str, workflow_name: str, inputs: Sequence[bytes]) -> RunExistsError | None:
        """Return the error to raise if a run with this id, this workflow and one of these inputs is another one."""
        if self.if_exists == "error":
            return RunExistsError(f'run {id!r} already exists, and if_exists="error" was given: use another id')
        if workflow_name != self.workflow_name:
            return RunExistsError(
                f"run {id!r} already exists, as a run of workflow {workflow_name!r} and not of {self.workflow_name!r}: "
                "use another id"
            )
        if any(map(self.asks_for, inputs)):
            return None
        return RunExistsError(
            f"run {id!r} ({self.workflow_name}) already exists with different input: it has {_shown(inputs[0])}, and "
            f"this start has {_shown(self.input_data)}; use another id, or get() the existing run"
        )

    def asks_for(self, input_data: bytes) -> bool:
        """Whether a run with this input is the one."""
        return self.read(input_data) == self.read(self.input_data)


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

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait until the run has ended and return its result.

        Raises `WorkflowFailedError`, whose cause is the run's error, `WorkflowCancelledError`, or `TimeoutError`.
        """
        span = None if timeout is None else timedelta(seconds=seconds(timeout, "result(timeout=)"))
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


def _shown(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "…"


def plain(data: bytes) -> Any:
    """The result of a run whose workflow is not known here: JSON."""
    return decode(data)
