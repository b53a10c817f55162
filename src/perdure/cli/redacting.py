"""Redacting exported histories: a function of the user, or one that replaces all texts."""

import hashlib
import secrets

from perdure.cli.apps import load_module
from perdure.cli.exits import UsageError
from perdure.testing.redaction import Redact, Scalar


def redaction(texts: bool, function: str | None) -> Redact | None:
    """Return the function that redacts values: that of `module:function`, one that replaces all texts, or None."""
    if function is not None:
        return _loaded(function)
    return new_text_redaction() if texts else None


def new_text_redaction() -> Redact:
    """Return a function that replaces texts: equal texts by equal ones, which nobody can turn back without its key."""
    key = secrets.token_bytes(16)

    def redact(place: str, value: Scalar) -> Scalar:
        if not isinstance(value, str):
            return value
        return f"redacted-{hashlib.blake2b(value.encode('utf-8', 'replace'), digest_size=6, key=key).hexdigest()}"

    return redact


def _loaded(name: str) -> Redact:
    module, _, attribute = name.partition(":")
    found: Redact | None = getattr(load_module(module), attribute, None) if attribute else None
    if not callable(found):
        raise UsageError(f"--redact-with {name} is no function: write module:function, with redact(place, value)")
    return found
