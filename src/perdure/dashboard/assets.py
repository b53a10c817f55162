"""The two files of the dashboard that browsers keep: each has its digest in its URL, so a new version is a new URL."""

import hashlib
from functools import cache
from importlib.resources import files

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

TYPES = {"app.js": "text/javascript", "style.css": "text/css", "icon.svg": "image/svg+xml"}
YEAR_SEC = 365 * 24 * 3600


@cache
def _content(name: str) -> tuple[bytes, str]:
    data = files("perdure.dashboard").joinpath("static", name).read_bytes()
    return data, hashlib.sha256(data).hexdigest()[:12]


def asset_url(root: str, name: str) -> str:
    """Return the URL of a file."""
    return f"{root}/static/{_content(name)[1]}/{name}"


async def static(request: Request) -> Response:
    """Return a file."""
    name = request.path_params["name"]
    if name not in TYPES:
        raise HTTPException(404)
    data, digest = _content(name)
    current = request.path_params["digest"] == digest
    kept = f"public, max-age={YEAR_SEC}, immutable" if current else "no-cache"
    return Response(data, media_type=TYPES[name], headers={"Cache-Control": kept})
