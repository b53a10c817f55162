"""The endpoints for runs: start, inspect, wait, cancel, retry."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from perdure.engine.api.client import storage_of
from perdure.engine.api.queries import PAGE
from perdure.engine.api.step_reading import read_history_page
from perdure.engine.api.workflow import Workflow
from perdure.engine.history.codec import decode
from perdure.engine.replay.definitions import WORKFLOWS
from perdure.errors import LimitError, SerializationError
from perdure.http.api import API, answer, path_of, route, run_id_of
from perdure.http.bodies import WHOLE_MAX, Query, read_json
from perdure.http.documents import (
    STATUSES,
    Cancellation,
    HistoryDocument,
    RetryRequest,
    StartedDocument,
    StartRequestBody,
    StateDocument,
    StepsDocument,
    WorkflowDocument,
    WorkflowsDocument,
    entry_document,
    opened_token,
    outcome_document,
    page_document,
    readable,
    run_document,
    step_document,
)
from perdure.http.problems import Problem
from perdure.model.limits import PAGE_MAX

LIST_PARAMETERS = ("workflow", "status", "stuck", "where", "started_after", "started_before", "limit", "token")
SSE = "text/event-stream"


def routes(api: API) -> Sequence[Route]:
    """Return the routes of runs."""
    return [
        route(api, "GET", "/v1/workflows", list_workflows),
        route(api, "POST", "/v1/workflows/{name}/runs", start_run),
        route(api, "GET", "/v1/runs", list_runs),
        route(api, "GET", "/v1/runs/{id}", get_run),
        route(api, "GET", "/v1/runs/{id}/result", get_result),
        route(api, "GET", "/v1/runs/{id}/steps", get_steps),
        route(api, "GET", "/v1/runs/{id}/state", get_state),
        route(api, "GET", "/v1/runs/{id}/history", get_history),
        route(api, "POST", "/v1/runs/{id}/cancel", cancel_run),
        route(api, "POST", "/v1/runs/{id}/retry", retry_run),
    ]


async def list_workflows(api: API, request: Request) -> Response:
    """Return the workflows that can be started."""
    Query(request, ())
    found = [
        WorkflowDocument(each.name, None if each.schedule is None else each.schedule.expression, each.event)
        for each in sorted(WORKFLOWS.values(), key=lambda each: each.name)
    ]
    return answer(WorkflowsDocument(found))


async def start_run(api: API, request: Request) -> Response:
    """Start a run of a workflow, or find the existing run with the id."""
    Query(request, ())
    workflow = _workflow(path_of(request, "name"))
    body = await read_json(request, StartRequestBody, api.max_body)
    args, kwargs = _arguments(workflow, body.input)
    try:
        configured = workflow.options(
            id=body.id,
            at=body.at,
            after=body.after,
            timeout=body.timeout,
            if_exists=body.if_exists,
            headers=body.headers,
        )
        handle = await configured.start(*args, **kwargs)
    except (TypeError, ValueError, OverflowError) as error:
        raise Problem(422, str(error)) from None
    return _started(request, handle.id)


def _started(request: Request, id: str) -> Response:
    base = request.scope.get("root_path", "")
    return answer(StartedDocument(id), 202, Location=f"{quote(base)}/v1/runs/{quote(id, safe='')}")


def _workflow(name: str) -> Workflow[..., Any]:
    found = WORKFLOWS.get(name)
    if not isinstance(found, Workflow):
        raise Problem(
            404,
            f"no workflow {name!r} is defined in the process of the server: import its module there",
            code="http.workflow_not_found",
        )
    return found


def _arguments(workflow: Workflow[..., Any], given: dict[str, msgspec.Raw]) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a start; raise `Problem`, naming the parameter, if they don't fit the workflow."""
    signature = workflow.signature
    try:
        return signature.unbind(msgspec.json.encode(given))
    except SerializationError as error:
        raise _misfit(workflow, given, str(error)) from None


