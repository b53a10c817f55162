"""Queries: runs by workflow, status, time and input."""

import base64
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from perdure import App, Retry, RunInfo, WorkflowFailedError, WorkflowStatus, activity, set_state, sleep, workflow
from perdure.errors import InvalidPageTokenError, LimitError
from perdure.model.records import WorkflowInstance
from perdure.storage.stores import SQLStorage
from tests.engine.api.workflows import Order, child, simple
from tests.engine.waiting import status_of, waiting
from tests.support.storages import Database, storage_of

SOON = 60
DAY = timedelta(days=1)
done: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    done.clear()


async def fill(storage: SQLStorage, count: int, **fields: Any) -> None:
    start = datetime.now(UTC) - DAY
    for first in range(0, count, 1000):
        rows = [
            WorkflowInstance(
                f"i-{n:05}",
                "api.simple",
                b'{"text": "%d"}' % (n % 10),
                started_at=start + timedelta(milliseconds=n),
                **fields,
            )
            for n in range(first, min(first + 1000, count))
        ]
        assert set(await storage.create_instances(rows)) == {None}


@pytest.mark.call("run")
async def test_ten_thousand_runs_are_paged_counted_and_read_with_few_statements(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = 10_500
    async with App(database.url, workflows=[]) as client:
        storage = storage_of(client)
        await fill(storage, total, status=WorkflowStatus.WAITING_FOR_EVENT)
        assert await client.runs().count() == 10_000
        assert await client.runs().count(limit=20_000) == total
        assert await client.runs(workflow="api.simple", where={"text": "3"}).count() == total // 10
        calls: Counter[str] = Counter()
        for name in ("_read", "_scan"):
            plain = getattr(storage, name)

            def counted(operation: Any, *args: Any, plain: Any = plain, **kwargs: Any) -> Any:
                calls[operation.__name__] += 1
                return plain(operation, *args, **kwargs)

            monkeypatch.setattr(storage, name, counted)
        seen = [run.id async for run in client.runs(workflow=simple)]
        assert seen == [f"i-{n:05}" for n in reversed(range(total))]
        pages = total // 100 + 1
        assert calls["_page"] in (pages, pages - 1)
        assert sum(calls.values()) <= 5 * pages, calls


async def test_query_by_workflow_status_time_and_input(database: Database) -> None:
    async with App(database.url) as app:
        for text in ("one", "two", "bad"):
            with pytest.raises(WorkflowFailedError) if text == "bad" else _nothing():
                await (await simple.options(id=text).start(text)).result(SOON)
        await (await child.options(id="other").start(Order("o", Decimal(1)))).result(SOON)

        async def found(**filters: Any) -> set[str]:
            return {run.id async for run in app.runs(**filters)}

        assert await found() == {"one", "two", "bad", "other"}
        assert await found(workflow=simple) == await found(workflow="api.simple") == {"one", "two", "bad"}
        assert await found(workflow="api") == set()  # a whole name
        assert await found(status="failed") == await found(status=WorkflowStatus.FAILED) == {"bad"}
        assert await found(workflow=simple, status="completed", where={"text": "two"}) == {"two"}
        moment = datetime.now(UTC)
        assert await found(started_before=moment - DAY) == await found(started_after=moment + DAY) == set()
        assert await found(started_after=moment - DAY, where={"order.id": "o"}) == {"other"}
        first = await app.runs(workflow=simple, status="failed").first()
        assert isinstance(first, RunInfo)
        assert (first.id, first.input, first.children, first.state) == ("bad", {"text": "bad"}, None, None)
        assert await app.runs(status="cancelled").first() is None


class _nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


async def test_invalid_query_arguments_are_refused(database: Database) -> None:
    async with App(database.url, workflows=[]) as client:
        with pytest.raises(ValueError, match=r"runs\(status=\) is one of 'running', .*, not 'finished'"):
            client.runs(status="finished")
        naive = datetime(2026, 1, 1)
        for name in ("started_after", "started_before"):
            with pytest.raises(ValueError, match=rf"runs\({name}=\) must have a time zone"):
                client.runs(**{name: naive})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"runs\(where=\) reads the input of every run.*pass workflow="):
            client.runs(where={"text": "x"})
        with pytest.raises(LimitError):
            client.runs(where={"text": []}, status="failed")  # type: ignore[dict-item]
        deep, unsearchable = b"[" * 20_000, json.dumps([None, "a\0", "w", "running", ""]).encode()
        crafted = [base64.urlsafe_b64encode(token).decode() for token in (deep, unsearchable)]
        for token in ("", "rubbish", "2026-01-01||", "W251bGxd", *crafted):
            for stuck_ones in (False, True):
                with pytest.raises(InvalidPageTokenError):
                    await client.runs(stuck=stuck_ones).page(5, token)
        for limit in (0, 1001, True):
            with pytest.raises(ValueError, match="a page has 1 to 1000 runs"):
                await client.runs().page(limit)


@activity(retry=Retry(attempts=1))
async def shout(what: str) -> str:
    done.append(what)
    if what == "bad":
        raise ValueError(what)
    return what.upper()


@workflow(name="queries.shouter")
async def shouter(what: str) -> str:
    set_state({"about to shout": what})
    return await shout(what)


@workflow(name="queries.sleeper")
async def sleeper(what: str) -> None:
    set_state(what)
    await sleep(DAY)


@pytest.mark.call("run")
async def test_runs_are_found_by_id_and_by_filters(database: Database) -> None:
    async with App(database.url) as app:
        for what in ("one", "two", "bad"):
            await shouter.options(id=what).start(what)
        waits = await sleeper.options(id="long").start("long")
        assert [await app.get(what).result(SOON) for what in ("one", "two")] == ["ONE", "TWO"]
        with pytest.raises(WorkflowFailedError):
            await app.get("bad").result(SOON)
        await status_of(waits, WorkflowStatus.WAITING_FOR_TIMER)

        async def listed(**filters: Any) -> set[str]:
            return {run.id async for run in app.runs(**filters)}

        assert await listed() == {"one", "two", "bad", "long"}
        assert await listed(workflow="queries.shouter") == {"one", "two", "bad"}
        assert await listed(status=WorkflowStatus.FAILED) == {"bad"}
        assert await listed(where={"what": "two"}, workflow=shouter) == {"two"}
        moment = datetime.now(UTC)
        assert await listed(started_before=moment - DAY) == await listed(started_after=moment + DAY) == set()
        first = await app.runs().page(3)
        rest = await app.runs().page(3, first.next_token)
        assert [len(first.runs), len(rest.runs)] == [3, 1]
        assert rest.next_token is None


async def test_page_without_payloads_has_empty_inputs_and_any_wait_is_one_status(database: Database) -> None:
    async with App(database.url) as app:
        await sleeper.options(id="waits-1").start("some text")
        await waiting(app, "waits-1")
        (run,) = (await app.runs(status="waiting").page(payloads=False)).runs
        assert (run.id, dict(run.input), run.result) == ("waits-1", {}, None)
        assert [each.id async for each in app.runs(status="waiting")] == ["waits-1"]
        assert await app.runs(status="waiting").count() == 1
        assert await app.runs(status="running").count() == 0
