"""Codecs for hints that msgspec does not support: ambiguous unions, pydantic models, dicts with non-string keys.

A codec packs a value into what msgspec can encode, and loads it from JSON. msgspec handles everything that it encodes
exactly (`Plain`); Python code handles only the path to an ambiguous position. There a union member that shares its JSON
form with another one gets a tag: `{"$type": "Circle", …its fields}` for dataclasses and models, `{"$type": "datetime",
"value": …}` for everything else. The types of JSON itself have no tag, and unambiguous positions have none.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import cached_property, lru_cache
from typing import Any, Literal, Protocol, get_args, get_origin

import msgspec

from perdure.engine.history import hints, losses
from perdure.errors import SerializationError

TAG, VALUE = "$type", "value"
CODECS_MAX = 4096

_load_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_load_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_load_pairs = msgspec.json.Decoder(list[tuple[msgspec.Raw, msgspec.Raw]]).decode

Text = bytes | msgspec.Raw

ADVICE = "use dataclasses, pydantic models, enums, JSON types or lists and dicts of them, or convert the value before"


class Codec(Protocol):
    """Packs values for msgspec's encoder and loads them from JSON."""

    plain: bool

    def pack(self, value: Any) -> Any: ...

    def load(self, data: Text) -> Any: ...


def codec(hint: Any) -> Codec:
    """Return the cached codec of a hint."""
    try:
        return _cached(hint)
    except TypeError:  # an annotation that contains a list is not hashable
        return _made(hint)


def _made(hint: Any) -> Codec:
    if _is_plain(hint, set()):
        try:
            decoder = msgspec.json.Decoder(hint)
            return Checked(decoder, hint) if losses.has_records(hint) else Plain(decoder)
        except (TypeError, RecursionError, NameError):
            pass  # it contains something that msgspec does not support
    stripped = hints.bare(hint)
    return codec(stripped) if stripped is not hint else _structured(hint)


_cached = lru_cache(CODECS_MAX)(_made)


def _is_plain(hint: Any, seen: set[Any]) -> bool:
    """Return whether msgspec handles a hint exactly; `seen` ends the recursion of recursive hints."""
    hint = hints.bare(hint)
    try:
        if hint in seen:
            return True
        seen.add(hint)
    except TypeError:
        pass  # an unhashable hint cannot be recursive
    if hints.is_pydantic(hint) or hints.is_odd_enum(hint):
        return False
    if hints.is_union(hint) and _tags(hints.members(hint)):
        return False
    if hints.is_mapping(hint) and not hints.is_key((*get_args(hint), Any)[0]):
        return False
    return all(_is_plain(inner, seen) for inner in hints.inner(hint))


def _structured(hint: Any) -> Codec:
    for fits, make in _KINDS:
        if fits(hint):
            return make(hint)
    raise SerializationError(f"values of {hint!r} cannot be encoded as JSON and decoded again: {ADVICE}")


class Plain:
    """A hint that msgspec handles exactly."""

    plain = True

    def __init__(self, decoder: "msgspec.json.Decoder[Any]") -> None:
        self.load = decoder.decode

    def pack(self, value: Any) -> Any:
        return value

    load: Callable[[Text], Any]


class Checked(Plain):
    """A hint that msgspec handles exactly, with dataclasses in it; instances of subclasses are rejected."""

    plain = False

    def __init__(self, decoder: "msgspec.json.Decoder[Any]", hint: Any) -> None:
        super().__init__(decoder)
        self._hint = hint
        self._flat = losses.flat_record(hint)

    def pack(self, value: Any) -> Any:
        if type(value) is not self._flat:
            losses.check_exact(value, self._hint)
        return value


class Model:
    """A pydantic model, encoded by field names, because the aliases for input and output may differ."""

    plain = False

    def __init__(self, hint: Any) -> None:
        self._model = hint

    def pack(self, value: Any) -> Any:
        if not isinstance(value, self._model):
            raise _misfit(value, self._model)
        losses.check_exact(value, self._model)
        try:
            return dump_model(value)
        except SerializationError:
            raise
        except Exception as error:
            raise SerializationError(f"{type(value).__qualname__} cannot be encoded as JSON: {error}") from error

    def load(self, data: Text) -> Any:
        return self._model.model_validate_json(bytes(data), by_alias=False, by_name=True)


def dump_model(value: Any) -> Any:
    """Return a pydantic model as plain JSON values."""
    dumped = value.model_dump(mode="json", round_trip=True, by_alias=False, warnings=False)
    losses.check_secrets(value, dumped)
    return dumped


