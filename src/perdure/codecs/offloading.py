"""Offloading of large values to a blob store."""

from hashlib import sha256

from perdure.codecs.blobs import BlobStore
from perdure.codecs.protocol import Codec, Encoded
from perdure.errors import CodecError, ConfigurationError

ABOVE = 256 * 1024


class Offloaded(Codec):
    """Stores large values in a blob store; the database has only their names.

    - `store`: a `BlobStore`, such as `FileBlobs(folder)`. All processes must reach the same one.
    - `above`: only values of more bytes than this (default: 256 KiB).

    A value is in the store before its name is in the database. The name is the SHA-256 of the bytes, which is checked
    when they are read. It must be the last codec.
    """

    name = "blob"
    blocking = True

    def __init__(self, store: BlobStore, above: int = ABOVE) -> None:
        if not isinstance(store, BlobStore) or isinstance(store, type):
            raise ConfigurationError(
                f"Offloaded(…) takes a blob store with put, get, delete and list, such as FileBlobs(folder), not "
                f"{store!r}"
            )
        if not isinstance(above, int) or isinstance(above, bool) or above < 0:
            raise ConfigurationError(f"Offloaded(above=) must be a whole number of at least 0, not {above!r}")
        self.store = store
        self._above = above

    def applies_to(self, size: int) -> bool:
        """Return whether a value of that many bytes is offloaded."""
        return size > self._above

    def encode(self, data: bytes, place: str) -> Encoded | None:
        """Store a large value and return its name as the note."""
        if not self.applies_to(len(data)):
            return None
        name = sha256(data).hexdigest()
        self.store.put(name, data)
        return Encoded(b"", name)

    def decode(self, encoded: Encoded, place: str) -> bytes:
        """Return the value; raise `CodecError` if the store does not have it, or has other bytes."""
        data = self.store.get(encoded.note)
        if data is None:
            raise CodecError(
                f"{self.store!r} has no blob {encoded.note}: was it deleted, or does this process use another store?"
            )
        if sha256(data).hexdigest() != encoded.note:
            raise CodecError(f"the blob {encoded.note} in {self.store!r} has other bytes than were stored")
        return data

    def __repr__(self) -> str:
        return f"Offloaded({self.store!r}, above={self._above})"
