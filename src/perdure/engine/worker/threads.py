"""Threads for activities that are plain functions.

They are daemon threads, unlike those of `concurrent.futures`: a function that does not return must not keep the process
from ending after the worker's grace time.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Outcome = tuple[Any, BaseException | None]


class Threads:
    """Calls functions in at most `most` threads, which are started on demand."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: deque[tuple[Callable[[], Any], asyncio.Future[Outcome], asyncio.AbstractEventLoop]] = deque()
        self._due = threading.Condition()
        self._count = 0
        self._idle = 0
        self._closed = False

    def submit(self, call: Callable[[], Any]) -> "asyncio.Future[Outcome]":
        """Call a function in a thread; the future's result is what it returned and what it raised."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()
        with self._due:
            if self._closed:
                raise RuntimeError("the worker has stopped and starts no more functions in threads")
            self._calls.append((call, future, loop))
            if self._idle >= len(self._calls):
                self._due.notify()
            elif self._count < self._most:
                self._count += 1
                threading.Thread(target=self._work, name=f"perdure-activity-{self._count}", daemon=True).start()
        return future

    def withdraw(self, future: "asyncio.Future[Outcome]") -> bool:
        """Remove a call from the queue; return False if the function was called already."""
        with self._due:
            for each in self._calls:
                if each[1] is future:
                    self._calls.remove(each)
                    return True
        return False

    def close(self) -> None:
        """Call no more functions; each thread ends when its function returns."""
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
            with suppress(RuntimeError):  # the loop is closed, so no code waits for the outcome
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