class OddEnum:
    """An enum with mixed or structured values, encoded by the names of its members."""

    plain = False

    def __init__(self, hint: Any) -> None:
        self._enum = hint

    def pack(self, value: Any) -> Any:
        if not isinstance(value, self._enum):
            raise _misfit(value, self._enum)
        return value.name

    def load(self, data: Text) -> Any:
        return self._enum[msgspec.json.decode(data, type=str)]


class Array:
    """A list, set or variable-length tuple."""

    plain = False

    def __init__(self, hint: Any) -> None:
        self._class: Any = hints.array_class(hint)
        self._hint = (*get_args(hint), Any)[0]

    @cached_property
    def _item(self) -> Codec:
        return codec(self._hint)

    def pack(self, value: Any) -> Any:
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise _misfit(value, self._class)
        return list(map(self._item.pack, value))

    def load(self, data: Text) -> Any:
        return self._class(map(self._item.load, _load_list(data)))


class Fixed:
    """A tuple or named tuple with a hint for each item; trailing items with defaults may be missing."""

    plain = False

    def __init__(self, hint: Any) -> None:
        self._class: Any = get_origin(hint) or hint
        self._named = hints.is_named_tuple(hint)
        self._hints = list(hints.fields(hint).values()) if self._named else list(get_args(hint))
        self._least = len(self._hints) - len(getattr(self._class, "_field_defaults", ()))

    @cached_property
    def _items(self) -> list[Codec]:
        return [codec(hint) for hint in self._hints]

    def pack(self, value: Any) -> Any:
        if not isinstance(value, tuple | list) or len(value) != len(self._hints):
            raise _misfit(value, self._class)
        return [item.pack(part) for item, part in zip(self._items, value, strict=True)]

    def load(self, data: Text) -> Any:
        texts = _load_list(data)
        if not self._least <= len(texts) <= len(self._hints):
            raise SerializationError(
                f"{self._class.__name__} has {len(self._hints)} items, but the JSON array has {len(texts)}"
            )
        parts = [item.load(text) for item, text in zip(self._items, texts, strict=False)]
        return self._class(*parts) if self._named else tuple(parts)


class Table:
    """A dict; encoded as a list of pairs if its keys would not stay distinct as JSON keys, which are strings."""

    plain = False

    def __init__(self, hint: Any) -> None:
        self._hints = get_args(hint) or (Any, Any)
        self._keyed = hints.is_key(self._hints[0])

    @cached_property
    def _codecs(self) -> tuple[Codec, Codec]:
        return codec(self._hints[0]), codec(self._hints[1])

    @cached_property
    def _load_keyed(self) -> Callable[[Text], dict[Any, msgspec.Raw]]:
        key = hints.bare(self._hints[0])
        return msgspec.json.Decoder(dict[key, msgspec.Raw]).decode  # type: ignore[valid-type]

    def pack(self, value: Any) -> Any:
        if not isinstance(value, hints.MAPPING):
            raise _misfit(value, dict)
        key, item = self._codecs
        if self._keyed:
            return {name: item.pack(part) for name, part in value.items()}
        return [(key.pack(name), item.pack(part)) for name, part in value.items()]

    def load(self, data: Text) -> Any:
        key, item = self._codecs
        if self._keyed:
            return {name: item.load(text) for name, text in self._load_keyed(data).items()}
        return {key.load(name): item.load(text) for name, text in _load_pairs(data)}


class Keyed:
    """A typed dict; keys that it does not name are dropped, as msgspec does."""

    plain = False

    def __init__(self, hint: Any) -> None:
        self._class: Any = get_origin(hint) or hint
        self._hint = hint

    @cached_property
    def _items(self) -> dict[str, Codec]:
        return {name: codec(hint) for name, hint in hints.fields(self._hint).items()}

    def pack(self, value: Any) -> Any:
        if not isinstance(value, dict):
            raise _misfit(value, self._class)
        return {name: item.pack(value[name]) for name, item in self._items.items() if name in value}

    def load(self, data: Text) -> Any:
        texts = _load_object(data)
        if missing := self._class.__required_keys__ - texts.keys():
            raise SerializationError(f"{self._class.__name__}: the JSON object lacks the keys {_listed(missing)}")
        return {name: item.load(texts[name]) for name, item in self._items.items() if name in texts}


