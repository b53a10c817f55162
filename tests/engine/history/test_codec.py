"""Values as JSON and back: exact for every hint, plain where possible, and a clear error otherwise."""

import collections.abc
import contextlib
import dataclasses
import enum
import json
import math
import subprocess
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar
from uuid import UUID

import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.engine.history.codec import Signature, decode, encode
from perdure.engine.history.unions import Plain, codec
from perdure.errors import SerializationError

if TYPE_CHECKING:
    from nowhere import Unseen  # type: ignore[import-not-found]

T = TypeVar("T")
OrderId = NewType("OrderId", str)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(enum.Enum):
    NONE = None
    NUMBER = 1.5
    PAIR = (1, 2)


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: date = date(2020, 1, 1)


class Spot(NamedTuple):
    at: date | datetime
    note: str = ""


class Settings(TypedDict):
    name: str
    since: NotRequired[date | datetime]


class Other(TypedDict):
    name: int


class Titled(TypedDict):
    name: str
    title: str


@dataclass
class Circle:
    radius: float


@dataclass
class Ball:
    radius: float


@dataclass
class Globe(Ball):
    map: str = "none"


@dataclass(frozen=True, slots=True)
class Key:
    name: str
    at: datetime | str


@dataclass
class Tree:
    shape: Circle | Ball
    children: list["Tree"] = field(default_factory=list)


@dataclass
class Chain:
    value: int
    next: "Chain | None" = None


@dataclass
class Box(Generic[T]):
    item: T


@dataclass
class DateBox(Box[date | datetime]):
    label: str = ""


@dataclass
class Derived:
    given: date | str
    made: str = field(init=False)

    def __post_init__(self) -> None:
        self.made = f"<{self.given}>"


class Person(pydantic.BaseModel):
    name: str
    born: date | None = None
    shoe: Decimal = Decimal("42.50")


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    at: datetime
    id: UUID


class Aliased(pydantic.BaseModel):
    given_name: str = pydantic.Field(validation_alias="in", serialization_alias="out")


