"""Threads for plain functions.

They are daemons, unlike those of `concurrent.futures`: a function that does not return must not keep the process from
ending once the worker's grace time is over.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Outcome = tuple[Any, BaseException | None]


class Threads:
    """Runs functions in at most so many threads, which are started when they are needed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: deque[tuple[Callable[[], Any], asyncio.Future[Outcome], asyncio.AbstractEventLoop]] = deque()
        self._due = threading.Condition()
        self._count = 0
        self._idle = 0
        self._closed = False

    def submit(self, call: Callable[[], Any]) -> "asyncio.Future[Outcome]":
        """Call a function in a thread; the future gets what it returned or raised, whatever that is."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()
        with self._due:
            if self._closed:
                raise RuntimeError("the worker has stopped: no function is started any more")
            self._calls.append((call, future, loop))
            if self._idle >= len(self._calls):
                self._due.notify()
            elif self._count < self._most:
                self._count += 1
                threading.Thread(target=self._work, name=f"perdure-activity-{self._count}", daemon=True).start()
        return future

    def withdraw(self, future: "asyncio.Future[Outcome]") -> bool:
        """Return whether the function has not been called yet; then it will not be."""
        with self._due:
            for each in self._calls:
                if each[1] is future:
                    self._calls.remove(each)
                    return True
        return False

    def close(self) -> None:
        """Start nothing more; threads end as soon as their function returns."""
        with self._due:
            self._closed = True
            self._calls.clear()
            self._due.notify_all()

    def _work(self) -> None:
        while True:
            with self._due:
                self._idle += 1
                while not self._calls and not self._closed:
                    self._due.wait()
                self._idle -= 1
                if self._closed:
                    return
                call, future, loop = self._calls.popleft()
            outcome = _outcome(call)
            with suppress(RuntimeError):  # the loop is closed: nobody is interested any more
                loop.call_soon_threadsafe(_settle, future, outcome)
            del call, future, loop, outcome


def _outcome(call: Callable[[], Any]) -> Outcome:
    try:
        return call(), None
    except BaseException as error:
        return None, error


def _settle(future: "asyncio.Future[Outcome]", outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)
