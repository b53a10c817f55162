"""Signatures of Standard Webhooks: HMAC-SHA256 over id, time and body, with keys that can be rotated.

The time must be within five minutes of now, so that a recorded request cannot be replayed later. See
https://www.standardwebhooks.com.
"""

import base64
import binascii
import hmac
import time
from collections.abc import Callable, Mapping, Sequence

from perdure.database.secret import SecretBytes
from perdure.errors import ConfigurationError
from perdure.http.problems import Problem

PREFIX = "whsec_"
WINDOW_SEC = 5 * 60
KEY_MIN, KEY_MAX = 24, 64  # bytes
SIGNATURES_MAX = 20
ID_MAX = 255

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"


class Signatures:
    """Verifies that requests are signed with one of several keys."""

    def __init__(self, keys: str | Sequence[str], now: Callable[[], float] = time.time) -> None:
        given = [keys] if isinstance(keys, str) else keys
        if not isinstance(given, Sequence):  # such as None, from an environment variable that is not set
            raise ConfigurationError(
                "http_app(webhook_keys=) must be a key or a list of keys: check that the variable with the key is set, "
                "or leave it out to have no signatures"
            )
        self._keys = [_key(each) for each in given]
        self._now = now

    def __bool__(self) -> bool:
        return bool(self._keys)

    def verify(self, headers: Mapping[str, str], body: bytes) -> str:
        """Return the id of a request; raise `Problem` if it is not signed with one of the keys, or too old."""
        id, stamp, given = (headers.get(name, "") for name in (ID, TIMESTAMP, SIGNATURE))
        if not (id and stamp and given):
            raise _refused(f"the request is not signed: it needs the headers {ID}, {TIMESTAMP} and {SIGNATURE}")
        if len(id) > ID_MAX:
            raise _refused(f"the header {ID} has more than {ID_MAX} characters")
        if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 15):
            raise _refused(f"the header {TIMESTAMP} is not a number of seconds since 1970")
        if abs(self._now() - int(stamp)) > WINDOW_SEC:
            raise _refused(
                f"the header {TIMESTAMP} differs by more than {WINDOW_SEC // 60} minutes from the time of the server: "
                "check the clocks, and send each request with a new signature"
            )
        signed = f"{id}.{stamp}.".encode() + body
        expected = [base64.b64encode(hmac.digest(key, signed, "sha256")) for key in self._keys]
        versions = [each.partition(",") for each in given.split(" ")[:SIGNATURES_MAX]]
        candidates = [text.encode() for version, _, text in versions if version == "v1"]
        # All pairs are compared, so that the time does not tell which of them matches.
        if not sum(hmac.compare_digest(one, other) for one in expected for other in candidates):
            raise _refused(
                "the signature does not fit the body: check the key, and that a proxy does not change the body"
            )
        return id


def _refused(detail: str) -> Problem:
    return Problem(401, detail, code="http.signature")


def _key(text: object) -> SecretBytes:
    """Return the bytes of a key; raise `ConfigurationError` without showing it."""
    if isinstance(text, str):
        try:
            key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
        except binascii.Error:
            key = b""
        if text.startswith(PREFIX) and KEY_MIN <= len(key) <= KEY_MAX:
            return SecretBytes(key)
    raise ConfigurationError(
        f"a key for webhooks is the text {PREFIX!r}, followed by {KEY_MIN} to {KEY_MAX} bytes in base64: use the "
        "secret that the sender shows"
    )
