"""Texts from outside are only values: stored unchanged or refused by a limit, on every database."""

import json
from collections.abc import Awaitable
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from perdure.errors import InstanceNotFoundError, InvalidPageTokenError, LeaseLostError, LimitError
from perdure.model.records import (
    ChannelMode,
    CompensationEntry,
    HistoryEvent,
    ListInstancesOptions,
    OutboxEvent,
    TimerSubscription,
    WorkflowInstance,
)
from perdure.model.states import WorkflowStatus
from perdure.storage.stores import SQLStorage, open_storage

PIECES = [
    *("'", '"', "`", "\\", "\\'", "''", ";", "--", "-- ", "#", "/*", "*/", "/*!", "%", "_", "%%", "%s", "%(id)s", "?"),
    *("$1", ":id", ":instance_id", "{now}", "{", "}", "$$", "@now", "\0", "\n", "\x1a", "\x7f", "\u2028", "\ufeff"),
    *("\ud800", "é", "e\u0301", "🦋", "ß", "İ", "\u00a0", " ", "a", "A", "1", "NULL", "\\N", "x'41'", "\\u0041"),
    *("' OR '1'='1", "'); DROP TABLE workflow_instances; --", "\\'; DELETE FROM workflow_instances; -- ", "a" * 120),
]
SAFE = {
    "deadline": None,
    "phases": [Phase.generate],  # a text that fails is short enough to see
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}

_SOON = timedelta(days=1)

text = st.lists(st.sampled_from(PIECES), max_size=4).map("".join) | st.text(st.characters(), max_size=8)
number = count()


def is_name(value: str, longest: int = 255) -> bool:
    """Return whether a value is a valid name, independently of the implementation."""
    outer = bool(value) and (value[0].isspace() or value[-1].isspace())
    control = any(ord(char) < 32 or 127 <= ord(char) < 160 or 0xD800 <= ord(char) < 0xE000 for char in value)
    return 0 < len(value) <= longest and not outer and not control


async def result_of(call: Awaitable[Any]) -> Any:
    """Return the result of a call, or `LimitError`; any other error fails the test."""
    try:
        return await call
    except LimitError:
        return LimitError


@settings(max_examples=6, **SAFE)  # type: ignore[arg-type]
@given(st.lists(text, min_size=10, max_size=14))
async def test_any_text_is_stored_as_a_value_or_refused(storage: SQLStorage, texts: list[str]) -> None:
    anchor = f"anchor-{next(number)}"
    await storage.create_instance(WorkflowInstance(anchor, "anchor"))
    for value in texts:
        await as_names(storage, anchor, value)
        await as_payloads(storage, anchor, value)
        if is_name(value, 180):
            own = f"{next(number)}:{value}"
            await storage.create_instance(WorkflowInstance(own, value, owner_service=value), worker_id=value)
            found = await storage.get_instance(own)
            assert found is not None
            assert (found.instance_id, found.workflow_name, found.locked_by) == (own, value, value)
        else:
            assert await result_of(storage.create_instance(WorkflowInstance(value, "wf" * 200))) is LimitError
        await as_questions(storage, anchor, f"nobody {value}")
    found = await storage.get_instance(anchor)
    assert found is not None
    assert found.status == "running"


async def as_names(storage: SQLStorage, anchor: str, value: str) -> None:
    """In every place for a name: there as it was given, or refused."""
    own, ok = f"{next(number)}:{value}", is_name(value, 240)
    told_all = [
        await result_of(storage.append_history(HistoryEvent(anchor, own, "E", b"1"))),
        await result_of(storage.add_compensation(CompensationEntry(anchor, own, own))),
        await result_of(storage.subscribe_to_channel(anchor, own, ChannelMode.BROADCAST)),
        await result_of(storage.publish_to_channel(own, b"1", message_id=own, source=own)),
        await result_of(storage.join_group(anchor, own)),
        await result_of(storage.register_timer_subscription(TimerSubscription(anchor, own, None), after=_SOON)),
        await result_of(storage.try_acquire_system_lock(own, own, 1)),
        await result_of(storage.beat_worker(own)),
        await result_of(storage.add_outbox_event(OutboxEvent(own, "paid", own))),
    ]
    assert [answer is not LimitError for answer in told_all] == [is_name(own)] * len(told_all)
    if not ok or not is_name(own):
        return
    events, _ = await storage.get_history_paginated(anchor, 0, 1000)
    assert events[-1].activity_id == own
    (newest,) = await storage.get_compensations(anchor, limit=1)
    assert newest.activity_name == own
    (message,) = await storage.get_pending_channel_messages(own)
    assert message.channel == own
    assert await storage.get_group_members(own) == [anchor]
    assert own in {worker.worker_id for worker in await storage.list_workers()}
    assert own in {event.event_id for event in await storage.list_outbox_events(limit=1000)}


async def as_payloads(storage: SQLStorage, anchor: str, value: str) -> None:
    """In payloads everything comes back but what no JSON text can hold."""
    channel = f"payload-{next(number)}"
    fits = not any(0xD800 <= ord(char) < 0xE000 for char in value)
    data = json.dumps({"text": value}, ensure_ascii=False).encode("utf-8", "surrogatepass")
    binary = value.encode("utf-8", "surrogatepass")
    answer = await result_of(storage.publish_to_channel(channel, data, data))
    assert (answer is not LimitError) == fits
    await storage.publish_to_channel(channel, binary, binary=True)
    messages = await storage.get_pending_channel_messages(channel)
    assert messages[-1].data_binary == binary
    if fits:
        assert (messages[0].data, messages[0].metadata) == (data, data)
        await storage.append_history(HistoryEvent(anchor, channel, "E", data))
        last = await storage.get_last_event(anchor, "E")
        assert last is not None
        assert last.event_data == data


