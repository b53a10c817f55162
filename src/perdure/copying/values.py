"""Values that do not depend on their database, and checksums of rows that are made of them."""

from collections.abc import Sequence
from datetime import datetime
from hashlib import blake2b

from perdure.copying.catalog import Kind
from perdure.database.operation import utc

Value = None | int | str | bytes | datetime
MODULUS = 1 << 128


def normalized(value: object, kind: Kind) -> Value:
    """Return a value in the form that is the same whichever database stored it; raise `ValueError` if it has none."""
    if value is None:
        return None
    match kind:
        case Kind.INTEGER if isinstance(value, int):
            return int(value)
        case Kind.TIME if isinstance(value, datetime | str):
            return utc(value)
        case Kind.TEXT if isinstance(value, str | bytes):
            return value.decode() if isinstance(value, bytes) else value
        case Kind.BINARY if isinstance(value, str | bytes | bytearray):
            return value.encode() if isinstance(value, str) else bytes(value)
    raise ValueError(f"a {kind.value} cannot be a value of type {type(value).__name__}")


def size_of(value: Value) -> int:
    """Return about how many bytes a value has."""
    return len(value) if isinstance(value, str | bytes) else 8


def digest(row: Sequence[Value]) -> int:
    """Return a number for a row that differs if any value differs."""
    made = blake2b(digest_size=16)
    for value in row:
        kind, content = _content(value)
        made.update(b"%s%d:" % (kind, len(content)))  # no two rows have the same text
        made.update(content)
    return int.from_bytes(made.digest(), "big")


def _content(value: Value) -> tuple[bytes, bytes]:
    match value:
        case None:
            return b"n", b""
        case int():
            return b"i", b"%d" % value
        case str():
            return b"s", value.encode()
        case bytes():
            return b"b", value
        case datetime():
            return b"t", value.isoformat(" ", "microseconds").encode()


class Checksum:
    """The number and the sum of digests of a table's rows, in whatever order they come."""

    def __init__(self) -> None:
        self.rows = self._sum = 0

    def add(self, row: Sequence[Value]) -> None:
        """Add a row."""
        self.rows += 1
        self._sum = (self._sum + digest(row)) % MODULUS

    @property
    def text(self) -> str:
        """Return the checksum as hexadecimal digits."""
        return f"{self._sum:032x}"
