"""Values as pages show them: readable JSON, with numbers as they are written, and without what is secret.

A number that a browser reads as a float may be rounded, so numbers stay text from the database to the page.
"""

import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
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
SHOWN_MAX = 50_000  # characters of a value that are shown
SHOWN_IN_LIST_MAX = 4_000  # the same where a page has many values


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


def pretty(value: Any, most: int = SHOWN_MAX) -> Markup:
    """Return a value as indented JSON with markup; what is very long is shortened."""
    out = _Parts(most)
    try:
        _write(value, 0, out)
    except _FullError:
        out.append(_part("more", "\n… shortened: the JSON of this page has the whole value"))
    return Markup("").join(out)


class _FullError(Exception):
    """A value has more characters than are shown."""


class _Parts(list[Markup]):
    """The parts of a value, and how many characters of it may follow."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def spend(self, characters: int) -> None:
        """Count what is about to be shown; raise `_FullError` if it is too much."""
        self.left -= characters
        if self.left < 0:
            raise _FullError


def _write(value: Any, depth: int, out: _Parts) -> None:
    if depth > DEPTH_MAX:
        out.append(_part("more", "… (nested more deeply)"))
    elif isinstance(value, Number):
        out.spend(len(value))
        out.append(_part("num", value))
    elif isinstance(value, str):
        shown = value[: min(TEXT_MAX, out.left)]
        out.spend(len(shown))
        out.append(_part("str", json.dumps(shown, ensure_ascii=False)))
        if len(value) > len(shown):
            out.append(_part("more", f" … {len(value):,} characters in all"))
    elif isinstance(value, Mapping):
        pairs = ((_part("key", json.dumps(str(key), ensure_ascii=False)) + ": ", each) for key, each in value.items())
        _write_items(pairs, len(value), "{}", depth, out)
    elif isinstance(value, list | tuple):
        _write_items(((Markup(""), each) for each in value), len(value), "[]", depth, out)
    elif isinstance(value, bytes):
        out.append(_part("more", f"{len(value):,} bytes"))
    elif value is None or isinstance(value, bool | int | float):
        out.append(_part("num" if not isinstance(value, bool) and value is not None else "lit", json.dumps(value)))
    else:
        out.append(_part("str", str(value)))


def _write_items(items: Iterable[tuple[Markup, Any]], in_all: int, brackets: str, depth: int, out: _Parts) -> None:
    out.append(Markup(brackets[0]))
    for number, (label, each) in enumerate(islice(items, ITEMS_MAX)):
        out.spend(len(label) + 2 * depth + 10)
        out.append(Markup(",\n" if number else "\n") + "  " * (depth + 1))
        out.append(label)
        _write(each, depth + 1, out)
    if in_all > ITEMS_MAX:
        out.append(Markup("\n") + "  " * (depth + 1) + _part("more", f"… {in_all:,} in all"))
    out.append((Markup("\n") + "  " * depth if in_all else Markup("")) + brackets[1])


def _part(kind: str, text: str) -> Markup:
    return Markup('<span class="j-{}">{}</span>').format(kind, escape(text))