async def as_questions(storage: SQLStorage, anchor: str, value: str) -> None:
    """Reading something that does not exist returns nothing or raises a limit error."""
    doomed = f"doomed-{next(number)}"
    await storage.create_instance(WorkflowInstance(doomed, "wf"))
    for call in (
        storage.get_instance(value),
        storage.get_instances([anchor, value]),
        storage.find_resumable_workflows(workflow_names=[value]),
        storage.get_last_event(anchor, value),
        storage.mark_outbox_event_sent(value),
        storage.settle_outbox_events(sent=[value], released=[value], relay_id=value),
        storage.mark_outbox_event_failed(value, error=value, relay_id=value),
        storage.increment_outbox_attempts(value, error=value),
        storage.requeue_outbox_event(value),
        storage.release_system_lock(value, value),
        storage.release_lock(anchor, value),
        storage.acquire_locks([value], value, 1),
        storage.claim_instances([value], value, 1, limit=1),
        storage.get_channel_mode(value),
        storage.get_channel_subscription(anchor, value),
        storage.fire_timer(value, value),
        storage.get_group_members(value),
        storage.deliver_pending(channels=[value]),
        storage.cancel_instance(doomed, value),
        storage.update_instance_status(anchor, WorkflowStatus.RUNNING, value),
    ):
        with suppress(InstanceNotFoundError, LeaseLostError):
            await result_of(call)


_FOLD = {n: n + 32 for n in range(ord("A"), ord("Z") + 1)}


@settings(max_examples=6, **SAFE)  # type: ignore[arg-type]
@given(st.lists(text, min_size=6, max_size=10), st.lists(text, min_size=4, max_size=6))
async def test_name_filter_has_no_wildcards_or_patterns(
    storage: SQLStorage, names: list[str], parts: list[str]
) -> None:
    """No wildcard, no folding but of ASCII letters, no pattern."""
    framework = f"n{next(number)}:"
    stored = [f"{framework}{name}" for name in dict.fromkeys(names) if is_name(f"{framework}{name}", 200)]
    assert set(await storage.create_instances([WorkflowInstance(name, name) for name in stored])) <= {None}
    for part in [*parts, *names, "%", "_", "\\", "'"]:
        wanted = [name for name in stored if part.translate(_FOLD) in name.translate(_FOLD)]
        for options in (ListInstancesOptions(instance_id_filter=part), ListInstancesOptions(workflow_name_filter=part)):
            page = await result_of(storage.list_instances(options))
            if page is not LimitError:
                found = [each.instance_id for each in page.instances if each.instance_id.startswith(framework)]
                assert page.has_more or sorted(found) == sorted(wanted)
            else:
                assert len(part) > 255 or "\0" in part or any(0xD800 <= ord(char) < 0xE000 for char in part)


TIMES = ["2026-03-01T12:00:00.123456+00:00", "2026-03-01 12:00:00", "9999-12-31T23:59:59.999999+00:00",
         "0001-01-01 00:00:00"]  # fmt: skip
token = (
    st.tuples(st.sampled_from([*TIMES, ""]), text, st.sampled_from(["||", "|", "'||'", ""]), text).map("".join)
    | st.tuples(st.sampled_from(TIMES), st.just("||"), text).map("".join)
    | st.tuples(st.sampled_from(TIMES), st.sampled_from(["Z", "+99:99", "-23:59", ".", "٣", "e5"]), text).map(
        lambda both: f"{both[0][:19]}{both[1]}||{both[2]}"
    )
    | text
)


@settings(max_examples=8, **SAFE)  # type: ignore[arg-type]
@given(st.lists(token, min_size=10, max_size=20))
async def test_forged_page_token_is_a_position_or_refused(storage: SQLStorage, tokens: list[str]) -> None:
    await storage.create_instances([WorkflowInstance(f"i-{next(number)}", "wf") for _ in range(3)])
    real = (await storage.list_instances(ListInstancesOptions(limit=1))).next_page_token or ""
    for each in [*tokens, *(real[:n] for n in range(0, len(real), 4)), f"{real}'", f"'{real}"]:
        try:
            page = await storage.list_instances(ListInstancesOptions(limit=1, page_token=each))
        except InvalidPageTokenError:
            continue
        assert len(page.instances) <= 1
    for each in tokens:
        with suppress(InvalidPageTokenError):
            await result_of(storage.list_outbox_events(after=each))


async def test_quoting_is_safe_in_a_session_with_a_changed_sql_mode(fresh_mysql_db: str) -> None:
    """A caller's own SQL may have left NO_BACKSLASH_ESCAPES in a session: a backslash then hides no quote."""
    async with open_storage(fresh_mysql_db) as storage, storage.transaction() as sql:
        await sql.execute("SET SESSION sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'")
        for n, value in enumerate(["\\", "\\'", "' OR 1=1 -- ", "\\' OR 1=1 -- ", '"', "a\\\\'b"]):
            await storage.create_instance(WorkflowInstance(f"i-{n}", "wf", json.dumps(value).encode()))
            await storage.create_instance(WorkflowInstance(f"x{value}x", "wf"))
            found, named = await storage.get_instances([f"i-{n}", f"x{value}x"])
            assert found is not None
            assert named is not None
            assert (json.loads(found.input_data), named.instance_id) == (value, f"x{value}x")
