"""Send requests to the HTTP API that schemathesis makes from its own description, valid and invalid ones.

No response may be a server error (5xx), and each must have a status, a content type and a body as described.
`python -m tests.http.fuzzing` sends at least 10,000 requests on each database.
"""

import argparse
import asyncio
import contextlib
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from perdure import App
from perdure.http import http_app
from perdure.http.server import Server, listen
from perdure.testing.servers import MySQLServer, PostgresServer
from tests.http import workflows  # noqa: F401 - defines what is started
from tests.support.databases import fresh_mysql, fresh_postgres

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
REQUESTS = 10_000
STARTS: list[tuple[str, str, dict[str, Any]]] = [  # runs that half of the requests for a run name
    ("ended", "http.order", {"id": "A-1", "lines": [{"sku": "pencil", "price": "0.10"}]}),
    ("failed", "http.failing", {"reason": "no"}),
    ("waiting", "http.waiter", {"type": "never"}),
    ("listening", "http.listener", {}),
]
RUNS = [id for id, *_ in STARTS]


class Fuzz:
    """Requests to a server, and how many there were of each status."""

    def __init__(self, url: str, first_seed: int = 0) -> None:
        self._url = url
        self._seed = first_seed
        self._schema = schemathesis.openapi.from_url(f"{url}/v1/openapi.json")
        self._session = requests.Session()
        self.statuses: Counter[int] = Counter()
        self.operations: Counter[str] = Counter()

    def send(self, examples: int) -> None:
        """Send so many valid and as many invalid requests to each operation; raise the first failure."""
        for id, path, body in STARTS:
            self._session.post(
                f"{self._url}/v1/workflows/{path}/runs", json={"id": id, "input": body}
            ).raise_for_status()
        for found in self._schema.get_all_operations():
            operation = cast(Any, found).ok()
            for mode in GenerationMode:
                with contextlib.suppress(_Impossible):
                    self._send(operation, mode, examples)

    def _send(self, operation: Any, mode: GenerationMode, examples: int) -> None:
        @seed(self._seed)
        @settings(
            max_examples=examples,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            verbosity=Verbosity.quiet,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: Any) -> None:
            if case.query and "wait" in case.query:
                case.query["wait"] = _short(case.query["wait"])
            if "id" in (case.path_parameters or {}) and self.count % 2:
                case.path_parameters["id"] = RUNS[self.count // 2 % len(RUNS)]
            response = case.call(base_url=self._url, session=self._session)
            self.statuses[response.status_code] += 1
            self.operations[operation.label] += 1
            case.validate_response(response, checks=CHECKS)

        try:
            cast(Callable[[], None], check)()
        except Exception as error:
            if "unsatisfiable" in f"{type(error).__name__} {error}".lower():
                raise _Impossible from None  # every request is valid, such as one without parameters
            raise

    @property
    def count(self) -> int:
        """Return the number of requests."""
        return self.statuses.total()


class _Impossible(Exception):
    """There is no such request."""


def _short(wait: Any) -> Any:
    """Return a wait that does not keep the test waiting."""
    return 0.01 if isinstance(wait, int | float) and 0 < wait <= 60 else wait


@contextlib.contextmanager
def served(database: str) -> Iterator[str]:
    """Yield the URL of a server for an app, which runs in a thread of its own."""
    ready, stop = threading.Event(), threading.Event()
    found: list[str] = []

    async def main() -> None:
        async with App(database) as app:
            server = Server(http_app(app), listen("127.0.0.1", 0))
            found.append(server.url)
            running = asyncio.create_task(server.run(app))
            ready.set()
            await asyncio.to_thread(stop.wait)
            server.stop()
            await running

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        ready.wait(60)
        yield found[0]
    finally:
        stop.set()
        thread.join()


@contextlib.asynccontextmanager
async def _databases(names: list[str]) -> AsyncIterator[dict[str, str]]:
    async with contextlib.AsyncExitStack() as stack:
        urls = {}
        for name in names:
            if name == "sqlite":
                folder = stack.enter_context(TemporaryDirectory())
                urls[name] = f"sqlite:///{Path(folder)}/fuzz.db"
            elif name == "postgresql":
                server = stack.enter_context(PostgresServer())
                urls[name] = await stack.enter_async_context(fresh_postgres(server.url))
            else:
                mysql = stack.enter_context(MySQLServer())
                urls[name] = await stack.enter_async_context(fresh_mysql(mysql.url))
        yield urls


async def main() -> None:
    """Fuzz the API on the chosen databases, and print what was sent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS, help="on each database")
    parser.add_argument("--database", nargs="+", default=["sqlite", "postgresql", "mysql"])
    parser.add_argument("--examples", type=int, help="for each operation, valid and invalid; default: by --requests")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("perdure.engine").setLevel(logging.CRITICAL)
    async with _databases(given.database) as urls:
        for name, database in urls.items():
            began, count, round_seed = time.monotonic(), 0, given.seed
            statuses: Counter[int] = Counter()
            while count < given.requests:
                with served(database) as url:
                    fuzz = Fuzz(url, round_seed)
                    fuzz.send(given.examples or max(10, math.ceil(min(given.requests - count, 5000) / 40)))
                count += fuzz.count
                statuses += fuzz.statuses
                round_seed += 1
            listed = ", ".join(f"{status}: {number}" for status, number in sorted(statuses.items()))
            took = time.monotonic() - began
            kinds = len(fuzz.operations)
            print(f"{name}: {count} requests to {kinds} operations in {took:.0f} s, no failure ({listed})", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
