"""The HTTP API: an ASGI application that starts and inspects runs and receives events.

`http_app(app)` returns it, to be served alone or mounted into another ASGI application; `serve(app)` serves it.
"""

try:
    import cloudevents  # noqa: F401
    import starlette  # noqa: F401
except ImportError as error:
    raise ImportError(
        f'perdure.http needs the package {error.name}: pip install "perdure[http]"', name=error.name
    ) from None

from perdure.http.app import HTTPApp, http_app
from perdure.http.auth import Authenticate
from perdure.http.server import serve

__all__ = ["Authenticate", "HTTPApp", "http_app", "serve"]
