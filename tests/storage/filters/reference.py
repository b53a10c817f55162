"""A second implementation of input filters, without a database, and texts to test it on."""

import json
import re
import string
from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import strategies as st

Filters = Mapping[str, Any]


def matches(stored: str, filters: Filters) -> bool:
    """Whether the stored text is JSON and has each value at its path."""
    try:
        document = json.loads(stored, parse_constant=lambda word: 1 / 0, parse_int=float, object_pairs_hook=_Object)
    except (ValueError, ZeroDivisionError, RecursionError):
        return False
    return all(_has(document, path.split("."), value) for path, value in filters.items())


class _Object(list[tuple[str, Any]]):
    """An object as its pairs, so that a key given twice is seen twice."""


def _has(found: Any, keys: list[str], value: Any) -> bool:
    if keys:
        values = [inner for key, inner in found if key == keys[0]] if isinstance(found, _Object) else []
        return bool(values) and _has(values[-1], keys[1:], value)
    if value is None or isinstance(value, bool):
        return found is value
    if isinstance(value, str):
        return isinstance(found, str) and [*map(ord, found)] == [*map(ord, value)]
    return isinstance(found, float) and found == float(value)


KEYS = ["a", "b", "ab", "A", "_1"]
PATHS = ["a", "b", "ab", "_1", "a.b", "b.a", "a.a", "a.b.a", "b.A._1"]
NUMBERS = ["0", "-0", "-0.0", "0e5", "1", "1.0", "1e0", "10E-1", "-1", "2", "0.1", "1e-1", "0.10000000000000001", "0.3",
           "12345678901", "9007199254740991", "9007199254740992", "1.5", "-15e-1", "1e15"]  # fmt: skip
TEXTS = ["", "a", "A", "a ", " a", "true", "null", "1", "é", "É", "e\u0301", "ß", "😀", "\\", '"', "/", "'", "\n", "%s",
         "\u2028", "{", "[", '{"a":1}']  # fmt: skip

_number = st.sampled_from(NUMBERS) | st.floats(-(2**53), 2**53).map(repr)
_strange_number = st.sampled_from(
    [
        "1e400",
        "-1e400",
        "1e-400",
        "0.30000000000000004",
        "9007199254740993",
        "9" * 30,
        "9" * 400,
        "1e99999",
        "9223372036854775807",
        "-9223372036854775808",
        "18446744073709551616",
        "5e-324",
        "2e-324",
        "2.2250738585072014e-308",
        "1.7976931348623157e308",
        "0.1e-400",
        "1e+0",
        "100e-2",
    ]
)
_space = st.sampled_from(["", "", "", " ", "\n\t\r"])
_character = st.characters(exclude_categories=["Cs"], exclude_characters="\0")


@st.composite
def _string(draw: st.DrawFn, source: st.SearchStrategy[str], escapes: bool) -> str:
    """A JSON text, each character written in one of the ways there are."""
    written = []
    for char in draw(source):
        short = json.dumps(char, ensure_ascii=False)[1:-1]
        units = char.encode("utf-16-be")
        long = "".join(f"\\u{units[n]:02x}{units[n + 1]:02X}" for n in range(0, len(units), 2))
        written.append(draw(st.sampled_from([short, short, long])) if escapes else short)
    return '"' + "".join(written) + '"'


def _values(strange: bool) -> st.SearchStrategy[str]:
    text = _string(st.sampled_from(TEXTS) | st.text(_character, max_size=5), escapes=True)
    scalar = st.sampled_from(["true", "false", "null"]) | _number | text
    if strange:
        scalar |= _strange_number | st.sampled_from(
            [r'"\u0000"', r'"a\u0000"', r'"\ud800"', r'"\udc00a"', r'"\ude00\ud83d"']
        )
    return st.recursive(
        scalar, lambda inner: _objects(inner, strange) | _objects(inner, strange) | _arrays(inner), max_leaves=6
    )


