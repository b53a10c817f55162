"""NATS with JetStream: `nats://user:password@host:4222,other:4222/…`.

A session is one connection, which never reconnects on its own: the relay and the subscriber open a new session.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from types import TracebackType
from typing import Any, Self

from perdure.brokers import cloudevents, urls
from perdure.brokers.extras import library
from perdure.brokers.failures import (
    in_a_header,
    login_refused,
    missing,
    not_answering,
    not_connected,
    not_permitted,
    text,
)
from perdure.brokers.incoming import BrokerMessage
from perdure.brokers.urls import BrokerURL, Kind, Template
from perdure.errors import BrokerRefusedError, BrokerUnavailableError, ConfigurationError, TerminalError
from perdure.model.records import OutboxEvent

CONNECT_SEC = 5
CLOSE_SEC = 2.0
ANSWER_SEC = 10.0
FETCH_SEC = 5.0  # a wait for the next message
REST_SEC = 0.02  # for the messages that are there already, after the first
BATCH = 100
ACK_SEC = 30.0  # the server delivers a message again that is not acknowledged by then

STREAM_NOT_FOUND = 10059  # error codes of JetStream
MESSAGE_TOO_LARGE = 10054  # for the stream
NO_ANSWERS = "permissions violation for subscription"  # to the subjects of answers
STATUS = "Status"  # the header of a message of the server itself
OF_STREAM = b"$JS.ACK."  # the beginning of the subject at which a message of a stream is acknowledged
NOT_ENABLED = (10039, 10076)  # for the account, on the server

_SUBJECT = re.compile(r"[^\s*>.]+(\.[^\s*>.]+)*")
_FILTER = re.compile(r"([^\s*>.]+|\*)(\.([^\s*>.]+|\*))*(\.>)?|>")
_NAME = re.compile(r"[^\s*>./\\]+")  # of a stream or consumer
_A_SUBJECT = "a subject without spaces, wildcards and empty parts"
_A_NAME = "a name without spaces, '.', '*', '>', '/' and '\\'"

_PLAIN, _TLS = {"nats": 4222}, {"nats+tls": 4222, "tls": 4222}
_OUT = Kind("NATS", _PLAIN, _TLS, {"subject": urls.template(_SUBJECT, _A_SUBJECT), "mode": urls.MODE})
_IN = Kind(
    "NATS",
    _PLAIN,
    _TLS,
    {
        "durable": urls.matching(_NAME, _A_NAME),
        "subject": urls.matching(_FILTER, "a subject, which may have wildcards, without spaces and empty parts"),
        "ack_wait": urls.duration,
        "dead_letter": urls.matching(_SUBJECT, _A_SUBJECT),
    },
    "STREAM",
)
_COPIED = re.compile(
    r"(?!nats-)[!#$%&'*+\-.^_`|~0-9A-Za-z]+", re.IGNORECASE
)  # other headers tell the server what to do


class NATSPublisher:
    """Publish events to a stream, wait for its acknowledgement, and let it de-duplicate them by their ids."""

    shown = ""  # the address for messages and logs, once the URL is checked

    def __init__(self, url: str) -> None:
        self._nats = library("nats", "nats")
        self._url = urls.parse(url, _OUT)
        self._subject = self._url.options.get("subject") or Template("{type}")
        self._mode = self._url.options.get("mode", "structured")
        self.shown = self._url.shown
        self._session = AsyncExitStack()
        self._connection: _Connection
        self._stream: Any = None

    def __repr__(self) -> str:
        return f"NATSPublisher({self.shown!r})"

    async def __aenter__(self) -> Self:
        self._connection = await self._session.enter_async_context(_connected(self._nats, self._url))
        self._stream = self._connection.client.jetstream(timeout=ANSWER_SEC)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.aclose()

    async def publish(self, event: OutboxEvent) -> None:
        """Publish one event."""
        subject = self._subject.fill(type=event.event_type, source=event.event_source)
        if not _SUBJECT.fullmatch(subject):
            raise TerminalError(f"{subject!r} is no subject of NATS: choose another subject= or event type")
        if subject.startswith("$") and not self._subject.start:  # such as a command that deletes a stream
            raise TerminalError(f"the subject {subject!r} is reserved: choose another subject= or event type")
        body, headers = cloudevents.message(event, self._mode, "ce-")
        headers["Nats-Msg-Id"] = event.event_id
        if _size(body, headers) > self._connection.client.max_payload:  # the server would close the connection
            raise TerminalError(f"the event is too large for {self.shown}")
        errors, refused = self._nats.errors, self._nats.js.errors
        try:
            publishing = self._stream.publish(subject, body, headers=headers)
            await self._connection.unless_closed(publishing, subject)
        except refused.NoStreamResponseError as error:
            raise await self._untaken(subject) from error
        except refused.ServiceUnavailableError as error:
            raise BrokerUnavailableError(f"{self.shown} accepts nothing now: {error}") from error
        except refused.APIError as error:
            if error.err_code == MESSAGE_TOO_LARGE:
                raise TerminalError(f"the event is too large for its stream of {self.shown}") from error
            raise
        except _NotPermittedError as error:
            if self._subject.is_fixed:
                raise not_permitted(self.shown, error) from error
            raise ValueError(f"{self.shown} refused the event for subject {subject!r}: {error}") from error
        except (errors.Error, OSError) as error:
            raise self._connection.refusal(self.shown, NO_ANSWERS) or not_answering(self.shown, error) from error

    async def _untaken(self, subject: str) -> Exception:
        """Return what to raise for an event that no stream took: it is at fault only if no stream has its subject."""
        errors, refused = self._nats.errors, self._nats.js.errors
        unknown = LookupError(f"no stream of {self.shown} has the subject {subject!r}: add it to a stream")
        try:
            name = await self._connection.unless_closed(self._stream.find_stream_name_by_subject(subject))
        except refused.ServiceUnavailableError:
            return _not_enabled(self.shown)
        except refused.APIError as error:
            return _not_enabled(self.shown) if error.err_code in NOT_ENABLED else unknown
        except (errors.Error, OSError) as error:  # the user of the URL may lack the permission to ask
            return unknown if self._connection.refusal(self.shown) else not_answering(self.shown, error)
        return BrokerUnavailableError(f"the stream {name!r} of {self.shown} accepts nothing now")


class NATSSource:
    """Consume a stream with a durable pull consumer, which is created if it does not exist."""

    def __init__(self, url: str) -> None:
        self._nats = library("nats", "nats")
        self._url = urls.parse(url, _IN)
        options = self._url.options
        if not _NAME.fullmatch(self._url.path):
            raise ConfigurationError(
                f"the NATS URL of a subscription needs a stream, {_A_NAME}: write nats://host/STREAM"
            )
        self._server = self._url.shown.removesuffix(f"/{self._url.path}")
        self._origin = self._url.source("nats", self._url.path)
        self._durable = options.get("durable", "perdure")
        self._filter = options.get("subject", "")
        self._ack_sec = options.get("ack_wait", ACK_SEC)
        self._dead_letter = options.get("dead_letter")
        self.shown = f"{self._url.shown} (consumer {self._durable})"
        self._session = AsyncExitStack()
        self._connection: _Connection
        self._stream: Any = None
        self._pull: Any = None
        self._open: dict[int, Any] = {}  # messages without an answer

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as session:
            self._connection = await session.enter_async_context(_connected(self._nats, self._url))
            config = self._nats.js.api.ConsumerConfig(
                ack_policy=self._nats.js.api.AckPolicy.EXPLICIT, ack_wait=self._ack_sec, max_deliver=-1
            )
            self._stream = self._connection.client.jetstream(timeout=ANSWER_SEC)
            with self._answering():
                try:
                    self._pull = await self._stream.pull_subscribe(
                        self._filter, durable=self._durable, stream=self._url.path, config=config
                    )
                except self._nats.js.errors.ServiceUnavailableError as error:
                    if error.err_code is None:  # nothing at all has taken the request
                        raise _not_enabled(self._server) from error
                    raise
            self._open.clear()
            session.push_async_callback(self._return_open)
            self._session = session.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.aclose()

    async def _return_open(self) -> None:
        """Let the server deliver at once what is not stored, rather than after `ack_wait`."""
        with suppress(self._nats.errors.Error, OSError):  # then after that time
            for message in self._open.values():
                await message.nak()

    async def fetch(self) -> Sequence[BrokerMessage]:
        """Wait for messages and return them."""
        with self._answering():
            found = [*await self._next(1, FETCH_SEC)]
            if found:
                found += await self._next(BATCH - 1, REST_SEC)
        self._open.update((id(message), message) for message in found)
        return [self._received(message) for message in found]

    async def _next(self, most: int, seconds: float) -> Sequence[Any]:
        try:
            found = await self._connection.unless_closed(self._pull.fetch(most, timeout=seconds))
            return list(found)
        except TimeoutError:  # also the library's own
            return []

    def _received(self, message: Any) -> BrokerMessage:
        about = message.metadata
        headers = {name.lower(): value for name, value in (message.headers or {}).items()}
        # With the time, because a stream that is created again counts from 1.
        place = f"{about.sequence.stream}@{about.timestamp.isoformat()}"
        known = headers.get("nats-msg-id") or place
        return BrokerMessage(message.data, headers, message.subject, known, self._origin, message)

    async def acknowledge(self, messages: Sequence[BrokerMessage]) -> None:
        """Acknowledge messages, and wait until the server knows of the last."""
        with self._answering():
            for message in messages:
                handle: Any = message.handle
                await (handle.ack_sync(timeout=ANSWER_SEC) if message is messages[-1] else handle.ack())
                self._open.pop(id(handle), None)

    async def reject(self, message: BrokerMessage, reason: str) -> None:
        """Terminate a message, after a copy was stored under the dead-letter subject."""
        handle: Any = message.handle
        with self._answering():
            if self._dead_letter is not None:
                own = {"Perdure-Reason": reason, "Nats-Msg-Id": f"rejected {message.source} {message.id}"}
                own = {name: in_a_header(value) for name, value in own.items()}
                await self._publish_rejected(message.body, self._copied(message.body, handle.headers or {}, own))
            await handle.term()
            self._open.pop(id(handle), None)

    def _copied(self, body: bytes, headers: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str] | None:
        """Return the headers of a copy, as far as the server takes a message of that size."""
        kept = {name: value for name, value in headers.items() if _COPIED.fullmatch(name)}
        for found in ({**kept, **own}, dict(own)):
            if _size(body, found) <= self._connection.client.max_payload:
                return found
        return None

    async def _publish_rejected(self, body: bytes, headers: dict[str, str] | None) -> None:
        try:
            await self._stream.publish(self._dead_letter, body, headers=headers)
        except self._nats.js.errors.NoStreamResponseError as error:
            what = f"a stream with the subject {self._dead_letter!r} of dead_letter="
            raise missing(self._url.shown, what, "add the subject to a stream") from error

    @contextmanager
    def _answering(self) -> Any:
        refused = self._nats.js.errors
        try:
            yield
        except refused.APIError as error:
            raise self._refusal(error) from error
        except self._nats.errors.NoRespondersError as error:
            raise _not_enabled(self._server) from error
        except (self._nats.errors.Error, OSError) as error:
            raise self._connection.refusal(self.shown) or not_answering(self.shown, error) from error

    def _refusal(self, error: Any) -> BrokerUnavailableError:
        """Return what to raise for an error of JetStream."""
        stream = self._url.path
        if error.err_code == STREAM_NOT_FOUND:
            remedy = f"create it, for example with: nats stream add {stream}"
            return missing(self._server, f"the stream {stream!r}", remedy)
        if error.err_code in NOT_ENABLED:
            return _not_enabled(self._server)
        if isinstance(error, (self._nats.js.errors.ServiceUnavailableError, self._nats.js.errors.ServerError)):
            return BrokerUnavailableError(f"{self.shown} is not ready: {text(error)}")
        return BrokerRefusedError(f"{self.shown} refuses to work: {text(error)}")


def _size(body: bytes, headers: Mapping[str, str]) -> int:
    """Return the number of bytes of a message, as the server counts them. The library counts those of the body."""
    lines = ["NATS/1.0", *(f"{name}: {value}" for name, value in headers.items()), ""]
    return len(body) + sum(len(line.encode()) + 2 for line in lines)


class _NotPermittedError(Exception):
    """The user may not publish to a subject."""


class _Connection:
    """A connection that ends what waits for an answer when it is lost, or when the server does not permit it.

    The library would wait for the timeout.
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        self.last_error: Exception | None = None  # the client itself raises a less precise one
        self._closed = asyncio.Event()
        self._publishing: dict[asyncio.Future[None], str] = {}  # subjects; the future ends if it is not permitted

    async def closed(self) -> None:
        """Note that the connection is lost."""
        self._closed.set()

    async def close(self) -> None:
        """Close the connection. After a failed TLS handshake the client would wait for ever."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SEC):
                await self.client.close()

    async def failed(self, error: Exception) -> None:
        """Keep an error of the connection, and end the calls that it concerns."""
        self.last_error = error
        said = str(error).lower()  # the library does so, too, in some versions
        for denied, subject in self._publishing.items():
            if not denied.done() and said.endswith(f'publish to "{subject.lower()}"'):
                denied.set_result(None)

    def refusal(self, shown: str, what: str = "permissions violation") -> BrokerRefusedError | None:
        """Return what to raise if the server has refused something for lack of a permission."""
        if (error := self.last_error) is not None and what in str(error).lower():
            return not_permitted(shown, error)
        return None

    async def unless_closed(self, call: Coroutine[Any, Any, Any], subject: str | None = None) -> Any:
        """Return the result of a call; raise `ConnectionError` if the connection is lost meanwhile.

        A call that publishes names its subject, and raises `_NotPermittedError` if the server does not permit it.
        """
        calling, closed = asyncio.create_task(call), asyncio.create_task(self._closed.wait())
        denied = asyncio.get_running_loop().create_future()
        if subject is not None:
            self._publishing[denied] = subject
        try:
            await asyncio.wait([calling, closed, denied], return_when="FIRST_COMPLETED")
            if denied.done():
                raise _NotPermittedError(str(self.last_error))
            if not calling.done():
                raise ConnectionResetError("the connection was lost")
            return calling.result()
        finally:
            self._publishing.pop(denied, None)
            for each in (calling, closed, denied):
                each.cancel()
            # The call ends before its connection is closed, and asyncio has no error of it to report.
            await asyncio.gather(calling, closed, denied, return_exceptions=True)


@asynccontextmanager
async def _connected(nats: Any, url: BrokerURL) -> AsyncIterator[_Connection]:
    connection = _Connection(_client(nats, encrypted=url.tls is not None))
    account: dict[str, Any] = {}
    if url.password:
        account = {"user": str(url.user), "password": str(url.password)}
    elif url.user:
        account = {"token": str(url.user)}
    if url.tls is not None:
        account["tls"] = url.tls
    scheme = "tls" if url.tls else "nats"
    try:
        async with asyncio.timeout(3 * CONNECT_SEC):
            await connection.client.connect(
                [f"{scheme}://{host}:{port}" for host, port in url.hosts],
                allow_reconnect=False,
                connect_timeout=CONNECT_SEC,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                error_cb=connection.failed,
                disconnected_cb=connection.closed,
                closed_cb=connection.closed,
                name="perdure",
                **account,
            )
    except BaseException as error:
        reason = connection.last_error or error
        await connection.close()  # it may be half open
        if isinstance(error, (nats.errors.Error, OSError)):
            if isinstance(reason, nats.errors.SecureConnWantedError):
                remedy = "enable it at the server, or connect without TLS with nats://"
                raise BrokerRefusedError(f"{url.shown} does not offer TLS: {remedy}") from reason
            raise _not_connected(url.shown, reason) from reason
        raise
    try:
        yield connection
    finally:
        await connection.close()


def _client(nats: Any, *, encrypted: bool) -> Any:
    """Return a client that corrects two things in the library.

    - It would send the password unencrypted to a server that does not ask for TLS, or if someone between the two has
      removed this from its first message.
    - It takes a message of a stream that has the header `Status` for one of the server, and does not return it.
    """

    class Client(nats.NATS):  # type: ignore[misc]
        def _connect_command(self) -> Any:
            if encrypted and not self._server_info.get("tls_required"):
                raise nats.errors.SecureConnWantedError
            return super()._connect_command()

        def _build_message(self, *message: Any) -> Any:
            *place, reply, data, headers = message
            if reply.startswith(OF_STREAM) and headers and STATUS in headers:
                headers = {name.lower() if name == STATUS else name: value for name, value in headers.items()}
            return super()._build_message(*place, reply, data, headers)

    return Client()


def _not_connected(shown: str, error: BaseException) -> BrokerUnavailableError:
    said = str(error).lower()
    if "authorization" in said or "authentication" in said:
        return login_refused(shown, error)
    return not_connected(shown, error)


def _not_enabled(server: str) -> BrokerRefusedError:
    remedy = "start nats-server with -js, or enable it for the account"
    return BrokerRefusedError(f"{server} does not have JetStream enabled: {remedy}")
