"""Hooks: a program's own functions, told of what happened to its runs, after it was committed.

They may be told twice after a crash, never during a replay. One that raises is logged.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

log = logging.getLogger("perdure.engine")

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
            except Exception:
                log.exception("hook.failed", extra={"hook": repr(hook), "what": what})
                continue
            if inspect.isawaitable(answer):
                task = asyncio.ensure_future(self._finish(answer, what))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _finish(self, answer: Awaitable[None], what: str) -> None:
        try:
            await answer
        except Exception:
            log.exception("hook.failed", extra={"what": what})

    async def close(self) -> None:
        """Wait for those that still run."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10)
