"""Events and messages to a run that does not exist, or that has ended."""

import logging

import pytest

from perdure import App, Retry, RunNotFoundError, activity, send_event, send_to, wait_event, workflow
from tests.engine.api.workflows import simple
from tests.engine.waiting import waiting
from tests.support.storages import Database

SOON = 60


@activity(retry=Retry(attempts=1), name="api.sends")
async def sends(to: str, how: str) -> str:
    try:
        await (send_event("api.go", 1, to=to) if how == "event" else send_to(to, "api.news", 1))
    except RunNotFoundError as error:
        return f"refused: {error}"
    return "sent"


@workflow(name="api.sender")
async def sender(to: str, how: str) -> list[str]:
    outcomes = [await sends(to, how)]
    try:
        await (send_event("api.go", 1, to=to) if how == "event" else send_to(to, "api.news", 1))
        outcomes.append("sent")
    except RunNotFoundError as error:
        outcomes.append(f"refused: {error}")
    await wait_event("api.end")
    return outcomes


@pytest.mark.behaviour("events")
@pytest.mark.parametrize("how", ["event", "message"])
async def test_message_to_an_unknown_run_is_refused(database: Database, how: str) -> None:
    async with App(database.url, max_cached_runs=0) as app:
        for send in (
            app.send_event("api.go", 1, to="nobody"),
            app.send_to("nobody", "api.news", 1),
            send_event("api.go", 1, to="nobody"),
        ):
            with pytest.raises(RunNotFoundError, match="run 'nobody' does not exist"):
                await send
        handle = await sender.options(id="sender").start("nobody", how)
        await waiting(app, "sender")
        await app.send_event("api.end", None, to="sender")  # the body is replayed
        refused = "refused: run 'nobody' does not exist: check the id, and whether retention has removed it"
        assert await handle.result(SOON) == [refused, refused]


@pytest.mark.behaviour("events")
async def test_message_to_an_ended_run_is_dropped(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "perdure.engine")
    async with App(database.url) as app:
        await (await simple.options(id="x").start("x")).result(SOON)
        await app.send_event("api.go", 1, to="x")
        assert "a message to run x (api.simple) was dropped: the run is completed" in caplog.messages
        assert await app._storage.get_pending_channel_messages("api.go:x") == []
