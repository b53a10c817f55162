"""Handles, with which a program inspects and controls a run on any worker."""

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from perdure.engine.api import current
from perdure.engine.api.run_info import RunInfo
from perdure.engine.api.step_info import HistoryEntry, StepInfo
from perdure.engine.history.codec import decode
from perdure.errors import NotDurableError
from perdure.model.durations import Duration, span

R = TypeVar("R", covariant=True)


class Runs(Protocol):
    """What a handle needs of an App or Client."""

    async def finished(self, instance_id: str, timeout: timedelta | None) -> bytes:
        """Wait until a run has ended and return its result as JSON; raise the run's error."""

    async def info(self, instance_id: str) -> RunInfo:
        """Return status, input, result, error and everything else that is known of a run."""

    async def steps(self, instance_id: str) -> list[StepInfo]:
        """Return the steps of a run."""

    async def state(self, instance_id: str) -> Any:
        """Return the value that the run last passed to `set_state()`."""

    def history(self, instance_id: str) -> AsyncIterator[HistoryEntry]:
        """Iterate over the history of a run, oldest entry first."""

    async def cancel(self, instance_id: str, reason: str = "") -> None:
        """Cancel a run."""


class RunHandle(Generic[R]):
    """A reference to a run, returned by `start()` and `app.get(id)`.

    It holds no resources, so it can be kept or dropped. `id` is the id of the run.
    """

    __slots__ = ("_decode", "_runs", "id")

    def __init__(self, started: tuple[Runs, str], decode: Callable[[bytes], R]) -> None:
        self._runs = started[0]
        self.id: str = started[1]
        self._decode = decode

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait until the run has ended and return its result.

        `timeout` is in seconds or a timedelta (default: wait forever). Raises `WorkflowFailedError`, whose `__cause__`
        is the run's error, if the run failed; `WorkflowCancelledError` if it was cancelled; `TimeoutError` if it does
        not end in time, which does not affect the run; `RunNotFoundError` if it does not exist; and `ClosedError` if
        the App or Client closes first. Logs a warning after a few seconds if no live worker executes the workflow.
        """
        limit = None if timeout is None else span(timeout, "result(timeout=)")
        return self._decode(await self._runs.finished(self.id, limit))

    async def info(self) -> RunInfo:
        """Return status, input, result, error and everything else that is known of the run.

        Raises `RunNotFoundError` if the run does not exist.
        """
        return await self._runs.info(self.id)

    async def steps(self) -> list[StepInfo]:
        """Return the steps of the run that its history records. Raises `RunNotFoundError` if it does not exist."""
        return await self._runs.steps(self.id)

    async def state(self) -> Any:
        """Return the value that the run last passed to `set_state()`, or None."""
        return await self._runs.state(self.id)

    def history(self) -> AsyncIterator[HistoryEntry]:
        """Iterate over the run's history, oldest entry first; entries are read page by page."""
        return self._runs.history(self.id)

    async def cancel(self, reason: str = "") -> None:
        """Cancel the run: no new step starts, completed steps are compensated, then the run is cancelled.

        Returns when the request is recorded, before the compensations run. `reason` appears in the error of `result()`
        (default: empty). Raises `WorkflowNotCancellableError` if the run has ended, and `RunNotFoundError` if it does
        not exist.
        """
        await self._runs.cancel(self.id, reason)

    def __repr__(self) -> str:
        return f"<run {self.id}>"


def runs_of(handle: RunHandle[Any]) -> Runs:
    """Return what a handle asks about its run."""
    return handle._runs


def plain(data: bytes) -> Any:
    """Return the result of a run as plain JSON values, for a handle that does not know the workflow."""
    return decode(data)


class InBody:
    """The runs of a handle that a workflow's body holds; all calls raise because they are not deterministic."""

    def _refuse(self) -> NoReturn:
        raise NotDurableError(
            "a handle is for use outside a workflow: call the workflow itself and await it as a child"
        )

    async def finished(self, instance_id: str, timeout: timedelta | None) -> bytes:
        self._refuse()

    async def info(self, instance_id: str) -> RunInfo:
        self._refuse()

    async def steps(self, instance_id: str) -> list[StepInfo]:
        self._refuse()

    async def state(self, instance_id: str) -> Any:
        self._refuse()

    async def cancel(self, instance_id: str, reason: str = "") -> None:
        self._refuse()

    def history(self, instance_id: str) -> AsyncIterator[HistoryEntry]:
        self._refuse()


IN_BODY = InBody()


class InOpenApp:
    """The runs of a handle that was made without an open app: those of the app that is open at the time of a call."""

    async def finished(self, instance_id: str, timeout: timedelta | None) -> bytes:
        return await current.current_app().finished(instance_id, timeout)

    async def info(self, instance_id: str) -> RunInfo:
        return await current.current_app().info(instance_id)

    async def steps(self, instance_id: str) -> list[StepInfo]:
        return await current.current_app().steps(instance_id)

    async def state(self, instance_id: str) -> Any:
        return await current.current_app().state(instance_id)

    async def cancel(self, instance_id: str, reason: str = "") -> None:
        await current.current_app().cancel(instance_id, reason)

    def history(self, instance_id: str) -> AsyncIterator[HistoryEntry]:
        return current.current_app().history(instance_id)


IN_OPEN_APP = InOpenApp()
