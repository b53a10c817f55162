"""Redis streams: `redis://user:password@host:6379/0?…`."""

import os
import secrets
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

from perdure.brokers import cloudevents, urls
from perdure.brokers.extras import library
from perdure.brokers.failures import in_a_header, login_refused, not_answering, not_connected, not_permitted
from perdure.brokers.incoming import BrokerMessage
from perdure.brokers.urls import BrokerURL, Kind, Template
from perdure.errors import BrokerRefusedError, BrokerUnavailableError, ConfigurationError
from perdure.model.records import OutboxEvent

CONNECT_SEC = 5.0
ANSWER_SEC = 10.0
FETCH_SEC = 2.0  # less than ANSWER_SEC
BATCH = 100
CLAIM_SEC = 60.0  # entries that another consumer has not acknowledged for so long are abandoned
DATA = "data"  # the field with the body
DENIED_COMMAND = "no permissions to run the"  # whatever the stream is

# Answers that the same command may not get later. The library removes some of these words from its errors, and says
# them by the class.
NOT_NOW = ("OOM", "MISCONF", "NOREPLICAS", "LOADING", "NOGROUP", "UNBLOCKED", "BUSY ")

_PLAIN, _TLS = {"redis": 6379}, {"rediss": 6379}
_OUT = Kind("Redis", _PLAIN, _TLS, {"stream": Template, "maxlen": urls.count}, "0")
_IN = Kind(
    "Redis",
    _PLAIN,
    _TLS,
    {"stream": urls.text, "group": urls.text, "claim_after": urls.duration, "dead_letter": urls.text},
    "0",
)


class RedisPublisher:
    """Append events to a stream, with the attributes of the CloudEvent and `data` as fields."""

    shown = ""  # the address for messages and logs, once the URL is checked

    def __init__(self, url: str) -> None:
        self._redis = library("redis.asyncio", "redis")
        self._url = _parse(url, _OUT)
        self._stream = self._url.options.get("stream") or Template("{type}")
        self._maxlen = self._url.options.get("maxlen")
        self.shown = self._url.shown
        self._client: Any = None

    def __repr__(self) -> str:
        return f"RedisPublisher({self.shown!r})"

    async def __aenter__(self) -> Self:
        self._client = await _connected(self._redis, self._url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def publish(self, event: OutboxEvent) -> None:
        """Append one event to its stream."""
        stream = self._stream.fill(type=event.event_type, source=event.event_source)
        data = event.event_data if event.event_data_binary is None else event.event_data_binary
        fields = {**cloudevents.attributes(event), DATA: data or b""}
        with _answering(self.shown, refusable=True, is_fixed=self._stream.is_fixed):
            await self._client.xadd(stream, fields, maxlen=self._maxlen, approximate=True)


class RedisSource:
    """Consume a stream as a member of a consumer group, which is created if it does not exist."""

    def __init__(self, url: str) -> None:
        self._redis = library("redis.asyncio", "redis")
        self._url = _parse(url, _IN)
        options = self._url.options
        if "stream" not in options:
            raise ConfigurationError("the Redis URL of a subscription needs a stream: write redis://host/0?stream=name")
        if options.get("dead_letter") == options["stream"]:  # a rejected message would be rejected for ever
            raise ConfigurationError("the option dead_letter of the Redis URL must be another stream")
        self._stream = options["stream"]
        self._origin = self._url.source("redis", self._url.path or "0", self._stream)
        self._group = options.get("group", "perdure")
        self._claim_sec = options.get("claim_after", CLAIM_SEC)
        self._dead_letter = options.get("dead_letter")
        self.shown = f"{self._url.shown} (stream {self._stream}, group {self._group})"
        self._member = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._client: Any = None
        self._claim_at = 0.0  # when to look for abandoned entries
        self._own: str | None = None  # where to continue with entries that an earlier session has not acknowledged

    async def __aenter__(self) -> Self:
        self._client = await _connected(self._redis, self._url)
        try:
            with _answering(self.shown):
                await self._create_group()
        except BaseException:
            await self._client.aclose()
            raise
        self._own, self._claim_at = "0", 0.0
        return self

    async def _create_group(self) -> None:
        exceptions = library("redis.exceptions", "redis")
        try:
            await self._client.xgroup_create(self._stream, self._group, id="0", mkstream=True)
        except exceptions.ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):  # it exists
                raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with suppress(BrokerUnavailableError), _answering(self.shown):
                await self._leave()
        finally:
            await self._client.aclose()

    async def _leave(self) -> None:
        """Let other consumers claim at once what is not stored, and leave the group if there is nothing."""
        open = await self._client.xpending_range(self._stream, self._group, "-", "+", BATCH, self._member)
        if open:
            ids, idle_ms = [entry["message_id"] for entry in open], int(self._claim_sec * 1000)
            await self._client.xclaim(self._stream, self._group, self._member, 0, ids, idle=idle_ms, justid=True)
        else:
            await self._client.xgroup_delconsumer(self._stream, self._group, self._member)

    async def fetch(self) -> Sequence[BrokerMessage]:
        """Return own entries without an acknowledgement, then abandoned ones, then new ones; wait for these."""
        with _answering(self.shown):
            entries = await self._left() or await self._abandoned() or await self._new()
        return [self._received(id, fields) for id, fields in entries]

    async def _left(self) -> list[Any]:
        if self._own is None:
            return []
        found = await self._read(self._own, None)
        self._own = found[-1][0].decode() if found else None
        return found

    async def _abandoned(self) -> list[Any]:
        if time.monotonic() < self._claim_at:
            return []
        answer = await self._client.xautoclaim(
            self._stream, self._group, self._member, int(self._claim_sec * 1000), "0-0", BATCH
        )
        found = [entry for entry in answer[1] if entry[1] is not None]
        if not found:
            self._claim_at = time.monotonic() + self._claim_sec / 4
        return found

    async def _new(self) -> list[Any]:
        return await self._read(">", int(FETCH_SEC * 1000))

    async def _read(self, after: str, block: int | None) -> list[Any]:
        answer = await self._client.xreadgroup(
            self._group, self._member, {self._stream: after}, count=BATCH, block=block
        )
        return [entry for _, entries in answer or [] for entry in entries]

    def _received(self, id: bytes, fields: dict[bytes, bytes] | None) -> BrokerMessage:
        headers = {name.decode(errors="replace").lower(): value for name, value in (fields or {}).items()}
        body = headers.pop(DATA, b"")
        texts = {name: value.decode(errors="replace") for name, value in headers.items()}
        if "specversion" in texts:  # a CloudEvent in fields
            texts = {f"ce-{name}": value for name, value in texts.items()}
        return BrokerMessage(body, texts, self._stream, id.decode(), self._origin, (id, fields))

    async def acknowledge(self, messages: Sequence[BrokerMessage]) -> None:
        """Acknowledge entries."""
        ids = [_handle(message)[0] for message in messages]
        if ids:
            with _answering(self.shown):
                await self._client.xack(self._stream, self._group, *ids)

    async def reject(self, message: BrokerMessage, reason: str) -> None:
        """Copy an entry to the dead-letter stream, if there is one, and acknowledge it."""
        id, fields = _handle(message)
        with _answering(self.shown):
            if self._dead_letter is not None:
                about = {b"perdure-id": id, b"perdure-reason": in_a_header(reason).encode()}
                await self._client.xadd(self._dead_letter, {**(fields or {}), **about})
            await self._client.xack(self._stream, self._group, id)


