"""The endpoints for probes and metrics. Probes need no token and say nothing that is worth one."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure.http.api import API, answer, route
from perdure.http.documents import health_document
from perdure.http.problems import Problem


def routes(api: API) -> Sequence[Route]:
    """Return the routes of the probes and of the page of metrics."""

    async def get_healthz(request: Request) -> Response:
        """Return that the process is alive, also if its database is not."""
        return answer({"ok": True})

    return [
        Route("/healthz", get_healthz, methods=["GET"]),
        route(api, "GET", "/readyz", get_readyz, public=True),
        route(api, "GET", "/metrics", get_metrics),
    ]


async def get_readyz(api: API, request: Request) -> Response:
    """Return whether the database answers, migrations are applied and background tasks are healthy."""
    document = health_document(await api.client.health())
    return answer(document, 200 if document.ok else 503)


async def get_metrics(api: API, request: Request) -> Response:
    """Return the page that Prometheus scrapes."""
    if api.metrics is None:
        raise Problem(404, "this API has no metrics: create it with http_app(metrics=), such as Prometheus().render")
    page, content_type = api.metrics()
    return Response(page, headers={"Content-Type": content_type})
