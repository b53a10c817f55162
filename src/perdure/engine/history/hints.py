"""Analysis of type hints: what they mean, what they contain, and which JSON their values become."""

import collections.abc
import dataclasses
import datetime
import enum
import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from decimal import Decimal
from typing import Any, Literal, TypeVar, Union, get_args, get_origin
from uuid import UUID

from perdure.errors import SerializationError

JSON_FORMS = frozenset({"null", "bool", "number", "string", "array", "object"})
BASIC = frozenset({type(None), bool, int, float, str})  # the types of JSON itself, which never need a tag

_ANYTHING = {Any, object, typing.NoReturn, typing.Never, typing.Self, typing.ParamSpecArgs, typing.ParamSpecKwargs}
_WRAPPERS = {typing.Annotated, typing.Required, typing.NotRequired, typing.Final, typing.ClassVar}
_TEXTS = {str, bytes, bytearray, datetime.datetime, datetime.date, datetime.time, datetime.timedelta, Decimal, UUID}
_KEYS = (_TEXTS | {int, float}) - {bytearray}
_ARRAYS = {list, set, frozenset, tuple}
_ABC_ARRAYS = {
    collections.abc.Collection: list,
    collections.abc.Iterable: list,
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Set: set,
    collections.abc.MutableSet: set,
}
MAPPING = collections.abc.Mapping
_MAPPINGS = {dict, collections.abc.Mapping, collections.abc.MutableMapping}


def bare(hint: Any) -> Any:
    """Return a hint without wrappers: with aliases, new types, annotations and type variables resolved."""
    while True:
        inner = _inside(hint)
        if inner is hint:
            return hint
        hint = inner


def _inside(hint: Any) -> Any:
    origin = get_origin(hint)
    if hint is None:
        return type(None)
    if origin in _WRAPPERS:
        return get_args(hint)[0]
    if isinstance(hint, typing.NewType):
        return hint.__supertype__
    if isinstance(hint, TypeVar):
        return joined(hint.__constraints__) if hint.__constraints__ else (hint.__bound__ or Any)
    if hint is typing.LiteralString:
        return str
    if _among(hint, _ANYTHING) or type(hint) in _ANYTHING:
        return Any
    return _alias(hint, origin)


def _among(hint: Any, kinds: Collection[Any]) -> bool:
    return get_origin(hint) is None and hint in kinds  # a hint with arguments may not be hashable


def _alias(hint: Any, origin: Any) -> Any:
    """Return the value of a `type X = …` statement (Python 3.12), or the hint itself."""
    kind = getattr(typing, "TypeAliasType", ())
    if isinstance(hint, kind):
        return hint.__value__
    if isinstance(origin, kind):
        return replaced(origin.__value__, dict(zip(origin.__type_params__, get_args(hint), strict=False)))
    return hint


def replaced(hint: Any, variables: Mapping[Any, Any]) -> Any:
    """Return a hint with its type variables replaced; those without a value become `Any`."""
    if isinstance(hint, TypeVar):
        return variables.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or isinstance(hint, type):
        return hint
    return hint[tuple(variables.get(parameter, Any) for parameter in parameters)]


def runtime_class(hint: Any) -> type:
    """Return the class whose instances a bare hint describes."""
    found = get_origin(hint) or hint
    return dict if typing.is_typeddict(found) else found if isinstance(found, type) else object


def is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def is_pydantic(hint: Any) -> bool:
    """Return whether a hint is a pydantic model, by its attributes, so that pydantic need not be installed."""
    return isinstance(hint, type) and hasattr(hint, "__pydantic_validator__") and hasattr(hint, "model_dump")


def is_named_tuple(hint: Any) -> bool:
    found = get_origin(hint) or hint
    return isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")


def is_record(hint: Any) -> bool:
    """Return whether a hint is a dataclass, with or without type arguments."""
    found = get_origin(hint) or hint
    return isinstance(found, type) and dataclasses.is_dataclass(found)


def is_typed_dict(hint: Any) -> bool:
    return typing.is_typeddict(get_origin(hint) or hint)


def is_odd_enum(hint: Any) -> bool:
    """Return whether a hint is an enum whose values are not all strings or all integers, as JSON needs them."""
    if not isinstance(hint, type) or not issubclass(hint, enum.Enum) or issubclass(hint, enum.Flag):
        return False
    kinds = {type(member.value) for member in hint}
    return not all(issubclass(kind, str) for kind in kinds) and kinds != {int}


def array_class(hint: Any) -> type | None:
    """Return the class as which a list, set or variable-length tuple is rebuilt; None for other hints."""
    found = get_origin(hint) or hint
    return _ABC_ARRAYS.get(found) or (found if found in _ARRAYS else None)


def is_abstract(found: type) -> bool:
    return found in _ABC_ARRAYS or (found in _MAPPINGS and found is not dict)


def is_fixed(hint: Any) -> bool:
    """Return whether a hint is a tuple or named tuple with a hint for each item."""
    args = get_args(hint)
    return is_named_tuple(hint) or (get_origin(hint) is tuple and not (len(args) == 2 and args[1] is Ellipsis))


def is_literal(hint: Any) -> bool:
    return get_origin(hint) is Literal


def is_basic(hint: Any) -> bool:
    """Return whether a hint is a type of JSON itself, or a literal of such types."""
    return _among(hint, BASIC) or (is_literal(hint) and all(type(value) in BASIC for value in get_args(hint)))


def joined(members: Iterable[Any]) -> Any:
    """Return the union of hints."""
    return Union[tuple(members)]  # noqa: UP007


def short_name(hint: Any) -> str:
    return str((get_origin(hint) or hint).__name__)


