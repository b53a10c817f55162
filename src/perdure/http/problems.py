"""Errors as responses: problem details (RFC 9457), with the stable codes of `perdure.errors` and of this module.

A response never contains a traceback. An unexpected error is logged, and its response says only that it happened.
"""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import quote, unquote

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from perdure import errors
from perdure.error_pages import page_address
from perdure.errors import PerdureError

log = logging.getLogger("perdure.http")

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SEC = 1

# The codes of errors that are not perdure's own, by status.
CODES: dict[int, str] = {
    400: "http.bad_request",
    401: "http.unauthorized",
    403: "http.forbidden",
    404: "http.not_found",
    405: "http.method_not_allowed",
    409: "http.conflict",
    413: "http.too_large",
    415: "http.unsupported_media_type",
    422: "http.invalid",
    500: "http.internal",
    503: "http.unavailable",
    504: "http.timeout",
}

# By class; a subclass that is not listed has the status of its base class.
STATUSES: dict[type[PerdureError], int] = {
    PerdureError: 500,
    errors.StorageError: 500,
    errors.SchemaError: 503,
    errors.DatabaseUnavailableError: 503,
    errors.TransactionConflictError: 503,
    errors.CommitUnknownError: 503,
    errors.InstanceNotFoundError: 404,
    errors.InstanceExistsError: 409,
    errors.WorkflowNotCancellableError: 409,
    errors.InvalidTransitionError: 409,
    errors.HistoryConflictError: 409,
    errors.ChannelModeConflictError: 409,
    errors.InvalidJSONPathError: 422,
    errors.InvalidPageTokenError: 422,
    errors.LimitError: 422,
    errors.EngineError: 409,
    errors.SerializationError: 422,
    errors.EventDataError: 422,
    errors.RunExistsError: 409,
    errors.RunNotFoundError: 404,
    errors.ClosedError: 503,
}


FAILURES: dict[type[PerdureError], str] = {
    errors.CodecError: (
        "the server cannot encode or decode a value that the request needs: its log says which, and what is missing"
    ),
    errors.StorageError: "the database is unavailable or refused the request: send it again later",
    errors.CommitUnknownError: (
        "the connection to the database was lost during the commit, which may have succeeded: send the request again "
        "with the same id"
    ),
}


class Problem(Exception):
    """A refused request: the response to it."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        code: str | None = None,
        parameter: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code or CODES.get(status, f"http.{status}")
        self.parameter = parameter
        self.headers = dict(headers or {})

    def document(self) -> "ProblemDocument":
        """Return the JSON of the response."""
        return ProblemDocument(
            type=page_address(self.code),
            title=_phrase(self.status),
            status=self.status,
            detail=self.detail,
            code=self.code,
            parameter=self.parameter or msgspec.UNSET,
        )

    def response(self) -> Response:
        """Return the response."""
        headers = dict(self.headers)
        if self.status == 503:
            headers.setdefault("Retry-After", str(RETRY_AFTER_SEC))
        return Response(msgspec.json.encode(self.document()), self.status, headers, MEDIA_TYPE)


class ProblemDocument(msgspec.Struct, kw_only=True):
    """Why a request was refused. `code` is stable and meant for programs, `detail` is meant for people.

    `type` is the address of the page about the code.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    parameter: str | msgspec.UnsetType = msgspec.UNSET


def problem_of(error: PerdureError) -> Problem:
    """Return the problem for an error that perdure raised. The message of a failing database is logged, not sent."""
    status = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
    if status < 500 or not isinstance(error, errors.StorageError):
        return Problem(status, str(error), code=error.code)
    log.warning(
        "a request failed: %s: %s",
        type(error).__name__,
        error,
        extra={"code": error.code, "error_type": type(error).__name__, "error_message": str(error)},
    )
    kind = next(each for each in type(error).__mro__ if each in FAILURES)
    return Problem(status, FAILURES[kind], code=error.code)


def problem_for(request: Request, error: Exception) -> Problem:
    """Return the problem for any error; one that should not happen is logged."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, PerdureError):
        return problem_of(error)
    if isinstance(error, HTTPException):
        return of_http(request, error)
    if isinstance(error, TimeoutError):
        return Problem(504, f"the request took too long: {error}")
    return unexpected(request, error)


def unexpected(request: Request, error: BaseException) -> Problem:
    """Log an error that should not happen, and return the problem for it, which says nothing about its cause."""
    path = asked_path(request)
    log.error(
        "%s %s failed with an unexpected error: %s: %s",
        request.method,
        path,
        type(error).__name__,
        error,
        extra={"method": request.method, "path": path, "error_type": type(error).__name__},
        exc_info=error,
    )
    return Problem(500, "the request failed with an unexpected error, which the server has logged")


async def refuse(request: Request, error: Exception) -> Response:
    """Return the response for a request that no route takes."""
    if isinstance(error, Problem):
        return error.response()
    assert isinstance(error, HTTPException), "registered for these two classes only"
    return of_http(request, error).response()


def of_http(request: Request, error: HTTPException, index: str = "/v1/openapi.json") -> Problem:
    """Return the problem for an exception of Starlette, which a function of the user may also raise.

    `index` is the path of what says which paths there are.
    """
    base, path = request.scope.get("root_path", ""), asked_path(request)  # where the application is mounted
    detail = {
        404: f"there is nothing at {path}: see {base}{index} for what there is",
        405: f"{path} does not support {request.method}: see the header Allow",
    }.get(error.status_code, "")
    if not detail or error.detail != _phrase(error.status_code):
        detail = error.detail or _phrase(error.status_code)
    return Problem(error.status_code, detail, headers=error.headers)


def asked_path(request: Request) -> str:
    """Return the path as the client sent it, for logs and messages: encoded, so it has no control characters.

    `request.url` would also have the Host header in it, which may be anything, and raises if that is no host.
    """
    raw: bytes = request.scope.get("raw_path") or quote(unquote(request.scope["path"])).encode()
    return raw.partition(b"?")[0].decode("ascii", "backslashreplace")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