def _misfit(workflow: Workflow[..., Any], given: dict[str, msgspec.Raw], reason: str) -> Problem:
    hints = {name: hint for name, hint in workflow.signature.hints.items() if name != "return"}
    for name in [*given, *workflow.signature.required]:
        if name not in hints:
            detail = f"workflow {workflow.name!r} has no parameter {name!r}: it takes {', '.join(hints) or 'none'}"
            return Problem(422, detail, parameter=f"input.{name}")
        if name not in given:
            return Problem(422, f"workflow {workflow.name!r} needs the parameter {name!r}", parameter=f"input.{name}")
        try:
            decode(bytes(given[name]), hints[name])
        except SerializationError as error:
            return Problem(422, f"the argument {name!r}: {error}", parameter=f"input.{name}")
    return Problem(422, reason, parameter="input")


async def list_runs(api: API, request: Request) -> Response:
    """Return a page of the runs that match all given filters."""
    query = Query(request, LIST_PARAMETERS)
    status = query.text("status")
    if status is not None and status not in STATUSES:
        raise query.invalid("status", f"one of {', '.join(STATUSES)}")
    values = dict[str, str | bool | int | float | None]
    where = query.json("where", values, 'a JSON object of paths and values, such as {"order.id": "A-1"}')
    if where and api.client.pipeline is not None:
        reason = "where= cannot be used here, because the database cannot read inputs that a codec has encoded: "
        hint = "filter by workflow, status and start time, and compare the input of each run"
        raise Problem(422, reason + hint, parameter="where")
    token = query.text("token")
    try:
        found = api.client.runs(
            workflow=query.text("workflow"),
            status=status,
            stuck=query.flag("stuck"),
            where=where,
            started_after=query.moment("started_after"),
            started_before=query.moment("started_before"),
        )
        page = await found.page(query.whole("limit", PAGE, 1, PAGE_MAX), token and opened_token(token))
    except (ValueError, OverflowError) as error:
        raise Problem(422, str(error)) from None
    return answer(page_document(page))


async def get_run(api: API, request: Request) -> Response:
    """Return everything that is known of a run."""
    Query(request, ())
    return answer(run_document(await api.client.info(run_id_of(request))))


async def get_result(api: API, request: Request) -> Response:
    """Return how a run ended: now, within `wait` seconds, or as server-sent events."""
    query, id = Query(request, ("wait",)), run_id_of(request)
    wait = query.seconds("wait", api.max_wait)
    if SSE in request.headers.get("accept", ""):
        run = await api.client.info(id)
        events = api.waits.events(api.client, request, run, wait if query.text("wait") is not None else api.max_wait)
        return StreamingResponse(events, media_type=SSE, headers={"X-Accel-Buffering": "no"})
    document = outcome_document(await api.waits.end_of(api.client, request, id, wait))
    return answer(document, 200 if document.ended else 202)


async def get_steps(api: API, request: Request) -> Response:
    """Return the steps of a run."""
    Query(request, ())
    return answer(StepsDocument([step_document(each) for each in await api.client.steps(run_id_of(request))]))


async def get_state(api: API, request: Request) -> Response:
    """Return the value that a run last passed to `set_state()`."""
    Query(request, ())
    id = run_id_of(request)
    return answer(StateDocument(readable(await api.client.state(id), f"the state of run {id!r}")))


async def get_history(api: API, request: Request) -> Response:
    """Return a page of the history of a run."""
    query, id = Query(request, ("after", "limit")), run_id_of(request)
    after, limit = query.whole("after", 0, 0, WHOLE_MAX), query.whole("limit", PAGE, 1, PAGE_MAX)
    await api.client.check_run(id)
    entries, more = await read_history_page(storage_of(api.client), id, after, limit)
    return answer(HistoryDocument([entry_document(each) for each in entries], entries[-1].id if more else None))


async def cancel_run(api: API, request: Request) -> Response:
    """Cancel a run."""
    Query(request, ())
    id, body = run_id_of(request), await read_json(request, Cancellation, api.max_body)
    await api.client.cancel(id, body.reason)
    return answer(outcome_document(await api.client.info(id)), 202)


async def retry_run(api: API, request: Request) -> Response:
    """Start a failed or cancelled run again, as a new run."""
    Query(request, ())
    id, body = run_id_of(request), await read_json(request, RetryRequest, api.max_body)
    try:
        handle = await api.client.retry(id, from_step=body.from_step)
    except LimitError as error:
        raise Problem(422, str(error), code=error.code, parameter="from_step") from None
    return _started(request, handle.id)
