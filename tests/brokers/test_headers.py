"""Headers of an event cross the outbox and a real broker, from one database to another."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from perdure import App, Client, OutboxEvent, Relay, Subscription, run_headers, send_event, wait_event, workflow
from perdure.brokers import BrokerMessage, ToChannel, ToEvent, cloudevents
from perdure.brokers.cloudevents import CloudEvent, received
from perdure.integrations.otel import OpenTelemetry
from perdure.model.header_attributes import OTHERS_MAX, RECEIVED_MAX
from perdure.model.headers import COUNT_MAX
from tests.brokers.brokers import structured
from tests.brokers.conftest import make_broker
from tests.engine.waiting import until, waiting

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADERS = {"traceparent": PARENT, "tracestate": "shop=a%20b", "tenant": 'Café "5 %"', "Häder": "x", "empty": ""}
ABOUT = {"specversion": "1.0", "id": "e-1", "type": "paid", "source": "/shop"}


@workflow(name="headers.sender")
async def sender() -> None:
    await send_event("headers.sent", {"n": 1}, id="e-1", source="/shop")


@workflow(name="headers.receiver")
async def receiver() -> dict[str, str]:
    return dict((await wait_event("headers.sent")).headers)


@workflow(name="headers.started", on_event="headers.traced")
async def started(data: int) -> str:
    return run_headers()["traceparent"]


@pytest.mark.parametrize(
    ("name", "options"),
    [("nats", {}), ("nats", {"mode": "binary"}), ("rabbitmq", {"mode": "binary"}), ("redis", {})],
)
async def test_headers_reach_a_run_of_another_database(
    name: str, options: dict[str, str], place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    broker = make_broker(request, name)
    await broker.create(place)
    subscriptions = [Subscription(broker.subscription(place))]
    async with App(f"sqlite:///{tmp_path}/to.db", subscriptions=subscriptions) as there:
        run = await receiver.start()
        await waiting(there, run.id)
        async with App(f"sqlite:///{tmp_path}/from.db", publisher=broker.publisher(place, **options)):
            await sender.options(headers=HEADERS).start()
            assert await run.result(20) == HEADERS


async def test_trace_continues_in_the_run_that_the_event_starts(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    otel, broker = OpenTelemetry(tracer_provider=provider), make_broker(request, "nats")
    await broker.create(place)
    here = f"sqlite:///{tmp_path}/from.db"
    subscriptions = [Subscription(broker.subscription(place))]
    async with (
        App(f"sqlite:///{tmp_path}/to.db", subscriptions=subscriptions, interceptors=[otel]),
        Relay(here, publisher=broker.publisher(place)),
        Client(here, outbox=True, interceptors=[otel]) as client,
    ):
        with provider.get_tracer("program").start_as_current_span("request"):
            await client.send_event("headers.traced", 1)
        await until(lambda: any(span.name == "process headers.started" for span in exporter.get_finished_spans()))
    spans = {_id(span.context): span for span in exporter.get_finished_spans()}
    (last,) = [span for span in spans.values() if span.name == "process headers.started"]
    path = [last.name]
    while last.parent is not None:
        last = spans[_id(last.parent)]
        path.append(last.name)
    # The second is of the receiving app, which stores the event again.
    assert path == ["process headers.started", "send headers.traced", "send headers.traced", "request"]


def _id(context: Any) -> int:
    return int(context.span_id)


# What headers become on the way.


def outbox(headers: object) -> OutboxEvent:
    return OutboxEvent("e-1", "paid", "/shop", b"1", headers=json.dumps(headers).encode())


@pytest.mark.parametrize("prefix", ["ce-", "ce_", "cloudevents:"])
@pytest.mark.parametrize("mode", ["structured", "binary"])
def test_headers_are_read_back(mode: str, prefix: str) -> None:
    body, about = cloudevents.message(outbox(HEADERS), mode, prefix)
    assert "".join([*about, *about.values()]).isascii()
    assert received(about, body) == CloudEvent("e-1", "paid", "/shop", None, 1, HEADERS)


def test_attributes_are_those_of_the_extension_for_tracing() -> None:
    found = cloudevents.attributes(outbox({"traceparent": PARENT, "tenant": "acmé"}))
    assert (found["traceparent"], found["perdureheaders"]) == (PARENT, '{"tenant": "acm\\u00e9"}')
    assert "tracestate" not in found
    assert "perdureheaders" not in cloudevents.attributes(outbox({"traceparent": PARENT}))
    assert set(cloudevents.attributes(OutboxEvent("e-1", "paid", "/shop"))) == {*ABOUT, "datacontenttype"}


def test_longest_headers_are_left_out_if_not_all_fit(caplog: pytest.LogCaptureFixture) -> None:
    found = cloudevents.attributes(outbox({"a": "x" * 5000, "b": "y" * 4000, "c": "z", "traceparent": PARENT}))
    assert json.loads(found["perdureheaders"]) == {"b": "y" * 4000, "c": "z"}
    assert found["traceparent"] == PARENT
    assert "event e-1 is published without the headers a: all of them have more than 8192 characters" in caplog.text


INVALID: list[dict[str, object]] = [
    {"traceparent": 5},
    {"traceparent": "a\nb"},
    {"tracestate": "é"},
    {"tracestate": "x" * 2049},
    {"perdureheaders": 5},
    {"perdureheaders": ""},
    {"perdureheaders": "{"},
    {"perdureheaders": "[1]"},
    {"perdureheaders": "[" * 5000},
    {"perdureheaders": '{"tenant": 5}'},
    {"perdureheaders": '{"": "x"}'},
    {"perdureheaders": '{"tenant": "\\ud800"}'},
    {"perdureheaders": '{"\\ud800": "x"}'},
    {"perdureheaders": '{"tenant": "a\\u0000b"}'},
    {"perdureheaders": json.dumps({"tenant": "x" * OTHERS_MAX})},
    {"perdureheaders": "%7B" * OTHERS_MAX * 2},
]


@pytest.mark.parametrize("about", INVALID, ids=str)
def test_invalid_headers_are_dropped_and_the_event_is_not(
    about: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    body = json.dumps({**ABOUT, "data": 1, **about}).encode()
    assert received({}, body) == CloudEvent("e-1", "paid", "/shop", None, 1)
    assert "headers of the received event 'e-1' were dropped: " in caplog.text


def test_one_invalid_header_takes_no_other_with_it() -> None:
    about = {"traceparent": PARENT, "perdureheaders": '{"a": 5, "b": "x", "traceparent": "other"}'}
    found = received({}, json.dumps({**ABOUT, **about}).encode())
    assert found is not None
    assert found.headers == {"traceparent": PARENT, "b": "x"}


def test_received_headers_leave_room_for_those_of_interceptors() -> None:
    about = {"traceparent": PARENT, "perdureheaders": json.dumps({f"h{n}": "x" for n in range(100)})}
    found = received({}, json.dumps({**ABOUT, **about}).encode())
    assert found is not None
    assert len(found.headers) == RECEIVED_MAX < COUNT_MAX
    assert "traceparent" in found.headers


def test_message_that_is_no_cloudevent_has_the_trace_of_its_headers() -> None:
    message = BrokerMessage(b"5", {"traceparent": PARENT, "tenant": "acme"}, "orders", "m-1", "redis:orders")
    url, about = "redis://host/0?stream=orders", ("m-1", "redis:orders")
    trace = {"traceparent": PARENT}
    assert Subscription(url, event="paid").read(message) == ToEvent("paid", 5, *about, headers=trace)
    assert Subscription(url, channel="paid").read(message) == ToChannel("paid", 5, None, *about, headers=trace)
    own = Subscription(url, convert=lambda message: ToEvent("paid", 5, headers={"tenant": "acme"}))
    assert own.read(message) == ToEvent("paid", 5, *about, headers={"tenant": "acme"})


def test_cloudevent_on_a_channel_keeps_its_headers() -> None:
    body = json.dumps({**json.loads(structured("e-1", 5)), "perdureheaders": '{"tenant": "acme"}'}).encode()
    message = BrokerMessage(body, {}, "orders", "m-1", "redis:orders")
    found = Subscription("redis://host/0?stream=orders", channel="paid").read(message)
    assert found == ToChannel("paid", 5, id="e-1", source="/shop", headers={"tenant": "acme"})


async def test_wrong_headers_of_a_function_reject_the_message(
    place: str, url: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    broker = make_broker(request, "redis")
    await broker.create(place)
    await broker.put(place, b"1")
    wrong: Any = {"tenant": 5}
    subscription = Subscription(broker.subscription(place), convert=lambda message: ToEvent("paid", 5, headers=wrong))
    async with App(url, subscriptions=[subscription]):
        await until(lambda: subscription.rejected == 1)
    assert "the header 'tenant' in the message of a broker must be a text, not int" in caplog.text
