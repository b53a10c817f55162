"""Events to a webhook: each is a POST with a CloudEvent."""

import base64
import binascii
import hashlib
import hmac
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

from perdure.brokers import cloudevents
from perdure.brokers.extras import library
from perdure.brokers.failures import not_connected, text
from perdure.brokers.tls import client_context
from perdure.brokers.urls import MODE
from perdure.database.secret import Secret, SecretBytes
from perdure.errors import BrokerUnavailableError, ConfigurationError
from perdure.model.records import OutboxEvent

TIMEOUT_SEC = 15.0  # less than the relay allows for one event
UNAVAILABLE = {429, 502, 503, 504}  # the receiver, or what is in front of it, is overloaded or down
SAID_MAX = 300  # characters of a refusal in an error
WEBHOOK_ID_MAX = 255  # characters; receivers refuse longer ones
_PREFIX = "whsec_"
_ATTRIBUTE = "ce-"  # the prefix of headers with attributes
_PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


class HTTPPublisher:
    """Post each event to a URL: `App(publisher=HTTPPublisher("https://…", signing_key="whsec_…"))`.

    - `url`: `http://` or `https://`; its query is part of the address.
    - `mode`: `"structured"` or `"binary"` CloudEvents (default: structured).
    - `signing_key`: sign each request as Standard Webhooks describes; `whsec_` and base64 (default: no signature).
    - `ca_file`: a file with the certificates of the only CAs to trust, in the PEM format (default: those of httpx).

    Any status from 200 to 299 means that the event was received. Raises `ConfigurationError` for an invalid setting.
    """

    shown = ""  # the address for messages and logs, once the URL is checked

    def __init__(
        self, url: str, *, mode: str = "structured", signing_key: str | None = None, ca_file: str | None = None
    ) -> None:
        self._httpx = library("httpx", "webhooks")
        url = Secret(url)
        if (shown := _shown(url)) is None or (address := _address(self._httpx, url, shown)) is None:
            raise ConfigurationError("the webhook URL is malformed: write https://host/path, or https://host:port/path")
        try:
            MODE(mode)
        except ValueError as error:
            raise ConfigurationError(f"HTTPPublisher(mode=) {error}") from None
        if ca_file is not None and not shown.startswith("https:"):
            raise ConfigurationError("HTTPPublisher(ca_file=) is only for encrypted connections: write https://")
        self._verify = True if ca_file is None else client_context(ca_file, "HTTPPublisher(ca_file=)")
        self._address = address
        self._mode = mode
        self._key = None if signing_key is None else _key(signing_key)
        self.shown = shown
        self._client: Any = None

    def __repr__(self) -> str:
        return f"HTTPPublisher({self.shown!r})"

    async def __aenter__(self) -> Self:
        self._client = self._httpx.AsyncClient(timeout=TIMEOUT_SEC, verify=self._verify)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def publish(self, event: OutboxEvent) -> None:
        """Post one event."""
        body, headers = cloudevents.message(event, self._mode, _ATTRIBUTE)
        headers = {name: _quoted(value) if name.startswith(_ATTRIBUTE) else value for name, value in headers.items()}
        headers |= self._signature(_webhook_id(event.event_id), body)
        request = self._client.build_request("POST", self._address, content=body, headers=headers)
        request.url = self._address
        try:
            response = await self._client.send(request)
        except self._httpx.ReadTimeout as error:  # this event may be what takes so long
            raise TimeoutError(f"{self.shown} did not answer within {TIMEOUT_SEC:g} s") from error
        except self._httpx.ConnectError as error:
            raise not_connected(self.shown, error) from error
        except self._httpx.TransportError as error:
            raise BrokerUnavailableError(f"{self.shown} does not answer: {text(error)}") from error
        status = response.status_code
        if status in UNAVAILABLE:
            raise BrokerUnavailableError(f"{self.shown} answered with status {status}")
        if not response.is_success:
            raise ValueError(f"{self.shown} refused the event with status {status}: {_said(response)}")

    def _signature(self, id: str, body: bytes) -> dict[str, str]:
        if self._key is None:
            return {}
        stamp = str(int(time.time()))
        digest = hmac.new(self._key, f"{id}.{stamp}.".encode() + body, hashlib.sha256).digest()
        signature = f"v1,{base64.b64encode(digest).decode()}"
        return {"webhook-id": id, "webhook-timestamp": stamp, "webhook-signature": signature}


def _shown(url: Secret) -> str | None:
    """Return the scheme, host and port of a URL; None if it is malformed."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:  # it is no port
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" + ("" if port is None else f":{port}")


def _address(httpx: Any, url: Secret, shown: str) -> Any:
    """Return the URL of the requests, which httpx logs without what may be a secret; None if it is malformed."""

    class Address(httpx.URL):  # type: ignore[misc]
        def __str__(self) -> str:
            return shown

        __repr__ = __str__

    try:
        return Address(str(url))
    except httpx.InvalidURL:
        return None


def _said(response: Any) -> str:
    """Return what a refusal says: the detail of problem details, such as perdure's own, or the beginning of a body."""
    if response.headers.get("content-type", "").startswith("application/problem+json"):
        with suppress(ValueError, KeyError, TypeError):
            return str(response.json()["detail"])[:SAID_MAX]
    return str(response.text[:SAID_MAX])


def _quoted(attribute: str) -> str:
    """Return an attribute as the value of a header, with percent-encoding where the binding for HTTP demands it."""
    return quote(attribute, safe=_PLAIN)


def _webhook_id(id: str) -> str:
    """Return the id of an event as the value of a header, which has ASCII only."""
    if id.isascii():
        return id
    quoted = _quoted(id)
    return quoted if len(quoted) <= WEBHOOK_ID_MAX else hashlib.sha256(id.encode()).hexdigest()


def _key(text: str) -> SecretBytes:
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not 16 <= len(key) <= 128:
        raise ConfigurationError(
            "HTTPPublisher(signing_key=) must be 'whsec_' and 24 to 64 bytes in base64: create one with "
            "base64.b64encode(os.urandom(32))"
        )
    return SecretBytes(key)
