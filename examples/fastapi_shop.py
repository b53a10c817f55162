"""A shop with FastAPI: an order and the run that fulfils it are one commit, and other systems report deliveries.

python -m examples.fastapi_shop [url]

The HTTP API of perdure is mounted at /perdure. It needs a token: set PERDURE_TOKEN, or use the one that is printed.
"""

import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import sqlalchemy as sa
import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from perdure import App, RunNotFoundError, activity, set_state, wait_event, workflow
from perdure.http import http_app

DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "mysql": "mysql+asyncmy"}

orders = sa.Table(
    "shop_orders", sa.MetaData(), sa.Column("id", sa.String(50), primary_key=True), sa.Column("item", sa.Text)
)


class Order(BaseModel):
    """An order of a customer."""

    id: str
    item: str


@activity
async def pack(order: Order) -> str:
    """Stand in for the warehouse."""
    return f"parcel with {order.item}"


@workflow(name="examples.fastapi_shop")
async def fulfil(order: Order) -> str:
    """Pack an order, and wait until it is delivered."""
    parcel = await pack(order)
    set_state({"parcel": parcel})
    await wait_event("parcel.delivered", where={"order": order.id})
    return f"{parcel} delivered"


async def session(request: Request) -> AsyncIterator[AsyncSession]:
    """Yield a session for one request, in a transaction that commits after it."""
    async with request.app.state.sessions() as session, session.begin():
        yield session


Session = Annotated[AsyncSession, Depends(session, scope="function")]  # commits before the response is sent


def create_app(url: str, token: str) -> FastAPI:
    """Return the shop, on a database for its orders and its runs."""
    runs = App(url)

    @asynccontextmanager
    async def lifespan(shop: FastAPI) -> AsyncIterator[None]:
        scheme, _, rest = url.partition(":")
        engine = create_async_engine(f"{DRIVERS[scheme]}:{rest}")
        shop.state.sessions = async_sessionmaker(engine)
        async with engine.begin() as connection:
            await connection.run_sync(orders.metadata.create_all)
        async with runs:  # starts the worker; the mounted API uses the same App
            yield
        await engine.dispose()

    shop = FastAPI(lifespan=lifespan)
    shop.mount("/perdure", http_app(runs, token=token))

    @shop.post("/orders", status_code=201)
    async def create_order(order: Order, session: Session) -> dict[str, str]:
        try:
            await session.execute(orders.insert().values(id=order.id, item=order.item))
        except IntegrityError:
            raise HTTPException(409, f"order {order.id} exists already") from None
        run = await fulfil.options(id=f"order-{order.id}", in_transaction=session).start(order)
        return {"run": run.id}

    @shop.get("/orders/{id}")
    async def get_order(id: str) -> dict[str, object]:
        try:
            run = await runs.info(f"order-{id}")
        except RunNotFoundError:
            raise HTTPException(404, f"there is no order {id}") from None
        return {"status": run.status.value, "state": run.state, "result": run.result}

    return shop


if __name__ == "__main__":
    token = os.environ.get("PERDURE_TOKEN") or secrets.token_urlsafe()
    print(f"the token of /perdure is {token}")
    uvicorn.run(create_app(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///shop.db", token))
