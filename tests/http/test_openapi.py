"""The OpenAPI description: valid, complete, and true of the responses."""

from typing import Any

import httpx
import jsonschema_rs
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from perdure import App
from perdure.http import http_app, problems
from perdure.http.app import _routes
from tests.http.conftest import LOCAL, connected
from tests.http.workflows import order
from tests.support.programs import no_other_program

TOKEN = "a-token-of-many-characters"


async def description(app: App, **settings: Any) -> dict[str, Any]:
    async with connected(app, **settings) as http:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        found: dict[str, Any] = (await http.get("/v1/openapi.json", headers=headers)).json()
        return found


def refers(value: Any) -> set[str]:
    """Return the references in a description."""
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(refers, value.values()))
    return set().union(*map(refers, value)) if isinstance(value, list) else set()


async def test_description_has_every_route_and_workflow(app: App) -> None:
    found = await description(app)
    assert found["openapi"] == "3.1.0"
    api = http_app(app)._api
    paths = {route.path for route in _routes(api)} - {"/v1/workflows/{name}/runs", "/v1/openapi.json"}  # type: ignore[attr-defined]
    assert paths <= set(found["paths"])
    assert "/v1/workflows/http.order/runs" in found["paths"]
    for reference in refers(found):
        place: Any = found
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]
    ids = [operation["operationId"] for path in found["paths"].values() for operation in path.values()]
    assert len(set(ids)) == len(ids)


async def test_address_of_a_mounted_api_is_a_url(app: App) -> None:
    host = Starlette(routes=[Mount("/the shop/é", http_app(app, auth=lambda request: True))])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(host), base_url=LOCAL) as http:
        found = (await http.get("/the%20shop/%C3%A9/v1/openapi.json")).json()
        (server,) = found["servers"]
        assert server == {"url": "/the%20shop/%C3%A9"}
        assert (await http.get(f"{server['url']}/v1/workflows")).status_code == 200


async def test_schemas_are_those_of_the_workflow(app: App) -> None:
    found = await description(app)
    start = found["paths"]["/v1/workflows/http.order/runs"]["post"]
    assert start["description"] == "Add up an order."
    body = start["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["input"]
    assert body["properties"]["input"]["required"] == ["id", "lines"]
    assert body["properties"]["input"]["properties"]["rush"] == {"type": "boolean"}
    assert start["x-result"] == {"type": "string", "format": "decimal"}
    line = found["components"]["schemas"]["Line"]
    assert line["properties"]["price"] == {"type": "string", "format": "decimal"}
    assert line["required"] == ["sku", "price"]


async def test_token_and_signatures_are_described(app: App) -> None:
    key = "whsec_" + "A" * 32
    found = await description(app, token=TOKEN, webhook_keys=key)
    assert found["security"] == [{"token": []}]
    assert found["components"]["securitySchemes"]["token"] == {"type": "http", "scheme": "bearer"}
    assert found["paths"]["/v1/cloudevents"]["post"]["security"] == [
        {"webhook-id": [], "webhook-timestamp": [], "webhook-signature": []}
    ]
    assert "securitySchemes" not in (await description(app))["components"]


async def test_responses_fit_their_schemas(app: App, http: httpx.AsyncClient) -> None:
    found = await description(app)
    await (await order.options(id="A-1").start("A-1", [])).result(30)
    for path, name in [
        ("/v1/runs/{id}", "getRun"),
        ("/v1/runs/{id}/result", "getResult"),
        ("/v1/runs/{id}/steps", "getSteps"),
        ("/v1/runs/{id}/state", "getState"),
        ("/v1/runs/{id}/history", "getHistory"),
        ("/v1/runs", "listRuns"),
        ("/v1/workflows", "listWorkflows"),
        ("/readyz", "readyz"),
        ("/v1/runs/nobody", "getRun"),
    ]:
        answer = await http.get(path.replace("{id}", "A-1"))
        (operation,) = [
            each["get"] for each in found["paths"].values() if each.get("get", {}).get("operationId") == name
        ]
        content = operation["responses"][str(answer.status_code)]["content"]
        schema = content[answer.headers["content-type"]]["schema"]
        document = {"components": found["components"], "allOf": [schema]}
        jsonschema_rs.Draft202012Validator(document, validate_formats=True).validate(answer.json())


async def test_description_of_a_program_without_workflows(app: App) -> None:
    with no_other_program():
        assert not [path for path in (await description(app))["paths"] if path.startswith("/v1/workflows/")]


@pytest.mark.parametrize("status", sorted(problems.CODES))
def test_codes_are_documented(status: int) -> None:
    from tests.docs.marks import ROOT

    page = (ROOT / "docs" / "howto" / "http.md").read_text("utf-8")
    assert f"`{problems.CODES[status]}`" in page
