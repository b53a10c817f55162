"""Encoding of values as JSON and decoding by type hints.

Hinted values are restored exactly: dataclasses, pydantic models, enums, dates, decimals, UUIDs, bytes, sets, tuples and
unions of them. Without a hint a value is encoded in its natural form and decoded as plain JSON values.
"""

import inspect
import json
import logging
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import msgspec

from perdure.engine.history import hints
from perdure.engine.history.unions import ADVICE, Codec, codec, dump_model
from perdure.errors import SerializationError

log = logging.getLogger("perdure.engine")

SIGNATURES_MAX = 4096
SHOWN_MAX = 100  # maximum length of a value in an error message

Function = Callable[..., object]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def encode(value: object, hint: Any = Any, *, what: str = "") -> bytes:
    """Return a value as JSON; raise `SerializationError` if it cannot be encoded or does not match its hint.

    `what` names the value in the error.
    """
    try:
        return _encode(value, codec(hint))
    except SerializationError as error:
        if not what:
            raise
        raise SerializationError(f"{what}: {error}") from error


def decode(data: bytes, hint: Any = Any) -> Any:
    """Return the value of a JSON text; raise `SerializationError` if it does not match the hint."""
    return _decode(data, codec(hint), hint)


def _plainly(values: Mapping[str, object]) -> bytes | None:
    """Return values as JSON, fast; None if they have to be looked at in detail."""
    try:
        data = _encoder.encode(values)
    except Exception:
        return None
    return None if b"null" in data else data


def _encode(value: object, using: Codec) -> bytes:
    try:
        packed = value if using.plain else using.pack(value)
        data = _encoder.encode(packed)
    except SerializationError:
        raise
    except Exception as error:  # a property or serializer of the user may raise anything
        raise SerializationError(
            f"a value of type {_name(type(value))} cannot be written as JSON ({error}): {ADVICE}"
        ) from error
    if b"null" in data and value is not None:
        _check_finite(packed)
    return data


def _decode(data: bytes | msgspec.Raw, using: Codec, hint: Any) -> Any:
    try:
        return using.load(data)
    except Exception as error:  # a class of the user may raise anything when it is rebuilt
        raise SerializationError(f"the JSON does not fit {_name(hint)}: {error}") from error


def natural(value: Any) -> Any:
    """Return the natural JSON form of a value that msgspec does not support; raise `SerializationError` if none."""
    for kind, plain in _PLAIN.items():
        if isinstance(value, kind):
            return plain(value)
    if hints.is_pydantic(type(value)):
        return dump_model(value)
    raise SerializationError(f"a value of type {_name(type(value))} cannot be written as JSON: {ADVICE}")


_PLAIN: dict[type, Callable[[Any], object]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    types.MappingProxyType: dict,  # headers of events and messages
}
_encoder = msgspec.json.Encoder(enc_hook=natural)


def _check_finite(packed: object) -> None:
    """Raise `SerializationError` for nan and infinity, which msgspec would silently encode as null."""
    try:
        json.dumps(msgspec.to_builtins(packed, str_keys=True, enc_hook=natural), allow_nan=False)
    except RecursionError as error:
        raise SerializationError(
            "a value with so many levels cannot be written as JSON: nest it less deeply"
        ) from error
    except ValueError as error:
        raise SerializationError(
            "a float that is not a number or infinite cannot be written as JSON: use None or a text for it"
        ) from error


def _reason(error: SerializationError) -> str:
    """Return what exactly did not match, in the words of the decoder."""
    return str(error.__cause__ or error).splitlines()[0]


def _name(hint: Any) -> str:
    return f"{hint.__module__}.{hint.__qualname__}".removeprefix("builtins.") if isinstance(hint, type) else str(hint)