def full_name(hint: Any) -> str:
    """Return the name with type arguments: `list[Circle]`."""
    if is_union(hint):
        return " | ".join(map(full_name, get_args(hint)))
    if not isinstance(get_origin(hint) or hint, type):
        return repr(hint)
    args = ", ".join(map(full_name, get_args(hint)))
    return f"{short_name(hint)}[{args}]" if args else short_name(hint)


def path_name(hint: Any) -> str:
    """Return the name with its module, which is less stable because code may move."""
    found = get_origin(hint) or hint
    return f"{found.__module__}.{found.__qualname__}" if hint is found else f"{found.__module__}.{hint!r}"


def is_mapping(hint: Any) -> bool:
    return (get_origin(hint) or hint) in _MAPPINGS


def is_key(hint: Any) -> bool:
    """Return whether dict keys of this hint stay distinct as JSON keys, which are strings."""
    hint = bare(hint)
    if get_origin(hint) is Literal:
        return all(isinstance(value, str) for value in get_args(hint)) or all(type(v) is int for v in get_args(hint))
    return hint is Any or _among(hint, _KEYS) or (is_enum(hint) and not is_odd_enum(hint))


def is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, enum.Enum)


def fields(hint: Any) -> dict[str, Any]:
    """Return the hints of the fields of a dataclass, named tuple or typed dict, by name."""
    found = get_origin(hint) or hint
    try:
        hints = typing.get_type_hints(found, include_extras=True)
    except Exception as error:
        raise SerializationError(
            f"a type hint of {found.__name__} cannot be resolved: {error}; define or import what it names in the module"
        ) from error
    variables = _variables(found, get_args(hint))
    names: Iterable[str] = hints
    if is_record(found):
        names = [field.name for field in dataclasses.fields(found)]
    elif is_named_tuple(found):
        names = found._fields
    return {name: replaced(hints.get(name, Any), variables) for name in names}


def _variables(found: type, args: tuple[Any, ...]) -> dict[Any, Any]:
    """Return the value of each type variable of a class and of its generic bases."""
    variables = dict(zip(getattr(found, "__parameters__", ()), args, strict=False))
    for base in getattr(found, "__orig_bases__", ()):
        if isinstance(origin := get_origin(base), type):
            inherited = tuple(replaced(arg, variables) for arg in get_args(base))
            variables = _variables(origin, inherited) | variables
    return variables


def members(hint: Any) -> list[Any]:
    """Return the bare members of a union, flattened; of a literal, the types of its values; else the hint itself."""
    hint = bare(hint)
    if is_union(hint):
        return _distinct(member for part in get_args(hint) for member in members(part))
    if get_origin(hint) is Literal and any(type(value) not in BASIC for value in get_args(hint)):
        return _distinct(type(value) for value in get_args(hint))
    return [hint]


def _distinct(found: Iterable[Any]) -> list[Any]:
    kept: list[Any] = []
    for hint in found:
        if hint not in kept:
            kept.append(hint)
    return kept


def inner(hint: Any) -> list[Any]:
    """Return the hints inside a bare hint."""
    if is_pydantic(hint) or get_origin(hint) is Literal:
        return []
    if is_record(hint) or is_named_tuple(hint) or is_typed_dict(hint):
        return list(fields(hint).values())
    return [arg for arg in get_args(hint) if arg is not Ellipsis and not isinstance(arg, list)]  # as in Callable


def forms(hint: Any) -> frozenset[str]:
    """Return the kinds of JSON value that a member of a union may become."""
    if get_origin(hint) is Literal:
        return frozenset().union(*(forms(type(value)) for value in get_args(hint)))
    for form, is_form in _FORMS.items():
        if is_form(hint):
            return frozenset({form})
    return JSON_FORMS


def _is_text(hint: Any) -> bool:
    return (
        _among(hint, _TEXTS) or is_odd_enum(hint) or (is_enum(hint) and all(isinstance(one.value, str) for one in hint))
    )


def _is_array(hint: Any) -> bool:
    pairs = is_mapping(hint) and not is_key((*get_args(hint), Any)[0])
    return pairs or is_named_tuple(hint) or array_class(hint) is not None


def _is_object(hint: Any) -> bool:
    model = is_pydantic(hint) and not getattr(hint, "__pydantic_root_model__", False)
    return model or is_record(hint) or is_typed_dict(hint) or is_mapping(hint)


_FORMS: dict[str, Callable[[Any], bool]] = {
    "null": lambda hint: hint is type(None),
    "bool": lambda hint: hint is bool,
    "string": _is_text,
    "number": lambda hint: hint is int or hint is float or is_enum(hint),
    "array": _is_array,
    "object": _is_object,
}


if sys.version_info >= (3, 14):
    import annotationlib

    def signature(function: Callable[..., Any]) -> inspect.Signature:
        """Return the signature of a function whose hints may contain undefined names."""
        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)

    def annotations(function: Callable[..., Any]) -> dict[str, Any]:
        """Return the hints as they are written; undefined names are forward references."""
        return annotationlib.get_annotations(function, format=annotationlib.Format.FORWARDREF)
else:  # before Python 3.14, such hints are strings

    def signature(function: Callable[..., Any]) -> inspect.Signature:
        """Return the signature of a function whose hints may contain undefined names."""
        return inspect.signature(function)

    def annotations(function: Callable[..., Any]) -> dict[str, Any]:
        """Return the hints as they are written."""
        return inspect.get_annotations(function)


def required_parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters without a default."""
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    given = signature(function).parameters.values()
    return [each.name for each in given if each.default is each.empty and each.kind not in free]


def closure(function: types.FunctionType) -> dict[str, Any]:
    """Return the variables of the enclosing functions that a nested function uses."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # assigned later in the enclosing function
        return False
