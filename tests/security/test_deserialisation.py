"""A row creates only objects of the types that the type hints of the program name."""

import dataclasses
import datetime
import decimal
import enum
import itertools
import json
import sys
import uuid
from typing import Any, ClassVar

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.engine.history.codec import decode
from perdure.errors import SerializationError


@dataclasses.dataclass
class Trap:
    """Known to the process, named by no hint."""

    made: ClassVar[list[object]] = []
    size: int = 0

    def __post_init__(self) -> None:
        self.made.append(self)


class TrapModel(pydantic.BaseModel):
    size: int = 0

    def model_post_init(self, context: Any) -> None:
        Trap.made.append(self)


@dataclasses.dataclass
class Circle:
    size: int = 0


@dataclasses.dataclass
class Square:
    size: int = 0


class Model(pydantic.BaseModel):
    size: int = 0


class Colour(enum.Enum):
    RED = "red"


PATHS = ["os.system", "builtins.eval", "subprocess.Popen", "posix.system", "antigravity", "this", "Trap", "TrapModel",
         f"{__name__}.Trap", f"{__name__}:Trap", "tests.security.test_deserialisation.Trap", "__main__.Trap",
         "Circle"]  # fmt: skip
KEYS = ["$type", "__class__", "__type__", "__reduce__", "py/object", "py/reduce", "py/type", "type", "class"]
HINTS: list[Any] = [
    *(Any, object, dict, dict[str, Any], list[Any], bytes, str | None, Exception, type, Any | None),
    *(Circle, Circle | Square, Circle | Square | None, list[Circle | Square], dict[str, Circle | Square]),
    *(Model, Model | Circle, Circle | datetime.datetime | str, tuple[Circle | Square, int]),
    *(Colour | str, set[Colour], uuid.UUID | bytes, decimal.Decimal | int),
]
ALLOWED = (dict, list, tuple, set, str, int, float, bool, type(None), bytes, Circle, Square, Model, Colour,
           datetime.datetime, uuid.UUID, decimal.Decimal)  # fmt: skip


def parts(value: Any) -> list[Any]:
    """A value and all that is in it."""
    inside: list[Any] = []
    if isinstance(value, dict):
        inside = [*value, *value.values()]
    elif isinstance(value, list | tuple | set):
        inside = [*value]
    elif dataclasses.is_dataclass(value) or isinstance(value, Model):
        inside = [*vars(value).values()]
    return [value, *(part for each in inside for part in parts(each))]


hostile = st.recursive(
    st.sampled_from([*PATHS, 0, 1.5, True, None, "red"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*KEYS, "size", "value", "args", "0"]), inner, max_size=4)
        | st.fixed_dictionaries({"$type": st.sampled_from(PATHS), "value": inner})
        | st.fixed_dictionaries({"$type": st.sampled_from(PATHS), "size": inner})
    ),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(hostile)
def test_row_creates_only_types_named_by_hints(row: object) -> None:
    modules = set(sys.modules)
    data = json.dumps(row).encode()
    for hint in HINTS:
        try:
            value = decode(data, hint)
        except SerializationError:
            continue
        assert [part for part in parts(value) if not isinstance(part, ALLOWED)] == []
    assert Trap.made == []
    assert {"antigravity", "this"}.isdisjoint(set(sys.modules) - modules)


@pytest.mark.parametrize("key", KEYS)
def test_no_key_in_a_row_has_a_special_meaning(key: str) -> None:
    for path, hint in itertools.product(PATHS, HINTS):
        row = {key: path, "size": 1, "args": ["true"], "value": {"size": 1}}
        try:
            value = decode(json.dumps(row).encode(), hint)
        except SerializationError:
            continue
        assert all(isinstance(part, ALLOWED) for part in parts(value))
        if hint in (Any, object, dict):
            assert value == row, "what no hint names stays as it is"
    assert Trap.made == []


def test_trap_class_detects_that_it_is_created() -> None:
    assert decode(b'{"size": 1}', Trap) == Trap(1)
    assert decode(b'{"size": 1}', TrapModel).size == 1
    assert len(Trap.made) == 3
    Trap.made.clear()
