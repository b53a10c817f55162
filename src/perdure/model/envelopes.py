"""Envelopes: the form in which an encoded value is stored.

An envelope is JSON, so that it fits into every column that holds JSON, and other programs can pass it on:

    { "~perdure": ["zlib", "aes256gcm:k1"], "data": "<base64>"}

The list names the codecs in the order in which they were applied, each with the note that it left. The space after the
brace distinguishes an envelope from every value of a user: perdure writes values without it, and inside a JSON string
the quotation mark would be escaped. Values that are not JSON have an envelope of bytes.
"""

import binascii
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from perdure.errors import CodecError

KEY = "~perdure"
PREFIX = f'{{ "{KEY}":'
MARK = PREFIX.encode()
ESCAPED_MARK = json.dumps(PREFIX)[1:-1].encode()  # inside a JSON string
BINARY_MARK = b"\x00~perdure\x9d\x1e\xc3\x07\x00"  # before the envelope of bytes that are not JSON
TAG_MAX = 200  # characters of a codec's name with its note

_NAME = re.compile(r"[a-z0-9_.-]{1,40}\Z")
_HEAD = re.compile(
    rb"(?:"
    + re.escape(MARK)
    + rb" |"
    + re.escape(BINARY_MARK)
    + rb'.{4}\{"tags": )(\[(?:"(?:[^"\\]|\\.)*"(?:, )?)*\])',
    re.DOTALL,
)
_ESCAPED_HEAD = re.compile(re.escape(ESCAPED_MARK) + rb' (\[(?:\\"(?:[^"\\]|\\\\\\?.)*\\"(?:, )?)*\])')  # of a reason


@dataclass(frozen=True, slots=True)
class Tag:
    """Name a codec that was applied to a value, with the note that it left, such as the id of a key."""

    name: str
    note: str = ""

    def __str__(self) -> str:
        return f"{self.name}:{self.note}" if self.note else self.name


