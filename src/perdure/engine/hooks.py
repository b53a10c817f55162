"""Hooks: a program's own functions, told of what happened to its runs, after it was committed.

They may be told twice after a crash, never during a replay. One that raises is logged.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from perdure.engine.guard import came_by_signal, is_cancelled

log = logging.getLogger("perdure.engine")

ENDING_SEC = 0.5  # how long a hook that is cancelled may take to end

Hook = Callable[[str, Mapping[str, object]], Awaitable[None] | None]


class Hooks:
    """All hooks of an app."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self._hooks = list(hooks)
        self._tasks: set[asyncio.Task[None]] = set()

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def tell(self, what: str, about: Mapping[str, object]) -> None:
        """Call every hook; those that are async run by themselves."""
        log.debug("run.%s", what, extra=dict(about))
        for hook in self._hooks:
            try:
                answer = hook(what, about)
            except BaseException as error:
                if came_by_signal(error):
                    raise
                _log_failure(hook, what, error)
                continue
            if inspect.isawaitable(answer):
                task = asyncio.ensure_future(self._finish(hook, answer, what))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _finish(self, hook: Hook, answer: Awaitable[None], what: str) -> None:
        try:
            await answer
        except BaseException as error:
            if came_by_signal(error) or (isinstance(error, asyncio.CancelledError) and is_cancelled()):
                raise
            _log_failure(hook, what, error)

    async def close(self, grace_sec: float) -> None:
        """Wait for those that still run, as long as there is time; then cancel them."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=max(0.0, grace_sec))
        if self._tasks:
            log.warning("%d hooks had not ended when the grace time was over, and were cancelled", len(self._tasks))
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=ENDING_SEC)


def _log_failure(hook: Hook, what: str, error: BaseException) -> None:
    log.error(
        "hook %r failed when told of %r: %s: %s",
        hook,
        what,
        type(error).__name__,
        error,
        extra={"hook": repr(hook), "what": what},
        exc_info=error,
    )
