"""Serving the HTTP API alone, with uvicorn."""

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from perdure.database.cancellation import finish
from perdure.engine.api.app import hurry
from perdure.engine.api.client import Client
from perdure.engine.api.serving import SIGNALS
from perdure.errors import ConfigurationError
from perdure.http.api import Render
from perdure.http.app import MAX_BODY, MAX_WAIT, http_app, opened
from perdure.http.auth import Authenticate, is_loopback
from perdure.model.durations import Duration

log = logging.getLogger("perdure.http")

HOST = "127.0.0.1"
PORT = 8000
PORT_MAX = 65535
STOP_SEC = 10  # how long requests may take when the server stops
BACKLOG = 2048


async def serve(
    client: Client,
    *,
    host: str = HOST,
    port: int = PORT,
    token: str | None = None,
    auth: Authenticate | None = None,
    webhook_keys: str | Sequence[str] = (),
    max_body: int = MAX_BODY,
    max_wait: Duration = MAX_WAIT,
    metrics: Render | None = None,
) -> None:
    """Serve the HTTP API of an App or Client until SIGTERM or SIGINT, then answer open requests and close it.

    - `client`: an App or Client, which is opened and closed unless it is open.
    - `host`: the address to listen on (default: 127.0.0.1). One that other machines can reach needs `token=` or
      `auth=`.
    - `port`: the port to listen on (default: 8000).
    - `token`, `auth`, `webhook_keys`, `max_body`, `max_wait`, `metrics`: see `http_app()` (default: as there).

    While the server stops, requests that wait for runs are answered at once, and others may take ten seconds. A second
    signal also ends the draining of the worker. Raises `ConfigurationError` for an address that needs a token or cannot
    be used, and `EngineError` if a background task keeps failing.
    """
    asgi = http_app(
        client,
        token=token,
        auth=auth,
        webhook_keys=webhook_keys,
        max_body=max_body,
        max_wait=max_wait,
        metrics=metrics,
    )
    if asgi.needs_local_clients and not is_loopback(host):
        raise ConfigurationError(
            f"serve(host={host!r}) would let other machines use the HTTP API, which has no token: pass token= or "
            "auth=, or listen on 127.0.0.1"
        )
    await serve_application(client, asgi, host, port)


class Application(Protocol):
    """An ASGI application that can end the requests that wait."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request."""

    def stop_waiting(self) -> None:
        """Answer all requests that wait."""


async def serve_application(
    client: Client, asgi: Application, host: str, port: int, name: str = "the HTTP API"
) -> None:
    """Serve an application of a client until SIGTERM or SIGINT; open and close the client, unless it is open."""
    await serve_together(client, [Server(asgi, listen(host, port), name)])


async def serve_together(client: Client, servers: "Sequence[Server]") -> None:
    """Serve with several servers until SIGTERM or SIGINT; open and close the client, unless it is open."""
    with _stopping_on_signals(client, servers) as signals:
        try:
            async with opened(client):
                tasks = [asyncio.create_task(server.run(client), name="perdure server") for server in servers]
                try:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for server in servers:
                        server.stop()
                    await finish(asyncio.wait(tasks))
                for task in tasks:
                    task.result()
        except asyncio.CancelledError:
            if not signals.hurried:
                raise
        finally:
            for server in servers:
                server.close()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; raise `ConfigurationError` if that is not possible."""
    listener: socket.socket | None = None
    try:
        if isinstance(port, int) and not 0 <= port <= PORT_MAX:  # getaddrinfo() may take another one, modulo 65536
            raise OverflowError(f"a port is a number from 0 to {PORT_MAX}")
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )[0]
        # With its protocol, or else asyncio does not set TCP_NODELAY, and each response takes 40 ms longer.
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        return listener
    except (OSError, OverflowError) as error:
        if listener is not None:
            listener.close()
        raise ConfigurationError(f"cannot listen on {host}, port {port} ({error}): choose another address") from error


class Server:
    """A uvicorn server that can be stopped, and then does not wait for requests that wait for runs."""

    def __init__(self, asgi: Application, listener: socket.socket, name: str = "the HTTP API") -> None:
        self._asgi, self._name = asgi, name
        self._listener = listener
        try:
            self._uvicorn = _new_uvicorn(asgi)
        except ImportError:
            listener.close()
            raise

    @property
    def url(self) -> str:
        """Return the URL of the server."""
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def run(self, client: Client) -> None:
        """Serve until the server is stopped; raise `EngineError` if a background task of the client keeps failing."""
        url = self.url
        serving = asyncio.create_task(self._uvicorn.serve(sockets=[self._listener]), name="perdure HTTP server")
        broken = asyncio.create_task(client.failure())
        log.info("%s listens on %s", self._name, url, extra={"url": url})
        try:
            await asyncio.wait([serving, broken], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.stop()
            if not broken.done():
                broken.cancel()
            await finish(asyncio.wait([serving, broken]))
            log.info("%s on %s stopped", self._name, url, extra={"url": url})
        serving.result()
        if not broken.cancelled():
            broken.result()

    def stop(self) -> None:
        """Accept no further requests, and answer those that wait for runs."""
        self._uvicorn.should_exit = True
        self._asgi.stop_waiting()

    def hurry(self) -> None:
        """End the requests that are still executed."""
        self._uvicorn.force_exit = True

    def close(self) -> None:
        """Close the socket, if the server has not."""
        self._listener.close()


def _new_uvicorn(asgi: Application) -> Any:
    try:
        import uvicorn
    except ImportError:
        raise ImportError('serve() needs the package uvicorn: pip install "perdure[http]"', name="uvicorn") from None

    class Uvicorn(uvicorn.Server):
        """Leaves signals to `serve()`: uvicorn would raise them again before the app is closed."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    settings = uvicorn.Config(
        asgi,
        lifespan="off",  # serve() opens and closes the app
        log_config=None,  # the program configures its log
        proxy_headers=False,  # a client could claim any address
        server_header=False,
        timeout_graceful_shutdown=STOP_SEC,
        ws="none",
    )
    return Uvicorn(settings)


class _Signals:
    """The signals that the process got: the first stops the servers, a second one ends everything at once."""

    def __init__(self, client: Client, servers: Sequence[Server]) -> None:
        self._client, self._servers = client, servers
        self._task = asyncio.current_task()
        self._stopped = False
        self.hurried = False

    def received(self) -> None:
        """Stop, or hurry."""
        if self._stopped and self._task is not None:
            self.hurried = True
            for server in self._servers:
                server.hurry()
            hurry(self._client)  # the cancellation alone may end the servers, and the app would drain after that
            self._task.cancel()
        self._stopped = True
        for server in self._servers:
            server.stop()


@contextmanager
def _stopping_on_signals(client: Client, servers: Sequence[Server]) -> Iterator[_Signals]:
    """Stop the servers at a signal; only the main thread gets signals, elsewhere the task has to be cancelled."""
    signals, loop = _Signals(client, servers), asyncio.get_running_loop()
    numbers = SIGNALS if threading.current_thread() is threading.main_thread() else ()
    for number in numbers:
        loop.add_signal_handler(number, signals.received)
    try:
        yield signals
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
