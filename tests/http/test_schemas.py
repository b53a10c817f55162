"""JSON schemas of type hints: whatever the codec encodes fits the schema, and the schema describes nothing else."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar
from uuid import UUID

import jsonschema_rs
import msgspec
import pydantic
import pytest

from perdure.engine.history.codec import decode, encode
from perdure.errors import SerializationError
from perdure.http.schemas import Schemas
from tests.http.workflows import EXAMPLE, Circle, Colour, Everything, Line, Square

T = TypeVar("T")


class Odd(enum.Enum):
    ONE = (1, 2)
    TWO = "two"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Place(NamedTuple):
    x: int
    y: int = 0


class Options(TypedDict):
    name: str
    size: NotRequired[int]


@dataclass
class Tree:
    value: int
    children: "list[Tree]"


@dataclass
class Page(Generic[T]):
    items: list[T]
    total: int


class Address(pydantic.BaseModel):
    street: str
    numbers: list[int] = []


class Customer(pydantic.BaseModel):
    name: str = pydantic.Field(alias="customerName", min_length=1)
    address: Address
    boss: "Customer | None" = None

    model_config = pydantic.ConfigDict(populate_by_name=True, extra="forbid")


class Point(msgspec.Struct):
    x: int
    y: float = 0.0


UserId = NewType("UserId", int)
SOME_DAY = date(2026, 1, 31)

CASES: list[tuple[Any, object]] = [
    (Any, {"a": [1]}),
    (None, None),
    (bool, True),
    (int, 5),
    (float, 1.5),
    (str, "ä"),
    (bytes, b"\xff"),
    (datetime, datetime(2026, 1, 31, tzinfo=UTC)),
    (date, SOME_DAY),
    (time, time(12, 30)),
    (timedelta, timedelta(days=2, seconds=3)),
    (Decimal, Decimal("1.10")),
    (UUID, UUID(int=1)),
    (Colour, Colour.RED),
    (Odd, Odd.ONE),
    (Level, Level.HIGH),
    (Literal["a", 1, None], "a"),
    (Literal[Colour.RED], Colour.RED),
    (int | None, None),
    (int | str, "x"),
    (datetime | str, datetime(2026, 1, 31, tzinfo=UTC)),
    (date | datetime, SOME_DAY),
    (Circle | Square, Square(1.0)),
    (Circle | list[int] | None, Circle(1.0)),
    (list[Circle | Square], [Circle(1.0), Square(2.0)]),
    (list[int], [1]),
    (set[str], {"a"}),
    (tuple[int, ...], (1, 2)),
    (tuple[int, str], (1, "a")),
    (Sequence[int], [1]),
    (Place, Place(1)),
    (Options, {"name": "x"}),
    (dict[str, int], {"a": 1}),
    (dict[UUID, int], {UUID(int=1): 1}),
    (dict[tuple[int, int], str], {(1, 2): "a"}),
    (Mapping[str, Line], {"a": Line("x", Decimal(1))}),
    (Tree, Tree(1, [Tree(2, [])])),
    (Page[Line], Page([Line("x", Decimal(1))], 1)),
    (Page[int] | Page[str], Page([1], 1)),
    (Address, Address(street="s")),
    (
        Customer,
        Customer(
            customerName="n", address=Address(street="s"), boss=Customer(customerName="b", address=Address(street="t"))
        ),
    ),
    (Address | Customer, Customer(customerName="n", address=Address(street="s"))),
    (Address | Circle | int, Address(street="s")),
    (Point, Point(1)),
    (UserId, UserId(5)),
    (Annotated[int, "a note"], 5),
    (Annotated[int, msgspec.Meta(ge=5)], 5),
    (Everything, EXAMPLE),
]


def validator(schemas: Schemas, schema: object) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(
        {"components": {"schemas": schemas.components}, "allOf": [schema]}, validate_formats=True
    )


@pytest.mark.parametrize(("hint", "value"), CASES, ids=lambda each: str(each)[:40])
def test_encoded_value_fits_the_schema_of_its_hint(hint: Any, value: object) -> None:
    for mode in ("validation", "serialization"):
        schemas = Schemas()
        schema = schemas.of(hint, mode)
        text = encode(value, hint)
        assert decode(text, hint) == value
        validator(schemas, schema).validate(msgspec.json.decode(text))
        assert (schema == {}) is (hint is Any)


WRONG: list[Any] = [None, True, 5, 1.5, "text", [], ["a"], {}, {"a": "b"}, {"$type": "Circle"}, {"sku": 1}]
LOOSE = (float, Decimal, timedelta, bytes, time, date, datetime)  # formats that a schema does not check exactly


@pytest.mark.parametrize(
    "hint",
    [each for each, _ in CASES if each is not Any and each not in LOOSE and "date" not in str(each)],
    ids=lambda each: str(each)[:40],
)
def test_value_that_fits_the_schema_can_be_decoded(hint: Any) -> None:
    schemas = Schemas()
    check = validator(schemas, schemas.of(hint))
    for wrong in WRONG:
        if check.is_valid(wrong):
            decode(msgspec.json.encode(wrong), hint)
        else:
            try:
                decode(msgspec.json.encode(wrong), hint)
            except SerializationError:
                continue
            assert _is_converted(wrong), f"{wrong!r} is not in the schema of {hint}"


def _is_converted(value: object) -> bool:
    """Return whether a decoder may take a value for one of another type, such as a text for a number."""
    return isinstance(value, bool | int | str | float)


def test_classes_of_the_same_name_have_components_of_their_own() -> None:
    def other() -> Any:
        @dataclass
        class Line:
            length: float

        return Line

    schemas = Schemas()
    first, second = schemas.of(Line), schemas.of(other())
    assert first != second
    assert set(schemas.components) == {"Line", "Line_2"}
    assert schemas.of(Line, "serialization") == first


def test_hint_that_cannot_be_described_is_any_value() -> None:
    class Strange: ...

    assert Schemas().of(Strange) == {}
    assert Schemas().of(list[Strange]) == {}
