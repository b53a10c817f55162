"""The dashboard: web pages that show runs, say why they wait, and let people cancel, retry and delete them.

`dashboard_app(app)` returns it as an ASGI application, to be mounted into another one; `serve_dashboard(app)` serves
it alone.
"""

try:
    import jinja2  # noqa: F401
    import starlette  # noqa: F401
except ImportError as error:
    raise ImportError(
        f'perdure.dashboard needs the package {error.name}: pip install "perdure[dashboard]"', name=error.name
    ) from None

from perdure.dashboard.access import Access, Action, Grant
from perdure.dashboard.app import DashboardApp, dashboard_app
from perdure.dashboard.audit import Audit, AuditEntry
from perdure.dashboard.server import serve_dashboard
from perdure.dashboard.values import Redact

__all__ = [
    "Access",
    "Action",
    "Audit",
    "AuditEntry",
    "DashboardApp",
    "Grant",
    "Redact",
    "dashboard_app",
    "serve_dashboard",
]
