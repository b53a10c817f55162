"""The HTTP API while its database server is down."""

import pytest

from perdure import Client
from perdure.database.backends.server import retries
from perdure.testing.servers import PostgresServer
from tests.http.conftest import connected


async def test_requests_are_refused_until_the_database_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "RETRY_SEC", 0.3)
    with PostgresServer() as server:
        async with Client(server.url) as client, connected(client) as http:
            assert (await http.get("/v1/runs")).status_code == 200
            server.kill()
            for answer in (await http.get("/v1/runs"), await http.post("/v1/events", json={"type": "x"})):
                assert (answer.status_code, answer.json()["code"]) == (503, "storage.unavailable")
                assert answer.headers["retry-after"] == "1"
                assert "127.0.0.1" not in answer.text
            assert (await http.get("/readyz")).status_code == 503
            assert (await http.get("/healthz")).status_code == 200
            server.start()
            assert (await http.get("/readyz")).status_code == 200
            assert (await http.get("/v1/runs")).status_code == 200
