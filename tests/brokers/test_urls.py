"""URLs of brokers are checked when a publisher or subscription is created, and no password is ever shown."""

import sys
import traceback

import pytest

from perdure import App, Relay, Subscription
from perdure.brokers import HTTPPublisher, publisher_for
from perdure.brokers.urls import Template
from perdure.errors import ConfigurationError

PASSWORD = "s3cr3t-w0rd"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("nats:/host", "unknown scheme: use one of http://"),
        ("mqtt://host", "unknown scheme"),
        ("nats://ho st", "the NATS URL is malformed: write nats://user:password@host:4222/"),
        ("nats://host?subjet=a", "unknown option 'subjet' in the NATS URL: use one of ca_file, mode, subject"),
        ("nats://host?subject=a.{typ}", "the option subject of the NATS URL must be a text in which only {type} and"),
        ("nats://host?subject={type.__class__}", "the option subject of the NATS URL must be a text"),
        ("nats://host?subject={type!r}", "the option subject of the NATS URL must be a text"),
        ("nats://host?subject=order paid", "the option subject of the NATS URL must be a subject without spaces"),
        ("nats://host?subject=orders..{type}", "the option subject of the NATS URL must be a subject without spaces"),
        ("kafka://host?topic=orders/{type}", "the option topic of the Kafka URL must be a topic: at most 249 letters"),
        ("nats://host?subject=", "the option subject of the NATS URL must not be empty"),
        ("nats://host?mode=json", "the option mode of the NATS URL must be one of structured, binary"),
        ("redis://host/0?maxlen=0", "the option maxlen of the Redis URL must be a whole number greater than 0"),
        ("redis://host/orders", "the path of the Redis URL must be the number of a database"),
        ("redis://a,b/0", "the Redis URL must have one host"),
        ("kafka://host?mechanism=NTLM", "the option mechanism of the Kafka URL must be one of PLAIN"),
        ("https:///path", "the webhook URL is malformed"),
        ("https://host:99999/path", "the webhook URL is malformed"),
        ("https://host/path\n", "the webhook URL is malformed"),
    ],
)
def test_wrong_url_of_a_publisher_is_refused(url: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        publisher_for(url)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("nats://host", "needs a stream, a name without spaces, '.', '*', '>', '/' and '\\': write nats://host/STREAM"),
        ("nats://host/ORDERS.new", "needs a stream, a name without spaces, '.'"),
        ("nats://host/ORDERS?durable=a.b", "the option durable of the NATS URL must be a name without spaces, '.'"),
        ("nats://host/ORDERS?subject=a..b", "the option subject of the NATS URL must be a subject, which may have"),
        ("nats://host/ORDERS?dead_letter=dead.>", "the option dead_letter of the NATS URL must be a subject without"),
        ("kafka://host/or ders", "what the Kafka URL of a subscription names must be a topic: at most 249 letters"),
        ("kafka://host/orders,paid?dead_letter=paid", "dead_letter of the Kafka URL must be another topic"),
        ("redis://host/0?stream=s&dead_letter=s", "dead_letter of the Redis URL must be another stream"),
        ("kafka://host/orders?dead_letter=..", "the option dead_letter of the Kafka URL must be a topic"),
        ("amqp://host/", "needs a queue: write amqp://host/?queue=name"),
        ("kafka://host", "needs a topic: write kafka://host/topic"),
        ("redis://host/0", "needs a stream: write redis://host/0?stream=name"),
        ("https://host", "takes the URL of NATS, RabbitMQ, Kafka or Redis"),
        ("redis://host/0?stream=s&claim_after=-1", "must be a number of seconds greater than 0"),
        ("amqp://host/?queue=q&prefetch=65536", "the option prefetch of the RabbitMQ URL must be at most 65535"),
    ],
)
def test_wrong_url_of_a_subscription_is_refused(url: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Subscription(url)
    assert why in str(caught.value)


@pytest.mark.parametrize("subject", ["orders", "orders.*.paid", "orders.>", ">", "*"])
def test_subscription_to_nats_may_have_wildcards(subject: str) -> None:
    assert Subscription(f"nats://host/ORDERS?subject={subject}").shown


@pytest.mark.parametrize(
    "url",
    [
        f"nats://user:{PASSWORD}@host/STREAM?nonsense=1",
        f"amqp://user:{PASSWORD}@host/?nonsense={PASSWORD}",
        f"kafka://user:{PASSWORD}/x@host",
        f"redis://user:{PASSWORD}?x=y@host",
        f"mqtt://user:{PASSWORD}@host",
        f"https://user:{PASSWORD}/x@host",
    ],
)
def test_error_shows_no_password(url: str) -> None:
    for create in (publisher_for, Subscription):
        with pytest.raises(ConfigurationError) as caught:
            create(url)
        shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
        assert PASSWORD not in str(caught.value)
        assert PASSWORD not in "".join(line for line in shown.format() if "test_urls.py" not in line)


@pytest.mark.parametrize(
    "url", [f"{scheme}://user:{PASSWORD}@host/" for scheme in ("nats", "amqp", "kafka", "redis", "https")]
)
def test_repr_shows_no_password(url: str) -> None:
    assert PASSWORD not in repr(publisher_for(url))
    assert "host" in repr(publisher_for(url))


def test_address_of_a_webhook_is_shown_with_its_port() -> None:
    assert repr(publisher_for("https://user:pw@host:8443/hook?key=1")) == "HTTPPublisher('https://host:8443')"
    assert repr(publisher_for("http://[::1]/hook")) == "HTTPPublisher('http://[::1]')"


def test_repr_of_a_subscription_shows_no_password() -> None:
    subscription = Subscription(f"nats://user:{PASSWORD}@host/ORDERS")
    assert repr(subscription) == "Subscription('nats://host:4222/ORDERS (consumer perdure)')"


def test_template_is_filled_from_the_event() -> None:
    assert Template("orders.{type}{{x}}/{source}").fill(type="paid", source="/shop") == "orders.paid{x}//shop"


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("nats://host", "nats", "nats"),
        ("amqp://host", "aio_pika", "rabbitmq"),
        ("kafka://host", "aiokafka", "kafka"),
        ("redis://host", "redis.asyncio", "redis"),
        ("https://host", "httpx", "webhooks"),
    ],
)
def test_missing_library_names_its_extra(
    url: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for owner in (App, Relay):
        with pytest.raises(ConfigurationError) as caught:
            owner(f"sqlite:///{tmp_path}/x.db", publisher=url)
        assert f'pip install "perdure[{extra}]"' in str(caught.value)


@pytest.mark.parametrize("key", ["whsec_", "whsec_dGVzdA==", "no base64!", "whsec_" + "A" * 400])
def test_wrong_signing_key_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigurationError, match=r"HTTPPublisher\(signing_key=\) must be") as caught:
        HTTPPublisher("https://host", signing_key=key)
    assert key.removeprefix("whsec_") not in str(caught.value) or not key.removeprefix("whsec_")


def test_wrong_mode_of_a_webhook_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"HTTPPublisher\(mode=\) must be one of structured, binary"):
        HTTPPublisher("https://host", mode="json")
