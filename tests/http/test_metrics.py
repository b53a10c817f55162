"""The page of metrics."""

import pytest
from prometheus_client import CollectorRegistry

from perdure import App
from perdure.http import http_app
from perdure.integrations.prometheus import Prometheus
from tests.conftest import BackendDatabase
from tests.http.conftest import connected
from tests.http.workflows import failing

TOKEN = "a token of some length"


async def test_metrics_are_served_behind_the_token(backend_database: BackendDatabase) -> None:
    metrics = Prometheus(CollectorRegistry())
    async with backend_database("memory") as database, App(database.url, metrics=metrics) as app:
        run = await failing.start("no")
        with pytest.raises(Exception, match="no"):
            await run.result(60)
        async with connected(app, token=TOKEN, metrics=metrics.render) as http:
            assert (await http.get("/metrics")).status_code == 401
            found = await http.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        assert found.status_code == 200
        assert found.headers["content-type"].startswith("text/plain")
        assert 'perdure_runs_started_total{workflow="http.failing"} 1.0' in found.text


async def test_there_is_no_page_without_metrics(app: App) -> None:
    async with connected(app) as http:
        found = await http.get("/metrics")
    assert (found.status_code, found.json()["code"]) == (404, "http.not_found")
    assert "http_app(metrics=)" in found.json()["detail"]
    with pytest.raises(TypeError, match=r"http_app\(metrics=\) must be a function"):
        http_app(app, metrics=Prometheus(CollectorRegistry()).render())  # type: ignore[arg-type]
