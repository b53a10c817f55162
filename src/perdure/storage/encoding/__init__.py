"""Encode the values of users on their way to a storage, and decode them on their way back."""

from perdure.storage.encoding.storage import EncodingStarts, encoding

__all__ = ["EncodingStarts", "encoding"]