class Record:
    """A dataclass, rebuilt as msgspec does: fields are set, then `__post_init__` runs, but not `__init__`."""

    plain = False

    def __init__(self, hint: Any) -> None:
        self._class: Any = get_origin(hint) or hint
        self._hint = hint

    @cached_property
    def _items(self) -> list[tuple["dataclasses.Field[Any]", Codec]]:
        inner = hints.fields(self._hint)
        return [(field, codec(inner[field.name])) for field in dataclasses.fields(self._class)]

    def pack(self, value: Any) -> Any:
        if not isinstance(value, self._class):
            raise _misfit(value, self._class)
        losses.check_class(value, self._class)
        return {field.name: item.pack(getattr(value, field.name)) for field, item in self._items}

    def load(self, data: Text) -> Any:
        texts = _load_object(data)
        made = object.__new__(self._class)
        for field, item in self._items:
            text = texts.get(field.name)
            object.__setattr__(made, field.name, self._default(field) if text is None else item.load(text))
        if hasattr(made, "__post_init__"):
            made.__post_init__()
        return made

    def _default(self, field: "dataclasses.Field[Any]") -> Any:
        if field.default is not dataclasses.MISSING:
            return field.default
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        raise SerializationError(f"{self._class.__name__}: the JSON object lacks the field {field.name!r}")


class Union:
    """A union: the type of the value selects the member to encode, the tag or JSON form the member to decode."""

    plain = False

    def __init__(self, hint: Any) -> None:
        self._hint = hint
        self._members = hints.members(hint)
        self._tags = _tags(self._members)
        self._by_tag = {tag: self._members[place] for place, tag in self._tags.items()}

    @cached_property
    def _codecs(self) -> list[Codec]:
        return [codec(member) for member in self._members]

    @cached_property
    def _untagged(self) -> dict[str, Codec]:
        """Return the codec of each JSON form that has no tag; the types of JSON itself share one."""
        free = [member for place, member in enumerate(self._members) if place not in self._tags]
        basic = [member for member in free if hints.is_basic(member)]
        found = {form: codec(member) for member in free for form in hints.forms(member)}
        return found | {form: codec(hints.joined(basic)) for member in basic for form in hints.forms(member)}

    def pack(self, value: Any) -> Any:
        place = self._choice(value)
        packed = self._codecs[place].pack(value)
        tag = self._tags.get(place)
        if tag is None:
            return packed
        if not _is_inline(self._members[place]):
            return {TAG: tag, VALUE: packed}
        return {TAG: tag, **self._fields(place, packed)}

    def _fields(self, place: int, packed: Any) -> dict[str, Any]:
        """Return the fields of a dataclass or model, to which a tag is added."""
        if dataclasses.is_dataclass(packed):  # not packed, because msgspec handles it exactly
            member = hints.runtime_class(self._members[place])
            return {field.name: getattr(packed, field.name) for field in dataclasses.fields(member)}
        if not isinstance(packed, dict) or TAG in packed:
            name = hints.runtime_class(self._members[place]).__name__
            raise SerializationError(
                f"{name} in {self._hint} must be encoded as a JSON object without the key {TAG!r}, which is the tag of "
                "unions: rename that field"
            )
        return packed

    def _choice(self, value: Any) -> int:
        for exact in (True, False):
            near = [place for place, member in enumerate(self._members) if _is_of(value, member, exact)]
            if len(near) > 1:
                near = _closest(value, [(place, self._members[place]) for place in near], exact)
            if near:
                return near[0]
        raise SerializationError(f"a value of type {type(value).__qualname__} does not match {self._hint}")

    def load(self, data: Text) -> Any:
        form = _FIRST.get(bytes(data).lstrip()[:1], "number")
        if form == "object" and self._tags:
            return self._load_tagged(data)
        if form not in self._untagged:
            raise SerializationError(f"a JSON {form} does not match {self._hint}")
        return self._untagged[form].load(data)

    def _load_tagged(self, data: Text) -> Any:
        texts = _load_object(data)
        tag = msgspec.json.decode(texts.pop(TAG, b"null"))
        member = self._by_tag.get(tag) if isinstance(tag, str) else None
        if member is None:
            raise SerializationError(f"{TAG!r} must be one of {_listed(self._by_tag)}, not {tag!r}")
        if _is_inline(member):
            return codec(member).load(msgspec.json.encode(texts))
        if VALUE not in texts:
            raise SerializationError(f"the JSON object with the tag {tag!r} lacks the key {VALUE!r}")
        return codec(member).load(texts[VALUE])


def tagged_members(hint: Any) -> list[tuple[Any, str | None, bool]]:
    """Return the members of a union, each with its tag, or None, and whether the tag is added to its own fields."""
    members = hints.members(hint)
    tags = _tags(members)
    return [(member, tags.get(place), _is_inline(member)) for place, member in enumerate(members)]


