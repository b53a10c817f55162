"""Find the value at a JSON path, for filters of inputs and for waits that match messages: keys joined by dots."""

from collections.abc import Mapping
from typing import Final

PATH_MAX = 255


class Missing:
    """Mark that there is no value; it equals nothing that JSON can hold, not even null."""


MISSING: Final = Missing()


def value_at(document: object, path: str) -> object:
    """Return the value at a path, or `MISSING`. An array has no keys."""
    for key in path.split("."):
        if not isinstance(document, Mapping) or key not in document:
            return MISSING
        document = document[key]
    return document
