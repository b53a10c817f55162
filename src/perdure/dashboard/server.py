"""Serving the dashboard alone, with uvicorn."""

from collections.abc import Collection
from datetime import timedelta

from perdure.dashboard.access import Access
from perdure.dashboard.app import AUDIT_RETENTION, dashboard_app
from perdure.dashboard.audit import Audit
from perdure.dashboard.values import Redact
from perdure.engine.api.client import Client
from perdure.errors import ConfigurationError
from perdure.http.auth import is_loopback
from perdure.http.server import serve_application

HOST = "127.0.0.1"
PORT = 8001


async def serve_dashboard(
    client: Client,
    *,
    host: str = HOST,
    port: int = PORT,
    token: str | None = None,
    access: Access | None = None,
    redact: Redact | Collection[str] | None = None,
    audit: Audit | None = None,
    audit_retention: timedelta | None = AUDIT_RETENTION,
    title: str = "perdure",
) -> None:
    """Serve the dashboard of an App or Client until SIGTERM or SIGINT.

    - `client`: an App or Client, which is opened and closed unless it is open.
    - `host`: the address to listen on (default: 127.0.0.1). One that other machines can reach needs `token=` or
      `access=`.
    - `port`: the port to listen on (default: 8001).
    - `token`, `access`, `redact`, `audit`, `audit_retention`, `title`: see `dashboard_app()` (default: as there).

    Raises `ConfigurationError` for an address that needs a token or cannot be used, and `EngineError` if a background
    task keeps failing.
    """
    asgi = dashboard_app(
        client, token=token, access=access, redact=redact, audit=audit, audit_retention=audit_retention, title=title
    )
    if asgi.needs_local_clients and not is_loopback(host):
        raise ConfigurationError(
            f"serve_dashboard(host={host!r}) would let other machines use the dashboard, which has no token: pass "
            "token= or access=, or listen on 127.0.0.1"
        )
    try:
        await serve_application(client, asgi, host, port, "the dashboard")
    finally:
        await asgi.close()
