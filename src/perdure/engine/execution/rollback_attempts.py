"""The attempts of the activities that a rollback executes: compensations, failure handlers and unsettled steps."""

import asyncio
from datetime import timedelta

from perdure.engine.execution.interfaces import (
    Attempt,
    Done,
    Drained,
    Executable,
    Host,
    activity_info,
    check_deadline,
    put_down,
)
from perdure.engine.execution.rollback_history import RollbackHistory
from perdure.engine.history.failures import encode_failure
from perdure.engine.history.records import Completed, Failed
from perdure.engine.replay.definitions import ActivityDefinition
from perdure.hooks import StepCompleted, StepFailed, StepRetrying


class RollbackAttempts:
    """Executes activities for a rollback, one after the other, each with its retries."""

    def __init__(self, host: Host, history: RollbackHistory, run: Executable) -> None:
        self._host = host
        self._history = history
        self._run = run
        self._draining = False

    def drain(self) -> None:
        """Start no further attempt."""
        self._draining = True

    async def execute(self, activity: ActivityDefinition, id: str, step: str, payload: bytes) -> Done:
        """Execute an activity until it succeeds or its attempts are used up; failed attempts are recorded."""
        while True:
            if self._draining:
                raise Drained(self._run.id)
            attempt = self._history.next_attempt(id)
            info = activity_info(self._run, activity.name, step, attempt, self._history.lease.token)
            done = await self._attempt(Attempt(activity, payload, info, self._check))
            pause = None if done.error is None else activity.retry.pause(attempt, done.error)
            if done.error is None or pause is None:
                return done
            failure = encode_failure(done.error)
            await self._history.fail_attempt(id, failure)
            self._host.happened(
                StepRetrying(
                    *self._run.about(),
                    step,
                    activity.name,
                    attempt,
                    max_attempts=activity.retry.attempts,
                    retry_in=timedelta(seconds=pause),
                    error_type=failure["error_type"],
                    error_message=failure["error_message"],
                )
            )
            await self._run.slot.pause(pause)

    def _check(self) -> None:
        check_deadline(self._run)

    async def _attempt(self, attempt: Attempt) -> Done:
        task = asyncio.create_task(self._host.execute(attempt), name=f"{self._run.id} {attempt.info.step}")
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            attempt.stopped = True
            await put_down([task], [task] if attempt.activity.plain else [])
            raise

    async def record_outcome(self, id: str, step: str, activity: ActivityDefinition, done: Done) -> None:
        """Record the outcome of an activity that is not a compensation."""
        if done.error is None:
            await self._history.append(Completed(id, done.result))
            self.report_completed(id, step, activity, done)
        else:
            failure = encode_failure(done.error)
            await self._history.append(Failed(id, failure))
            kind, message = failure["error_type"], failure["error_message"]
            attempt = self._history.next_attempt(id)
            self._host.happened(StepFailed(*self._run.about(), step, activity.name, attempt, kind, message))

    def report_completed(self, id: str, step: str, activity: ActivityDefinition, done: Done) -> None:
        """Call the hooks for an activity whose result is recorded."""
        attempt, duration = self._history.next_attempt(id), timedelta(seconds=done.seconds)
        self._host.happened(StepCompleted(*self._run.about(), step, activity.name, attempt, duration))
