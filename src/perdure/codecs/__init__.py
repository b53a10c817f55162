"""Codecs: how users' values are stored. `App(url, codec=[Compressed(), Encrypted(keys), Offloaded(store)])`.

This module exports everything that programs need, also for codecs of their own.
"""

from perdure.codecs.blobs import Blob, BlobStore, FileBlobs
from perdure.codecs.compression import Compressed
from perdure.codecs.encryption import Encrypted, new_key
from perdure.codecs.offloading import Offloaded
from perdure.codecs.protocol import Codec, Encoded
from perdure.model.envelopes import Unreadable

__all__ = [
    "Blob",
    "BlobStore",
    "Codec",
    "Compressed",
    "Encoded",
    "Encrypted",
    "FileBlobs",
    "Offloaded",
    "Unreadable",
    "new_key",
]
