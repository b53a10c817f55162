"""Encryption of values with AES-256-GCM, by keys with ids, so that keys can be replaced."""

import os
import re
from base64 import b64decode
from collections.abc import Mapping
from typing import TYPE_CHECKING

from perdure.codecs.protocol import Codec, Encoded
from perdure.errors import CodecError, ConfigurationError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
NONCE_BYTES = 12

_KEY_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")


class Encrypted(Codec):
    """Encrypts values with AES-256-GCM, each with a random nonce.

    - `keys`: the keys by their ids, each 32 bytes, or their base64 text. The first key encrypts, and all of them
      decrypt: `Encrypted({"2027": new, "2026": old})`. An id has at most 64 letters, digits, `-`, `_` and `.`. It is
      stored next to each value as plain text.

    A value can only be decrypted in the place that it was encrypted for, such as the input of the same run. Needs
    `pip install "perdure[crypto]"`. Raises `ConfigurationError` for keys that cannot work.
    """

    name = "aes256gcm"

    def __init__(self, keys: Mapping[str, bytes | str]) -> None:
        found = _ciphers(keys)
        del keys  # a traceback may show arguments
        self._ciphers = {} if isinstance(found, str) else found
        if isinstance(found, str):
            raise ConfigurationError(found)
        self._current = next(iter(found))

    def encode(self, data: bytes, place: str) -> Encoded:
        """Return the nonce and the encrypted value; the note is the id of the key."""
        nonce = os.urandom(NONCE_BYTES)
        return Encoded(nonce + self._ciphers[self._current].encrypt(nonce, data, place.encode()), self._current)

    def decode(self, encoded: Encoded, place: str) -> bytes:
        """Return the value; raise `CodecError` if the key is unknown or wrong, or the value was changed or moved."""
        from cryptography.exceptions import InvalidTag

        cipher = self._ciphers.get(encoded.note)
        if cipher is None:
            known = ", ".join(map(repr, self._ciphers))
            raise CodecError(f"this process has no key {encoded.note!r}, only {known}: add it to Encrypted(keys)")
        nonce, data = encoded.data[:NONCE_BYTES], encoded.data[NONCE_BYTES:]
        try:
            return cipher.decrypt(nonce, data, place.encode())
        except (InvalidTag, ValueError) as error:
            raise CodecError(
                f"the key {encoded.note!r} of this process does not decrypt it: another process uses another key with "
                "this id, or the value was changed or moved in the database"
            ) from error

    def __repr__(self) -> str:
        return f"Encrypted(keys {', '.join(map(repr, self._ciphers))})"


def new_key() -> bytes:
    """Return a new random key. Keep it in a secret store: without it the values are lost."""
    return os.urandom(KEY_BYTES)


def _ciphers(keys: Mapping[str, bytes | str]) -> "dict[str, AESGCM] | str":
    """Return the ciphers by their ids, or what is wrong: an error that is raised here would show the keys."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        return 'Encrypted(…) needs the package cryptography: pip install "perdure[crypto]"'
    if not isinstance(keys, Mapping) or not keys:
        return 'Encrypted(keys) takes at least one key by its id, such as {"k1": new_key()}'
    found = {}
    for id, key in keys.items():
        if not isinstance(id, str) or not _KEY_ID.match(id):
            return f"the id of a key must have 1 to 64 letters, digits, '-', '_' or '.', not {id!r}: choose another id"
        raw = _raw(key)
        if raw is None:
            return (
                f"the key {id!r} given to Encrypted(…) must be {KEY_BYTES} bytes, or their base64 text: make one with "
                "perdure.codecs.new_key()"
            )
        found[id] = AESGCM(raw)
    return found


def _raw(key: object) -> bytes | None:
    try:
        raw = b64decode(key, validate=True) if isinstance(key, str) else key
    except ValueError:
        return None
    return raw if isinstance(raw, bytes) and len(raw) == KEY_BYTES else None
