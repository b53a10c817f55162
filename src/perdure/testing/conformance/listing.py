"""Test which instances a backend lists, in which order, page by page."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.errors import InvalidJSONPathError, InvalidPageTokenError, LimitError
from perdure.model.records import ListInstancesOptions, PaginationResult, WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage
from perdure.testing.conformance.tools import Shift, new

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)

# Case, accents and alphabets that collations fold or sort in their own way; the last two sort differently in UTF-16.


async def fill(storage: Storage, *instances: WorkflowInstance) -> None:
    """Create instances; fail if one cannot be created."""
    for start in range(0, len(instances), 1000):
        assert set(await storage.create_instances(instances[start : start + 1000])) == {None}


async def given(storage: Storage, *inputs: str) -> None:
    """Create one instance per input, with ids 0, 1, … in the order of the list."""
    instances = [
        WorkflowInstance(str(n), "wf", text.encode(), started_at=NOON - n * SECOND) for n, text in enumerate(inputs)
    ]
    await fill(storage, *instances)


async def page(storage: Storage, **options: Any) -> PaginationResult:
    """Return one page."""
    return await storage.list_instances(ListInstancesOptions(**options))


async def ids(storage: Storage, **options: Any) -> list[str]:
    """Return the ids of one page."""
    return [instance.instance_id for instance in (await page(storage, **options)).instances]


async def all_ids(storage: Storage, **options: Any) -> list[str]:
    """Return the ids of every page, one after the other."""
    result = await page(storage, **options)
    found = result.instances
    while result.has_more:
        assert result.next_page_token is not None
        result = await page(storage, page_token=result.next_page_token, **options)
        found += result.instances
    assert result.next_page_token is None
    return [instance.instance_id for instance in found]


async def test_newest_instances_are_listed_first(storage: Storage) -> None:
    await fill(
        storage,
        WorkflowInstance("a", "wf", started_at=NOON),
        WorkflowInstance("b", "wf", started_at=NOON + MICROSECOND),
        WorkflowInstance("c", "wf", started_at=NOON - MICROSECOND),
    )
    assert await ids(storage) == ["b", "a", "c"]


async def test_empty_database_returns_an_empty_page(storage: Storage) -> None:
    assert await storage.list_instances() == PaginationResult([], None, False)


async def test_every_field_is_listed(storage: Storage) -> None:
    await new(storage, "parent", started_at=NOON)
    lease = await storage.create_instance(
        WorkflowInstance("i", "wf", b'{"a": "\xc3\xa9"}', source_hash="h", owner_service="s", continued_from="parent"),
        worker_id="w1",
    )
    assert lease is not None
    await storage.update_instance_activity("i", "step:1", lease=lease)
    found = (await storage.list_instances()).instances
    assert found == [await storage.get_instance("i"), await storage.get_instance("parent")]


async def test_pages_list_every_instance_once(storage: Storage) -> None:
    instances = [WorkflowInstance(f"i-{n:03}", "wf", started_at=NOON + n // 4 * MICROSECOND) for n in range(120)]
    await fill(storage, *instances)
    newest_first = [instance.instance_id for instance in reversed(instances)]
    for limit in (1, 7, 119, 120, 121, 1000):
        assert await all_ids(storage, limit=limit) == newest_first


async def test_page_reports_whether_more_follow(storage: Storage) -> None:
    await fill(storage, *(WorkflowInstance(f"i-{n}", "wf") for n in range(4)))
    full = await page(storage, limit=4)
    assert (len(full.instances), full.has_more, full.next_page_token) == (4, False, None)
    part = await page(storage, limit=3)
    assert (len(part.instances), part.has_more) == (3, True)
    last = await page(storage, limit=3, page_token=part.next_page_token)
    assert (len(last.instances), last.has_more, last.next_page_token) == (1, False, None)


async def test_new_instances_do_not_disturb_later_pages(storage: Storage, peer: Storage) -> None:
    await fill(storage, *(WorkflowInstance(f"i-{n}", "wf", started_at=NOON + n * SECOND) for n in range(6)))
    first = await page(storage, limit=3)
    await new(peer, "later", started_at=NOON + timedelta(hours=1))
    assert await ids(peer, limit=3, page_token=first.next_page_token) == ["i-2", "i-1", "i-0"]


@pytest.mark.pitfall(43)
async def test_page_token_is_the_same_on_every_database(storage: Storage) -> None:
    at = NOON.replace(microsecond=123456)
    await fill(storage, *(WorkflowInstance(name, "wf", started_at=at) for name in ("x||1", "x||2")))
    token = (await page(storage, limit=1)).next_page_token
    assert token == "2026-03-01T12:00:00.123456+00:00||x||2"
    assert await ids(storage, page_token=token) == ["x||1"]


@pytest.mark.pitfall(43)
@pytest.mark.parametrize(
    "token",
    [
        "",
        "x",
        "||",
        "||i-1",
        "i-1",
        "2026-03-01T12:00:00.000000+00:00",
        "2026-03-01T12:00:00.000000+00:00||",
        "2026-03-01T12:00:00.000000+00:00|i-1",
        "2026-13-01T12:00:00.000000+00:00||i-1",
        "2026-03-01T25:00:00.000000+00:00||i-1",
        "0000-03-01T12:00:00.000000+00:00||i-1",
        "0001-01-01T00:00:00.000000+14:00||i-1",
        "9999-12-31T23:59:59.999999-14:00||i-1",
        "٢٠٢٦-03-01T12:00:00.000000+00:00||i-1",
        "2026-03-01||i-1",
        "now||i-1",
        " 2026-03-01T12:00:00.000000+00:00||i-1",
        "2026-03-01T12:00:00.000000+00:00||i\0",
        "2026-03-01T12:00:00.000000+00:00||\ud800",
        "2026-03-01T12:00:00.000000' OR 1=1||i-1",
        b"2026-03-01T12:00:00.000000+00:00||i-1",
        7,
    ],
)
async def test_invalid_page_token_is_refused(storage: Storage, token: Any) -> None:
    await new(storage, "i-1")
    with pytest.raises(InvalidPageTokenError):
        await page(storage, page_token=token)


async def test_page_size_has_a_default_and_a_maximum(storage: Storage) -> None:
    await fill(storage, *(WorkflowInstance(f"i-{n}", "wf") for n in range(51)))
    assert len(await ids(storage)) == 50
    assert len(await ids(storage, limit=1000)) == 51
    for limit in (-1, 1001, True, 1.0, None):
        with pytest.raises(LimitError):
            await page(storage, limit=limit)


async def test_list_is_filtered_by_status(storage: Storage) -> None:
    await fill(storage, *(WorkflowInstance(status, "wf", status=status) for status in WorkflowStatus))
    for status in WorkflowStatus:
        assert await ids(storage, status_filter=status) == [status]
    assert await ids(storage, status_filter="running") == ["running"]
    with pytest.raises(LimitError):
        await page(storage, status_filter="Running")


async def test_time_filters_are_exclusive(storage: Storage) -> None:
    times = [NOON - MICROSECOND, NOON, NOON + MICROSECOND]
    await fill(storage, *(WorkflowInstance(str(n), "wf", started_at=at) for n, at in enumerate(times)))
    assert await ids(storage, started_after=NOON) == ["2"]
    assert await ids(storage, started_before=NOON) == ["0"]
    assert await ids(storage, started_after=times[0], started_before=times[2]) == ["1"]
    assert await ids(storage, started_after=NOON, started_before=NOON) == []
    tokyo = NOON.astimezone(datetime.strptime("+0900", "%z").tzinfo)
    assert await ids(storage, started_after=tokyo) == ["2"]
    with pytest.raises(LimitError):
        await page(storage, started_after=NOON.replace(tzinfo=None))


@pytest.mark.pitfall(43)
@pytest.mark.parametrize("name", ["workflow_name", "instance_id"])
async def test_name_filter_matches_a_substring(storage: Storage, name: str) -> None:
    async def found(part: str) -> list[str]:
        return await ids(storage, **{f"{name}_filter": part})

    names = [
        "Order-50%_off",
        "order-50",
        r"back\slash",
        "quo'te",
        'dou"ble',
        "[x]*?^$.",
        "x, :limit {now} %(limit)s $1",
    ]
    instances = [
        WorkflowInstance(text if name == "instance_id" else str(n), text, started_at=NOON - n * SECOND)
        for n, text in enumerate(names)
    ]
    await fill(storage, *instances)
    keys = [instance.instance_id for instance in instances]
    assert await found("") == keys
    assert await found("oRDER-50") == keys[:2]
    assert await found("50%") == await found("%_") == await found("_OFF") == keys[:1]
    assert await found("r_5") == await found("50_") == await found("o%o") == []
    for part, n in (("k\\S", 2), ("o'T", 3), ('u"B', 4), ("[X]*?^$.", 5), (":LIMIT {now} %(limit)s $1", 6)):
        assert await found(part) == [keys[n]]
    assert await found("\\\\") == await found(".*") == await found(" order") == []


@pytest.mark.parametrize("name", ["workflow_name", "instance_id"])
async def test_name_filter_ignores_case_of_ascii_letters_only(storage: Storage, name: str) -> None:
    letters = ["É-eA", "é-EA", "e\u0301-ea", "Ж", "ж", "ſ", "\u212a", "İ", "ı", "ß", "Ａ", "ａ"]
    instances = [
        WorkflowInstance(text if name == "instance_id" else str(n), text, started_at=NOON - n * SECOND)
        for n, text in enumerate(letters)
    ]
    await fill(storage, *instances)
    keys = [instance.instance_id for instance in instances]
    for n, text in enumerate(letters):
        assert await ids(storage, **{f"{name}_filter": text.replace("ea", "EA")}) == [keys[n]]
    for part, expected in (("EA", keys[:3]), ("s", []), ("k", []), ("i", []), ("SS", []), ("a", keys[:3])):
        assert await ids(storage, **{f"{name}_filter": part}) == expected


@pytest.mark.parametrize("part", ["x" * 256, "a\0b", "\ud800", 7])
async def test_invalid_name_filter_is_refused(storage: Storage, part: Any) -> None:
    for name in ("workflow_name_filter", "instance_id_filter"):
        with pytest.raises(LimitError):
            await page(storage, **{name: part})


async def test_a_transaction_lists_what_it_wrote(storage: Storage) -> None:
    with pytest.raises(KeyError):
        async with storage.transaction():
            await new(storage, "i-1", input_data=b'{"a": 1}')
            assert await ids(storage) == ["i-1"]
            assert await ids(storage, input_filters={"a": 1}) == ["i-1"]
            raise KeyError
    assert await ids(storage) == []


TYPED = [
    ('{"a": true}', True),
    ('{"a": false}', False),
    ('{"a": null}', None),
    ('{"a": "true"}', "true"),
    ('{"a": "false"}', "false"),
    ('{"a": "null"}', "null"),
    ('{"a": 1}', 1),
    ('{"a": 0}', 0),
    ('{"a": "1"}', "1"),
    ('{"a": ""}', ""),
    ('{"a": "x"}', "x"),
    ('{"a": "x "}', "x "),
    ('{"a": "X"}', "X"),
    ('{"a": "\\"x"}', '"x'),
    ('{"a": "é"}', "é"),
    ('{"a": "e\u0301"}', "e\u0301"),
    ('{"a": "{\\"b\\": 1}"}', '{"b": 1}'),
]


@pytest.mark.pitfall(42)
async def test_input_filter_compares_types(storage: Storage) -> None:
    nothing = ['{"a": {}}', '{"a": []}', '{"a": [1]}', '{"a": {"a": 1}}', "{}", "[]", "1", "null", '"a"', '[{"a": 1}]']
    await given(storage, *(text for text, _ in TYPED), *nothing)
    for n, (_, value) in enumerate(TYPED):
        assert await ids(storage, input_filters={"a": value}) == [str(n)]


@pytest.mark.pitfall(42)
@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (1, ["1", "1.0", "1e0", "1E+0", "10e-1", "1.00000000000000000001"]),
        (0, ["0", "-0", "0.0", "-0.0", "0e99", "1e-400"]),
        (0.1, ["0.1", "1e-1", "0.1000000000000000055", "0.10"]),
        (-1.5, ["-1.5", "-15e-1"]),
        (2**53, ["9007199254740992", "9007199254740993", "9007199254740992.0", "9.007199254740992e15"]),
        (2**53 - 1, ["9007199254740991"]),
        (-(2**53), ["-9007199254740992"]),
        (0.30000000000000004, ["0.30000000000000004"]),
        (0.3, ["0.3"]),
        (5e-324, ["5e-324", "4e-324"]),
    ],
)
async def test_input_filter_compares_numbers_by_value(storage: Storage, value: float, stored: list[str]) -> None:
    others = ["2", "-1", "1e400", "-1e400", "9" * 400, '"1"', "true", "0.30000000000000010", "9007199254740990"]
    await given(storage, *(f'{{"a": {number}}}' for number in [*stored, *others]))
    assert await ids(storage, input_filters={"a": value}) == [str(n) for n in range(len(stored))]


@pytest.mark.pitfall(42)
async def test_input_filter_compares_text_by_code_points(storage: Storage) -> None:
    texts = ["é", "😀", "\u2028", "\x7f", "\\", '"', "/", "\n\t\b\f\r", "a'b", "%s ? $1 :x {now}", "İ", "\ufeff", "ﬁ"]
    await given(
        storage, *(json.dumps({"a": text}, ensure_ascii=escaped) for text in texts for escaped in (True, False))
    )
    for n, text in enumerate(texts):
        assert await ids(storage, input_filters={"a": text}) == [str(2 * n), str(2 * n + 1)]


@pytest.mark.pitfall(42)
async def test_input_that_is_not_json_matches_no_filter(storage: Storage) -> None:
    garbage = [
        "",
        " ",
        "a",
        "{",
        '{"a": 1',
        '{"a": 1,}',
        '{"a": 1} x',
        '{"a": 01}',
        '{"a": +1}',
        '{"a": 1.}',
        '{"a": .5}',
        '{"a": -}',
        '{"a": NaN}',
        '{"a": Infinity}',
        "{'a': 1}",
        "{a: 1}",
        '{"a": 1 /* x */}',
        '{"a": "\\x"}',
        '{"a": "\\u12g4"}',
        '{"a": "\t"}',
        '{"a": TRUE}',
        '\ufeff{"a": 1}',
        '\x0c{"a": 1}',
        "<a>1</a>",
        "[" * 5000,
        '{"a":' * 300,
    ]
    await given(storage, *garbage, '{"a": 1}')
    assert await ids(storage, input_filters={"a": 1}) == [str(len(garbage))]
    for value in ("1", "x", "\t", True, None, 0.5):
        assert await ids(storage, input_filters={"a": value}) == []


@pytest.mark.pitfall(42)
async def test_json_that_the_database_cannot_parse_is_still_matched(storage: Storage) -> None:
    found = [
        '{"b": "\\u0000", "a": "x"}',
        '{"b": "\\ud800", "a": "x"}',
        '{"\\u0061": "x"}',
        '{"a": 1, "a": "x"}',
        '{"a": {"b": 1}, "a": "x"}',
        '{"a": "y", "\\u0061": "x"}',
        '{"a": "x", "a\\u0000": "y"}',
        '{"a": "x", "b": 1e400}',
        '{"a": "x", "b": 1e999999}',
        f'{{"a": "x", "b": {"9" * 5000}}}',
        f'{{"a": "x", "b": {"[" * 40}{"]" * 40}}}',
        f'{{"a": "x", "b": {"[" * 120}{"]" * 120}}}',
        f'{{"a": "x", "b": {"[" * 500}{"]" * 500}}}',
        f'{{"a": "x", "b": [{", ".join(["{}"] * 200)}]}}',
        f'{{"b": "{"[" * 200}", "a": "x"}}',
    ]
    others = ['{"a": "x", "a": "y"}', '{"a": "x\\u0000"}', '{"a": "x", "\\u0061": 1}', '{"a": "\\ud800"}', '{"A": "x"}']
    await given(storage, *found, *others)
    expected = [str(n) for n in range(len(found))]
    assert await ids(storage, input_filters={"a": "x"}) == expected
    assert await all_ids(storage, limit=1, input_filters={"a": "x"}) == expected


async def test_dots_in_a_path_select_nested_keys(storage: Storage) -> None:
    await given(
        storage,
        '{"order": {"customer": {"id": 7}}}',
        '{"order.customer.id": 7}',
        '{"order": {"customer.id": 7}}',
        '{"order": {"customer": [{"id": 7}]}}',
        '{"order": {"customer": "{\\"id\\": 7}"}}',
        '{"order": null}',
        '{"order": {"customer": {"id": 8}}, "order": {"customer": {"id": 7}}}',
        '{"order": {"customer": {"id": 7}}, "order": 7}',
        '{"order": 7, "order": {"customer": {"id": 7}}}',
        '{"order": {"customer": {}}, "order": {"customer": {"id": 7}}}',
        '{"order": {"customer": {"id": 7}}, "order": {"customer": {"x": 7}}}',
        '{"order": {"customer": {"id": 7, "ID": 8, "id ": 9}}}',
    )
    assert await ids(storage, input_filters={"order.customer.id": 7}) == ["0", "6", "8", "9", "11"]


async def test_input_filters_are_combined_with_and(storage: Storage) -> None:
    await given(storage, '{"a": 1, "b": "x"}', '{"a": 1, "b": "y"}', '{"a": 2, "b": "x"}', '{"b": "x"}', '{"a": 1}')
    assert await ids(storage, input_filters={"a": 1, "b": "x"}) == ["0"]
    assert await ids(storage, input_filters={"path": 1, "condition": 2}) == []
    many = {f"k{n}": n for n in range(20)}
    await new(storage, "many", input_data=json.dumps(many).encode())
    assert await ids(storage, input_filters=many) == ["many"]
    with pytest.raises(LimitError):
        await page(storage, input_filters={**many, "one_more": 1})


async def test_path_depth_and_length_up_to_the_limits_work(storage: Storage) -> None:
    deep, long = ".".join("a" * 30), "k" * 255
    nested = "7"
    for _ in range(30):
        nested = f'{{"a": {nested}}}'
    await given(storage, nested, json.dumps({long: "x"}))
    assert await ids(storage, input_filters={deep: 7}) == ["0"]
    assert await ids(storage, input_filters={long: "x"}) == ["1"]


@pytest.mark.parametrize(
    "path",
    ["", ".", "a.", ".a", "a..b", "a b", " a", "a\n", "1", "a.1", "a[0]", "$.a", '"a"', "a'b", "a-b", "é", "a*", "a\0",
     "k" * 256, ".".join("a" * 31), 7, None],
)  # fmt: skip
async def test_invalid_path_is_refused(storage: Storage, path: Any) -> None:
    with pytest.raises(InvalidJSONPathError):
        await page(storage, input_filters={path: 1})


@pytest.mark.parametrize(
    "value",
    [2**53 + 1, -(2**53) - 2, 2.0**54, 10**400, float("inf"), float("nan"), b"x", [1], {}, NOON, "a\0", "\ud800",
     "x" * 65537],
)  # fmt: skip
async def test_invalid_filter_value_is_refused(storage: Storage, value: Any) -> None:
    with pytest.raises(LimitError):
        await page(storage, input_filters={"a": value})


async def test_pages_continue_after_false_matches(storage: Storage) -> None:
    texts = ['{"a": "x"}' if n % 10 == 0 else "no JSON at all" for n in range(60)]
    await given(storage, *texts)
    for limit in (1, 2, 6, 50):
        assert await all_ids(storage, limit=limit, input_filters={"a": "x"}) == ["0", "10", "20", "30", "40", "50"]


async def test_workflow_name_option_matches_the_whole_name(storage: Storage) -> None:
    states = (WorkflowStatus.RUNNING, WorkflowStatus.FAILED, WorkflowStatus.COMPLETED)
    await fill(
        storage,
        *(
            WorkflowInstance(f"{name}-{n}", name, status=states[n % 3], started_at=NOON + n // 2 * SECOND)
            for n in range(12)
            for name in ("wf", "wf2", "WF")
        ),
    )
    everything = [f"wf-{n}" for n in sorted(range(12), key=lambda n: (n // 2, f"wf-{n}"), reverse=True)]
    assert await all_ids(storage, workflow_name="wf", limit=5) == everything
    assert await all_ids(storage, workflow_name="wf", framework=None, limit=5) == everything
    failed = [each for each in everything if int(each[3:]) % 3 == 1]
    assert await all_ids(storage, workflow_name="wf", status_filter=WorkflowStatus.FAILED, limit=1) == failed
    assert await ids(storage, workflow_name="wf", started_after=NOON + 4 * SECOND) == ["wf-11", "wf-10"]
    assert await ids(storage, workflow_name="w") == []


async def test_a_count_is_exact_up_to_its_limit(storage: Storage) -> None:
    await fill(
        storage,
        *(
            WorkflowInstance(f"i-{n}", f"wf{n % 2}", json.dumps({"n": n % 5}).encode(), started_at=NOON + n * SECOND)
            for n in range(1500)
        ),
    )
    asked: dict[int, dict[str, Any]] = {
        1500: {},
        750: {"workflow_name": "wf1"},
        0: {"status_filter": WorkflowStatus.FAILED},
        300: {"input_filters": {"n": 3}},
        150: {"input_filters": {"n": 3}, "workflow_name": "wf1", "status_filter": WorkflowStatus.RUNNING},
        10: {"started_before": NOON + 10 * SECOND, "page_token": (await page(storage)).next_page_token},
    }
    for count, options in asked.items():
        assert await storage.count_instances(ListInstancesOptions(**options)) == count, options
        assert await storage.count_instances(ListInstancesOptions(**options), limit=7) == min(count, 7), options
    assert await storage.count_instances() == 1500
    with pytest.raises(LimitError):
        await storage.count_instances(limit=-1)


async def test_list_without_payloads_has_every_other_field(storage: Storage) -> None:
    await given(storage, '{"n": 1}', '{"n": 2}')
    for options in ({}, {"workflow_name": "wf"}, {"status_filter": "running"}):
        whole = (await page(storage, **options)).instances
        bare = (await page(storage, **options, payloads=False)).instances
        assert [replace(each, input_data=b"{}", output_data=None) for each in whole] == bare
        assert {each.input_data for each in bare} == {b"{}"}


async def test_list_by_input_may_leave_payloads_out(storage: Storage) -> None:
    await given(storage, '{"n": 1}', '{"n": 2}')
    (whole,) = (await page(storage, input_filters={"n": 1}, limit=1)).instances
    (bare,) = (await page(storage, input_filters={"n": 1}, limit=1, payloads=False)).instances
    assert replace(whole, input_data=b"{}", output_data=None) == bare


async def test_ended_instances_are_listed_by_the_time_of_their_end(storage: Storage, shift: Shift) -> None:
    await fill(storage, *(WorkflowInstance(f"i-{n}", "wf", started_at=NOON) for n in range(5)))
    for seconds, each in enumerate(("i-3", "i-1", "i-2"), 1):
        await storage.cancel_instance(each)
        shift(storage, seconds)
    await storage.update_instance_status("i-0", WorkflowStatus.FAILED, "no")
    found = await storage.list_ended()
    assert [(each.instance_id, each.status.value) for each in found] == [
        ("i-0", "failed"),
        ("i-2", "cancelled"),
        ("i-1", "cancelled"),
        ("i-3", "cancelled"),
    ]
    assert {(each.workflow_name, each.started_at) for each in found} == {("wf", NOON)}
    rows = await storage.get_instances([each.instance_id for each in found])
    assert [each.ended_at for each in found] == [row.updated_at for row in rows if row is not None]
    first, second = await storage.list_ended(2)
    assert [first, second] == found[:2]
    assert await storage.list_ended(before=(second.ended_at, second.instance_id)) == found[2:]


async def test_instances_that_end_together_are_listed_once_each_on_pages(storage: Storage) -> None:
    await fill(storage, *(WorkflowInstance(f"i-{n}", "wf") for n in range(5)))
    async with storage.transaction():
        for n in range(5):
            await storage.cancel_instance(f"i-{n}")
    found, before = [], None
    while rows := await storage.list_ended(2, before=before):
        found += [each.instance_id for each in rows]
        before = (rows[-1].ended_at, rows[-1].instance_id)
    assert found == ["i-4", "i-3", "i-2", "i-1", "i-0"]


async def test_several_states_are_listed_and_counted_together_in_order(storage: Storage) -> None:
    await fill(storage, *(WorkflowInstance(f"i-{n}", "wf" if n % 2 else "other", started_at=NOON) for n in range(8)))
    for n in (1, 2, 5, 7):
        await storage.cancel_instance(f"i-{n}")
    await storage.update_instance_status("i-3", WorkflowStatus.FAILED, "no")
    ended = (WorkflowStatus.CANCELLED, WorkflowStatus.FAILED)
    assert await all_ids(storage, statuses=ended, limit=2) == ["i-7", "i-5", "i-3", "i-2", "i-1"]
    assert await all_ids(storage, statuses=ended, workflow_name="wf", limit=2) == ["i-7", "i-5", "i-3", "i-1"]
    assert await all_ids(storage, statuses=ended[1:], framework=None) == ["i-3"]
    assert await storage.count_instances(ListInstancesOptions(statuses=ended)) == 5
    assert await storage.count_instances(ListInstancesOptions(statuses=(*ended, *ended)), limit=3) == 3
    with pytest.raises(LimitError):
        await page(storage, statuses=ended, status_filter=WorkflowStatus.FAILED)
    with pytest.raises(LimitError):
        await page(storage, statuses=("done",))
