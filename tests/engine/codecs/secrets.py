"""Workflows that store a value in every place that there is, and a search for that value in a database."""

from pathlib import Path

from perdure import (
    Retry,
    TerminalError,
    activity,
    receive,
    recur,
    send_event,
    set_state,
    subscribe,
    wait_event,
    workflow,
)
from perdure.storage.migrations import tables
from perdure.storage.stores import SQLStorage
from tests.support.storages import Database

MARKER = "Zebra-4711"  # in every value
undone: list[object] = []
tried: list[str] = []


@activity
async def pay(card: str) -> str:
    return f"receipt {card}"


@pay.compensation
async def refund(card: str, *, result: str | None) -> None:
    undone.append((card, result))


@activity(retry=Retry(attempts=2, initial=0.001))
async def flaky(card: str) -> str:
    tried.append(card)
    if len(tried) % 2:
        raise ConnectionError(f"no connection for {card}")
    return card


@activity(retry=Retry(attempts=1))
async def decline(card: str) -> None:
    raise TerminalError(f"{card} declined")


@workflow(name="codecs.child")
async def child(card: str) -> dict[str, str]:
    return {"child of": card}


@workflow(name="codecs.everything")
async def everything(card: str) -> list[object]:
    set_state({"card": card})
    await subscribe("codecs.notes")
    paid, again = await pay(card), await flaky(card)
    event = await wait_event("codecs.paid", where={"card": card})
    note = await receive("codecs.notes")
    await send_event("codecs.sent", {"card": card})
    return [paid, again, event.data, event.subject, note.data, dict(note.metadata), await child(card)]


@workflow(name="codecs.declined")
async def declined(card: str) -> None:
    await pay(card)
    await decline(card)


@workflow(name="codecs.waiting")
async def waiting(card: str) -> object:
    paid = await pay(card)
    event = await wait_event("codecs.paid", where={"card": card})
    return [paid, event.data]


@workflow(name="codecs.impatient", max_tries=1)
async def impatient(card: str) -> str:
    return card


@workflow(name="codecs.recurring")
async def recurring(card: str, left: int) -> str:
    paid = await pay(card)
    if left:
        recur(card, left - 1)
    return paid


async def dump(database: Database) -> bytes:
    """Return everything that a database stores, with the file of SQLite."""
    storage = await database.storage()
    if not isinstance(storage, SQLStorage):
        return repr(storage.world.tables).encode()  # type: ignore[unreachable]
    found = [b""]
    for table in tables(storage.dialect):
        name = f"{storage.schema}.{table}" if storage.schema else table
        rows = await storage.db().fetch(f"SELECT * FROM {name}")
        found += [repr([_plain(value) for value in row]).encode() for row in rows]
    if database.backend == "sqlite":
        path = Path(database.url.removeprefix("sqlite:///"))
        found += [each.read_bytes() for each in path.parent.glob(f"{path.name}*")]
    return b"\n".join(found)


def _plain(value: object) -> object:
    return bytes(value) if isinstance(value, bytearray | memoryview) else value
