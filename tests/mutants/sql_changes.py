"""The changes of a file with SQL statements (`perdure.database.statements` defines the format)."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.mutants.changes import Change

HEADER = re.compile(r"^-- (\w+)(?: \[(\w+)\])?(?: -> .*)?$")
TOKEN = re.compile(r"--[^\n]*|'[^']*'|\w+|:\w+|<=|>=|<>|!=|[^\s\w]")
COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "=": "<>", "<>": "=", "!=": "="}
STATEMENTS = frozenset("SELECT WITH UPDATE INSERT DELETE SET CASE FROM BEGIN".split())
CONDITIONS = frozenset("WHERE ON HAVING WHEN".split())
# What ends a condition, or the list behind ORDER BY and SET.
CLAUSES = frozenset(
    "SELECT FROM WHERE GROUP ORDER LIMIT FOR RETURNING UNION SET THEN ELSE END JOIN LEFT STRAIGHT_JOIN ON ;".split()
)
PIECES_OF_CLAUSES = ("{returning", "{skip_locked", "{for_update", "{on_conflict", "{dual")
COMPARING = frozenset({*COMPARISONS, "IS", "IN", "NOT", "EXISTS", "LIKE", "BETWEEN"})
LOCK = re.compile(r"FOR UPDATE(?: OF \w+)?(?: SKIP LOCKED)?|\{for_update\}|\{skip_locked\}| SKIP LOCKED")


class Token(NamedTuple):
    """A word, a sign, a literal, or a whole placeholder in braces."""

    text: str
    start: int
    depth: int  # of parentheses

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def ends_condition(self) -> bool:
        return self.text in CLAUSES or self.text.startswith(PIECES_OF_CLAUSES)


@dataclass(frozen=True, slots=True)
class Section:
    """One text of a statement, from its header to the next."""

    name: str
    dialect: str  # of an override
    start: int
    text: str

    @property
    def place(self) -> str:
        return f"{self.name} {self.dialect}".strip()


def sections(text: str) -> Iterator[Section]:
    """Yield the texts of all statements."""
    headers: list[tuple[re.Match[str], int, int]] = []
    position, fresh = 0, True
    for line in text.splitlines(keepends=True):
        if fresh and (header := HEADER.match(line)):
            headers.append((header, position, position + len(line)))
        fresh = not line.strip()
        position += len(line)
    ends = [start for _, start, _ in headers[1:]] + [len(text)]
    for (header, _, start), end in zip(headers, ends, strict=True):
        yield Section(header[1], header[2] or "", start, text[start:end])


def changes(text: str) -> list[Change]:
    """Return all changes of a file, by position."""
    found = [change for section in sections(text) for change in _Finder(section).all()]
    return sorted(set(found), key=lambda change: (change.start, change.end))


def _tokens(text: str) -> list[Token]:
    found: list[Token] = []
    depth = position = 0
    while match := TOKEN.search(text, position):
        position = match.end()
        word = match[0]
        if word.startswith("--"):
            continue
        if word == "{":
            position = _closing_brace(text, match.start())
            word = text[match.start() : position]
        depth -= word == ")"
        found.append(Token(word, match.start(), depth))
        depth += word == "("
    return found


def _closing_brace(text: str, start: int) -> int:
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] == "{") - (text[position] == "}")
        if not depth:
            return position + 1
    raise ValueError(f"a brace is not closed: {text[start : start + 40]}")


def _is_condition(tokens: Sequence[Token]) -> bool:
    """Return whether these tokens of one depth are a condition, and not a value or a list of columns."""
    texts = [token.text for token in tokens]
    compares = not COMPARING.isdisjoint(texts) or any(text.startswith("{any(") for text in texts)
    return "," not in texts and (compares or (len(texts) == 1 and texts[0].startswith("{")))


class _Finder:
    def __init__(self, section: Section) -> None:
        self._section = section
        self._tokens = _tokens(section.text)

    def all(self) -> Iterator[Change]:
        yield from self._conditions()
        yield from self._locks()
        yield from self._clauses()
        yield from self._parts()

    def _change(self, operator: str, start: int, end: int, new: str) -> Change:
        offset = self._section.start
        return Change(operator, offset + start, offset + end, new, self._section.place)

    # Conditions

    def _conditions(self) -> Iterator[Change]:
        """Drop a term, negate or shift a comparison, drop an item of a list."""
        for first, last, is_or in self._terms():
            tokens = self._tokens[first:last]
            outer = [token for token in tokens if token.depth == tokens[0].depth]
            inner = [token for token in tokens if token.depth == tokens[0].depth + 1]
            if _is_condition(outer) or (
                tokens[0].text == "(" and outer == [tokens[0], tokens[-1]] and _is_condition(inner)
            ):
                yield self._change("term", tokens[0].start, tokens[-1].end, "1 = 0" if is_or else "1 = 1")
            for token, following in zip(outer, [*outer[1:], None], strict=True):
                yield from self._comparison(token, following)

    def _comparison(self, token: Token, following: Token | None) -> Iterator[Change]:
        if token.text in COMPARISONS:
            yield self._change("compare", token.start, token.end, COMPARISONS[token.text])
        elif token.text in ("IS", "NOT") and following is not None and following.text in ("NOT", "IN"):
            yield self._change("compare", token.start, following.end, "IS" if token.text == "IS" else "IN")
        elif token.text == "IS":
            yield self._change("compare", token.start, token.end, "IS NOT")
        elif token.text == "IN":
            if not self._section.text[: token.start].endswith("NOT "):
                yield self._change("compare", token.start, token.end, "NOT IN")
            yield from self._items(self._tokens[self._tokens.index(token) + 1 :])

    def _items(self, rest: Sequence[Token]) -> Iterator[Change]:
        """Replace an item of `IN ('a', 'b')`."""
        items = rest[1 : next((at for at, token in enumerate(rest) if token.text == ")"), 0)]
        literals = [token for token in items if token.text.startswith("'")]
        if len(literals) > 1 and all(token.text == "," or token in literals for token in items):
            for literal in literals:
                yield self._change("item", literal.start, literal.end, "'mutant'")

    def _terms(self) -> Iterator[tuple[int, int, bool]]:
        """Yield the terms of all conditions: first and last token, and whether OR joins it to another."""
        tokens = self._tokens
        starts = [at + 1 for at, token in enumerate(tokens) if self._begins_condition(at)]
        if any(not token.depth and token.text in COMPARING for token in self._first_part()):
            starts.append(0)  # a piece that is a condition
        for start in starts:
            yield from self._terms_from(start)

    def _first_part(self) -> Sequence[Token]:
        """Return what precedes the first clause."""
        return self._tokens[
            : next((at for at, token in enumerate(self._tokens) if token.text in STATEMENTS and not token.depth), None)
        ]

    def _begins_condition(self, at: int) -> bool:
        token = self._tokens[at]
        following = self._tokens[at + 1].text if at + 1 < len(self._tokens) else ""
        return token.text in CONDITIONS and following not in ("CONFLICT", "DUPLICATE", "UPDATE")

    def _terms_from(self, start: int) -> Iterator[tuple[int, int, bool]]:
        tokens = self._tokens
        if start >= len(tokens):
            return
        depth, first, between = tokens[start].depth, start, False
        found: list[tuple[int, int, str]] = []
        at = start
        for at in range(start, len(tokens) + 1):
            token = tokens[at] if at < len(tokens) else Token(";", 0, 0)
            ended = token.depth < depth or (token.depth == depth and token.ends_condition)
            joins = token.depth == depth and token.text in ("AND", "OR") and not between
            if (ended or joins) and at > first:
                found.append((first, at, token.text))
            if ended:
                break
            if joins:
                first = at + 1
            elif token.depth == depth:
                between = token.text == "BETWEEN" or (between and token.text != "AND")
        for position, (begin, end, joiner) in enumerate(found):
            before = found[position - 1][2] if position else ""
            yield begin, end, "OR" in (before, joiner)
            yield from self._group(begin, end)

    def _group(self, first: int, last: int) -> Iterator[tuple[int, int, bool]]:
        """Yield the terms inside `(a OR b)`."""
        tokens = self._tokens
        is_group = tokens[first].text == "(" and tokens[first + 1].text != "SELECT"
        if is_group and tokens[last - 1].text == ")" and tokens[last - 1].depth == tokens[first].depth:
            yield from self._terms_from(first + 1)

    # Clauses

    def _locks(self) -> Iterator[Change]:
        hidden = [match.span() for match in re.finditer(r"--[^\n]*", self._section.text)]
        for found in LOCK.finditer(self._section.text):
            if not any(start <= found.start() < end for start, end in hidden):
                yield self._change("lock", found.start(), found.end(), "")
                if found[0].startswith("FOR UPDATE") and found[0].endswith("SKIP LOCKED"):
                    yield self._change("lock", found.end() - len(" SKIP LOCKED"), found.end(), "")

    def _clauses(self) -> Iterator[Change]:
        """Drop ORDER BY, DESC, LIMIT and assignments; count down instead of up."""
        tokens = self._tokens
        for at, token in enumerate(tokens[:-1]):
            following = tokens[at + 1]
            if token.text == "ORDER":
                yield self._change("order", token.start, tokens[self._end(at) - 1].end, "")
            elif token.text == "DESC":
                yield self._change("order", token.start, token.end, "")
            elif token.text == "LIMIT" and at:
                yield self._change("limit", token.start, following.end, "")
            elif token.text == "SET":
                yield from self._assignments(at + 1)
            elif token.text == "+" and following.text.isdigit():
                yield self._change("arithmetic", token.start, token.end, "-")

    def _end(self, at: int) -> int:
        """Return where the clause that begins here ends."""
        tokens, depth = self._tokens, self._tokens[at].depth
        return next(
            (
                position
                for position in range(at + 1, len(tokens))
                if tokens[position].depth < depth
                or (tokens[position].depth == depth and tokens[position].ends_condition)
            ),
            len(tokens),
        )

    def _assignments(self, first: int) -> Iterator[Change]:
        tokens, depth = self._tokens, self._tokens[first].depth
        if tokens[first].text.startswith(("@", "SESSION")) or self._end(first) - first < 3:
            return
        end = self._end(first)
        commas = [at for at in range(first, end) if tokens[at].text == "," and tokens[at].depth == depth]
        for at in commas:  # with the comma behind it, or in front of the last
            yield self._change("drop", tokens[first].start, tokens[at].end, "")
            first = at + 1
        if commas:
            yield self._change("drop", tokens[commas[-1]].start, tokens[end - 1].end, "")

    # Scripts

    def _parts(self) -> Iterator[Change]:
        """Drop a statement of a script, or exchange it with the next."""
        text = self._section.text
        ends = [token.end for token in self._tokens if token.text == ";" and not token.depth]
        spans = list(zip([0, *ends], [*ends, len(text.rstrip())], strict=True))
        if len(spans) < 2 or any("-- [" in text[start:end] for start, end in spans):
            return  # a part with a role is needed
        bodies = [text[start:end].strip("; \n") for start, end in spans]
        for position, (start, end) in enumerate(spans[:-1]):
            yield self._change("drop", start, end, "")
            one, other = bodies[position], bodies[position + 1]
            if not (one.startswith("DELETE") and other.startswith("DELETE")):  # their order has no effect
                last = ";" if position + 2 < len(spans) else ""
                yield self._change("swap", start, spans[position + 1][1], f"\n{other};\n{one}{last}")
        yield self._change("drop", spans[-1][0] - 1, spans[-1][1], "")
