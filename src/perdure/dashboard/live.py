"""Live pages: a stream of events that tells a page when what it shows has changed.

Nothing runs in the background. The requests that stream a page compute it again now and then, once for all viewers of
the same page, and the longer that takes the less often: at most a twentieth of the time.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
from starlette.requests import Request

from perdure.errors import PerdureError
from perdure.http.problems import Problem, problem_of

EVERY_SEC = 1.0
SHARE = 20.0
TICK_SEC = 15.0  # after which a page without changes is told so: its times, such as heartbeats, are others by now
STREAM_SEC = 600.0  # a browser then opens another one by itself
STREAMS_MAX = 1_000

Compute = Callable[[], Awaitable[object]]


class _Watch:
    """What was last computed for one page, by all of its viewers."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.viewers = 0
        self.at = 0.0
        self.cost = 0.0
        self.marker = ""


class Live:
    """All streams of a dashboard."""

    def __init__(self) -> None:
        self._watches: dict[str, _Watch] = {}
        self._stop: set[asyncio.Event] = set()
        self._stopped = False

    def stop(self) -> None:
        """End all streams, because the server stops."""
        self._stopped = True
        for each in self._stop:
            each.set()

    async def events(self, request: Request, key: str, compute: Compute) -> AsyncIterator[bytes]:
        """Yield an event whenever what `compute` returns differs; `key` is the same for viewers of the same page."""
        if len(self._stop) >= STREAMS_MAX:
            yield b"retry: 30000\n\n"
            return
        stop, watch = asyncio.Event(), self._watches.setdefault(key, _Watch())
        self._stop.add(stop)
        watch.viewers += 1
        try:
            async for event in self._events(request, watch, compute, stop):
                yield event
        except PerdureError as error:
            yield _event("problem", problem_of(error).detail)
        except Problem as problem:
            yield _event("problem", problem.detail)
        finally:
            self._stop.discard(stop)
            watch.viewers -= 1
            if not watch.viewers:
                self._watches.pop(key, None)

    async def _events(
        self, request: Request, watch: _Watch, compute: Compute, stop: asyncio.Event
    ) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        until, sent_at, sent = loop.time() + STREAM_SEC, loop.time(), await _marker(watch, compute)
        yield b"retry: 2000\n" + _event("ready", sent)
        while not self._stopped and loop.time() < until and not await request.is_disconnected():
            pause = max(EVERY_SEC, watch.cost * SHARE)
            try:
                async with asyncio.timeout(pause):
                    await stop.wait()
                return
            except TimeoutError:
                pass
            if (marker := await _marker(watch, compute)) != sent:
                sent, sent_at = marker, loop.time()
                yield _event("change", marker)
            elif loop.time() - sent_at >= TICK_SEC:
                sent_at = loop.time()
                yield _event("tick", sent)


async def _marker(watch: _Watch, compute: Compute) -> str:
    """Return a short text that differs when the page does, computed at most once in each interval."""
    loop = asyncio.get_running_loop()
    async with watch.lock:
        now = loop.time()
        if not watch.marker or now - watch.at >= 0.9 * max(EVERY_SEC, watch.cost * SHARE):
            shown = await compute()
            watch.at, watch.cost = loop.time(), loop.time() - now
            watch.marker = marker_of(shown)
        return watch.marker


def marker_of(shown: object) -> str:
    """Return a short text that differs when what a page shows does; the page has it, too."""
    return hashlib.sha256(msgspec.json.encode(shown, enc_hook=str)).hexdigest()[:16]


def _event(name: str, text: str) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(text) + b"\n\n"
