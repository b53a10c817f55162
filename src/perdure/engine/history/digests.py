"""Digests of calls, which are recorded with each step, so that a replay detects a call with different arguments.

The digest is stored in `event_data_binary` of the step's row, whose JSON is in `event_data`. It has nine bytes; the
first one is the method. Rows without a digest, of earlier versions or other frameworks, are not compared, and neither
are exported histories in which the values of a call were redacted. The digest is followed by the time since the start
of the run, which advances the time of the body's loop, also on replay.

Irrelevant changes must not stop a run. So the digest covers values, but not parameter names, defaults that were not
passed, the order of dicts and sets, or fields of dataclasses and models that have their default value: parameters and
fields with defaults can be added while runs exist.
"""

import dataclasses
import struct
from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec

from perdure.engine.history import hints
from perdure.engine.history.codec import natural

SIZE = 9
STAMP_SIZE = 8
TICKS = 1024  # per second; floats represent sums and differences of such times exactly
WALK_MAX = 64 * 1024  # larger calls are compared by their JSON, because walking them would block the worker
SHOWN_MAX = 200
WALKED, WRITTEN = b"\x01", b"\x02"
REDACTED = b"\x00" * SIZE  # of a call whose values were replaced: it is compared with nothing

_METHODS = WALKED + WRITTEN + REDACTED[:1]
_read_ticks = struct.Struct(">Q").unpack_from
_ATOMS = frozenset({str, int, float, bool, type(None)})
_NO_DEFAULT = object()
_encode = msgspec.json.Encoder(enc_hook=natural, order="deterministic").encode
_EMPTY: dict[Any, object] = {list: [], dict: {}, set: set(), tuple: (), frozenset: frozenset()}


class Call:
    """A call with its arguments: a digest for the history, and a short text for error messages."""

    __slots__ = ("_encoded", "_parts", "_what", "digest")

    def __init__(self, *parts: object, encoded: bytes = b"", what: str = "") -> None:
        self._encoded = encoded
        self._parts = () if encoded else parts
        self._what = what
        self.digest = _digest((what, *parts) if what else parts, encoded)

    def differs(self, recorded: bytes | None) -> bool:
        """Return whether a recorded digest is that of a different call; False if another method made it."""
        return recorded is not None and recorded[:SIZE] != self.digest and recorded[:1] == self.digest[:1]

    def __str__(self) -> str:
        text = self._encoded.decode("utf-8", "replace") if self._encoded else ", ".join(map(repr, self._parts))
        return f"{self._what} {text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + '…'}".strip()


def stamp(elapsed_sec: float) -> bytes:
    """Return a time of the body's loop, encoded to follow a digest."""
    return int(max(0.0, elapsed_sec) * TICKS).to_bytes(STAMP_SIZE)


def stamped(recorded: bytes | None) -> float:
    """Return the time that follows a recorded digest; 0 if there is none."""
    if recorded is None or len(recorded) != SIZE + STAMP_SIZE or recorded[0] not in _METHODS:
        return 0.0
    return _read_ticks(recorded, SIZE)[0] / TICKS  # type: ignore[no-any-return]


def _digest(parts: tuple[object, ...], encoded: bytes) -> bytes:
    if len(encoded) <= WALK_MAX:
        try:
            known = parts if _ATOMS.issuperset(map(type, parts)) else _canonical(parts)
            return WALKED + blake2b(_encode(known), digest_size=SIZE - 1).digest()
        except Exception:
            pass  # only its own model can encode the value: use its JSON instead
    texts = [part.encode() for part in parts if isinstance(part, str)]
    text = b"\0".join([*texts, _encode(msgspec.json.decode(encoded or b"null"))])
    return WRITTEN + blake2b(text, digest_size=SIZE - 1).digest()


def _canonical(value: Any) -> Any:
    """Return the value without everything that does not count; what msgspec can encode is left as it is."""
    kind: Any = type(value)
    if kind in _ATOMS:
        return value
    if kind is tuple or kind is list:
        return value if _ATOMS.issuperset(map(type, value)) else list(map(_canonical, value))
    fields = _fields(kind)
    if fields is not None:
        return _record(value, fields)
    if isinstance(value, Mapping):
        return _table(value)
    if isinstance(value, Set):
        return sorted(_encode(_canonical(item)) for item in value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return list(map(_canonical, value))
    return value


def _table(value: Mapping[Any, Any]) -> Any:
    if all(type(key) is str for key in value):
        return {key: _canonical(item) for key, item in value.items()}
    return sorted([_encode(_canonical(key)), _encode(_canonical(item))] for key, item in value.items())


def _record(value: Any, fields: "Sequence[tuple[str, object]]") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, default in fields:
        item = getattr(value, name)
        if type(item) is not type(default) or item != default:
            found[name] = _canonical(item)
    if extra := getattr(value, "__pydantic_extra__", None):
        found.update(_table(extra))
    return found


@lru_cache(4096)
def _fields(kind: type) -> Sequence[tuple[str, object]] | None:
    """Return the fields of a dataclass or model with their defaults; None for other classes."""
    if dataclasses.is_dataclass(kind):
        return [(each.name, _default(each.default, each.default_factory)) for each in dataclasses.fields(kind)]
    if hints.is_pydantic(kind):
        known = kind.model_fields.items()  # type: ignore[attr-defined]
        return [(name, _default(field.default, field.default_factory)) for name, field in known]
    if issubclass(kind, msgspec.Struct):
        return [(each.name, _default(each.default, each.default_factory)) for each in msgspec.structs.fields(kind)]
    return None


def _default(default: object, factory: Any) -> object:
    """Return the default of a field, or its empty collection; other factories may not be deterministic."""
    return _EMPTY.get(factory, default)
