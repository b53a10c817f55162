"""Tables, times and JSON."""

import io
import re
from datetime import UTC, datetime, timedelta
from typing import TextIO

import pytest

from perdure.cli.commands.runs import COLUMNS as RUN_COLUMNS
from perdure.cli.commands.runs import doing_text
from perdure.cli.exits import UsageError
from perdure.cli.options import Common, TimeKind
from perdure.cli.output import Column, Output
from perdure.cli.watching import fitted
from perdure.inspection.documents import plain, stamp
from perdure.model.envelopes import Unreadable


class Terminal(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def printed(stream: TextIO, common: Common = Common()) -> Output:  # noqa: B008 - it is frozen
    return Output(common, stream)


ROWS = [{"id": "a-very-long-id-that-stays-whole", "text": "x" * 100, "more": "y" * 30, "n": 1}]
COLUMNS = [Column("id", is_whole=True), Column("text"), Column("more"), Column("n")]


@pytest.mark.parametrize("width", [200, 90, 70, 45, 20])
def test_table_is_cut_to_the_terminal_and_ids_stay_whole(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    printed(stream).listing("rows", ROWS, COLUMNS)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[1].startswith(ROWS[0]["id"])  # type: ignore[arg-type]
    assert max(map(len, lines)) <= max(width, len(str(ROWS[0]["id"])))


RUN = {
    "id": "0199a6c1-0000-7000-8000-000000000001",
    "workflow": "order",
    "status": "waiting_for_event",
    "stuck": None,
    "error": None,
    "worker": None,
    "waiting_for": [{"kind": "event", "name": "order.approved.by.two.people", "until": None}],
}


@pytest.mark.parametrize(
    ("width", "titles", "started"),
    [
        (150, "ID WORKFLOW STATUS STARTED UPDATED DOING", None),
        (110, "ID WORKFLOW STATUS STARTED UPDATED DOING", "30 min ago"),
        (90, "ID WORKFLOW STATUS STARTED DOING", "30 min ago"),
        (72, "ID WORKFLOW STATUS STARTED", "30 min ago"),
        (60, "ID STATUS STARTED", "30 min ago"),
    ],
)
def test_narrow_table_keeps_id_state_and_age(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    width: int,
    titles: str,
    started: str | None,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    stream, output = Terminal(), printed(Terminal())
    output.stream = stream
    moment = stamp(output.now - timedelta(minutes=30))
    output.listing("runs", [{**RUN, "started_at": moment, "updated_at": moment}], RUN_COLUMNS)
    head, row = stream.getvalue().splitlines()
    assert head.split() == titles.split()
    assert max(len(head), len(row)) <= width
    assert row.startswith(RUN["id"])  # type: ignore[arg-type]
    assert ("waiting_for_event" if started is None else " waiting ") in row
    assert (started or str(output.time(moment))) in row
    left_out = [each for each in ("workflow", "updated", "doing") if each.upper() not in titles]
    expected = f"columns left out in this narrow terminal: {', '.join(left_out)}\n" if left_out else ""
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    ("rows", "keep_end", "shown"),
    [
        (7, False, ["\x1b[1mrun\x1b[0m", "a", "b" * 15, "c", "d"]),
        (6, False, ["\x1b[1mrun\x1b[0m", "a", "b" * 15, "…"]),
        (5, False, ["\x1b[1mrun\x1b[0m", "a", "…"]),
        (6, True, ["\x1b[1mrun\x1b[0m", "…", "c", "d"]),
        (3, True, ["\x1b[1mrun\x1b[0m", "…"]),
    ],
)
def test_watched_lines_are_fitted_to_the_height_of_the_terminal(rows: int, keep_end: bool, shown: list[str]) -> None:
    lines = ["\x1b[1mrun\x1b[0m", "a", "b" * 15, "c", "d"]  # the third needs two rows
    found = fitted(lines, 10, rows, keep_end=keep_end)
    assert [each if each in lines else each[0] for each in found] == shown


def test_columns_stay_aligned_beside_wide_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "29")
    documents = [{"id": "注文-1", "error": "支払いが拒否されました"}, {"id": "order-2", "error": "declined"}]
    table = printed(Terminal()).table(documents, [Column("id", is_whole=True), Column("error")])
    assert [re.sub(r"\x1b\[\d*m", "", line) for line in table.splitlines()] == [
        "ID       ERROR",
        "注文-1   支払いが拒否されま…",  # each of these characters takes two columns
        "order-2  declined",
    ]


def test_table_is_whole_without_a_terminal() -> None:
    stream = io.StringIO()
    printed(stream).listing("rows", ROWS, COLUMNS)
    assert "x" * 100 in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_control_characters_are_escaped() -> None:
    stream = io.StringIO()
    printed(stream).listing("rows", [{"id": "a\x1b[31m\nb\x9b\u202e"}], [Column("id", is_whole=True)])
    assert stream.getvalue() == "ID\na\\x1b[31m\\nb\\x9b\\u202e\n"


def test_tree_is_drawn_in_ascii_where_the_encoding_has_no_more() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")
    printed(stream).line("├─ ✓ charge 日…")
    stream.seek(0)
    assert stream.read() == "|- + charge \\u65e5...\n"


@pytest.mark.parametrize(
    ("name", "value", "has_colour"), [("TERM", "xterm", True), ("TERM", "dumb", False), ("NO_COLOR", "1", False)]
)
def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch, name: str, value: str, has_colour: bool) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    stream = Terminal()
    printed(stream).listing("rows", [{"status": "failed"}], [Column("status")])
    assert ("\x1b[31mfailed" in stream.getvalue()) is has_colour


