"""A stub applies to the apps of the test that enters it, and to no other; strict tests."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextvars import Context
from datetime import timedelta
from pathlib import Path

import pytest

from perdure import App, Client, EngineError, Retry, WorkflowFailedError, activity, workflow
from perdure.engine.replay.stubs import new_scope
from perdure.errors import StubError
from perdure.testing import Stub, TestApp
from perdure.testing.stubs import only_stubs

MEMORY = "sqlite:///:memory:"


@activity(retry=Retry(attempts=1))
async def name() -> str:
    return "real"


@activity(name="scopes.fetch", retry=Retry(attempts=3, initial=0))
async def fetch(what: str) -> str:
    return f"real {what}"


@fetch.compensation
async def drop(what: str) -> None: ...


@workflow
async def naming() -> str:
    return await name()


@workflow
async def fetching(what: str) -> str:
    try:
        return await fetch(what)
    except Exception:
        return "hidden"


@workflow
async def failing(what: str) -> None:
    await fetch(what)
    raise RuntimeError("enough")


# Scopes.


async def test_stub_that_is_entered_before_the_app_applies_to_it() -> None:
    with name.stub(returns="stub"):
        async with App(MEMORY):
            assert await naming() == "stub"


async def test_stub_that_is_entered_after_the_app_applies_to_it() -> None:
    async with App(MEMORY):
        with name.stub(returns="stub"):
            assert await naming() == "stub"
        assert await naming() == "real"


async def test_stub_applies_to_all_workers_of_its_test(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/two.db"
    async with App(url, workflows=[naming]) as first, App(url, workflows=[fetching]) as second:
        with name.stub(returns="stub"), fetch.stub(returns="stub") as fetched:
            assert await naming() == "stub"
            assert await fetching("a") == "stub"
        assert first.worker_id != second.worker_id
        assert await naming() == "real"
    assert len(fetched.calls) == 1


async def test_stub_applies_to_an_app_that_is_opened_again(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/again.db")
    await app.__aenter__()
    with name.stub(returns="stub"):
        assert await naming() == "stub"
        await app.__aexit__(None, None, None)
        async with app:
            assert await naming() == "stub"


@pytest.mark.parametrize("outer", [False, True], ids=["alone", "inside another app"])
async def test_stub_does_not_apply_to_another_test_on_the_same_loop(outer: bool) -> None:
    turn = asyncio.Barrier(2)

    async def test(value: str | None) -> str:
        async with App(MEMORY):
            await turn.wait()
            if value is None:
                await turn.wait()
                found = await naming() + await name()
                await turn.wait()
            else:
                with name.stub(returns=value):
                    await turn.wait()
                    found = await naming() + await name()
                    await turn.wait()
            return found

    async def tests() -> list[str]:
        return list(await asyncio.gather(test("stub"), test(None)))

    if outer:
        async with App(MEMORY):
            assert await tests() == ["stubstub", "realreal"]
    else:
        assert await tests() == ["stubstub", "realreal"]


async def test_stub_applies_to_the_only_app_although_another_task_has_opened_it() -> None:
    opened, stop = asyncio.Event(), asyncio.Event()

    async def serve() -> None:
        async with App(MEMORY):
            opened.set()
            await stop.wait()

    task = asyncio.create_task(serve())
    await opened.wait()
    with name.stub(returns="stub"):
        assert await naming() + await name() == "stubstub"
    assert await naming() + await name() == "realreal"
    stop.set()
    await task


async def test_stub_applies_to_the_apps_of_other_tasks_that_share_its_scope(tmp_path: Path) -> None:
    url, opened, stop = f"sqlite:///{tmp_path}/shared.db", asyncio.Barrier(2), asyncio.Event()

    async def work() -> None:
        async with App(url):
            await opened.wait()
            await stop.wait()

    async def use() -> str:
        async with Client(url):
            with name.stub(returns="stub"):
                return await naming()

    with new_scope(shared=True):
        worker = asyncio.create_task(work())
        await opened.wait()
        assert await asyncio.create_task(use()) == "stub"
        async with Client(url):
            assert await naming() == "real"
    stop.set()
    await worker


async def test_closed_app_of_the_context_does_not_hide_the_open_one() -> None:
    app = App(MEMORY)
    await app.__aenter__()
    await asyncio.create_task(app.__aexit__(None, None, None))  # so this context still has its scope
    opened, stop = asyncio.Event(), asyncio.Event()

    async def serve() -> None:
        async with App(MEMORY):
            opened.set()
            await stop.wait()

    task = asyncio.create_task(serve(), context=Context())
    await opened.wait()
    with name.stub(returns="stub"):
        assert await naming() == "stub"
    stop.set()
    await task


async def test_stub_is_refused_where_it_is_not_clear_to_which_app_it_applies() -> None:
    opened, stop = asyncio.Barrier(3), asyncio.Event()

    async def serve() -> None:
        async with App(MEMORY):
            await opened.wait()
            await stop.wait()

    tasks = [asyncio.create_task(serve()) for _ in range(2)]
    await opened.wait()
    with pytest.raises(EngineError, match=r"name.stub\(\) was entered where 2 Apps or Clients are open"):
        name.stub(returns="stub").__enter__()
    assert await name() == "real"
    stop.set()
    await asyncio.gather(*tasks)


@pytest.fixture
def stubbed() -> Iterator[Stub[[], str]]:
    with name.stub(returns="stub") as stub:
        yield stub


@pytest.fixture
async def app() -> AsyncIterator[App]:
    async with App(MEMORY) as app:
        yield app


async def test_stub_of_a_fixture_applies_to_the_app_of_a_later_fixture(stubbed: Stub[[], str], app: App) -> None:
    assert await naming() == "stub"
    assert len(stubbed.calls) == 1


async def test_stub_of_a_fixture_applies_to_the_app_of_an_earlier_fixture(app: App, stubbed: Stub[[], str]) -> None:
    assert await naming() == "stub"
    assert len(stubbed.calls) == 1


@pytest.mark.usefixtures("app")
async def test_nothing_is_left_of_the_stubs_of_other_tests() -> None:
    assert await naming() == "real"
    assert await name() == "real"


def test_stub_applies_without_a_running_loop() -> None:
    async def main() -> str:
        async with App(MEMORY):
            return await naming()

    with name.stub(returns="stub"):
        assert asyncio.run(main()) == "stub"
    assert asyncio.run(main()) == "real"


# Strict tests.


async def test_strict_test_refuses_an_activity_without_a_stub() -> None:
    async with App(MEMORY):
        with pytest.raises(StubError) as caught, only_stubs():
            with name.stub(returns="stub"):
                assert await naming() == "stub"
            run = await fetching.options(id="f-1").start("a")
            assert await run.result() == "hidden"
            assert [step.attempts for step in await run.steps()] == [1]
        assert await naming() == "real"
    assert str(caught.value) == (
        "activity 'scopes.fetch' was called in run 'f-1', step '1:scopes.fetch', and has no stub in a strict test: use "
        "`with fetch.stub(…):`, or fetch.stub(using=fetch.function) to execute it"
    )


async def test_strict_test_accepts_stubs_that_were_entered_before_it_or_execute_the_activity() -> None:
    async with App(MEMORY):
        with name.stub(returns="stub"), only_stubs(), fetch.stub(using=fetch.function):
            assert await naming() == "stub"
            assert await fetching("a") == "real a"


async def test_strict_test_refuses_compensations_and_direct_calls_without_a_stub() -> None:
    async with App(MEMORY):
        message = r"activity 'drop' was called in run .*, step 'undo:1:scopes.fetch', and has no stub"
        with pytest.raises(StubError, match=message), only_stubs(), fetch.stub(returns="a"):
            run = await failing.start("a")
            with pytest.raises(WorkflowFailedError, match="enough"):
                await run.result()
        with pytest.raises(StubError, match="activity 'name' was called, and has no stub"), only_stubs():
            await name()


async def test_refused_activity_is_a_note_of_another_error_but_not_of_the_run_that_failed_by_it() -> None:
    async with App(MEMORY):
        with pytest.raises(AssertionError) as caught, only_stubs():
            assert await fetching("a") == "real a"
        assert any("has no stub in a strict test" in note for note in caught.value.__notes__)
        with pytest.raises(WorkflowFailedError, match="has no stub in a strict test") as failed, only_stubs():
            await naming()
        assert not hasattr(failed.value, "__notes__")


@pytest.mark.perdure(strict=True)
async def test_strict_app_refuses_an_activity_without_a_stub(perdure: TestApp) -> None:
    with name.stub(returns="stub"):
        assert await naming() == "stub"
    with pytest.raises(WorkflowFailedError, match="has no stub in a strict test"):
        async with TestApp(strict=True):
            await naming()
    with pytest.raises(StubError, match=r"activity 'scopes\.fetch' was called"):
        async with TestApp(strict=True):
            assert await fetching("a") == "hidden"


async def test_stub_follows_the_clock_of_its_app(perdure: TestApp) -> None:
    began = perdure.clock.now
    with name.stub(returns="stub", delay=timedelta(days=1)):
        assert await naming() == "stub"
    assert perdure.clock.now - began >= timedelta(days=1)


async def test_stub_that_was_entered_before_the_app_follows_its_clock() -> None:
    with name.stub(returns="stub", delay=timedelta(days=1)):
        async with TestApp() as app:
            began = app.clock.now
            assert await naming() == "stub"
    assert app.clock.now - began >= timedelta(days=1)


async def test_stubbed_activity_times_out_by_the_clock_of_its_app(perdure: TestApp) -> None:
    @activity(timeout=timedelta(hours=1), retry=Retry(attempts=2, initial=timedelta(hours=1)))
    async def slow() -> str:
        return "real"

    @workflow
    async def hurrying() -> str:
        return await slow()

    began = perdure.clock.now
    with slow.stub(returns="late", delay=timedelta(days=1)) as stub, pytest.raises(WorkflowFailedError) as caught:
        await hurrying()
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert len(stub.calls) == 2
    assert timedelta(hours=2) <= perdure.clock.now - began < timedelta(hours=4)
