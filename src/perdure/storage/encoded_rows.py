"""Find out which codecs the stored values need: read the beginnings of all values, table by table.

A value moves from a table to one that is read later: from the messages to the histories, and from these to the archive.
So a value that exists throughout is found, although the rows are read one page at a time.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from perdure.database.operation import Operation, raw
from perdure.database.statements import Statement
from perdure.model.envelopes import Tag, tags_in
from perdure.storage.sql import load_statements
from perdure.storage.transactions import Transactions

S = load_statements("encoded_rows")

PAGE = 1000
LENGTH = 5000  # of a beginning: the names of a channel come before the envelope of a message
_BY_NAME = (S.outbox, S.instances, S.stuck, S.views)  # the others have numbers
_ORDER = (S.outbox, S.messages, S.instances, S.history, S.archive, S.compensations, S.stuck, S.audit, S.views)


class EncodedRows(Transactions):
    """Read how values are encoded. This is not part of the contract."""

    async def _encoded_tags(self) -> AsyncIterator[tuple[Tag, ...]]:
        """Yield the codecs of each encoded value."""
        for statement in _ORDER:
            after: Any = "" if statement in _BY_NAME else 0
            while rows := await self._read(_page, statement, after):
                after = rows[-1][0]
                for value in (raw(value) for row in rows for value in row[1:]):
                    if value is not None and (tags := tags_in(value)) is not None:
                        yield tags


def encoded_tags(storage: EncodedRows) -> AsyncIterator[tuple[Tag, ...]]:
    """Yield the codecs of each encoded value of a storage."""
    return storage._encoded_tags()


def _page(statement: Statement, after: Any) -> Operation[Sequence[Sequence[Any]]]:
    return (yield statement(after=after, length=LENGTH, limit=PAGE))  # type: ignore[no-any-return]