_FIRST = {b"{": "object", b"[": "array", b'"': "string", b"t": "bool", b"f": "bool", b"n": "null"}


def _tags(members: list[Any]) -> dict[int, str]:
    """Return the tags, by position, of the members whose JSON could not be distinguished from another member's."""
    forms = [hints.forms(member) for member in members]
    counts = Counter(form for some in forms for form in some)
    tagged = {
        place
        for place, member in enumerate(members)
        if not hints.is_basic(member) and any(counts[form] > 1 for form in forms[place])
    }
    if tagged:  # then tag all objects, so that a user's dict that looks like a tagged object is no problem
        tagged |= {place for place in range(len(members)) if "object" in forms[place]}
    return _names({place: members[place] for place in tagged})


def _names(tagged: dict[int, Any]) -> dict[int, str]:
    """Return the class name of each member; if two are equal, the shortest form in which all names differ."""
    for name in (hints.short_name, hints.full_name, hints.path_name):
        names = {place: name(member) for place, member in sorted(tagged.items())}
        if len(set(names.values())) == len(names):
            return names
    raise SerializationError(f"two members of a union have the same name, rename one: {_listed(names.values())}")


def _is_inline(member: Any) -> bool:
    """Return whether the tag is added to the fields; a model that may not become an object is wrapped instead."""
    return hints.is_record(member) or (hints.is_pydantic(member) and hints.forms(member) == {"object"})


def _is_of(value: Any, member: Any, exact: bool) -> bool:
    """Return whether a value is of a member's type; its contents are not checked."""
    if get_origin(member) is Literal:
        return any(type(value) is type(one) and value == one for one in get_args(member))
    found = hints.runtime_class(member)
    if exact and not hints.is_abstract(found):
        return type(value) is found
    if found is float and type(value) is int:
        return True  # as for type checkers
    return isinstance(value, found) and not (hints.is_abstract(found) and isinstance(value, str | bytes | bytearray))


def _closest(value: Any, near: list[tuple[int, Any]], exact: bool) -> list[int]:
    """Return the members that match the contents of a value too, those with the nearest base class first."""
    fitting = [(place, member) for place, member in near if _fits(value, member, exact)]
    order = type(value).__mro__
    far = len(order)
    rank = [(order.index(c) if (c := hints.runtime_class(m)) in order else far, place) for place, m in fitting]
    return [place for _, place in sorted(rank)]


def _fits(value: Any, hint: Any, exact: bool) -> bool:
    """Return whether a value and its contents match a hint."""
    hint = hints.bare(hint)
    if hint is Any:
        return True
    if hints.is_union(hint):
        return any(_fits(value, member, exact) for member in hints.members(hint))
    if not _is_of(value, hint, exact):
        return False
    if hints.is_typed_dict(hint):
        inner = hints.fields(hint)
        required = (get_origin(hint) or hint).__required_keys__
        return required <= value.keys() <= inner.keys() and all(_fits(v, inner[k], exact) for k, v in value.items())
    if not (args := get_args(hint)) or get_origin(hint) is Literal:
        return True
    if hints.is_record(hint):
        return all(_fits(getattr(value, name), inner, exact) for name, inner in hints.fields(hint).items())
    return _all_fit(value, hint, args, exact)


def _all_fit(value: Collection[Any], hint: Any, args: tuple[Any, ...], exact: bool) -> bool:
    if isinstance(value, hints.MAPPING):
        return all(_fits(k, args[0], exact) and _fits(v, args[1], exact) for k, v in value.items())
    if hints.is_fixed(hint):
        return len(value) == len(args) and all(map(_fits, value, args, [exact] * len(args)))
    return all(_fits(part, args[0], exact) for part in value)


def _misfit(value: Any, expected: Any) -> SerializationError:
    return SerializationError(f"a value of type {type(value).__qualname__} where the hint says {expected.__name__}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)))


def _union(hint: Any) -> Codec:
    members = hints.members(hint)
    if Any in members:
        return codec(Any)
    return codec(members[0]) if len(members) == 1 else Union(hint)


_KINDS: list[tuple[Callable[[Any], bool], Callable[[Any], Codec]]] = [
    (hints.is_pydantic, Model),
    (hints.is_union, _union),
    (hints.is_literal, _union),
    (hints.is_odd_enum, OddEnum),
    (hints.is_record, Record),
    (hints.is_typed_dict, Keyed),
    (hints.is_fixed, Fixed),
    (lambda hint: hints.array_class(hint) is not None, Array),
    (hints.is_mapping, Table),
]
