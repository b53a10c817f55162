"""The changes are what they should be."""

import pytest

from tests.mutants import python_changes, sql_changes

IN_FUNCTION = "def f(a, b):\n    {}\n"


def _python(statement: str) -> set[str]:
    text = IN_FUNCTION.format(statement)
    mutated = {change.apply(text) for change in python_changes.changes(text)}
    for each in mutated:
        compile(each, "mutant", "exec")
    return {each.partition("\n    ")[2].rstrip("\n") for each in mutated}


def _sql(statement: str) -> set[str]:
    text = f"-- name\n{statement}\n"
    return {" ".join(change.apply(text).partition("\n")[2].split()) for change in sql_changes.changes(text)}


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("if a < b: pass", {"if not (a < b): pass", "if a <= b: pass"}),
        ("if a is b: pass", {"if a is not b: pass"}),
        ("if not a: pass", {"if (a): pass"}),
        ("while a: pass", {"while not (a): pass"}),
        ("a = b and f", {"a = b or f", "a = True and f", "a = b and True"}),
        ("a = a + b", {"a = a - b"}),
        ("a = max(b, 7)", {"a = min(b, 7)", "a = max(b, 8)", "a = max(b, 6)"}),
        ("a = f(x=b)", {"a = f(x=None)"}),
        ("a = [b for b in a if b]", {"a = [b for b in a if not (b)]"}),
        ("a.b = True", {"pass", "a.b = False"}),
        ("a -= b", {"pass", "a += b"}),
        ("a()", {"pass"}),
        ("yield a()", {"pass"}),
        ("del a[b]", {"pass"}),
        ("return a", {"return None"}),
        ("raise ValueError(1)", {"pass"}),
        ("try: a\n    finally: b()", {"try: a\n    finally: pass"}),
        ("try: a\n    except OSError: pass", {"try: a\n    except OSError: raise"}),
        ("for a in b: break", {"for a in b: continue"}),
        ('a = "key"', {'a = ""'}),
        ('a = "ä"; b = 0', {'a = ""; b = 0', 'a = "ä"; b = 1'}),
    ],
)
def test_python_is_changed_in_every_way(statement: str, expected: set[str]) -> None:
    assert _python(statement) == expected


@pytest.mark.parametrize(
    "statement",
    [
        '"""A docstring, and 1 number."""',
        'log.warning("%s", a, extra={"n": 1})',
        "assert a == 1",
        'a = f"{b + 1}"',
        'a = "a text for people"',
        "raise NotImplementedError",
        "if TYPE_CHECKING: import a",
        "a: int",
        'a = ValueError("no", 1)',
    ],
)
def test_what_no_test_should_depend_on_is_not_changed(statement: str) -> None:
    assert _python(statement) == set()


def test_import_executes_what_stands_in_no_function() -> None:
    text = "A = 1\nclass B:\n    c = 2\n    def d(self):\n        return 3\n"
    assert {change.place for change in python_changes.changes(text)} == {0, 5}


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (
            "SELECT a FROM t WHERE b = :b AND c IS NULL",
            {
                "SELECT a FROM t WHERE 1 = 1 AND c IS NULL",
                "SELECT a FROM t WHERE b <> :b AND c IS NULL",
                "SELECT a FROM t WHERE b = :b AND 1 = 1",
                "SELECT a FROM t WHERE b = :b AND c IS NOT NULL",
            },
        ),
        (
            "DELETE FROM t WHERE (a OR b > 1)",
            {
                "DELETE FROM t WHERE 1 = 1",
                "DELETE FROM t WHERE (a OR 1 = 0)",
                "DELETE FROM t WHERE (a OR b >= 1)",
            },
        ),
        (
            "SELECT a FROM t WHERE {free} ORDER BY a DESC LIMIT 1 {skip_locked}",
            {
                "SELECT a FROM t WHERE 1 = 1 ORDER BY a DESC LIMIT 1 {skip_locked}",
                "SELECT a FROM t WHERE {free} LIMIT 1 {skip_locked}",
                "SELECT a FROM t WHERE {free} ORDER BY a LIMIT 1 {skip_locked}",
                "SELECT a FROM t WHERE {free} ORDER BY a DESC {skip_locked}",
                "SELECT a FROM t WHERE {free} ORDER BY a DESC LIMIT 1",
            },
        ),
        (
            "SELECT a FROM t FOR UPDATE SKIP LOCKED",
            {"SELECT a FROM t", "SELECT a FROM t FOR UPDATE"},
        ),
        (
            "UPDATE t SET a = a + 1, b = f(1, 2), c = 3",
            {
                "UPDATE t SET a = a - 1, b = f(1, 2), c = 3",
                "UPDATE t SET b = f(1, 2), c = 3",
                "UPDATE t SET a = a + 1, c = 3",
                "UPDATE t SET a = a + 1, b = f(1, 2)",
            },
        ),
        (
            "INSERT INTO t SELECT 1;\nDELETE FROM u",
            {"DELETE FROM u", "INSERT INTO t SELECT 1", "DELETE FROM u; INSERT INTO t SELECT 1"},
        ),
        (
            "SELECT CASE WHEN a IN ('x', 'y') THEN 1 END",
            {
                "SELECT CASE WHEN 1 = 1 THEN 1 END",
                "SELECT CASE WHEN a NOT IN ('x', 'y') THEN 1 END",
                "SELECT CASE WHEN a IN ('mutant', 'y') THEN 1 END",
                "SELECT CASE WHEN a IN ('x', 'mutant') THEN 1 END",
            },
        ),
        ("a NOT IN (SELECT b FROM t)", {"1 = 1", "a IN (SELECT b FROM t)"}),
    ],
)
def test_sql_is_changed_in_every_way(statement: str, expected: set[str]) -> None:
    assert _sql(statement) == expected


def test_sql_belongs_to_its_statement_and_dialect() -> None:
    text = "-- one -> a\n-- What = it does.\nSELECT a FROM t LIMIT 1\n\n-- one [mysql]\nSELECT a FROM t LIMIT 2\n"
    assert [change.place for change in sql_changes.changes(text)] == ["one", "one mysql"]
