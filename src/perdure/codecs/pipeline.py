"""A pipeline of codecs, which makes envelopes of values and values of envelopes."""

from collections.abc import Sequence

from perdure.codecs.blobs import BlobStore
from perdure.codecs.compression import Compressed
from perdure.codecs.encryption import Encrypted
from perdure.codecs.offloading import Offloaded
from perdure.codecs.protocol import Codec, Encoded
from perdure.errors import CodecError, ConfigurationError, LimitError
from perdure.model import limits
from perdure.model.envelopes import BINARY_MARK, MARK, Envelope, Tag, check_tag, read
from perdure.model.limits import PAYLOAD_MAX

Codecs = Codec | Sequence[Codec]

IN_LOOP_MAX = 64 * 1024  # bytes that are encoded or decoded without a thread, which takes less than a millisecond


class Pipeline:
    """Codecs in the order in which they encode."""

    def __init__(self, codecs: Codecs, what: str = "codec=") -> None:
        """Raise `ConfigurationError`, which names the setting `what`, if the codecs cannot work together."""
        self._codecs: list[Codec] = list(codecs) if isinstance(codecs, Sequence) else [codecs]
        for codec in self._codecs:
            if not isinstance(codec, Codec) or isinstance(codec, type):
                raise ConfigurationError(
                    f"{what} must be a codec or a list of codecs, such as Encrypted(keys), and {codec!r} is none"
                )
            check_tag(Tag(codec.name))
        self._by_name = {codec.name: codec for codec in self._codecs}
        _check_order(self._codecs, what)
        self._by_name.setdefault(Compressed.name, Compressed())  # it needs no secret

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self._codecs))}]"

    @property
    def codecs(self) -> tuple[Codec, ...]:
        """Return the codecs, in the order in which they encode."""
        return tuple(self._codecs)

    @property
    def blobs(self) -> BlobStore | None:
        """Return the store of offloaded values, if there is one."""
        last = self._codecs[-1]
        return last.store if isinstance(last, Offloaded) else None

    def may_block(self, length: int) -> bool:
        """Return whether encoding a value of that many bytes may take long."""
        return length > IN_LOOP_MAX or any(
            codec.applies_to(length) if isinstance(codec, Offloaded) else _is_blocking(codec) for codec in self._codecs
        )

    def may_block_decoding(self, length: int, encoded: bool) -> bool:
        """Return whether decoding that many stored bytes may take long."""
        return encoded and (length > IN_LOOP_MAX or any(map(_is_blocking, self._codecs)))

    def encode(self, data: bytes, place: str, kind: str, *, inline: bool = False, longest: int = PAYLOAD_MAX) -> bytes:
        """Return JSON as it is stored, in an envelope or not; with `inline` in the database itself.

        `kind` names the value in a `CodecError` or `LimitError`.
        """
        limits.text(data, kind, longest)
        data = _as_bytes(data)
        tags, found = self._apply(data, place, kind, inline)
        if not tags and not data.startswith(MARK):  # a value that looks like an envelope gets one of its own
            return data
        return _limited(Envelope(tags, found).text(), len(data), kind, longest)

    def encode_binary(self, data: bytes, place: str, kind: str, *, inline: bool = False) -> bytes:
        """Return bytes that are not JSON as they are stored."""
        limits.size(data, kind)
        _check_bytes(data)
        tags, found = self._apply(data, place, kind, inline)
        if not tags and not data.startswith(BINARY_MARK):
            return data
        return _limited(Envelope(tags, found).binary(), len(data), kind, PAYLOAD_MAX)

    def _apply(self, data: bytes, place: str, kind: str, inline: bool) -> tuple[tuple[Tag, ...], bytes]:
        tags: list[Tag] = []
        for codec in self._codecs:
            if inline and isinstance(codec, Offloaded):
                continue
            try:
                encoded = codec.encode(data, place)
                if not isinstance(encoded, Encoded | None):
                    raise TypeError(f"encode() returned {type(encoded).__name__}, not Encoded or None")
            except Exception as error:
                raise CodecError(
                    f"{kind} ({place}) cannot be stored: the codec {codec.name!r} raised {_said(error)}"
                ) from error
            if encoded is not None:
                tags.append(check_tag(Tag(codec.name, encoded.note)))
                data = encoded.data
        return tuple(tags), data

    def decode(self, data: bytes, place: str) -> bytes:
        """Return the value of stored bytes. If it cannot be decoded, return its envelope, which then says why."""
        found = read(data)
        if found is None:
            return data
        try:
            return self._undo(found, place)
        except CodecError as error:
            left = Envelope(found.tags, b"", str(error))
            return left.binary() if data.startswith(BINARY_MARK) else left.text()

    def _undo(self, envelope: Envelope, place: str) -> bytes:
        if envelope.why:
            raise CodecError(envelope.why)
        data = envelope.data
        for tag in reversed(envelope.tags):
            codec = self._by_name.get(tag.name)
            if codec is None:
                raise CodecError(f"this process has no codec {tag.name!r}: add it to App(codec=…)")
            try:
                data = codec.decode(Encoded(data, tag.note), place)
                if not isinstance(data, bytes):
                    raise TypeError(f"decode() returned {type(data).__name__}, not bytes")
            except CodecError:
                raise
            except Exception as error:
                raise CodecError(f"the codec {tag.name!r} raised {_said(error)}") from error
        return data


def _as_bytes(data: object) -> bytes:
    """Return what storages accept for JSON, bytes or text, as bytes; raise `LimitError` for anything else."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode()
    raise _wrong(data)


def _check_bytes(data: object) -> None:
    if not isinstance(data, bytes):
        raise _wrong(data)


def _wrong(data: object) -> LimitError:
    return LimitError(f"a value to be encoded must be bytes, not {type(data).__name__}")


def _is_blocking(codec: Codec) -> bool:
    return bool(getattr(codec, "blocking", False))


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _limited(envelope: bytes, length: int, kind: str, longest: int) -> bytes:
    most = limits.encoded_max(longest)
    if len(envelope) > most:
        raise LimitError(
            f"{kind} has {length} bytes, and {len(envelope)} once encoded, where the limit is {most}: use codecs "
            "that make it smaller, or store large data elsewhere and pass a reference to it"
        )
    return envelope


def _check_order(codecs: Sequence[Codec], what: str) -> None:
    names = [codec.name for codec in codecs]
    if not names:
        raise ConfigurationError(f"{what} is an empty list: give at least one codec, or leave it out")
    if len(set(names)) != len(names):
        raise ConfigurationError(f"{what} has two codecs of the same name ({', '.join(names)}): give each once")
    if Offloaded.name in names[:-1]:
        raise ConfigurationError(f"{what}: Offloaded must be the last codec, because it leaves nothing to encode")
    if Encrypted.name in names and Compressed.name in names[names.index(Encrypted.name) :]:
        raise ConfigurationError(
            f"{what}: Compressed must come before Encrypted, because encrypted values cannot be compressed"
        )