class Signature:
    """Encodes a function's arguments as a JSON object by parameter name, and its result as a JSON value.

    Hints are resolved at first use, not when the function is decorated, so they may name classes that are defined later
    in the module. A hint that cannot be resolved (such as an import for type checkers only) counts as missing.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self._signature = hints.signature(function)
        self._parameters = list(self._signature.parameters.values())
        kinds = {parameter.kind for parameter in self._parameters}
        self._simple = kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD}
        self._required = hints.required_parameters(function)
        self._names = [parameter.name for parameter in self._parameters]

    @staticmethod
    def of(function: Function) -> "Signature":
        """Return the cached signature of a function; raise `TypeError` for methods and other callables."""
        return _signature(function)

    @property
    def name(self) -> str:
        """Return the function's name, for messages."""
        return self._function.__name__

    @property
    def required(self) -> Sequence[str]:
        """Return the names of the parameters without a default."""
        return self._required

    @cached_property
    def hints(self) -> Mapping[str, Any]:
        """Return the hint of each parameter's whole value, and that of the result as `return`."""
        resolved = _resolved(self._function)
        found = {one.name: _whole(one, resolved.get(one.name, Any)) for one in self._parameters}
        return found | {"return": resolved.get("return", Any)}

    @cached_property
    def _codecs(self) -> dict[str, Codec]:
        return {name: codec(hint) for name, hint in self.hints.items()}

    @cached_property
    def _structured(self) -> list[str]:
        return [name for name in self._names if not self._codecs[name].plain]

    def bind(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bytes:
        """Return the arguments of a call as a JSON object, without defaults; raise `TypeError` as the call would."""
        return self._encoded(self._bound(args, kwargs))

    def _encoded(self, values: dict[str, Any]) -> bytes:
        try:
            if not self._structured:
                return _encode(values, _anything)
            packed = {name: self._codecs[name].pack(values[name]) for name in self._structured if name in values}
            return _encode(values | packed if packed else values, _anything)
        except Exception:
            self._blame(values)
            raise

    def bind_values(self, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[bytes, list[object]]:
        """Return what `bind` returns, and the arguments, without defaults, in the order of the parameters."""
        values = self._bound(args, kwargs)
        payload = None if self._structured else _plainly(values)
        return self._encoded(values) if payload is None else payload, list(values.values())

    def bind_checked(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bytes:
        """Return what `bind` returns; raise `TypeError` for a value that does not match its hint."""
        data = self.bind(args, kwargs)
        try:
            self.unbind(data)
        except SerializationError:
            self._blame_hint(self._bound(args, kwargs))
            raise
        return data

    def _blame_hint(self, values: Mapping[str, object]) -> None:
        """Raise `TypeError` with the name and value of the argument that does not match its hint."""
        for name, value in values.items():
            try:
                _decode(_encode(value, self._codecs[name]), self._codecs[name], self.hints[name])
            except SerializationError as error:
                shown = repr(value)
                raise TypeError(
                    f"{self.name}(): argument {name!r} must be {_name(self.hints[name])}, "
                    f"not {shown if len(shown) <= SHOWN_MAX else shown[:SHOWN_MAX] + '…'} ({_reason(error)})"
                ) from None

    def _bound(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, Any]:
        if not kwargs and self._simple and len(self._required) <= len(args) <= len(self._names):
            return dict(zip(self._names, args))  # noqa: B905 - `strict` takes half as long again
        try:
            values = dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}") from None
        for name in self._required:  # Python 3.13.0 misses a positional-only parameter that was passed by name
            if name not in values:
                raise TypeError(f"{self.name}() missing a required argument: {name!r}")
        return values

    def _blame(self, values: Mapping[str, object]) -> None:
        """Raise `SerializationError` with the name of the argument that cannot be encoded."""
        for name, value in values.items():
            try:
                _encode(value, self._codecs[name])
            except SerializationError as error:
                raise SerializationError(f"{self.name}(): argument {name!r}: {error}") from error

    def unbind(self, data: bytes) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments to call the function with; raise `SerializationError` if they don't match it."""
        texts = _decode(data, _arguments, "an object of arguments")
        if self._simple and list(texts) == self._names:  # the usual case
            return [self._value(name, text) for name, text in texts.items()], {}
        if unknown := texts.keys() - self._signature.parameters.keys():
            raise SerializationError(f"{self.name}() has no parameter {', '.join(map(repr, sorted(unknown)))}")
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for place, parameter in enumerate(self._parameters):
            if parameter.name in texts:
                self._place(parameter, self._value(parameter.name, texts[parameter.name]), place, args, kwargs)
            elif parameter.name in self._required:
                raise SerializationError(f"{self.name}() needs an argument {parameter.name!r} that is not recorded")
        return args, kwargs

    def _place(
        self, parameter: inspect.Parameter, value: Any, place: int, args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        kind = parameter.kind
        if kind is parameter.VAR_KEYWORD:
            kwargs.update(value)
        elif kind in _POSITIONAL and len(args) == place:
            args.append(value)
        elif kind is parameter.VAR_POSITIONAL and len(args) == place:
            args.extend(value)
        elif kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            kwargs[parameter.name] = value
        elif value or kind is parameter.POSITIONAL_ONLY:
            raise SerializationError(
                f"{self.name}() takes {parameter.name!r} by position, and one before it is missing"
            )

    def _value(self, name: str, text: msgspec.Raw) -> Any:
        try:
            return _decode(text, self._codecs[name], self.hints[name])
        except SerializationError as error:
            raise SerializationError(f"{self.name}(): argument {name!r}: {error}") from error

    def encode_result(self, value: object) -> bytes:
        """Return the function's result as JSON."""
        try:
            return _encode(value, self._codecs["return"])
        except SerializationError as error:
            raise SerializationError(f"the result of {self.name}(): {error}") from error

    def decode_result(self, data: bytes) -> Any:
        """Return the function's result from JSON."""
        try:
            return _decode(data, self._codecs["return"], self.hints["return"])
        except SerializationError as error:
            raise SerializationError(f"the result of {self.name}(): {error}") from error


_anything = codec(Any)
_arguments = codec(dict[str, msgspec.Raw])


@lru_cache(SIGNATURES_MAX)
def _signature(function: Function) -> Signature:
    if inspect.ismethod(function) or _takes_self(function):
        raise TypeError(
            f"{function.__qualname__} is a method: use a function of the module, its object is not recorded"
        )
    if not inspect.isfunction(function):
        raise TypeError(f"{function!r} is not a function defined with def or async def")
    return Signature(function)


def _takes_self(function: Function) -> bool:
    """Return whether a function is defined in a class with `self` or `cls` first, so that it will be a method."""
    scope = getattr(function, "__qualname__", "").rpartition(".")[0]
    code = getattr(inspect.unwrap(function), "__code__", None)
    first = code.co_varnames[:1] if code is not None and code.co_argcount else ()
    return bool(scope) and not scope.endswith("<locals>") and first in (("self",), ("cls",))


def _resolved(function: Function) -> dict[str, Any]:
    """Return the function's hints; if one cannot be resolved, resolve each alone, so that the others still count."""
    target = inspect.unwrap(function)
    names = hints.closure(target)
    try:
        return typing.get_type_hints(target, localns=names, include_extras=True)
    except Exception:  # logged for each hint that fails alone, too
        return {name: _resolved_alone(target, hint, names) for name, hint in hints.annotations(target).items()}


def _resolved_alone(target: Any, hint: object, names: dict[str, Any]) -> Any:
    holder = types.SimpleNamespace(__annotations__={"hint": hint})
    try:
        return typing.get_type_hints(holder, target.__globals__, names, include_extras=True)["hint"]
    except Exception as error:  # such as NameError: the name is imported for type checkers only, or misspelt
        log.debug(
            "the type hint %s of %s cannot be resolved and counts as missing: %s: %s",
            hint,
            target.__qualname__,
            type(error).__name__,
            error,
            extra={"function": target.__qualname__, "reason": str(error)},
        )
        return Any


def _whole(parameter: inspect.Parameter, hint: Any) -> Any:
    """Return the hint of a parameter's whole value: `list[int]` for `*args: int`."""
    unpacked = typing.get_origin(hint) is typing.Unpack
    if parameter.kind is parameter.VAR_POSITIONAL:
        return list[Any] if unpacked else list[hint]  # the types of unpacked tuples are left to type checkers
    if parameter.kind is parameter.VAR_KEYWORD:
        return typing.get_args(hint)[0] if unpacked else dict[str, hint]
    if parameter.default is None:
        return hints.joined([hint, None])  # `amount: int = None` is common and means `int | None`
    return hint