def test_times_are_local_utc_or_relative() -> None:
    moment = stamp(datetime.now(UTC) - timedelta(minutes=30))
    assert printed(io.StringIO(), Common(time="relative")).time(moment) == "30 min ago"
    later = stamp(datetime.now(UTC) + timedelta(minutes=30, seconds=30))
    assert printed(io.StringIO(), Common(time="relative")).time(later) == "in 30 min"
    assert printed(io.StringIO(), Common(time="utc")).time("2026-11-18T06:00:00.5Z") == "2026-11-18 06:00:00Z"
    local = printed(io.StringIO()).time("2026-11-18T06:00:00.5Z")
    assert local is not None
    assert re.fullmatch(r"2026-11-1\d \d\d:\d\d:00", local)


def test_json_lines_and_fields() -> None:
    stream = io.StringIO()
    printed(stream, Common(output="jsonl", fields="n, id")).listing("rows", ROWS, COLUMNS)
    assert stream.getvalue() == '{"n": 1, "id": "a-very-long-id-that-stays-whole"}\n'


def test_values_without_json_form_are_described() -> None:
    assert plain({"a": [b"\x00", {1.5, 2.5} - {2.5}, datetime(2026, 1, 1, tzinfo=UTC)], "b": object}) == {
        "a": ["AA==", [1.5], "2026-01-01T00:00:00Z"],
        "b": "<class 'object'>",
    }
    assert plain({"*": Unreadable("encrypted with key 'k1'")}) == {"*": "<encrypted with key 'k1'>"}


def test_unknown_field_is_refused() -> None:
    with pytest.raises(UsageError, match="--fields has no colour: known are id, text, more, n"):
        printed(io.StringIO(), Common(fields="id,colour")).listing("rows", ROWS, COLUMNS)


@pytest.mark.parametrize(
    ("kind", "time", "shown"),
    [
        ("start", "utc", "start at 2026-11-18 12:00:00Z"),
        ("timer", "relative", "timer in 2 h"),
        ("retry", "utc", "retry paid at 2026-11-18 12:00:00Z"),
        ("event", "utc", "event paid until 2026-11-18 12:00:00Z"),
        ("event", "relative", "event paid, timeout in 2 h"),
    ],
)
def test_wait_is_told_in_words(kind: str, time: TimeKind, shown: str) -> None:
    output = printed(io.StringIO(), Common(time=time))
    output.now = datetime(2026, 11, 18, 10, tzinfo=UTC)
    wait = {"kind": kind, "name": "1:timer" if kind == "timer" else "paid", "until": "2026-11-18T12:00:00Z"}
    assert doing_text(output, {**RUN, "waiting_for": [wait]}) == shown
