"""JSON schemas of type hints, for values as `perdure.engine.history.codec` encodes them."""

import copy
import datetime
import enum
import json
from collections.abc import Mapping
from dataclasses import MISSING
from dataclasses import fields as dataclass_fields
from decimal import Decimal
from typing import Any, Literal, get_args, get_origin
from uuid import UUID

import msgspec

from perdure.engine.history import hints
from perdure.engine.history.unions import TAG, VALUE, tagged_members
from perdure.errors import SerializationError

Schema = dict[str, Any]
REF = "#/components/schemas/"
Mode = Literal["validation", "serialization"]
MODES: tuple[Mode, ...] = get_args(Mode)

_SIMPLE: dict[Any, Schema] = {
    type(None): {"type": "null"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    bytearray: {"type": "string", "contentEncoding": "base64"},
    datetime.datetime: {"type": "string", "format": "date-time"},
    datetime.date: {"type": "string", "format": "date"},
    datetime.time: {"type": "string", "description": "a time of day (ISO 8601), with or without a time zone"},
    datetime.timedelta: {"type": "string", "format": "duration"},
    Decimal: {"type": "string", "format": "decimal"},
    UUID: {"type": "string", "format": "uuid"},
}


class Schemas:
    """Makes the schemas of hints, and collects those of classes, which others refer to by name.

    `mode` says whether values are received ("validation") or sent ("serialization"); models of pydantic may differ.
    """

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}
        self._names: dict[tuple[Any, str], str] = {}

    def of(self, hint: Any, mode: Mode = "validation") -> Schema:
        """Return the schema of a hint; that of any value if it cannot be described."""
        try:
            return self._of(hint, mode)
        except (SerializationError, TypeError, NameError, AttributeError):
            return {}

    def _of(self, hint: Any, mode: Any) -> Schema:
        if get_origin(hint) is not None and hasattr(hint, "__metadata__"):
            return self._annotated(hint, mode)
        hint = hints.bare(hint)
        if hint is Any:
            return {}
        if get_origin(hint) is None and hint in _SIMPLE:
            return dict(_SIMPLE[hint])
        for fits, make in self._kinds():
            if fits(hint):
                made: Schema = make(hint, mode)
                return made
        return self._by_msgspec(hint)

    def _kinds(self) -> Any:
        return (
            (hints.is_pydantic, self._model),
            (hints.is_union, self._union),
            (hints.is_literal, self._literal),
            (hints.is_enum, self._enum),
            (hints.is_record, self._record),
            (hints.is_typed_dict, self._record),
            (hints.is_fixed, self._fixed),
            (lambda found: hints.array_class(found) is not None, self._array),
            (hints.is_mapping, self._mapping),
        )

    def _annotated(self, hint: Any, mode: Any) -> Schema:
        """Return the schema of an annotated hint, with the constraints that msgspec enforces."""
        schema = self._of(hint.__origin__, mode)
        if any(isinstance(each, msgspec.Meta) for each in hint.__metadata__) and "$ref" not in schema:
            (constrained,), _ = msgspec.json.schema_components([hint])
            schema |= {key: value for key, value in constrained.items() if key not in schema and key != "$ref"}
        return schema

    # Classes.

    def _named(self, hint: Any, mode: str, make: Any) -> Schema:
        """Return a reference to the schema of a class, which is made once; it may refer to itself."""
        if (hint, mode) not in self._names:
            name = self._names[hint, mode] = self._new_name(_safe(hints.full_name(hint)))
            self.components[name] = {}
            try:
                self.components[name] = {"title": hints.short_name(hint), **make()}
            except BaseException:
                del self._names[hint, mode], self.components[name]
                raise
            self._share(hint, mode)
        return {"$ref": REF + self._names[hint, mode]}

    def _share(self, hint: Any, mode: str) -> None:
        """Use one component for both modes if it is the same in both."""
        name, others = self._names[hint, mode], [self._names.get((hint, each)) for each in MODES if each != mode]
        for other in others:
            if other is not None and self.components[other] == self.components[name]:
                self._names[hint, mode] = other
                del self.components[name]

    def _new_name(self, wanted: str) -> str:
        name, number = wanted, 2
        while name in self.components:
            name, number = f"{wanted}_{number}", number + 1
        return name

    def _record(self, hint: Any, mode: str) -> Schema:
        return self._named(hint, mode, lambda: self._object(hint, mode))

    def _object(self, hint: Any, mode: str) -> Schema:
        inner = hints.fields(hint)
        found = get_origin(hint) or hint
        if hints.is_typed_dict(hint):
            required = [name for name in inner if name in found.__required_keys__]
            defaults: dict[str, Any] = {}
        else:
            known = dataclass_fields(found)
            required = [one.name for one in known if one.default is MISSING and one.default_factory is MISSING]
            defaults = {one.name: one.default for one in known if one.default is not MISSING}
        properties = {name: self._of(field, mode) for name, field in inner.items()}
        for name, value in defaults.items():
            _add_default(properties[name], value)
        return {"type": "object", "properties": properties, "required": required}

    def _model(self, hint: Any, mode: str) -> Schema:
        def make() -> Schema:
            schema: Schema = hint.model_json_schema(by_alias=False, ref_template="{model}", mode=mode)
            return self._hoisted(schema)

        return self._named(hint, mode, make)

    def _hoisted(self, schema: Schema) -> Schema:
        """Return a schema of pydantic whose own definitions are components."""
        definitions: dict[str, Schema] = schema.pop("$defs", {})
        names = {}
        for name in definitions:
            names[name] = self._new_name(_safe(name))
            self.components[names[name]] = {}
        for name, definition in definitions.items():
            self.components[names[name]] = _renamed(definition, names)
        whole: Schema = _renamed(schema, names)
        if set(whole) == {"$ref"}:  # a model that refers to itself
            return dict(self.components[whole["$ref"].removeprefix(REF)])
        return whole

    def _enum(self, hint: Any, mode: str) -> Schema:
        def make() -> Schema:
            if issubclass(hint, enum.Flag):
                return {"type": "integer"}
            odd = hints.is_odd_enum(hint)
            return {"enum": [member.name if odd else member.value for member in hint]}

        return self._named(hint, mode, make)

    # Others.

    def _union(self, hint: Any, mode: str) -> Schema:
        members = tagged_members(hint)
        if any(member is Any for member, _, _ in members):
            return {}
        options = [self._member(*each, mode) for each in members]
        return options[0] if len(options) == 1 else {"anyOf": options}

    def _member(self, member: Any, tag: str | None, inline: bool, mode: str) -> Schema:
        schema = self._of(member, mode)
        if tag is None:
            return schema
        if not inline:
            return {"type": "object", "properties": {TAG: {"const": tag}, VALUE: schema}, "required": [TAG, VALUE]}
        whole = copy.deepcopy(self.components[schema["$ref"].removeprefix(REF)])
        whole["properties"] = {TAG: {"const": tag}, **whole.get("properties", {})}
        whole["required"] = [TAG, *whole.get("required", [])]
        return whole

    def _literal(self, hint: Any, mode: str) -> Schema:
        values = get_args(hint)
        if any(type(value) not in hints.BASIC for value in values):
            return self._union(hint, mode)
        return {"enum": list(values)}

    def _fixed(self, hint: Any, mode: str) -> Schema:
        items = list(hints.fields(hint).values()) if hints.is_named_tuple(hint) else list(get_args(hint))
        least = len(items) - len(getattr(get_origin(hint) or hint, "_field_defaults", ()))
        return {
            "type": "array",
            "prefixItems": [self._of(each, mode) for each in items],
            "minItems": least,
            "maxItems": len(items),
        }

    def _array(self, hint: Any, mode: str) -> Schema:
        return {"type": "array", "items": self._of((*get_args(hint), Any)[0], mode)}

    def _mapping(self, hint: Any, mode: str) -> Schema:
        key, value = get_args(hint) or (Any, Any)
        if not hints.is_key(key):
            pair = [self._of(key, mode), self._of(value, mode)]
            item = {"type": "array", "prefixItems": pair, "minItems": 2, "maxItems": 2}
            return {"type": "array", "items": item}
        schema: Schema = {"type": "object", "additionalProperties": self._of(value, mode)}
        names = self._of(key, mode)
        if names.get("type") == "string" and len(names) > 1:
            schema["propertyNames"] = names
        return schema

    def _by_msgspec(self, hint: Any) -> Schema:
        """Return the schema of a class that only msgspec knows, such as a `msgspec.Struct`."""
        (schema,), components = msgspec.json.schema_components([hint], ref_template="{name}")
        for name in components:
            if name in self.components and self._names.get((name, "msgspec")) != name:
                return {}
            self._names[name, "msgspec"] = name
        names = {name: name for name in components}
        self.components |= {name: _renamed(each, names) for name, each in components.items()}
        return dict(_renamed(schema, names))


def _safe(name: str) -> str:
    """Return a name with the characters that the name of a component may have."""
    return "".join(each if each.isascii() and (each.isalnum() or each in "._-") else "_" for each in name).strip("_")


def _renamed(schema: Any, names: Mapping[str, str]) -> Any:
    """Return a schema with references to components instead of names of definitions."""
    if isinstance(schema, dict):
        found = {key: _renamed(value, names) for key, value in schema.items()}
        if isinstance(schema.get("$ref"), str):
            found["$ref"] = REF + names.get(schema["$ref"], schema["$ref"])
        if isinstance(schema.get("discriminator"), dict):
            found.pop("discriminator")  # its mapping would name definitions as well
        return found
    return [_renamed(each, names) for each in schema] if isinstance(schema, list) else schema


def _add_default(schema: Schema, value: object) -> None:
    """Add a default to a schema, if it is a value of JSON itself."""
    if type(value) in hints.BASIC and value == value and json.dumps(value) not in ("Infinity", "-Infinity"):
        schema["default"] = value