class Loose(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")


class Numbers(pydantic.RootModel[list[int]]):
    pass


class Whatever(pydantic.RootModel[Any]):
    """A model whose JSON may have any form."""


@dataclass
class Order:
    customer: Person
    shapes: dict[str, Circle | Ball]
    tags: frozenset[str]


def same(left: object, right: object) -> bool:
    """Equal, and of equal types all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        pairs = [(left, right[key]) for key, left in left.items() if key in right]
        kinds = {(type(key), key) for key in left} == {(type(key), key) for key in right}
        return kinds and len(left) == len(right) and all(same(a, b) for a, b in pairs)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, set | frozenset) and isinstance(right, set | frozenset):
        return {(type(one), one) for one in left} == {(type(one), one) for one in right}
    if dataclasses.is_dataclass(left):
        return all(same(getattr(left, one.name), getattr(right, one.name)) for one in dataclasses.fields(left))
    return repr(left) == repr(right) if isinstance(left, float | Decimal) else left == right


def check(value: object, hint: Any) -> bytes:
    data = encode(value, hint)
    back = decode(data, hint)
    assert same(value, back), f"{value!r} came back as {back!r} from {data!r}"
    json.loads(data)
    assert b"\0" not in data
    return data


DATE, MOMENT = date(2024, 2, 29), datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC)
ID = UUID("12345678-1234-5678-1234-567812345678")

PLAIN: list[tuple[object, Any]] = [
    (None, None),
    (True, bool),
    (1, int),
    (1.0, float),
    (-0.0, float),
    (1.0, int | float),
    (1, int | float),
    (2**53 + 1, int | float),
    (1e22, int | float),
    (2**200, int),
    (-(2**64), int),
    ("a\0b\u2028é😀", str),
    (b"\0\xff", bytes),
    (DATE, date),
    (MOMENT, datetime),
    (datetime(1, 1, 1), datetime),
    (datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-5, minutes=-30))), datetime),
    (time(1, 2, 3, 4), time),
    (timedelta.max, timedelta),
    (timedelta(microseconds=-1), timedelta),
    (Decimal("1.10"), Decimal),
    (Decimal("1E+500"), Decimal),
    (Decimal("123456789012345678901234567890.123456789"), Decimal),
    (ID, UUID),
    (Color.RED, Color),
    (Level.HIGH, Level),
    (Access.READ | Access.WRITE, Access),
    ({1, 2}, set[int]),
    (frozenset({DATE}), frozenset[date]),
    ((1, "a", DATE), tuple[int, str, date]),
    ((), tuple[()]),
    ((1, 2, 3), tuple[int, ...]),
    ([[DATE], []], list[list[date]]),
    ({ID: [Decimal("1.0")]}, dict[UUID, list[Decimal]]),
    ({2**70: 1}, dict[int, int]),
    ({Color.RED: Level.LOW}, dict[Color, Level]),
    (Point(1), Point),
    (Circle(1.0), Circle),
    (Chain(1, Chain(2)), Chain),
    (Box(DATE), Box[date]),
    ([Box([DATE])], list[Box[list[date]]]),
    (OrderId("a"), OrderId),
    ("a", Literal["a", "b"]),
    (1, Annotated[int, "positive"]),
    ({"name": "x"}, dict[str, str]),
    (None, date | None),
    (DATE, date | None),
    (Circle(1.0), Circle | list[int] | str | None),
    ([1], Circle | list[int] | str | None),
    (1.5, float | Decimal),
    (Decimal("1.5"), float | Decimal),
    ([1, "a", None, {"b": [True]}], Any),
    ({"a": 1}, object),
]

STRUCTURED: list[tuple[object, Any]] = [
    (Mixed.NONE, Mixed),
    (Mixed.PAIR, Mixed),
    ([Mixed.NUMBER], list[Mixed]),
    (Circle(1.0), Circle | Ball),
    (Ball(1.0), Circle | Ball),
    (Ball(1.0), Circle | Ball | None),
    (None, Circle | Ball | None),
    (3, Circle | Ball | int),
    (Globe(1.0, "old"), Ball | Globe),
    (Person(name="a"), Circle | Person),
    (Circle(2.0), Circle | Person),
    (Person(name="a", born=DATE), Person),
    (Strict(at=MOMENT, id=ID), Strict),
    (Strict(at=MOMENT, id=ID), Strict | Person),
    (Aliased.model_validate({"in": "x"}), Aliased),
    (Aliased.model_validate({"in": "x"}), Aliased | Circle),
    (Numbers([1, 2]), Numbers),
    (Numbers([1, 2]), Numbers | list[str]),
    (["a"], Numbers | list[str]),
    *((Whatever(value), Whatever | type(value)) for value in (None, True, 1, "a")),
    (Whatever([1]), Whatever | list[int]),
    (Whatever({"a": 1}), Whatever | dict[str, int]),
    ({"a": 1}, Whatever | dict[str, int]),
    (Person(name="a"), Person | list[int]),
    ([1], Person | list[int]),
    (Circle(1.0), Circle | dict[str, float]),
    ({"radius": 1.0}, Circle | dict[str, float]),
    ({"$type": "Circle", "value": "no"}, Circle | dict[str, str]),
    ({"$type": "datetime", "value": "2020-01-01"}, datetime | str | dict[str, str]),
    ("2024-02-29T00:00:00", datetime | str),
    (MOMENT, datetime | str),
    (str(ID), UUID | str),
    (ID, UUID | str),
    ("1.0", Decimal | str),
    (Decimal("1.0"), Decimal | str),
    (b"YQ==", bytes | str),
    ("YQ==", bytes | str),
    (DATE, date | datetime),
    (MOMENT, date | datetime),
    (MOMENT, datetime | date),
    (time(1), date | time | timedelta),
    (timedelta(1), date | time | timedelta),
    ("red", Color | str),
    (Color.RED, Color | str),
    (Level.LOW, Level | int),
    (1, Level | int),
    (1.0, Level | float),
    (Level.LOW, Level | float),
    (True, Level | bool | int),
    ([1], list[int] | set[int] | tuple[int, ...]),
    ({1}, list[int] | set[int] | tuple[int, ...]),
    ((1,), list[int] | set[int] | tuple[int, ...]),
    ((DATE,), collections.abc.Sequence[date] | tuple[date, ...]),
    ([Ball(1.0)], list[Circle] | list[Ball]),
    ([MOMENT], list[date] | list[datetime]),
    ([1.0], list[int] | list[float]),
    ([], list[Circle] | list[Ball]),
    ({"a": Ball(1.0)}, dict[str, Circle] | dict[str, Ball]),
    (Box("a"), Box[int] | Box[str]),
    (Box(1), Box[int] | Box[str]),
    (Box(MOMENT), Box[date | datetime]),
    (DateBox(MOMENT, "x"), DateBox),
    ({"name": "a"}, Settings | Other),
    ({"name": 1}, Settings | Other),
    ({"name": "a"}, Titled | Settings),
    ({"name": "a", "title": "b"}, Settings | Titled),
    ({"name": "a", "since": MOMENT}, Settings),
    (Spot(MOMENT), Spot),
    (Spot(DATE, "x"), Spot | list[int]),
    ((DATE, MOMENT), tuple[date | datetime, date | datetime]),
    ((DATE, MOMENT), tuple[date | datetime, ...]),
    ({DATE, MOMENT}, set[date | datetime]),
    (frozenset({"a", ID}), frozenset[str | UUID]),
    ({1: "a", "1": "b"}, dict[int | str, str]),
    ({True: 1, False: 2}, dict[bool, int]),
    ({(1, 2): Circle(1.0)}, dict[tuple[int, int], Circle]),
    ({Key("a", MOMENT): 1}, dict[Key, int]),
    ({DATE: Ball(1.0)}, dict[date, Circle | Ball]),
    (Key("a", "b"), Key),
    (Derived(DATE), Derived),
    (Tree(Ball(1.0), [Tree(Circle(2.0))]), Tree),
    (Order(Person(name="a"), {"x": Ball(1.0)}, frozenset({"t"})), Order),
    ([Order(Person(name="a"), {}, frozenset())], list[Order]),
    (Color.RED, Literal[Color.RED, "red"]),
    ("red", Literal[Color.RED, "red"]),
]


@pytest.mark.parametrize(("value", "hint"), PLAIN, ids=[f"{n} {hint}" for n, (_, hint) in enumerate(PLAIN)])
def test_plain_hints_round_trip_and_are_left_to_msgspec(value: object, hint: Any) -> None:
    assert isinstance(codec(hint), Plain)
    assert b"$type" not in check(value, hint)


@pytest.mark.parametrize(("value", "hint"), STRUCTURED, ids=[f"{n} {hint}" for n, (_, hint) in enumerate(STRUCTURED)])
def test_structured_hints_round_trip(value: object, hint: Any) -> None:
    assert not isinstance(codec(hint), Plain)
    check(value, hint)


def test_json_is_as_documented() -> None:
    assert encode(Ball(1.0), Circle | Ball) == b'{"$type":"Ball","radius":1.0}'
    assert encode(Person(name="a"), Circle | Person) == b'{"$type":"Person","name":"a","born":null,"shoe":"42.50"}'
    assert encode(MOMENT, datetime | str) == b'{"$type":"datetime","value":"2024-02-29T01:02:03.000004Z"}'
    assert encode("x", datetime | str) == b'"x"'
    assert encode(Circle(1.0), Circle | list[int]) == b'{"radius":1.0}'
    assert encode("\0") == b'"\\u0000"'


def test_only_ambiguous_values_are_tagged() -> None:
    assert encode([Circle(1.0), 3], list[Circle | int]) == b'[{"radius":1.0},3]'
    assert encode(Tree(Circle(1.0)), Tree) == b'{"shape":{"$type":"Circle","radius":1.0},"children":[]}'


def test_classes_with_one_name_are_distinguished() -> None:
    first, second = (dataclasses.make_dataclass("Twin", [("x", int)]) for _ in range(2))
    first.__module__, second.__module__ = "left", "right"
    check(first(1), first | second)
    data = check(second(1), first | second)
    assert b'"right.Twin"' in data


def test_object_of_a_union_may_return_with_reordered_keys() -> None:
    """As from PostgreSQL's jsonb and MySQL's JSON, with white space."""
    assert decode(b' { "radius" : 1.5 , "$type" : "Ball" } ', Circle | Ball) == Ball(1.5)
    assert decode(b'{"value":"2024-02-29","$type":"date"}', date | datetime) == DATE


def test_int_counts_as_a_float() -> None:
    assert decode(encode(3, float | Level), float | Level) == 3.0


def test_abstract_containers_return_as_lists_and_dicts() -> None:
    assert decode(encode((DATE,), collections.abc.Sequence[date]), collections.abc.Sequence[date]) == [DATE]
    hint = collections.abc.Sequence[date | datetime] | str
    assert decode(encode((MOMENT,), hint), hint) == [MOMENT]
    assert decode(encode("text", hint), hint) == "text"
    mapping = collections.abc.Mapping[str, date | datetime]
    assert decode(encode({"a": MOMENT}, mapping), mapping) == {"a": MOMENT}


def test_values_without_a_hint_take_their_natural_form() -> None:
    class Word(str):
        pass

    values = [
        Circle(1.0),
        Color.RED,
        MOMENT,
        DATE,
        Decimal("1.10"),
        ID,
        b"a",
        (1, 2),
        Point(1),
        Person(name="p"),
        Word("w"),
    ]
    assert decode(encode(values)) == [
        {"radius": 1.0},
        "red",
        "2024-02-29T01:02:03.000004Z",
        "2024-02-29",
        "1.10",
        str(ID),
        "YQ==",
        [1, 2],
        [1, "2020-01-01"],
        {"name": "p", "born": None, "shoe": "42.50"},
        "w",
    ]
    assert sorted(decode(encode({1, 2}))) == [1, 2]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("wrap", "hint"),
    [
        (lambda x: x, Any),
        (lambda x: x, float),
        (lambda x: x, float | None),
        (lambda x: {"a": [None, x]}, Any),
        (lambda x: Circle(x), Circle),
        (lambda x: Circle(x), Circle | Ball),
        (lambda x: [Circle(x)], Any),
        (lambda x: (1, x), Any),
    ],
)
def test_nan_and_infinity_are_refused(number: float, wrap: Callable[[float], object], hint: Any) -> None:
    with pytest.raises(SerializationError, match="not a number or infinite"):
        encode(wrap(number), hint)


def test_nan_in_a_model_is_refused() -> None:
    class Reading(pydantic.BaseModel):
        value: float

    with pytest.raises(SerializationError, match="not a number or infinite"):
        encode(Reading(value=math.nan), Reading)


def test_value_with_too_many_levels_raises_no_other_error() -> None:
    value: object = None
    refused = 0
    for _ in range(2 * sys.getrecursionlimit()):
        value = [value]
        try:
            encode(value)
        except SerializationError:
            refused += 1
    assert refused


def test_null_in_strings_and_none_are_accepted() -> None:
    check({"null": None, "x": "null"}, dict[str, str | None])
    check([None, 1.5], list[float | None])


class Opaque:
    pass


@dataclass
class Dangling:
    field: "Missing"  # type: ignore[name-defined] # noqa: F821


@pytest.mark.parametrize(
    ("value", "hint", "named"),
    [
        (Opaque(), Any, "Opaque"),
        ([{"a": Opaque()}], Any, "Opaque"),
        (Opaque(), Opaque, "Opaque"),
        (Opaque(), Circle | Ball, "Opaque"),
        ([Opaque()], list[Circle | Ball], "Opaque"),
        (Opaque(), Person, "Opaque"),
        (Opaque(), list[Person], "Opaque"),
        ("text", list[Person], "str"),
        (Opaque(), dict[str, Person], "Opaque"),
        (Opaque(), Tree, "Opaque"),
        (Opaque(), Settings, "Opaque"),
        (Opaque(), Spot, "Opaque"),
        (Opaque(), Mixed, "Opaque"),
        (1 + 2j, Any, "complex"),
        (lambda: None, Any, "function"),
        (lambda: None, Callable[[int], str], "function"),
        (Dangling(1), Dangling, "Missing"),
        ({(1, 2): 3}, Any, "dict"),
        ("\ud800", str, "str"),
        pytest.param(10**5000, int, "int", id="huge"),
    ],
)
def test_value_that_cannot_be_encoded_is_named(value: object, hint: Any, named: str) -> None:
    with pytest.raises(SerializationError, match=named):
        encode(value, hint)


def test_encoding_error_says_what_to_do() -> None:
    with pytest.raises(SerializationError, match="use dataclasses, pydantic models"):
        encode(Opaque())


def test_circular_value_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(SerializationError):
        encode(loop)
    tree = Tree(Circle(1.0))
    tree.children.append(tree)
    with pytest.raises(SerializationError):
        encode(tree, Tree)


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (b"", Any),
        (b"{", Any),
        (b"NaN", float),
        (b"\xff", Any),
        (b'"\xff"', str),
        (b'"a"', int),
        (b"1", bool),
        (b"null", int),
        (b'"purple"', Color),
        (b'"RED"', Mixed),
        (b"{}", Circle),
        (b'{"radius":1.0}', Circle | Ball),
        (b'{"$type":"Cube","radius":1.0}', Circle | Ball),
        (b'{"$type":["Ball"],"radius":1.0}', Circle | Ball),
        (b'{"$type":"Ball"}', Circle | Ball),
        (b'{"$type":"date"}', date | datetime),
        (b'{"$type":"date","value":"soon"}', date | datetime),
        (b'"2024-02-29"', date | datetime),
        (b"true", Circle | Ball | int),
        (b"[]", Circle | Ball),
        (b"{}", Person),
        (b'{"name":1}', Person),
        (b"[]", Spot),
        (b'["2024-02-29","a",1]', Spot),
        (b'[{"$type":"date","value":"2024-02-29"}]', tuple[date | datetime, int]),
        (b'[{"$type":"date","value":"2024-02-29"},1,2]', tuple[date | datetime, int]),
        (b"{}", Settings | Other),
        (b'{"since":{"$type":"date","value":"2024-02-29"}}', Settings),
        (b"{}", Tree),
        (b"[[1]]", dict[bool, int]),
        (b"{}", Opaque),
        (b"[" * 100_000, Any),
        (b'{"a":' * 50_000, Tree),
    ],
)
def test_json_that_does_not_match_the_hint_is_refused(data: bytes, hint: Any) -> None:
    with pytest.raises(SerializationError):
        decode(data, hint)


def test_class_whose_constructor_raises_is_a_serialization_error() -> None:
    @dataclass
    class Picky:
        at: date | datetime

        def __post_init__(self) -> None:
            if self.at == DATE:
                raise KeyError("not that day")

    picky = Picky(MOMENT)
    picky.at = DATE
    with pytest.raises(SerializationError, match="not that day"):
        decode(encode(picky, Picky), Picky)


def test_model_with_a_key_like_the_tag_cannot_be_tagged() -> None:
    loose = Loose.model_validate({"$type": "Circle"})
    check(loose, Loose)
    with pytest.raises(SerializationError, match=r"\$type"):
        encode(loose, Loose | Circle)


def test_defaults_fill_fields_missing_in_an_older_row() -> None:
    assert decode(b'{"shape":{"$type":"Ball","radius":1.0}}', Tree) == Tree(Ball(1.0))
    assert decode(b'[{"$type":"date","value":"2024-02-29"}]', Spot) == Spot(DATE)


def test_unhashable_hint_is_accepted() -> None:
    check(DATE, Annotated[date | datetime, ["unhashable"]])
    check([1], list[Annotated[int, ["unhashable"]]])


def test_hints_without_information_are_any() -> None:
    hints: list[Any] = [typing.NoReturn, typing.Never, T, Any | int, typing.Self]
    for hint in hints:
        assert decode(encode({"a": [1]}, hint), hint) == {"a": [1]}
    assert decode(encode("x", typing.LiteralString), typing.LiteralString) == "x"
    assert decode(encode(["x"], list[typing.LiteralString]), list[typing.LiteralString]) == ["x"]


if sys.version_info >= (3, 12):  # the type statement is new there

    def test_type_statements_are_supported() -> None:
        space: dict[str, Any] = {"Circle": Circle, "Ball": Ball, "date": date, "datetime": datetime}
        exec(
            "type Shape = Circle | Ball\ntype Days[X] = list[X | date]\ntype Nest = list[Nest] | date | datetime", space
        )
        check(Ball(1.0), space["Shape"])
        check([Ball(1.0)], of(list, space["Shape"]))
        check([DATE, MOMENT], space["Days"][datetime])
        check([[DATE, [MOMENT]], []], space["Nest"])


def test_codecs_are_cached() -> None:
    assert codec(list[Circle | Ball]) is codec(list[Circle | Ball])


def test_pydantic_is_optional() -> None:
    program = """
import sys
sys.modules["pydantic"] = None
from dataclasses import dataclass
from datetime import date, datetime
from perdure.engine.history.codec import decode, encode
hint = list[date | datetime]
assert decode(encode([date(2024, 1, 1)], hint), hint) == [date(2024, 1, 1)]
"""
    subprocess.run([sys.executable, "-c", program], check=True)


# --- hints made at random, with values of them ------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ZONES = st.sampled_from([None, UTC, timezone(timedelta(hours=5, minutes=30)), timezone(-timedelta(hours=11))])
DAYS = st.dates()
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    type(None): st.none(),
    bool: st.booleans(),
    int: st.integers() | st.integers(-(2**300), 2**300),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: TEXTS | st.sampled_from(["null", "$type", "2024-02-29", "red", "1.0", str(ID)]),
    bytes: st.binary(max_size=8),
    date: DAYS,
    datetime: st.datetimes(timezones=ZONES),
    time: st.times(),
    timedelta: st.timedeltas(),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    UUID: st.uuids(),
    Color: st.sampled_from(Color),
    Level: st.sampled_from(Level),
    Mixed: st.sampled_from(Mixed),
    Circle: st.builds(Circle, st.floats(allow_nan=False, allow_infinity=False)),
    Ball: st.builds(Ball, st.floats(allow_nan=False, allow_infinity=False)),
    Key: st.builds(Key, TEXTS, st.datetimes() | TEXTS),
    Point: st.builds(Point, st.integers(), DAYS),
    Spot: st.builds(Spot, DAYS | st.datetimes(), TEXTS),
    Person: st.builds(Person, name=TEXTS, born=st.none() | DAYS),
}
HASHABLE = [kind for kind in SCALARS if kind not in (Circle, Ball, Person)]
Pair = tuple[Any, st.SearchStrategy[Any]]


def union(pairs: list[Pair]) -> Pair:
    return typing.Union[tuple(hint for hint, _ in pairs)], st.one_of([values for _, values in pairs])  # noqa: UP007


def of(kind: Any, *args: Any) -> Any:
    """`kind[args]` of hints that are only known at run time."""
    return kind[args if len(args) > 1 else args[0]]


def containers(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    scalar = st.sampled_from(HASHABLE)
    return st.one_of(
        inner.map(lambda p: (of(list, p[0]), st.lists(p[1], max_size=3))),
        inner.map(lambda p: (of(tuple, p[0], ...), st.lists(p[1], max_size=3).map(tuple))),
        st.tuples(inner, inner).map(lambda p: (of(tuple, p[0][0], p[1][0]), st.tuples(p[0][1], p[1][1]))),
        st.tuples(scalar, inner).map(lambda p: dict_of(p[0], *p[1])),
        st.sets(scalar, min_size=1, max_size=3).map(lambda kinds: set_of(sorted(kinds, key=repr))),
        inner.map(lambda p: (of(Box, p[0]), p[1].map(Box))),
        st.lists(inner, min_size=2, max_size=3).map(union),
    )


def dict_of(key: Any, hint: Any, values: st.SearchStrategy[Any]) -> Pair:
    return of(dict, key, hint), st.dictionaries(SCALARS[key], values, max_size=3)


def set_of(kinds: list[Any]) -> Pair:
    hint, values = union([(kind, SCALARS[kind]) for kind in kinds])
    return of(frozenset, hint), st.frozensets(values, max_size=3)


LEAVES = st.sampled_from(list(SCALARS)).map(lambda kind: (kind, SCALARS[kind]))
HINTS = st.recursive(LEAVES | st.lists(LEAVES, min_size=2, max_size=4).map(union), containers, max_leaves=6)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_values_of_random_hints_round_trip(data: st.DataObject) -> None:
    hint, values = data.draw(HINTS)
    check(data.draw(values), hint)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.just("$type"), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=300, deadline=None)
@given(JSON_VALUES)
def test_json_round_trips_unchanged(value: object) -> None:
    check(value, Any)


@settings(max_examples=300, deadline=None)
@given(JSON_VALUES.map(encode) | st.binary(max_size=20), st.sampled_from([h for _, h in PLAIN + STRUCTURED]))
def test_foreign_json_is_decoded_or_refused_with_a_serialization_error(data: bytes, hint: Any) -> None:
    with contextlib.suppress(SerializationError):
        decode(data, hint)


# --- signatures -------------------------------------------------------------------------------------------------------


async def order(
    order_id: str, /, amount: Decimal, *parcels: Circle | Ball, at: "date | datetime" = DATE, **extra: Person
) -> "Later":
    raise NotImplementedError


def no_hints(a, b=2, *, c=3): ...  # type: ignore[no-untyped-def]


def half_hidden(a: "Unseen", b: "Circle", c: "list[Unseen]" = None) -> "Unseen": ...  # type: ignore[assignment]  # noqa: RUF013


def grown(a: int = 1, b: int = 2, c: int = 3) -> None: ...


class Options(TypedDict, total=False):
    day: date


def unpacked(*args: typing.Unpack[tuple[int, str]], **options: typing.Unpack[Options]) -> None: ...  # noqa: UP044


@dataclass
class Later:
    when: date


def test_arguments_round_trip_with_their_types() -> None:
    signature = Signature.of(order)
    person = Person(name="p")
    data = signature.bind(("A", Decimal("1.10"), Ball(1.0), Circle(2.0)), {"at": MOMENT, "who": person})
    assert json.loads(data) == {
        "order_id": "A",
        "amount": "1.10",
        "parcels": [{"$type": "Ball", "radius": 1.0}, {"$type": "Circle", "radius": 2.0}],
        "at": {"$type": "datetime", "value": "2024-02-29T01:02:03.000004Z"},
        "extra": {"who": {"name": "p", "born": None, "shoe": "42.50"}},
    }
    args, kwargs = signature.unbind(data)
    assert same(args, ["A", Decimal("1.10"), Ball(1.0), Circle(2.0)])
    assert kwargs == {"at": MOMENT, "who": person}


def test_result_round_trips_although_its_class_is_defined_later() -> None:
    signature = Signature.of(order)
    assert signature.decode_result(signature.encode_result(Later(DATE))) == Later(DATE)


def test_defaults_are_not_stored_and_the_order_of_keywords_does_not_matter() -> None:
    signature = Signature.of(grown)
    assert signature.bind((), {}) == b"{}"
    assert signature.bind((), {"c": 3, "a": 1}) == b'{"a":1,"c":3}' == signature.bind((1,), {"c": 3})
    assert signature.unbind(b'{"a":1,"c":3}') == ([1], {"c": 3})


def test_without_hints_arguments_are_json() -> None:
    signature = Signature.of(no_hints)
    assert signature.unbind(signature.bind((DATE,), {"c": (1,)})) == (["2024-02-29"], {"c": [1]})
    assert signature.decode_result(signature.encode_result(Circle(1.0))) == {"radius": 1.0}


def test_unresolvable_hint_does_not_affect_other_hints() -> None:
    signature = Signature.of(half_hidden)
    args, _ = signature.unbind(signature.bind(({"x": 1}, Circle(1.0), None), {}))
    assert args == [{"x": 1}, Circle(1.0), None]
    assert signature.decode_result(signature.encode_result([1])) == [1]


def test_none_is_accepted_where_it_is_the_default() -> None:
    def late(day: date = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    signature = Signature.of(late)
    assert signature.unbind(signature.bind((None,), {})) == ([None], {})
    assert signature.unbind(signature.bind((DATE,), {})) == ([DATE], {})


def test_hint_from_an_outer_function_is_found() -> None:
    @dataclass
    class Local:
        day: date

    def inside(value: "Local") -> "Local":
        return Local(value.day)

    signature = Signature.of(inside)
    assert signature.unbind(signature.bind((Local(DATE),), {})) == ([Local(DATE)], {})


def test_unpacked_hints_are_supported() -> None:
    signature = Signature.of(unpacked)
    assert signature.unbind(signature.bind((1, "a"), {"day": DATE})) == ([1, "a"], {"day": DATE})


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1,), {}), (("A", 1), {"order_id": "B", "amount": 2}), ((), {"order_id": "A", "amount": 1})],
)
def test_wrong_arguments_are_a_type_error_as_in_a_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"order\(\)"):
        Signature.of(order).bind(args, kwargs)


def test_too_many_or_unknown_arguments_are_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"grown\(\) too many"):
        Signature.of(grown).bind((1, 2, 3, 4), {})
    with pytest.raises(TypeError, match=r"grown\(\) got an unexpected keyword argument 'd'"):
        Signature.of(grown).bind((), {"d": 1})


def test_argument_that_cannot_be_encoded_is_named() -> None:
    with pytest.raises(SerializationError, match=r"no_hints\(\): argument 'b': .*Opaque"):
        Signature.of(no_hints).bind((1, Opaque()), {})
    with pytest.raises(SerializationError, match=r"order\(\): argument 'at': .*int"):
        Signature.of(order).bind(("A", Decimal(1)), {"at": 5})
    with pytest.raises(SerializationError, match=r"argument 'a': a float"):
        Signature.of(no_hints).bind((math.nan,), {})
    with pytest.raises(SerializationError, match=r"the result of order\(\)"):
        Signature.of(order).encode_result(Opaque())


def test_argument_that_cannot_be_decoded_is_named() -> None:
    with pytest.raises(SerializationError, match=r"grown\(\): argument 'b'"):
        Signature.of(grown).unbind(b'{"b":"x"}')
    with pytest.raises(SerializationError, match=r"the result of order\(\)"):
        Signature.of(order).decode_result(b"[]")


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"1", b"{"])
def test_stored_arguments_that_are_not_an_object_are_refused(data: bytes) -> None:
    with pytest.raises(SerializationError):
        Signature.of(grown).unbind(data)


def test_arguments_of_an_older_function_are_refused_not_dropped() -> None:
    with pytest.raises(SerializationError, match="no parameter 'gone'"):
        Signature.of(grown).unbind(b'{"a":1,"gone":2}')
    with pytest.raises(SerializationError, match="needs an argument 'amount'"):
        Signature.of(order).unbind(b'{"order_id":"A"}')
    with pytest.raises(SerializationError, match="no parameter 'return'"):
        Signature.of(grown).unbind(b'{"return":1}')


def test_missing_argument_before_a_positional_one_is_refused() -> None:
    def changed(new: int = 0, old: int = 0, /, *rest: int) -> None: ...

    with pytest.raises(SerializationError, match="'old' by position"):
        Signature.of(changed).unbind(b'{"old":1}')
    with pytest.raises(SerializationError, match="'rest' by position"):
        Signature.of(changed).unbind(b'{"rest":[1]}')


def test_signatures_are_cached() -> None:
    assert Signature.of(grown) is Signature.of(grown)


class Service:
    def method(self, a: int) -> None: ...

    @classmethod
    def of_class(cls) -> None: ...

    @staticmethod
    def loose(a: int) -> None: ...

    def __call__(self) -> None: ...


def test_methods_are_refused_with_an_explanation() -> None:
    for method in (Service().method, Service.method, Service.of_class):
        with pytest.raises(TypeError, match="is a method: use a function"):
            Signature.of(method)
    assert Signature.of(Service.loose).bind((1,), {}) == b'{"a":1}'


@pytest.mark.parametrize("thing", [Service(), Service, len, print])
def test_objects_that_are_not_functions_are_refused(thing: Any) -> None:
    with pytest.raises(TypeError, match="not a function"):
        Signature.of(thing)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(), max_size=3), st.dictionaries(st.sampled_from("abcdef"), st.integers(), max_size=4))
def test_bind_agrees_with_a_python_call(args: list[int], kwargs: dict[str, int]) -> None:
    def target(a: int, b: int = 7, *rest: int, c: int = 8, **more: int) -> object:
        return a, b, rest, c, more

    signature = Signature(target)
    try:
        expected = target(*args, **kwargs)
    except TypeError:
        with pytest.raises(TypeError):
            signature.bind(args, kwargs)
        return
    again, keywords = signature.unbind(signature.bind(args, kwargs))
    assert target(*again, **keywords) == expected


# What would be lost without a word.


class Animal(pydantic.BaseModel):
    name: str


class Dog(Animal):
    breed: str


class Cage(pydantic.BaseModel):
    animal: Animal
    others: list[Animal] = []


class Balls(typing.NamedTuple):
    first: Ball
    second: Ball | None = None


class Shelf(typing.TypedDict):
    ball: Ball


@dataclass
class Bag:
    balls: list[Ball]
    spare: "Bag | None" = None


SUBCLASSES: list[tuple[object, Any]] = [
    (Globe(1.0), Ball),
    (Globe(1.0), Ball | None),
    (Box(Globe(1.0)), Box[Ball]),
    (Box([Box(Globe(1.0))]), Box[list[Box[Ball]]]),
    (Globe(1.0), Circle | Ball),
    ([Ball(1.0), Globe(1.0)], list[Ball]),
    ((1, Globe(1.0)), tuple[int, Ball]),
    ((Ball(1.0), Globe(1.0)), tuple[Ball, ...]),
    ({"a": [Globe(1.0)]}, dict[str, list[Ball]]),
    (Balls(Ball(1.0), Globe(1.0)), Balls),
    ({"ball": Globe(1.0)}, Shelf),
    (Bag([Ball(1.0)], Bag([Globe(1.0)])), Bag),
    ([Globe(1.0)], list[Circle | Ball]),
    (Dog(name="a", breed="b"), Animal),
    (Dog(name="a", breed="b"), Animal | None),
    ([Dog(name="a", breed="b")], list[Animal]),
    (Cage(animal=Dog(name="a", breed="b")), Cage),
    (Cage(animal=Animal(name="a"), others=[Dog(name="a", breed="b")]), Cage),
    ({"a": Dog(name="a", breed="b")}, dict[str, Animal]),
]


@pytest.mark.parametrize(("value", "hint"), SUBCLASSES)
def test_subclass_of_the_hinted_class_is_refused(value: object, hint: Any) -> None:
    """Otherwise it would be decoded as the hinted class, without its own fields."""
    expected = r"a (Globe|Dog) where the hint says (Ball|Animal) would be decoded as"
    with pytest.raises(SerializationError, match=expected):
        encode(value, hint)


Item = typing.TypeVar("Item")


class Page(pydantic.BaseModel, typing.Generic[Item]):
    items: list[Item]


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (Globe(1.0), Globe),
        (Globe(1.0), Ball | Globe),
        (Ball(1.0), Ball | Globe),
        (Dog(name="a", breed="b"), Animal | Dog),
        (Bag([Ball(1.0)], Bag([])), Bag),
        (Page[int](items=[1]), Page[int]),
    ],
)
def test_classes_named_by_the_hint_round_trip(value: object, hint: Any) -> None:
    assert decode(encode(value, hint), hint) == value


def test_generic_model_with_type_arguments_is_accepted() -> None:
    assert decode(encode(Page[int](items=[1]), Page), Page) == Page(items=[1])


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr


class Logins(pydantic.BaseModel):
    logins: dict[str, Login]


class Token(pydantic.BaseModel):
    value: pydantic.SecretStr

    @pydantic.field_serializer("value")
    def reveal(self, value: pydantic.SecretStr) -> str:
        return value.get_secret_value()


@pytest.mark.parametrize("hint", [None, Any])
@pytest.mark.parametrize(
    "value",
    [
        Login(user="a", password="hidden"),  # type: ignore[arg-type]
        Logins(logins={"a": Login(user="a", password="hidden")}),  # type: ignore[arg-type]
        [Login(user="a", password="hidden")],  # type: ignore[arg-type]
    ],
)
def test_secret_that_would_be_masked_is_refused(value: Any, hint: Any) -> None:
    """Otherwise the receiver would get `**********`."""
    with pytest.raises(SerializationError, match=r"(Login|Logins) holds a secret") as error:
        encode(value, (list[Login] if isinstance(value, list) else type(value)) if hint is None else hint)
    assert "hidden" not in str(error.value)


def test_secret_with_its_own_serializer_round_trips() -> None:
    token = Token(value="known")  # type: ignore[arg-type]
    assert decode(encode(token, Token), Token) == token
    empty = Login(user="**********", password="")  # type: ignore[arg-type]
    with pytest.raises(SerializationError):  # it looks like one
        encode(empty, Login)
    plain = Animal(name="**********")
    assert decode(encode(plain, Animal), Animal) == plain
