"""Compression of large values."""

import zlib

from perdure.codecs.protocol import Codec, Encoded
from perdure.errors import CodecError, ConfigurationError

ABOVE = 1_000
LIMIT = 64 * 1024 * 1024


class Compressed(Codec):
    """Compresses values with zlib if they are large and become smaller.

    - `above`: only values of more bytes than this (default: 1000).
    - `limit`: maximum number of bytes of a value after decompression (default: 64 MiB). A larger one raises
      `CodecError` before it fills the memory, and a larger value is stored without compression.
    - `level`: from 1, fast, to 9, small (default: 6).
    """

    name = "zlib"

    def __init__(self, above: int = ABOVE, *, limit: int = LIMIT, level: int = 6) -> None:
        _check("above", above, 0)
        _check("limit", limit, 1)
        _check("level", level, 1, 9)
        self._above, self._limit, self._level = above, limit, level

    def encode(self, data: bytes, place: str) -> Encoded | None:
        """Return the compressed value; None if it is small, or hardly becomes smaller."""
        if not self._above < len(data) <= self._limit:
            return None
        found = zlib.compress(data, self._level)
        return Encoded(found) if len(found) * 4 < len(data) * 3 else None  # an envelope is larger by a third

    def decode(self, encoded: Encoded, place: str) -> bytes:
        """Return the value; raise `CodecError` if it is too large or damaged."""
        unpack = zlib.decompressobj()
        try:
            found = unpack.decompress(encoded.data, self._limit)
        except zlib.error as error:
            raise CodecError(f"its compressed data is damaged ({error})") from error
        if unpack.unconsumed_tail or not unpack.eof:
            raise CodecError(
                f"it has more than {self._limit} bytes after decompression, or is cut off: raise Compressed(limit=) if "
                "you trust it"
            )
        return found

    def __repr__(self) -> str:
        return f"Compressed(above={self._above})"


def _check(setting: str, value: object, least: int, most: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        span = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigurationError(f"Compressed({setting}=) must be a whole number {span}, not {value!r}")
