"""Waiting for the end of a run: until it ends, the client leaves, the time is over, or the server stops."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta

import msgspec
from starlette.requests import Request

from perdure.engine.api.client import Client
from perdure.engine.api.run_info import RunInfo
from perdure.errors import WorkflowCancelledError, WorkflowFailedError
from perdure.http.documents import OutcomeDocument, outcome_document
from perdure.http.problems import Problem, ProblemDocument, problem_for

KEEP_ALIVE_SEC = 15.0  # proxies close connections on which nothing is sent for a minute or so


class Waits:
    """All requests that wait for runs; at most `most` of them at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._stops: set[asyncio.Event] = set()
        self._stopped = False

    def stop(self) -> None:
        """Let all requests answer now, because the server stops."""
        self._stopped = True
        for each in self._stops:
            each.set()

    async def end_of(self, client: Client, request: Request, id: str, seconds: float) -> RunInfo:
        """Return a run once it has ended, or as it is after this time."""
        run = await client.info(id)
        if seconds > 0 and not outcome_document(run).ended:
            await self._wait(client, request, id, seconds)
            run = await client.info(id)
        return run

    async def events(self, client: Client, request: Request, first: RunInfo, seconds: float) -> AsyncIterator[bytes]:
        """Yield server-sent events: the status of a run whenever it differs, its end, and comments in between.

        The stream lasts at most so many seconds. A browser then opens another one by itself. An error in the middle of
        the stream, such as a database that is unavailable, is an event, too.
        """
        try:
            async for event in self._events(client, request, first, seconds):
                yield event
        except Exception as error:
            yield _event("error", problem_for(request, error).document())

    async def _events(self, client: Client, request: Request, first: RunInfo, seconds: float) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        until, run, sent = loop.time() + seconds, first, None
        while True:
            document = outcome_document(run)
            if document.ended:
                yield _event(run.status.value, document)
                return
            if sent != run.status:
                sent = run.status
                yield _event("status", document)
            if self._stopped or loop.time() >= until:
                return
            if await self._wait(client, request, run.id, min(KEEP_ALIVE_SEC, until - loop.time())):
                return  # not all servers end a stream that reaches no one
            yield b": waiting\n\n"
            run = await client.info(run.id)

    async def _wait(self, client: Client, request: Request, id: str, seconds: float) -> bool:
        """Wait until a run has ended, the client has left, the server stops, or the time is over.

        Returns whether the client has left.
        """
        if self._count >= self._most:
            raise Problem(503, f"{self._most} requests wait for runs already: ask again later, or without `wait`")
        stop = asyncio.Event()
        self._stops.add(stop)
        self._count += 1
        try:
            if self._stopped:
                return False
            departure = asyncio.ensure_future(_departure(request))
            await _first_of(_end(client, id, seconds), departure, stop.wait())
            return not departure.cancelled()
        finally:
            self._count -= 1
            self._stops.discard(stop)


async def _end(client: Client, id: str, seconds: float) -> None:
    try:
        await client.finished(id, timedelta(seconds=seconds))
    except (TimeoutError, WorkflowFailedError, WorkflowCancelledError):
        return  # the run is read afterwards


async def _departure(request: Request) -> None:
    """Wait until the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _first_of(*work: Awaitable[object]) -> None:
    """Wait until one of them has ended, cancel the others, and raise the errors that there were."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


def _event(name: str, document: OutcomeDocument | ProblemDocument) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(document) + b"\n\n"
