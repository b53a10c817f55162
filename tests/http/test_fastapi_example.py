"""The example with FastAPI: an order and its run are one commit, and a CloudEvent reports the delivery."""

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from tests.engine.waiting import until
from tests.support.programs import load_anew, no_other_program
from tests.support.storages import Database

TOKEN = "a-token-of-many-characters"
ORDER = {"id": "1", "item": "lamp"}


@pytest.fixture
def shop(database: Database) -> Iterator[FastAPI]:
    with no_other_program():
        yield load_anew("examples.fastapi_shop").create_app(database.url, TOKEN)


@pytest.fixture
async def http(shop: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(shop, raise_app_exceptions=False)
    async with shop.router.lifespan_context(shop), httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        yield http
        async with shop.state.sessions() as session, session.begin():
            await session.execute(sa.text("DROP TABLE shop_orders"))


async def test_order_is_fulfilled(http: httpx.AsyncClient) -> None:
    assert (await http.post("/orders", json=ORDER)).json() == {"run": "order-1"}

    async def is_packed() -> bool:
        return bool((await http.get("/orders/1")).json()["status"] == "waiting_for_message")

    await until(is_packed)
    assert (await http.get("/orders/1")).json()["state"] == {"parcel": "parcel with lamp"}
    event = {"specversion": "1.0", "id": "1", "source": "carrier", "type": "parcel.delivered", "data": {"order": "1"}}
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/cloudevents+json"}
    assert (await http.post("/perdure/v1/cloudevents", json=event, headers=headers)).status_code == 202
    result = await http.get("/perdure/v1/runs/order-1/result?wait=30", headers=headers)
    assert result.json()["result"] == "parcel with lamp delivered"
    assert (await http.get("/orders/nothing")).status_code == 404


async def test_order_that_cannot_be_stored_has_no_run(http: httpx.AsyncClient) -> None:
    assert (await http.post("/orders", json=ORDER)).status_code == 201
    refused = await http.post("/orders", json={**ORDER, "item": "sofa"})
    assert (refused.status_code, refused.json()) == (409, {"detail": "order 1 exists already"})
    headers = {"Authorization": f"Bearer {TOKEN}"}
    (run,) = (await http.get("/perdure/v1/runs", headers=headers)).json()["runs"]
    assert run["input"] == {"order": ORDER}
