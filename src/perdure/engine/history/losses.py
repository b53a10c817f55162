"""Values that a type hint would change silently: a subclass that is decoded as its base class, a masked secret.

Both are rejected when a value is encoded, because a step must get the same value now and on every replay.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, get_args, get_origin

from perdure.engine.history import hints
from perdure.errors import SerializationError

MASK = "**********"  # how pydantic encodes a secret


def check_exact(value: Any, hint: Any) -> None:
    """Raise `SerializationError` if a dataclass or model, at any depth, is of a subclass of its hinted class."""
    hint = hints.bare(hint)
    if not has_records(hint):
        return
    if hints.is_union(hint):
        _check_member(value, hints.members(hint))
    elif _is_record(hint):
        _check_record(value, hint)
    elif hints.is_typed_dict(hint) and isinstance(value, Mapping):
        for name, inner in hints.fields(hint).items():
            if name in value:
                check_exact(value[name], inner)
    elif isinstance(value, Mapping):
        for item in value.values():
            check_exact(item, (*get_args(hint), Any, Any)[1])
    elif isinstance(value, list | tuple | set | frozenset):
        for item, inner in zip(value, _inner(value, hint), strict=False):
            check_exact(item, inner)


def _inner(value: Any, hint: Any) -> list[Any]:
    if hints.is_named_tuple(hint):
        return list(hints.fields(hint).values())
    args = list(get_args(hint))
    return args if hints.is_fixed(hint) else [(*args, Any)[0]] * len(value)


def _check_member(value: Any, members: list[Any]) -> None:
    """Raise `SerializationError` unless one member of the union accepts the value exactly."""
    refusal: SerializationError | None = None
    for member in members:
        if isinstance(value, hints.runtime_class(hints.bare(member))):
            try:
                check_exact(value, member)
            except SerializationError as error:
                refusal = refusal or error
            else:
                return
    if refusal is not None:
        raise refusal


def _check_record(value: Any, hint: Any) -> None:
    kind = get_origin(hint) or hint
    if isinstance(value, kind):
        check_class(value, kind)
        for name, inner in _fields_of(hint if hints.is_record(hint) else type(value)):
            check_exact(getattr(value, name), inner)


def check_class(value: Any, kind: type) -> None:
    """Raise `SerializationError` if a value is of a subclass of its hinted class; its fields are not checked."""
    if type(value) is not kind and not _is_parametrised(type(value), kind):
        was, said = type(value).__qualname__, kind.__qualname__
        raise SerializationError(
            f"a {was} where the hint says {said} would be decoded as {said}: use the hint {was}, or a union such as "
            f"{said} | {was}"
        )


def _is_parametrised(found: type, kind: type) -> bool:
    """Return whether a class is a parametrised generic such as `Page[int]`, which pydantic makes a subclass."""
    about = getattr(found, "__pydantic_generic_metadata__", None) or {}
    return about.get("origin") is kind


def _is_record(hint: Any) -> bool:
    return hints.is_record(hint) or hints.is_pydantic(hint)


def _fields_of(kind: Any) -> list[tuple[str, Any]]:
    """Return the fields of a dataclass or model that contain dataclasses or models."""
    try:
        return _record_fields(kind)
    except TypeError:  # as in has_records
        return _record_fields.__wrapped__(kind)


@lru_cache(4096)
def _record_fields(kind: Any) -> list[tuple[str, Any]]:
    return [(name, inner) for name, inner in _all_fields(kind) if has_records(hints.bare(inner))]


def _all_fields(kind: Any) -> list[tuple[str, Any]]:
    if hints.is_pydantic(kind):
        return [(name, field.annotation) for name, field in kind.model_fields.items()]
    return list(hints.fields(kind).items())


def flat_record(hint: Any) -> type | None:
    """Return the class of a dataclass hint without nested dataclasses, where only the class must be checked."""
    hint = hints.bare(hint)
    return get_origin(hint) or hint if hints.is_record(hint) and not _fields_of(hint) else None


def has_records(hint: Any) -> bool:
    """Return whether a hint contains dataclasses or models."""
    try:
        return _has_records(hint)
    except TypeError:  # an annotation that contains a list is not hashable
        return _finds(hint, _is_record, set())


@lru_cache(4096)
def _has_records(hint: Any) -> bool:
    return _finds(hint, _is_record, set())


def _finds(hint: Any, wanted: Any, seen: set[int]) -> bool:
    hint = hints.bare(hint)
    if wanted(hint):
        return True
    if id(hint) in seen:
        return False
    seen.add(id(hint))
    inner = [field for _, field in _all_fields(hint)] if hints.is_pydantic(hint) else hints.inner(hint)
    return any(_finds(each, wanted, seen) for each in inner)


def check_secrets(model: Any, dumped: Any) -> None:
    """Raise `SerializationError` if the secrets of a pydantic model were masked when it was encoded."""
    kind: Any = type(model)
    if _may_hold_secrets(kind) and _is_masked(dumped):
        raise SerializationError(
            f"{type(model).__qualname__} holds a secret, which pydantic would store as {MASK!r} and so lose: pass the "
            "name of the secret and look it up in the activity, or give the field a serializer that reveals it"
        )


@lru_cache(4096)
def _may_hold_secrets(kind: Any) -> bool:
    return _finds(kind, lambda hint: isinstance(hint, type) and hasattr(hint, "get_secret_value"), set())


def _is_masked(dumped: Any) -> bool:
    if isinstance(dumped, dict):
        return any(map(_is_masked, dumped.values()))
    return any(map(_is_masked, dumped)) if isinstance(dumped, list) else dumped == MASK
