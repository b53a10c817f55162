"""CloudEvents are recognised in every form in which brokers carry them."""

import json
from datetime import UTC, datetime

import pytest

from perdure import OutboxEvent
from perdure.brokers import cloudevents
from perdure.brokers.cloudevents import CloudEvent, received

ABOUT = {"specversion": "1.0", "id": "e-1", "type": "paid", "source": "/shop"}
EVENT = CloudEvent("e-1", "paid", "/shop", None, {"n": 1})


@pytest.mark.parametrize("prefix", ["ce-", "ce_", "cloudevents:", "cloudevents_"])
def test_binary_mode_is_recognised_by_the_headers(prefix: str) -> None:
    headers = {f"{prefix}{name}": value for name, value in ABOUT.items()}
    assert received({**headers, "content-type": "application/json; charset=utf-8"}, b'{"n": 1}') == EVENT
    assert received({**headers, f"{prefix}subject": "A-1"}, b"5") == CloudEvent("e-1", "paid", "/shop", "A-1", 5)


@pytest.mark.parametrize("headers", [{"content-type": "application/cloudevents+json; charset=utf-8"}, {}])
def test_structured_mode_is_recognised_by_the_content_type_or_the_body(headers: dict[str, str]) -> None:
    assert received(headers, json.dumps({**ABOUT, "data": {"n": 1}}).encode()) == EVENT


@pytest.mark.parametrize(
    ("kind", "body", "data"),
    [("text/plain", b"hi", "hi"), ("image/png", b"\x00\xff", "AP8="), ("application/json", b"", None)],
)
def test_data_of_another_type_becomes_text(kind: str, body: bytes, data: object) -> None:
    headers = {f"ce-{name}": value for name, value in ABOUT.items()}
    found = received({**headers, "content-type": kind}, body)
    assert found is not None
    assert found.data == data


@pytest.mark.parametrize("body", [b'{"n": 1}', b"5", b"\xff", b'{"specversion": 5}', b""])
def test_other_messages_are_no_cloudevents(body: bytes) -> None:
    assert received({"content-type": "application/json"}, body) is None


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({**ABOUT, "specversion": "0.3"}, "only 1.0 is supported"),
        ({**ABOUT, "id": ""}, "no attribute 'id'"),
        ({**ABOUT, "source": 5}, "no attribute 'source'"),
        ({**ABOUT, "data_base64": "?"}, "is not base64"),
        ([], "is not a JSON object"),
    ],
)
def test_invalid_cloudevent_is_refused(fields: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        received({"content-type": "application/cloudevents+json"}, json.dumps(fields).encode())


def test_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="send each event as application/cloudevents"):
        received({"content-type": "application/cloudevents-batch+json"}, b"[]")


@pytest.mark.parametrize("mode", ["structured", "binary"])
@pytest.mark.parametrize(
    ("event", "data"),
    [
        (OutboxEvent("e", "t", "s", b'{"a":1}', created_at=datetime(2026, 1, 1, tzinfo=UTC)), {"a": 1}),
        (OutboxEvent("e", "t", "s", None, b"\x00\xff", "binary", "image/png"), "AP8="),
        (OutboxEvent("e", "t", "s"), None),
    ],
)
def test_event_of_the_outbox_is_read_back(mode: str, event: OutboxEvent, data: object) -> None:
    body, headers = cloudevents.message(event, mode, "ce-")
    assert received(headers, body) == CloudEvent("e", "t", "s", None, data)
