"""Input filters on every backend against a reference: what is listed is what the reference matches."""

import json
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.database.dialects import MySQLDriver, PostgresDriver, SQLiteDriver, new_driver
from perdure.errors import ConfigurationError, InvalidJSONPathError, LimitError
from perdure.model.records import ListInstancesOptions, WorkflowInstance
from perdure.storage.filters import InputFilterBuilder, checked, matches, validate_json_path
from perdure.storage.stores import SQLStorage, open_storage
from tests.storage.filters import reference

Case = tuple[list[str], reference.Filters]

DRIVERS = [SQLiteDriver(), PostgresDriver(), MySQLDriver()]

example = count()
many = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


async def store(storage: SQLStorage, texts: list[str]) -> str:
    """One instance a text, of a workflow of their own, whose name is given back."""
    name = f"wf-{next(example)}"
    instances = [WorkflowInstance(f"{name}:{n}", name, text.encode()) for n, text in enumerate(texts)]
    assert set(await storage.create_instances(instances)) == {None}
    return name


def expected(name: str, texts: list[str], filters: reference.Filters) -> set[str]:
    return {f"{name}:{n}" for n, text in enumerate(texts) if reference.matches(text, filters)}


@pytest.mark.pitfall(42)
@many
@given(reference.cases(reference.ordinary | reference.strange | reference.garbage))
async def test_listing_matches_the_reference(storage: SQLStorage, case: Case) -> None:
    texts, filters = case
    name = await store(storage, texts)
    page = await storage.list_instances(ListInstancesOptions(workflow_name_filter=name, input_filters=filters))
    assert {found.instance_id for found in page.instances if found.workflow_name == name} == expected(
        name, texts, filters
    )


@pytest.mark.pitfall(42)
@many
@given(reference.cases(reference.ordinary))
async def test_sql_conditions_alone_are_exact_for_ordinary_json(storage: SQLStorage, case: Case) -> None:
    texts, filters = case
    name = await store(storage, [*texts, "no JSON"])
    conditions, args = InputFilterBuilder(storage._backend.driver).build_filter_query(filters, 1)
    query = f"SELECT instance_id FROM workflow_instances WHERE workflow_name = '{name}' AND {' AND '.join(conditions)}"
    assert {row[0] for row in await storage.db().fetch(query, *args)} == expected(name, texts, filters)


@settings(max_examples=100, deadline=None)
@given(reference.cases(reference.ordinary | reference.strange | reference.garbage))
def test_final_check_in_python_matches_the_reference(case: Case) -> None:
    texts, filters = case
    for text in texts:
        assert matches(text, checked(filters)) == reference.matches(text, filters)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(reference.paths, min_size=4, max_size=12), st.sampled_from(reference.TEXTS))
async def test_path_matches_like_the_reference_or_is_refused(storage: SQLStorage, drawn: list[str], value: str) -> None:
    paths = [path for path in drawn if reference.is_path(path)]
    texts = [reference.at(path, json.dumps(each)) for path in paths for each in (value, value + "'", 1)]
    name = await store(storage, [*texts, "no JSON"])
    for path in drawn:
        for wanted in (value, 1, True):
            options = ListInstancesOptions(workflow_name_filter=name, input_filters={path: wanted})
            if path in paths:
                found = {each.instance_id for each in (await storage.list_instances(options)).instances}
                assert found == expected(name, texts, {path: wanted})
            else:
                with pytest.raises(InvalidJSONPathError):
                    await storage.list_instances(options)


@settings(max_examples=100, deadline=None)
@given(reference.paths)
async def test_invalid_path_is_refused_before_it_reaches_the_database(path: str) -> None:
    for url in ("sqlite:///:memory:", "postgresql://127.0.0.1:1/d", "mysql://127.0.0.1:1/d"):
        if not reference.is_path(path):
            with pytest.raises(InvalidJSONPathError):  # nothing is open: a statement would fail otherwise
                await open_storage(url).list_instances(ListInstancesOptions(input_filters={path: 1}))


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)
def test_arguments_are_bound_and_numbered(driver: SQLiteDriver | PostgresDriver | MySQLDriver) -> None:
    value = "'; DROP TABLE workflow_instances; --"
    conditions, args = InputFilterBuilder(driver).build_filter_query({"a": value, "b.c": 1, "d": None}, 4)
    assert len(conditions) == 3
    text = " AND ".join(conditions)
    assert "DROP" not in text
    if driver.name == "postgresql":
        assert [f"${n}" in text for n in range(3, 9)] == [False, True, True, True, True, False]
    else:
        assert text.count(driver.placeholder(1)) == len(args)


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)
def test_driver_refuses_invalid_paths(driver: SQLiteDriver | PostgresDriver | MySQLDriver) -> None:
    for path in ("a' OR 1=1 --", "a.", "", "a[0]", "a\n", "é"):
        with pytest.raises(InvalidJSONPathError):
            driver.json_extract("input_data", path)
        with pytest.raises(InvalidJSONPathError):
            InputFilterBuilder(driver).build_filter_query({path: 1}, 1)
        with pytest.raises(InvalidJSONPathError):
            validate_json_path(path)
    validate_json_path("order.customer_id.x1")


def test_no_filters_give_no_conditions() -> None:
    assert InputFilterBuilder(SQLiteDriver()).build_filter_query({}, 1) == ([], [])


def test_filter_values_are_checked() -> None:
    with pytest.raises(LimitError):
        InputFilterBuilder(SQLiteDriver()).build_filter_query({"a": 2**53 + 1}, 1)
    assert checked({"a": 1, "b": True, "c": None, "d": "x"}) == {"a": 1.0, "b": True, "c": None, "d": "x"}


def test_driver_is_chosen_by_url() -> None:
    urls = {
        "sqlite:///x.db": SQLiteDriver,
        "postgresql://h/d": PostgresDriver,
        "postgres://h/d": PostgresDriver,
        "mysql://h/d": MySQLDriver,
        "mariadb://h/d": MySQLDriver,
        "MySQL://h/d": MySQLDriver,
    }
    for url, driver in urls.items():
        assert type(new_driver(url)) is driver
    for url in ("", "oracle://user:secret@h/d", "/tmp/x.db"):
        with pytest.raises(ConfigurationError) as caught:
            new_driver(url)
        assert "secret" not in str(caught.value)