def _arrays(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(st.lists(inner, max_size=3), _space).map(lambda both: f"[{both[1]}{f'{both[1]},'.join(both[0])}]")


def _objects(inner: st.SearchStrategy[str], strange: bool) -> st.SearchStrategy[str]:
    names = st.sampled_from([*KEYS * 5, "", "a.b", "a ", "é", "1"])
    unique = None if strange else lambda pair: pair[0]
    pairs = st.lists(st.tuples(names, _space, inner), min_size=1, max_size=4, unique_by=unique)
    return pairs.flatmap(lambda pairs: _written(pairs, strange))


@st.composite
def _written(draw: st.DrawFn, pairs: list[tuple[str, str, str]], strange: bool) -> str:
    texts = [f"{space}{draw(_string(st.just(key), strange))}:{space}{value}" for key, space, value in pairs]
    if strange and draw(st.booleans()):
        texts.append(
            draw(st.sampled_from([r'"a\u0000": 1', '"x": ' + "[" * 40 + "]" * 40, '"x": ' + "[" * 110 + "]" * 110]))
        )
    return "{" + f"{draw(_space)},".join(texts) + "}"


ordinary = _objects(_values(strange=False), strange=False)
strange = _objects(_values(strange=True), strange=True)


@st.composite
def _damaged(draw: st.DrawFn) -> str:
    text = draw(strange)
    at = draw(st.integers(0, len(text)))
    return (
        text[:at] + draw(st.sampled_from(["", "x", ",", '"', "\\", "}", "\x01", "\ufeff", "NaN", "0"])) + text[at + 1 :]
    )


_piece = st.sampled_from(
    ["a", "b", "_1", "A", "é", "ａ", "0", "", " ", ".", "'", '"', "`", "\\", "\\u0061", ";", "--", "#", "/*", "*/",
     "%", "_", "%s", "%(a)s", "$", "$.", "$[0]", "[0]", "[*]", "**", "{now}", ":limit", "?", "$1", "path", ":condition",
     "input_1", "\0", "\n", "\t", "\r", "\x1a", "\u2028", "\ud800", "') OR 1=1 --",
     "'; DROP TABLE workflow_instances; --", "k" * 250]
)  # fmt: skip
_names = st.lists(st.sampled_from(["a", "b", "ab", "A", "_1", "path", "condition", "now", "select"]), min_size=1)
paths = (
    _names.map(".".join)
    | st.lists(_piece, max_size=6).map("".join)
    | st.lists(_piece, max_size=4).map(".".join)
    | st.tuples(st.sampled_from(PATHS), _piece).map("".join)
    | st.tuples(_piece, st.sampled_from(PATHS)).map("".join)
    | st.text(st.characters(), max_size=10)
    | st.integers(1, 300).map(lambda n: "k" * n)
    | st.integers(1, 40).map(lambda n: ".".join("a" * n))
)


def is_path(path: str) -> bool:
    """Whether a filter may have it: up to 30 ASCII identifiers with dots between them, 255 characters in all."""
    keys = path.split(".")
    return path.isascii() and len(path) <= 255 and len(keys) <= 30 and all(map(str.isidentifier, keys))


def at(path: str, value: str) -> str:
    """A JSON text that has a value at a path."""
    for key in reversed(path.split(".")):
        value = f"{{{json.dumps(key)}: {value}}}"
    return value


garbage = _damaged() | st.text(_character, max_size=20) | st.text(string.punctuation + "019aeu ", max_size=20)

_values_asked = (
    st.sampled_from([*TEXTS, True, False, None, 0, 1, -1, 2, 0.1, 0.3, 1.5, 12345678901, 2**53, 2**53 - 1])
    | st.text(_character, max_size=5)
    | st.floats(-(2**53), 2**53)
    | st.sampled_from([-(2**53), 5e-324, -5e-324, 2.2250738585072014e-308, -0.0, 1 - 2**-53, 0.1 + 0.2])
)
_guessed: st.SearchStrategy[Filters] = st.dictionaries(st.sampled_from(PATHS), _values_asked, min_size=1, max_size=2)


@st.composite
def cases(draw: st.DrawFn, documents: st.SearchStrategy[str]) -> tuple[list[str], Filters]:
    """Texts, and filters that mostly ask for something that one of them has."""
    texts = draw(st.lists(documents, min_size=1, max_size=8))
    there = [pairs for text in texts if (pairs := list(_askable(text)))]
    if not there or draw(st.integers(0, 9)) == 0:
        return texts, draw(_guessed)
    return texts, dict(draw(st.lists(st.sampled_from(draw(st.sampled_from(there))), min_size=1, max_size=2)))


def _askable(stored: str) -> Iterator[tuple[str, Any]]:
    try:
        document = json.loads(stored, object_pairs_hook=_Object)
    except (ValueError, RecursionError):
        return
    yield from _scalars(document, ())


def _scalars(found: Any, keys: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """What stands where, overwritten or not, as far as a filter may ask for it."""
    if isinstance(found, _Object):
        for key, inner in found:
            if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", key, re.ASCII):
                yield from _scalars(inner, (*keys, key))
    elif keys and not isinstance(found, list):
        too_far = isinstance(found, int | float) and not abs(found) <= 2**53
        if not (too_far or (isinstance(found, str) and re.search("[\0\ud800-\udfff]", found))):
            yield ".".join(keys), found
