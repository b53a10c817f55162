"""Metrics for Prometheus: `App(metrics=Prometheus())`, and `render()` for the page that it scrapes."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

try:
    from prometheus_client import CONTENT_TYPE_LATEST as CONTENT_TYPE
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
except ImportError as error:
    raise ImportError('metrics need the package prometheus-client: pip install "perdure[prometheus]"') from error

from perdure.errors import ConfigurationError
from perdure.metrics import CATALOGUE, Metric

Collector = Counter | Gauge | Histogram


class Prometheus:
    """A meter whose metrics Prometheus scrapes. Use the same object for all Apps of a process.

    - `registry`: where the metrics are registered (default: the global registry of prometheus-client, together with the
      metrics of the program). A registry takes each metric once, so a second `Prometheus` needs another registry.

    Raises `ConfigurationError` if the registry has these metrics already.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        try:
            self._collectors = {metric: _collector(metric, registry) for metric in CATALOGUE}
        except ValueError as error:
            raise ConfigurationError(
                "the registry has the metrics of perdure already: use one Prometheus object for all Apps of the "
                "process, or give the second one a registry of its own, Prometheus(CollectorRegistry())"
            ) from error

    def bind(self, metric: Metric, *labels: str) -> Callable[[float], object]:
        """Return the function for one series; see `perdure.metrics.Meter`."""
        collector = self._collectors[metric]
        series = collector.labels(*labels) if metric.labels else collector
        if isinstance(series, Counter):
            return series.inc
        return series.set if isinstance(series, Gauge) else series.observe

    def render(self) -> tuple[bytes, str]:
        """Return the page that Prometheus scrapes, and its content type."""
        return _page(self._registry)

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Answer a request with the page: mount the object as an ASGI app, for example at `/metrics`."""
        if scope["type"] != "http":
            raise RuntimeError(f"the page of metrics answers HTTP requests only, not {scope['type']!r}")
        allowed = scope["method"] in ("GET", "HEAD")
        body, content_type = self.render() if allowed else (b"use GET", "text/plain")
        headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200 if allowed else 405, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def render_global() -> tuple[bytes, str]:
    """Return the page of the global registry of prometheus-client, and its content type."""
    return _page(REGISTRY)


def _page(registry: CollectorRegistry) -> tuple[bytes, str]:
    return generate_latest(registry), CONTENT_TYPE


def _collector(metric: Metric, registry: CollectorRegistry) -> Collector:
    match metric.kind:
        case "counter":
            return Counter(metric.name, metric.help, metric.labels, registry=registry)
        case "gauge":
            return Gauge(metric.name, metric.help, metric.labels, registry=registry)
        case "histogram":
            return Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets)
