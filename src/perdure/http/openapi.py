"""The OpenAPI 3.1 description, made of the classes in `documents` and the type hints of the workflows."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure.engine.api.queries import PAGE
from perdure.engine.replay.definitions import WORKFLOWS, WorkflowDefinition
from perdure.http import documents
from perdure.http.api import API, answer, route
from perdure.http.bodies import WHOLE_MAX, Query
from perdure.http.cloud_events import BATCH_JSON, RECEIVER, STRUCTURED_JSON
from perdure.http.problems import MEDIA_TYPE, ProblemDocument
from perdure.http.schemas import REF, Schema, Schemas
from perdure.http.signatures import ID, SIGNATURE, TIMESTAMP
from perdure.model.limits import NAME_MAX, PAGE_MAX

JSON = "application/json"
PROBLEMS: dict[int, str] = {
    400: "The request is malformed.",
    401: "The request has no valid token or signature.",
    403: "The sender of the request is not allowed to use the API.",
    404: "The run or workflow does not exist.",
    409: "The state of the run does not allow this, or a different run has the id.",
    413: "The body is too large.",
    415: "The body has a media type that is not supported.",
    422: "A value does not fit; `parameter` says which.",
    500: "An unexpected error, which the server has logged.",
    503: "The database is unavailable, or the server stops.",
    504: "The request took too long.",
}


def routes(api: API) -> Sequence[Route]:
    """Return the route of the description."""
    return [route(api, "GET", "/v1/openapi.json", get_openapi)]


async def get_openapi(api: API, request: Request) -> Response:
    """Return the OpenAPI description of this API, with the workflows that are defined at the moment."""
    Query(request, ())
    return answer(describe(api, request.scope.get("root_path", "")))


def describe(api: API, root_path: str = "") -> dict[str, Any]:
    """Return the description of an API that is mounted at a path."""
    return _Description(api).whole(root_path)


class _Description:
    def __init__(self, api: API) -> None:
        self._api = api
        self._schemas = Schemas()

    def whole(self, root_path: str) -> dict[str, Any]:
        paths = {**self._runs(), **self._messages(), **self._probes(), **self._workflows()}
        problem = {"description": "The request was refused.", "content": {MEDIA_TYPE: self._json(ProblemDocument)}}
        whole: dict[str, Any] = {
            "openapi": "3.1.0",
            "info": {
                "title": "perdure",
                "version": "1",
                "description": "Start and inspect runs of durable workflows, and send them messages and events.",
            },
            "servers": [{"url": quote(root_path) or "/"}],
            "paths": paths,
            "components": {"schemas": self._schemas.components, "responses": {"Problem": problem}},
        }
        if schemes := self._security_schemes():
            whole["components"]["securitySchemes"] = schemes
        if self._api.guard.has_token:
            whole["security"] = [{"token": []}]
        return whole

    def _security_schemes(self) -> dict[str, Any]:
        schemes: dict[str, Any] = {}
        if self._api.guard.has_token:
            schemes["token"] = {"type": "http", "scheme": "bearer"}
        if self._api.signatures:
            for name in (ID, TIMESTAMP, SIGNATURE):
                schemes[name] = {"type": "apiKey", "in": "header", "name": name, "description": "Standard Webhooks"}
        return schemes

    # Paths.

    def _runs(self) -> dict[str, Any]:
        id = _in_path("id", "The id of the run. A slash in it is encoded as %2F.")
        wait = _in_query("wait", {"type": "number", "minimum": 0, "maximum": self._api.max_wait}, "Seconds to wait.")
        after = _in_query("after", {"type": "integer", "minimum": 0, "maximum": WHOLE_MAX}, "The last entry before.")
        return {
            "/v1/workflows": {
                "get": self._get("listWorkflows", "List the workflows that can be started", documents.WorkflowsDocument)
            },
            "/v1/runs": {
                "get": self._get("listRuns", "List runs, newest first", documents.RunPageDocument, _filters(), 422)
            },
            "/v1/runs/{id}": {
                "get": self._get("getRun", "Get everything that is known of a run", documents.RunDocument, [id], 404)
            },
            "/v1/runs/{id}/result": {"get": self._result([id, wait])},
            "/v1/runs/{id}/steps": {
                "get": self._get("getSteps", "Get the steps of a run", documents.StepsDocument, [id], 404)
            },
            "/v1/runs/{id}/state": {
                "get": self._get("getState", "Get the published state of a run", documents.StateDocument, [id], 404)
            },
            "/v1/runs/{id}/history": {
                "get": self._get(
                    "getHistory", "Get a page of a run's history", documents.HistoryDocument, [id, after, _limit()], 404
                )
            },
            "/v1/runs/{id}/cancel": {
                "post": self._post(
                    "cancelRun", "Cancel a run", documents.Cancellation, documents.OutcomeDocument, [id], 404, 409
                )
            },
            "/v1/runs/{id}/retry": {
                "post": self._post(
                    "retryRun",
                    "Start a failed or cancelled run again",
                    documents.RetryRequest,
                    documents.StartedDocument,
                    [id],
                    404,
                    409,
                )
            },
        }

    def _result(self, parameters: list[Any]) -> dict[str, Any]:
        found = self._get(
            "getResult", "Get how a run ended, or wait for it", documents.OutcomeDocument, parameters, 404
        )
        outcome = self._json(documents.OutcomeDocument)
        content = {JSON: outcome, "text/event-stream": {"schema": {"type": "string"}}}
        found["responses"]["200"] = {"description": "The run has ended.", "content": content}
        found["responses"]["202"] = {"description": "The run has not ended.", "content": {JSON: outcome}}
        return found

    def _messages(self) -> dict[str, Any]:
        id, channel = _in_path("id", "The id of the run."), _in_path("channel", "The name of the channel.")
        to = _in_query("to", {"type": "string", "minLength": 1}, "The id of the only run that receives the events.")
        stored = documents.StoredDocument
        event = self._post("sendEvent", "Send an event", documents.EventBody, stored, [], 404, 409)
        event["requestBody"]["required"] = True
        received = self._post("receiveCloudEvents", "Receive CloudEvents 1.0", dict[str, Any], stored, [to], 404, 409)
        received["requestBody"] = {"required": True, "content": _cloud_events()}
        received["description"] = (
            "An event in structured mode, a batch of events, or an event in binary mode, with `ce-` headers and any "
            "other media type. All events of a request are stored in one transaction before the response. An event "
            f"with the source and id of another one is stored once. The attribute {RECEIVER!r} names the only receiver."
        )
        for operation in (event, received):
            if self._api.signatures:
                operation["security"] = [{ID: [], TIMESTAMP: [], SIGNATURE: []}]
        message, direct = documents.MessageBody, documents.DirectMessage
        publish = self._post("publishMessage", "Send a message to a channel", message, stored, [channel], 409)
        send = self._post("sendMessage", "Send a message to a run", direct, stored, [id], 404)
        for operation in (publish, send):
            operation["requestBody"]["required"] = True
        return {
            "/v1/events": {"post": event},
            "/v1/cloudevents": {"post": received},
            "/v1/channels/{channel}/messages": {"post": publish},
            "/v1/runs/{id}/messages": {"post": send},
        }

    def _probes(self) -> dict[str, Any]:
        alive = {"200": {"description": "The process is alive."}}
        ready = self._json(documents.HealthDocument)
        answers = {
            "200": {"description": "The server is ready.", "content": {JSON: ready}},
            "503": {"description": "The server is not ready.", "content": {JSON: ready, **_problem()["content"]}},
        }
        page = {"text/plain": {"schema": {"type": "string"}}}
        return {
            "/healthz": {"get": {"operationId": "healthz", "security": [], "responses": alive}},
            "/readyz": {"get": {"operationId": "readyz", "security": [], "responses": answers}},
            "/metrics": {"get": self._operation("metrics", "Get the metrics for Prometheus", [], "200", page, (404,))},
        }

    def _workflows(self) -> dict[str, Any]:
        return {
            f"/v1/workflows/{quote(each.name, safe='')}/runs": {"post": self._start(each)}
            for each in sorted(WORKFLOWS.values(), key=lambda each: each.name)
        }

    def _start(self, workflow: WorkflowDefinition) -> dict[str, Any]:
        signature = workflow.signature
        parameters = {name: self._schemas.of(hint) for name, hint in signature.hints.items() if name != "return"}
        arguments: Schema = {"type": "object", "properties": parameters, "additionalProperties": False}
        body = self._resolved(documents.StartRequestBody)
        properties = {**body["properties"], "input": arguments}
        schema = {**body, "properties": properties, "title": f"Start of {workflow.name}", "additionalProperties": False}
        if signature.required:
            arguments["required"] = list(signature.required)
            schema["required"] = ["input"]
        found = self._post(
            "", f"Start a run of {workflow.name}", dict[str, Any], documents.StartedDocument, [], 404, 409
        )
        found["operationId"] = f"start.{workflow.name}"
        found["requestBody"] = {"required": bool(signature.required), "content": {JSON: {"schema": schema}}}
        if documentation := (workflow.function.__doc__ or "").strip():
            found["description"] = documentation
        found["x-result"] = self._schemas.of(signature.hints["return"], "serialization")
        return found

    # Operations.

    def _get(self, id: str, summary: str, kind: Any, parameters: Sequence[Any] = (), *refusals: int) -> dict[str, Any]:
        content = {JSON: self._json(kind)}
        return self._operation(id, summary, parameters, "200", content, (422, *refusals))

    def _post(
        self, id: str, summary: str, body: Any, kind: Any, parameters: Sequence[Any], *refusals: int
    ) -> dict[str, Any]:
        content = {JSON: self._json(kind)}
        found = self._operation(id, summary, parameters, "202", content, (400, 413, 415, 422, *refusals))
        return {**found, "requestBody": {"content": {JSON: self._json(body)}}}

    def _operation(
        self,
        id: str,
        summary: str,
        parameters: Sequence[Any],
        success: str,
        content: dict[str, Any],
        refusals: Sequence[int],
    ) -> dict[str, Any]:
        answers: dict[str, Any] = {success: {"description": summary + ".", "content": content}}
        for status in sorted({401, 403, 500, 503, 504, *refusals}):
            answers[str(status)] = {**_problem(), "description": PROBLEMS[status]}
        found: dict[str, Any] = {"operationId": id, "summary": summary, "responses": answers}
        if parameters:
            found["parameters"] = list(parameters)
        return found

    def _json(self, kind: Any) -> dict[str, Any]:
        return {"schema": self._schemas.of(kind, "serialization")}

    def _resolved(self, kind: Any) -> Schema:
        found = self._schemas.of(kind)
        return dict(self._schemas.components[found["$ref"].removeprefix(REF)])


def _problem() -> dict[str, Any]:
    return {"content": {MEDIA_TYPE: {"schema": {"$ref": f"{REF}{ProblemDocument.__name__}"}}}}


def _in_path(name: str, description: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, "maxLength": NAME_MAX}
    return {"name": name, "in": "path", "required": True, "description": description, "schema": schema}


def _in_query(name: str, schema: Schema, description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _limit() -> dict[str, Any]:
    schema = {"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE}
    return _in_query("limit", schema, "The size of the page.")


def _filters() -> list[dict[str, Any]]:
    moment = {"type": "string", "format": "date-time"}
    scalar = {"type": ["string", "boolean", "number", "null"]}
    where = {"type": "object", "additionalProperties": scalar}
    return [
        _in_query("workflow", {"type": "string"}, "The name of the workflow."),
        _in_query("status", {"enum": documents.STATUSES}, "The status; `waiting` is any of the three waits."),
        _in_query("stuck", {"type": "boolean"}, "Only stuck runs."),
        {
            "name": "where",
            "in": "query",
            "description": "Values at JSON paths of the input. It needs another filter as well.",
            "content": {JSON: {"schema": where}},
        },
        _in_query("started_after", moment, "Only runs that started after this time."),
        _in_query("started_before", moment, "Only runs that started before this time."),
        _limit(),
        _in_query("token", {"type": "string"}, "The `next_token` of the page before."),
    ]


def _cloud_events() -> dict[str, Any]:
    text = {"type": "string", "minLength": 1}
    event = {
        "type": "object",
        "properties": {
            "specversion": {"const": "1.0"},
            **dict.fromkeys(("id", "source", "type", "subject", "dataschema", "datacontenttype", RECEIVER), text),
            "time": {"type": "string", "format": "date-time"},
            "data": {},
            "data_base64": {"type": "string", "contentEncoding": "base64"},
        },
        "required": ["specversion", "id", "source", "type"],
    }
    return {STRUCTURED_JSON: {"schema": event}, BATCH_JSON: {"schema": {"type": "array", "items": event}}}
