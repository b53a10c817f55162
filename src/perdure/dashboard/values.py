"""Values as pages show them: readable JSON, with numbers as they are written, and without what is secret.

A number that a browser reads as a float may be rounded, so numbers stay text from the database to the page.
"""

import inspect
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec
from markupsafe import Markup, escape

from perdure.errors import ConfigurationError
from perdure.model.envelopes import unreadable

Redact = Callable[[Any, str], Any]
"""A function of `dashboard_app(redact=)` that takes a value and what it is, and returns what the dashboard shows."""

HIDDEN = "•••"
TEXT_MAX = 4_000  # characters of a text that are shown
ITEMS_MAX = 200  # elements of an array or object that are shown
DEPTH_MAX = 40


class Number(str):
    """A number as it is written."""

    __slots__ = ()


def parse(data: bytes | str | None) -> Any:
    """Return the value of a stored JSON text, with its numbers as they are written; the text itself if it is none.

    A value that this process cannot decode, because it has no such codec, is a text that says how it is stored.
    """
    if data is None:
        return None
    if (hidden := unreadable(data.encode() if isinstance(data, str) else data)) is not None:
        return str(hidden)
    try:
        return json.loads(data, parse_int=Number, parse_float=Number, parse_constant=Number)
    except (ValueError, RecursionError):
        return data.decode("utf-8", "replace") if isinstance(data, bytes) else data


class Redactor:
    """Hides what is secret, by the names of keys or by a function of the user."""

    def __init__(self, given: Redact | Collection[str] | None) -> None:
        self._function: Redact | None = None
        self._keys: frozenset[str] = frozenset()
        if given is None:
            return
        if callable(given):
            if inspect.iscoroutinefunction(given):
                raise ConfigurationError("dashboard_app(redact=) must be a plain function, not an async one")
            self._function = given
        elif isinstance(given, str) or not all(isinstance(each, str) for each in given):
            raise ConfigurationError("dashboard_app(redact=) must be a function, or the names of keys to be hidden")
        else:
            self._keys = frozenset(each.lower() for each in given)

    def __call__(self, value: Any, where: str) -> Any:
        """Return a value as it may be shown. `where` says what it is, such as `input` or `step charge`."""
        if self._function is not None:
            return self._function(value, where)
        return _hide(value, self._keys) if self._keys else value


def _hide(value: Any, keys: frozenset[str]) -> Any:
    if isinstance(value, Mapping):
        return {key: HIDDEN if str(key).lower() in keys else _hide(each, keys) for key, each in value.items()}
    if isinstance(value, list):
        return [_hide(each, keys) for each in value]
    return value


def plain(value: Any) -> Any:
    """Return a value for the JSON of a page."""
    if isinstance(value, Number):
        return msgspec.Raw(value.encode()) if value not in ("NaN", "Infinity", "-Infinity") else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return value


def pretty(value: Any) -> Markup:
    """Return a value as indented JSON with markup; what is very long is shortened."""
    parts: list[str | Markup] = []
    _write(value, 0, parts)
    return Markup("").join(parts)


def _write(value: Any, depth: int, out: list[str | Markup]) -> None:
    if depth > DEPTH_MAX:
        out.append(_part("more", "… (nested more deeply)"))
    elif isinstance(value, Number):
        out.append(_part("num", value))
    elif isinstance(value, str):
        shown = value if len(value) <= TEXT_MAX else value[:TEXT_MAX]
        out.append(_part("str", json.dumps(shown, ensure_ascii=False)))
        if len(value) > TEXT_MAX:
            out.append(_part("more", f" … {len(value):,} characters in all"))
    elif isinstance(value, Mapping):
        pairs = [(_part("key", json.dumps(str(key), ensure_ascii=False)) + ": ", each) for key, each in value.items()]
        _write_items(pairs, "{}", depth, out)
    elif isinstance(value, list | tuple):
        _write_items([(Markup(""), each) for each in value], "[]", depth, out)
    elif isinstance(value, bytes):
        out.append(_part("more", f"{len(value):,} bytes"))
    elif value is None or isinstance(value, bool | int | float):
        out.append(_part("num" if not isinstance(value, bool) and value is not None else "lit", json.dumps(value)))
    else:
        out.append(_part("str", str(value)))


def _write_items(items: list[tuple[Markup, Any]], brackets: str, depth: int, out: list[str | Markup]) -> None:
    out.append(Markup(brackets[0]))
    for number, (label, each) in enumerate(items[:ITEMS_MAX]):
        out.append(Markup(",\n" if number else "\n") + "  " * (depth + 1))
        out.append(label)
        _write(each, depth + 1, out)
    if len(items) > ITEMS_MAX:
        out.append(Markup("\n") + "  " * (depth + 1) + _part("more", f"… {len(items):,} in all"))
    out.append((Markup("\n") + "  " * depth if items else Markup("")) + brackets[1])


def _part(kind: str, text: str) -> Markup:
    return Markup('<span class="j-{}">{}</span>').format(kind, escape(text))