def _handle(message: BrokerMessage) -> tuple[bytes, dict[bytes, bytes] | None]:
    handle: Any = message.handle
    return handle[0], handle[1]


def _parse(url: str, kind: Kind) -> BrokerURL:
    found = urls.parse(url, kind)
    if not (found.path or "0").isdigit():
        raise ConfigurationError("the path of the Redis URL must be the number of a database: write redis://host/0")
    if len(found.hosts) != 1:
        raise ConfigurationError("the Redis URL must have one host")
    return found


async def _connected(redis: Any, url: BrokerURL) -> Any:
    host, port = url.hosts[0]
    settings: dict[str, Any] = {
        "host": host.strip("[]"),
        "port": port,
        "db": int(url.path or "0"),
        "username": str(url.user) or None,
        "password": str(url.password) or None,
        "socket_timeout": ANSWER_SEC,
        "socket_connect_timeout": CONNECT_SEC,
        "client_name": "perdure",
        # A lost answer must be seen, so that the entry is sent again only in the order of its source.
        "retry": library("redis.asyncio.retry", "redis").Retry(library("redis.backoff", "redis").NoBackoff(), 0),
    }
    if url.tls is not None:
        settings["connection_class"] = _encrypted(redis, url.tls)
    client = redis.Redis.from_pool(redis.ConnectionPool(**settings))
    try:
        with _answering(url.shown, not_connected):
            await client.ping()
    except BaseException:
        await client.aclose()
        raise
    return client


def _encrypted(redis: Any, context: ssl.SSLContext) -> Any:
    """Return a class of connections with this context: the client library adds a CA to those of the system."""

    class Connection(redis.SSLConnection):  # type: ignore[misc]
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.ssl_context.context = context

    return Connection


@contextmanager
def _answering(shown: str, down_error: Any = not_answering, *, refusable: bool = False, is_fixed: bool = True) -> Any:
    """Say what is wrong with the server. If `refusable`, it may refuse a single event, whose error is passed on.

    A permission concerns a single event only if events have different streams, so that their names are not fixed.
    """
    exceptions = library("redis.exceptions", "redis")
    logins = (exceptions.AuthenticationError, exceptions.AuthenticationWrongNumberOfArgsError)
    down = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ReadOnlyError, exceptions.ClusterDownError)
    try:
        yield
    except logins as error:
        raise login_refused(shown, error) from error
    except (*down, OSError) as error:
        raise down_error(shown, error) from error
    except exceptions.ResponseError as error:
        if isinstance(error, exceptions.OutOfMemoryError) or str(error).startswith(NOT_NOW):
            raise BrokerUnavailableError(f"{shown} accepts nothing now: {error}") from error
        denied = isinstance(error, exceptions.NoPermissionError)
        if refusable and not (denied and (is_fixed or DENIED_COMMAND in str(error))):
            raise
        if denied:
            raise not_permitted(shown, error) from error
        raise BrokerRefusedError(f"{shown} refuses to work: {error}") from error