@dataclass(frozen=True, slots=True)
class Envelope:
    """Hold an encoded value: the codecs that were applied, in order, and the bytes that the last one returned."""

    tags: tuple[Tag, ...]
    data: bytes
    why: str = ""  # it could not be decoded, as far as known

    def text(self) -> bytes:
        """Return the envelope as JSON."""
        head = MARK + b" " + json.dumps([str(tag) for tag in self.tags]).encode()
        why = b', "why": ' + json.dumps(self.why).encode() if self.why else b""
        return head + why + b', "data": "' + b64encode(self.data) + b'"}'

    def binary(self) -> bytes:
        """Return the envelope of a value that is not JSON."""
        about = json.dumps({"tags": [str(tag) for tag in self.tags], "why": self.why}).encode()
        return BINARY_MARK + len(about).to_bytes(4, "big") + about + self.data


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stand for a stored value that this process cannot decode.

    - `how`: how it is stored, such as "encrypted with key 'k1'".
    - `why`: why it cannot be decoded here, as far as known.
    """

    how: str
    why: str = ""

    def __str__(self) -> str:
        return f"<{self.how}>"

    def error(self, what: str) -> CodecError:
        """Return the error for code that needs the value, which is named `what`."""
        why = self.why or "this process has no codec for it: pass the codec of the other workers as App(codec=…)"
        return CodecError(f"{what} is {self.how}, and {why}")


def check_tag(tag: Tag) -> Tag:
    """Return a tag that can be stored and read again; raise `CodecError` if it cannot."""
    if not _NAME.match(tag.name):
        raise CodecError(
            f"the name of a codec must have 1 to 40 lower-case letters, digits, '-', '_' or '.', not {tag.name!r}"
        )
    if len(str(tag)) > TAG_MAX or not tag.note.isprintable() or not tag.note.isascii():
        raise CodecError(
            f"the note of the codec {tag.name!r} must be printable ASCII, at most {TAG_MAX} characters with its name"
        )
    return tag


def is_encoded(data: bytes | None) -> bool:
    """Return whether stored bytes are an envelope."""
    return data is not None and data.startswith((MARK, BINARY_MARK))


def read(data: bytes) -> Envelope | None:
    """Return the envelope in stored bytes; None if they are a value that was not encoded."""
    try:
        if data.startswith(MARK):
            return _read_text(data)
        return _read_binary(data) if data.startswith(BINARY_MARK) else None
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
        return Envelope((), b"", "its envelope is damaged")


def _read_text(data: bytes) -> Envelope:
    fields = json.loads(data)
    return Envelope(_tags(fields[KEY]), b64decode(fields["data"], validate=True), fields.get("why", ""))


def _read_binary(data: bytes) -> Envelope:
    start = len(BINARY_MARK) + 4
    end = start + int.from_bytes(data[len(BINARY_MARK) : start], "big")
    about = json.loads(data[start:end])
    return Envelope(_tags(about["tags"]), data[end:], about["why"])


def _tags(texts: Sequence[str]) -> tuple[Tag, ...]:
    return tuple(Tag(*text.split(":", 1)) for text in texts)


def tags_in(start: bytes) -> tuple[Tag, ...] | None:
    """Return the codecs of the envelope in a value, or in the row of a message, of which this is the beginning."""
    if (found := _HEAD.search(start)) is not None:
        return _tags(json.loads(found[1]))
    if (found := _ESCAPED_HEAD.search(start)) is not None:
        return _tags(json.loads(json.loads(b'"' + found[1] + b'"')))
    return None


def unreadable(data: bytes | None) -> Unreadable | None:
    """Return what stands for a value that is an envelope; None if it is a value that can be used."""
    if data is None or not is_encoded(data) or (found := read(data)) is None:
        return None
    return Unreadable(describe(found.tags), found.why)


def unreadable_fields(fields: Mapping[str, object]) -> Unreadable | None:
    """Return what stands for a JSON object that is an envelope, after it was parsed."""
    tags = fields.get(KEY)
    return Unreadable(describe(_tags(tags)), str(fields.get("why") or "")) if isinstance(tags, list) else None


def check_readable(data: bytes | None, what: str) -> None:
    """Raise `CodecError` if a value, which is named `what`, is an envelope that was not decoded."""
    if (found := unreadable(data)) is not None:
        raise found.error(what)


def describe(tags: Sequence[Tag]) -> str:
    """Return how a value is stored, in words."""
    return ", ".join(map(_described, tags)) or "encoded"


def _described(tag: Tag) -> str:
    match tag.name:
        case "aes256gcm":
            return f"encrypted with key {tag.note!r}"
        case "zlib":
            return "compressed"
        case "blob":
            return f"offloaded as {tag.note}"
    return f"encoded by {tag.name!r}" + (f" ({tag.note})" if tag.note else "")


# Messages are matched by their data inside the storage, in whatever thread executes its statements. So the codecs of
# the open storages of this process are registered here, where every storage finds them.

Decode = Callable[[bytes, str], bytes]  # the stored bytes and their place; returns an envelope if it cannot decode

_decoders: tuple[Decode, ...] = ()  # replaced and never changed, because other threads iterate over it


@contextmanager
def decoding_messages(decode: Decode) -> Iterator[None]:
    """Decode messages with this function while they are matched, as long as the block lasts."""
    global _decoders
    _decoders = (*_decoders, decode)
    try:
        yield
    finally:
        left = list(_decoders)
        left.remove(decode)
        _decoders = tuple(left)


def message_data(channel: str, data: bytes) -> bytes:
    """Return the data of a stored message; raise `CodecError` if no codec of this process can decode it."""
    if not data.startswith(MARK):
        return data
    found = data
    for decode in _decoders:
        found = decode(data, message_place(channel))
        if not found.startswith(MARK):
            return found
    check_readable(found, f"a message of channel {channel!r}")
    raise AssertionError("unreachable: it is an envelope")


# Places: what a value belongs to. An encrypted value can only be decrypted in its place.

_GENERATION = re.compile(r"~\d+\Z")  # of an earlier generation of a run, whose rows the database copies


def run_place(instance_id: str, part: str) -> str:
    """Return the place of a value of an instance: a row of its history, or another part."""
    return f"run {_GENERATION.sub('', instance_id)}/{part}"


def message_place(channel: str) -> str:
    """Return the place of the data of a message, which is copied to the history of each receiver."""
    return f"channel {channel}"
