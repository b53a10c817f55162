"""Hooks: functions of the program that are called with the events of its runs, after the commit.

They are not called on replay. Errors in hooks are logged and ignored. The log gets the same events; see `log.py`.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Sequence

from perdure.engine.replay.guard import came_by_signal, is_interruption
from perdure.engine.worker.log import is_logged, log_event
from perdure.engine.worker.waiting import end_tasks
from perdure.hooks import Hook, HookEvent

log = logging.getLogger("perdure.engine")

ENDING_SEC = 0.5  # how long a cancelled hook may take to end


class Hooks:
    """All hooks of an app."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        if not isinstance(hooks, Sequence):
            raise TypeError(f"App(hooks=) must be a list of functions, not {hooks!r}")
        self._hooks = list(hooks)
        for hook in self._hooks:
            if not callable(hook):
                raise TypeError(f"App(hooks=) takes functions that are called with one event, not {hook!r}")
        self._tasks: set[asyncio.Task[None]] = set()

    def observe(self, kind: type[HookEvent]) -> bool:
        """Return whether there is a hook, or the log records events of this kind."""
        return bool(self._hooks) or is_logged(kind)

    def call(self, event: HookEvent, worker_id: str) -> None:
        """Log the event and call every hook with it; async hooks run in tasks of their own."""
        log_event(event, worker_id)
        for hook in self._hooks:
            try:
                answer = hook(event)
            except BaseException as error:
                if came_by_signal(error):
                    raise
                _log_failure(hook, event, error)
                continue
            if inspect.isawaitable(answer):
                task = asyncio.ensure_future(self._finish(hook, answer, event))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _finish(self, hook: Hook, answer: Awaitable[None], event: HookEvent) -> None:
        try:
            await answer
        except BaseException as error:
            if is_interruption(error):
                raise
            _log_failure(hook, event, error)

    async def close(self, grace_sec: float) -> None:
        """Wait for running hooks within the grace time, then cancel them."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=max(0.0, grace_sec))
        if self._tasks:
            log.warning(
                "cancelled %d hook(s) that had not ended when the worker stopped",
                len(self._tasks),
                extra={"hooks": len(self._tasks)},
            )
            await end_tasks(list(self._tasks), ENDING_SEC)


def _log_failure(hook: Hook, event: HookEvent, error: BaseException) -> None:
    name = getattr(hook, "__qualname__", None) or repr(hook)
    log.error(
        "hook %s failed on %s of run %s (%s): %s: %s",
        name,
        type(event).__name__,
        event.run_id,
        event.workflow,
        type(error).__name__,
        error,
        extra={
            "hook": name,
            "event": type(event).__name__,
            "run_id": event.run_id,
            "workflow": event.workflow,
            "error_type": type(error).__name__,
            "error_message": str(error),
        },
        exc_info=error,
    )
