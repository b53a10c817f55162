"""Store searches for runs that people saved under a name."""

from collections.abc import Sequence
from typing import Any

from perdure.database.backends.base import Backend
from perdure.database.operation import Operation, Work, utc
from perdure.errors import LimitError
from perdure.model import limits
from perdure.model.administration import SavedView
from perdure.storage.encoding.fields import Fields
from perdure.storage.sql import load_statements
from perdure.storage.transactions import Transactions

S = load_statements("saved_views")

VIEWS_MAX = 100  # all of them are listed at once
NAME_MAX = 100
QUERY_MAX = 2000


class SavedViews(Transactions):
    """Manage the saved searches of a database. With a codec, the searches are encoded: they may quote inputs."""

    def __init__(self, backend: Backend, fields: Fields | None = None) -> None:
        super().__init__(backend)
        self._fields = fields

    async def add(self, name: str, query: str, created_by: str) -> bool:
        """Save a search; return False if the name is in use. Raise `LimitError` if there are too many."""
        text = limits.searchable(query, "query", QUERY_MAX)
        params = {
            "name": limits.name(name, "name", NAME_MAX),
            "query": text if self._fields is None else self._fields.encoded_text(text, f"view/{name}", "query"),
            "created_by": limits.name(created_by, "created_by"),
        }
        return await self._run(Work(lambda: _add(params)))

    async def list(self) -> list[SavedView]:
        """Return all saved searches, by name."""
        return [self._view(row) for row in await self._read(_list)]

    async def remove(self, name: str) -> bool:
        """Remove a saved search; return False if there is none of this name."""
        checked = limits.name(name, "name", NAME_MAX)
        return await self._run(Work(lambda: _remove(checked), single=True))

    def _view(self, row: Sequence[Any]) -> SavedView:
        name, query, created_by, created_at = row
        text = query if self._fields is None else self._fields.decoded_text(query, f"view/{name}")
        return SavedView(name, text, created_by, utc(created_at))


def _add(params: dict[str, str]) -> Operation[bool]:
    names = [row[0] for row in (yield S.list(limit=VIEWS_MAX))]
    if params["name"] in names:
        return False
    if len(names) >= VIEWS_MAX:
        raise LimitError(f"there are {VIEWS_MAX} saved views already, which is the maximum: delete one first")
    return bool((yield S.add(**params)))


def _list() -> Operation[Sequence[Sequence[Any]]]:
    return (yield S.list(limit=VIEWS_MAX))  # type: ignore[no-any-return]


def _remove(name: str) -> Operation[bool]:
    return bool((yield S.remove(name=name)))
