"""Reading requests: bodies with a maximum size and depth, JSON by the types of `documents`, query parameters."""

import re
from collections.abc import Collection
from datetime import datetime
from itertools import accumulate
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from perdure.http.problems import Problem

T = TypeVar("T")

DEPTH_MAX = 100  # of arrays and objects in one another
WHOLE_MAX = 2**63 - 1

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_STEPS = {**dict.fromkeys(b"[{", 1), **dict.fromkeys(b"]}", -1)}
_OTHERS = bytes(each for each in range(256) if each not in _STEPS)
_JSON = re.compile(r"(application|text)/([a-z0-9.-]+\+)?json\Z")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`\Z", re.DOTALL)  # of msgspec
_WHOLE = re.compile(r"[0-9]{1,19}\Z")


async def read_body(request: Request, longest: int) -> bytes:
    """Return the body; raise `Problem` as soon as it is known to be too long, before it is read."""
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise Problem(415, "compressed bodies are not supported: send the body without Content-Encoding")
    stated = request.headers.get("content-length")
    if stated is not None:
        if not stated.isascii() or not stated.isdigit():
            raise Problem(400, "the header Content-Length is not a number")
        _check_length(request, int(stated[:20]), longest)  # Python refuses to read numbers of thousands of digits
    parts: list[bytes] = []
    length = 0
    async for part in request.stream():
        length += len(part)
        _check_length(request, length, longest)
        parts.append(part)
    return b"".join(parts)


def _check_length(request: Request, length: int, longest: int) -> None:
    if length > longest:
        unread = request.scope.get("http_version", "1.1").startswith("1")  # later versions end only the request
        raise Problem(
            413,
            f"the body has more than {longest} bytes: store large data elsewhere and pass a reference to it, or "
            "increase http_app(max_body=)",
            headers={"Connection": "close"} if unread else None,
        )


def media_type(request: Request) -> str:
    """Return the media type of the body, without its parameters and in lower case."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(type: str) -> bool:
    """Return whether a media type is JSON."""
    return _JSON.match(type) is not None


async def read_json(request: Request, kind: type[T], longest: int) -> T:
    """Return the body as an object of this class; raise `Problem` if it is not JSON, too long, or does not fit.

    An empty body is an object without fields.
    """
    body = await read_body(request, longest)
    if body:
        check_media_type(request)
    parsed: T = parse(body or b"{}", kind)
    return parsed


def check_media_type(request: Request) -> None:
    """Raise `Problem` if the body is not JSON, by its media type."""
    if not is_json(media_type(request)):
        raise Problem(415, "the body must be JSON: send it with the header Content-Type: application/json")


def parse(body: bytes, kind: Any) -> Any:
    """Return the value of a JSON text; raise `Problem` if it is not JSON, nested too deeply, or does not fit."""
    check_text(body)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        parameter = path.rstrip("`").lstrip(".") or None
        if parameter is None and (unknown := _UNKNOWN_FIELD.match(message)):
            parameter = unknown[1]
            known = ", ".join(each.encode_name for each in msgspec.structs.fields(kind))
            message = f"there is no field {parameter!r} here: it takes {known}"
        raise Problem(422, f"the body does not fit: {message}", parameter=parameter) from None
    except msgspec.DecodeError as error:
        raise Problem(400, f"the body is not JSON: {error}") from None
    except RecursionError:
        raise Problem(422, f"the body has more than {DEPTH_MAX} arrays and objects in one another") from None


def check_text(body: bytes) -> None:
    """Raise `Problem` if a JSON text is not UTF-8, or nested too deeply for the code that handles its values."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise Problem(400, f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    if body.count(b"[") + body.count(b"{") <= DEPTH_MAX:
        return
    brackets = _STRING.sub(b"", body).translate(None, _OTHERS)
    if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > DEPTH_MAX:
        raise Problem(422, f"the body has more than {DEPTH_MAX} arrays and objects in one another")


class Query:
    """The query parameters of a request."""

    def __init__(self, request: Request, known: Collection[str]) -> None:
        given = request.query_params
        for name in given:
            if name not in known:
                listed = f"it takes {', '.join(known)}" if known else "it takes none"
                raise Problem(422, f"there is no query parameter {name!r} here: {listed}", parameter=name)
            if len(given.getlist(name)) > 1:
                raise Problem(422, f"the query parameter {name!r} is given more than once", parameter=name)
        self._given = given

    def text(self, name: str) -> str | None:
        """Return a parameter, or None."""
        return self._given.get(name)

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        """Return a whole number."""
        text = self._given.get(name)
        if text is None:
            return default
        if not _WHOLE.match(text) or not least <= int(text) <= most:
            raise self.invalid(name, f"a whole number from {least} to {most}")
        return int(text)

    def seconds(self, name: str, most: float) -> float:
        """Return a number of seconds (default: 0)."""
        text = self._given.get(name, "0")
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= most:
            raise self.invalid(name, f"a number of seconds from 0 to {most:g}")
        return value

    def flag(self, name: str) -> bool:
        """Return whether a parameter is `true` (default: False)."""
        text = self._given.get(name, "false")
        if text not in ("true", "false"):
            raise self.invalid(name, "true or false")
        return text == "true"

    def moment(self, name: str) -> datetime | None:
        """Return a time with a time zone, or None."""
        text = self._given.get(name)
        if text is None:
            return None
        try:
            value = datetime.fromisoformat(text)
        except ValueError:
            raise self.invalid(name, "a time such as 2026-01-31T12:00:00Z") from None
        if value.tzinfo is None:
            raise self.invalid(name, "a time with a time zone, such as 2026-01-31T12:00:00Z")
        return value

    def json(self, name: str, kind: Any, what: str) -> Any:
        """Return the value of a JSON text, or None."""
        text = self._given.get(name)
        if text is None:
            return None
        try:
            return parse(text.encode("utf-8", "surrogatepass"), kind)
        except Problem:
            raise self.invalid(name, what) from None

    def invalid(self, name: str, what: str) -> Problem:
        """Return the problem of a parameter that is not `what`."""
        return Problem(422, f"the query parameter {name!r} must be {what}", parameter=name)
