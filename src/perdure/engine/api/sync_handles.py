"""Handles for blocking programs, with which they inspect and control a run on any worker."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

from perdure.engine.api import current_sync
from perdure.engine.api.run_info import RunInfo
from perdure.engine.api.step_info import HistoryEntry, StepInfo
from perdure.model.durations import Duration, span

R = TypeVar("R", covariant=True)


class SyncRuns(Protocol):
    """What a handle needs of a SyncClient."""

    def finished(self, instance_id: str, timeout: timedelta | None) -> bytes:
        """Wait until a run has ended and return its result as JSON; raise the run's error."""

    def info(self, instance_id: str) -> RunInfo:
        """Return status, input, result, error and everything else that is known of a run."""

    def steps(self, instance_id: str) -> list[StepInfo]:
        """Return the steps of a run."""

    def state(self, instance_id: str) -> Any:
        """Return the value that the run last passed to `set_state()`."""

    def history(self, instance_id: str) -> Iterator[HistoryEntry]:
        """Iterate over the history of a run, oldest entry first."""

    def cancel(self, instance_id: str, reason: str = "") -> None:
        """Cancel a run."""


class SyncRunHandle(Generic[R]):
    """A reference to a run, for blocking programs; returned by `start_sync()` and by a `SyncClient`.

    It holds no resources, so it can be kept or dropped, and any thread may use it. `id` is the id of the run. In a
    coroutine use `app.get(handle)`, which returns a `RunHandle`.
    """

    __slots__ = ("_decode", "_runs", "id")

    def __init__(self, runs: SyncRuns, run_id: str, decode: Callable[[bytes], R]) -> None:
        self._runs = runs
        self.id: str = run_id
        self._decode = decode

    def result(self, timeout: Duration | None = None) -> R:
        """Wait until the run has ended and return its result.

        `timeout` is in seconds or a timedelta (default: wait forever). Raises `WorkflowFailedError`, whose `__cause__`
        is the run's error, if the run failed; `WorkflowCancelledError` if it was cancelled; `TimeoutError` if it does
        not end in time, which does not affect the run; `RunNotFoundError` if it does not exist; and `ClosedError` if
        the SyncClient closes first. Logs a warning after a few seconds if no live worker executes the workflow.
        """
        limit = None if timeout is None else span(timeout, "result(timeout=)")
        return self._decode(self._runs.finished(self.id, limit))

    def info(self) -> RunInfo:
        """Return status, input, result, error and everything else that is known of the run.

        Raises `RunNotFoundError` if the run does not exist.
        """
        return self._runs.info(self.id)

    def steps(self) -> list[StepInfo]:
        """Return the steps of the run that its history records. Raises `RunNotFoundError` if it does not exist."""
        return self._runs.steps(self.id)

    def state(self) -> Any:
        """Return the value that the run last passed to `set_state()`, or None."""
        return self._runs.state(self.id)

    def history(self) -> Iterator[HistoryEntry]:
        """Iterate over the run's history, oldest entry first; entries are read page by page."""
        return self._runs.history(self.id)

    def cancel(self, reason: str = "") -> None:
        """Cancel the run: no new step starts, completed steps are compensated, then the run is cancelled.

        Returns when the request is recorded, before the compensations run. `reason` appears in the error of `result()`
        (default: empty). Raises `WorkflowNotCancellableError` if the run has ended, and `RunNotFoundError` if it does
        not exist.
        """
        self._runs.cancel(self.id, reason)

    def __repr__(self) -> str:
        return f"<run {self.id}>"


def decoder_of(handle: SyncRunHandle[R]) -> Callable[[bytes], R]:
    """Return what decodes the result of a handle's run."""
    return handle._decode


def _current(call: str) -> SyncRuns:
    return current_sync.current_client(call, "In a coroutine use `app.get(run)`, which returns a handle to await")


class InOpenSyncClient:
    """The runs of a handle that was made without a SyncClient: those of the one that a call uses at its time."""

    def finished(self, instance_id: str, timeout: timedelta | None) -> bytes:
        return _current("result()").finished(instance_id, timeout)

    def info(self, instance_id: str) -> RunInfo:
        return _current("info()").info(instance_id)

    def steps(self, instance_id: str) -> list[StepInfo]:
        return _current("steps()").steps(instance_id)

    def state(self, instance_id: str) -> Any:
        return _current("state()").state(instance_id)

    def history(self, instance_id: str) -> Iterator[HistoryEntry]:
        return _current("history()").history(instance_id)

    def cancel(self, instance_id: str, reason: str = "") -> None:
        _current("cancel()").cancel(instance_id, reason)


IN_OPEN_SYNC_CLIENT = InOpenSyncClient()
