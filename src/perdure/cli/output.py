"""Printing results: tables for people, JSON for programs.

Tables are made of the same documents that JSON prints. On a terminal they are fitted to its width: texts are cut, times
become relative, and then the least important columns are left out. Ids, states and times are never cut. Control
characters in values are escaped, so that nothing a run stores can change the terminal.
"""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TextIO

from perdure.cli.exits import UsageError
from perdure.cli.options import Common, TimeKind
from perdure.inspection.documents import Document
from perdure.inspection.reasons import ago, ahead

GAP = "  "
NARROW = 16  # columns are not cut below this width
_PAINT = re.compile(r"\x1b\[\d*m")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# What lines and marks become where the encoding lacks them.
_PLAIN = str.maketrans(
    {"├": "|", "└": "`", "│": "|", "─": "-", "✓": "+", "✗": "x", "↻": "~", "▶": ">", "⊘": "/", "…": "..."}
)
_COLOURS = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1"}
_STATUS_COLOURS = {
    "completed": "green",
    "published": "green",
    "ok": "green",
    "live": "green",
    "failed": "red",
    "invalid": "red",
    "problem": "red",
    "dead": "red",
    "cancelled": "yellow",
    "stuck": "yellow",
    "warning": "yellow",
    "compensating": "yellow",
    "retrying": "yellow",
    "running": "cyan",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title, and how the text is made from a document (default: the field of that name)."""

    title: str
    text: Callable[["Output", Document], object] | None = None
    is_whole: bool = False  # never cut
    short: Callable[["Output", Document], object] | None = None  # the text where there is little room
    rank: int | None = None  # the column with the highest is left out first (default: 0 if whole, otherwise 1)

    def of(self, output: "Output", document: Document) -> str:
        value = document.get(self.title) if self.text is None else self.text(output, document)
        return output.cell(value)

    @property
    def weight(self) -> int:
        """Return the rank."""
        return self.rank if self.rank is not None else 0 if self.is_whole else 1


class Output:
    """Prints in the form that the options ask for."""

    def __init__(self, common: Common, stream: TextIO | None = None, notes: TextIO | None = None) -> None:
        self.kind = common.output
        self.stream = sys.stdout if stream is None else stream
        self._notes = sys.stderr if notes is None else notes
        self._time: TimeKind = common.time
        self._fields = None if common.fields is None else [each.strip() for each in common.fields.split(",")]
        if self._fields is not None and "" in self._fields:
            raise UsageError("--fields has an empty name: write names separated by commas, such as --fields id,status")
        self.is_coloured = is_coloured(self.stream)
        self.now = datetime.now(UTC)
        self.left_out: list[str] = []  # columns for which the last table had no room

    @property
    def is_table(self) -> bool:
        """Return whether the output is for people."""
        return self.kind == "table"

    def listing(
        self,
        name: str,
        documents: Iterable[Document],
        columns: Sequence[Column],
        *,
        next: str | None = None,
        empty: str = "",
    ) -> None:
        """Print a list: a table, an object with the list under `name`, or one object in each line."""
        found = [self._chosen(each) for each in documents]
        if self.kind == "json":
            self._json({name: found, "next": next}, indent=2)
        elif self.kind == "jsonl":
            for each in found:
                self._json(each)
        elif not found:
            self.note(empty or f"no {name}")
        else:
            shown = columns if self._fields is None else [Column(each, is_whole=True) for each in self._fields]
            self.line(self.table(found, shown))
            if self.left_out:
                self.note(f"columns left out in this narrow terminal: {', '.join(self.left_out).lower()}")
        if next is not None and self.kind != "json":
            self.note(f"there are more: add --after {shlex.quote(next)}")

    def single(self, document: Document, text: Callable[[], str | None]) -> None:
        """Print one object, or the text for people, if there is one."""
        if self.kind == "table" and self._fields is None:
            if (shown := text()) is not None:
                self.line(shown)
        elif self.kind == "table":
            chosen = self._chosen(document)
            self.line(self.pairs([(name, self.cell(chosen[name])) for name in chosen]))
        else:
            self._json(self._chosen(document), indent=2 if self.kind == "json" else None)

    def line(self, text: str) -> None:
        """Print a text."""
        print(text if is_unicode(self.stream) else text.translate(_PLAIN), file=self.stream, flush=True)

    def note(self, text: str) -> None:
        """Print a remark for people, beside the output."""
        self.stream.flush()
        print(text, file=self._notes, flush=True)

    def _json(self, value: object, indent: int | None = None) -> None:
        self.line(json.dumps(value, ensure_ascii=not is_unicode(self.stream), indent=indent))

    def _chosen(self, document: Document) -> Document:
        if self._fields is None:
            return document
        if unknown := [each for each in self._fields if each not in document]:
            raise UsageError(f"--fields has no {', '.join(unknown)}: known are {', '.join(document)}")
        return {name: document[name] for name in self._fields}

    # Tables.

    def table(self, documents: Sequence[Document], columns: Sequence[Column]) -> str:
        """Return a table, fitted to the width of the terminal if the output is one."""
        shown, limit = list(columns), self.width()
        while True:
            cells = [[column.of(self, each) for column in shown] for each in documents]
            widths = [max(map(width_of, texts)) for texts in zip(map(_title, shown), *cells, strict=True)]
            if limit is None or _least(widths, shown) <= limit:
                break
            if any(each.short for each in shown):
                shown = [each if each.short is None else replace(each, text=each.short, short=None) for each in shown]
            elif len(shown) > 1:
                shown.pop(max(range(1, len(shown)), key=lambda place: (shown[place].weight, place)))
            else:
                break
        if limit is not None:
            widths = _fitted(widths, shown, limit)
        titles = [_title(each) for each in shown]
        self.left_out = [title for title in map(_title, columns) if title not in titles]
        lines = [self._row(titles, widths, "bold"), *(self._row(row, widths) for row in cells)]
        return "\n".join(lines)

    def _row(self, cells: Sequence[str], widths: Sequence[int], colour: str | None = None) -> str:
        shown = [_padded(cut(cell, width), width) for cell, width in zip(cells, widths, strict=True)]
        last = len(shown) - 1
        parts = [self.paint(each.rstrip() if place == last else each, colour) for place, each in enumerate(shown)]
        return GAP.join(parts).rstrip()

    def pairs(self, pairs: Sequence[tuple[str, str]]) -> str:
        """Return names with their values, one in each line."""
        width = max((len(name) for name, _ in pairs), default=0)
        return "\n".join(f"{self.paint(name.ljust(width), 'bold')}{GAP}{value}" for name, value in pairs)

    def width(self) -> int | None:
        """Return the width of the terminal; None if the output is none."""
        return shutil.get_terminal_size().columns if self.stream.isatty() else None

    def cell(self, value: object) -> str:
        """Return a value as one line of text."""
        if value is None:
            return "-"
        if isinstance(value, Mapping | list | tuple):
            value = json.dumps(value, ensure_ascii=False)
        return escaped(str(value))

    def paint(self, text: str, colour: str | None = None) -> str:
        """Return a text in a colour (default: that of the status that it names, if it is one)."""
        colour = colour or _STATUS_COLOURS.get(text.strip())
        if colour is None or not self.is_coloured:
            return text
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"

    def time(self, stamp: str | None, kind: TimeKind | None = None) -> str | None:
        """Return a time of a document, of a kind (default: as the options ask for)."""
        if stamp is None:
            return None
        moment, kind = datetime.fromisoformat(stamp), kind or self._time
        if kind == "relative":
            return ahead(moment, self.now) if moment > self.now else ago(moment, self.now)
        if kind == "utc":
            return moment.strftime("%Y-%m-%d %H:%M:%SZ")
        return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def times(name: str, *, title: str | None = None, rank: int = 1) -> Column:
    """Return a column with a time, which is relative where there is little room: half a time would mislead."""
    return Column(
        title or name.removesuffix("_at"),
        lambda output, document: output.time(document[name]),
        is_whole=True,
        short=lambda output, document: output.time(document[name], "relative"),
        rank=rank,
    )


def escaped(text: str) -> str:
    """Return a text in one line, with control characters escaped."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def width_of(text: str) -> int:
    """Return how many columns of a terminal a text takes: Chinese characters and emoji take two, colours none."""
    text = _PAINT.sub("", text)
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def begin_of(text: str, width: int) -> str:
    """Return as much of a text as fits into these columns of a terminal."""
    if text.isascii() or width_of(text) <= width:
        return text[:width]
    from rich.cells import set_cell_size

    return set_cell_size(text, width).rstrip()  # with a space where half of a character had room


def is_unicode(stream: TextIO) -> bool:
    """Return whether a stream can print every character: its encoding is UTF-8, or it has none."""
    return (stream.encoding or "utf-8").lower().replace("-", "").replace("_", "") == "utf8"


def is_coloured(stream: TextIO) -> bool:
    """Return whether colours are wanted: on a terminal, unless NO_COLOR is set or the terminal has none."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _title(column: Column) -> str:
    return column.title.upper().replace("_", " ")


def _least(widths: Sequence[int], columns: Sequence[Column]) -> int:
    """Return the length of a line whose columns are cut as far as they may be."""
    pairs = zip(widths, columns, strict=True)
    return _length([width if each.is_whole else min(width, NARROW) for width, each in pairs])


def _fitted(widths: list[int], columns: Sequence[Column], limit: int) -> list[int]:
    """Return the widths of columns that are cut until they fit into a line; the widest are cut first."""
    widths = list(widths)
    while _length(widths) > limit:
        able = [place for place, width in enumerate(widths) if not columns[place].is_whole and width > NARROW]
        if not able:
            break
        widest = max(able, key=lambda place: widths[place])
        widths[widest] -= min(widths[widest] - NARROW, _length(widths) - limit, _lead(widths, able, widest))
    return widths


def _lead(widths: list[int], able: list[int], widest: int) -> int:
    """Return how much wider a column is than the next one, and at least 1."""
    others = [widths[place] for place in able if place != widest]
    return max(1, widths[widest] - max(others, default=0))


def _length(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - width_of(text))


def cut(text: str, width: int) -> str:
    """Return a text with a mark at its end if it takes more than this width."""
    return text if width_of(text) <= width else f"{begin_of(text, width - 1)}…"


def values(document: Document, *names: str) -> Any:
    """Return a value inside a document; None if a part of the way is None."""
    found: Any = document
    for name in names:
        found = None if found is None else found[name]
    return found
