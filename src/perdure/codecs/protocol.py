"""The protocol of codecs."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Encoded:
    """What a codec makes of a value.

    - `data`: the encoded bytes.
    - `note`: what decoding needs to know, such as the id of a key (default: nothing). It is stored next to the data as
      plain text, so it must not be secret.
    """

    data: bytes
    note: str = ""


@runtime_checkable
class Codec(Protocol):
    """Transforms values on their way to the database and back.

    `name` is stored with every value, so it must never change: lower-case letters, digits, `-`, `_` and `.`. Both
    methods are called in any thread, and may block only if the class has an attribute `blocking = True`: then they are
    called in threads of their own.
    """

    name: str

    def encode(self, data: bytes, place: str) -> Encoded | None:
        """Return the encoded value, or None to leave it as it is.

        `place` says what the value belongs to, such as `run order-1/input`. It is the same when the value is decoded.
        """

    def decode(self, encoded: Encoded, place: str) -> bytes:
        """Return the value; raise any exception with a message for people if that is impossible."""
