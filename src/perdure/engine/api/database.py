"""The database that an App or Client was given: a URL, or an open storage, which its owner closes."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from perdure.database.secret import Secret
from perdure.errors import EngineError
from perdure.storage.contract import Storage
from perdure.storage.stores import SQLStorage, is_in_memory, limit_idle_transactions, open_storage


class Database:
    """Opens the storage of an App or Client, whose name is in the messages of errors."""

    def __init__(self, given: str | Storage, owner: str) -> None:
        _check_database(given, owner)
        self.owner = owner
        self.url = Secret(given) if isinstance(given, str) else Secret()
        self._storage = None if isinstance(given, str) else given
        self.idle_sec: float | None = None  # after this time a server ends an idle transaction

    @property
    def in_memory(self) -> bool:
        """Return whether the database exists in this process only."""
        return is_in_memory(self.url)

    def open(self) -> AbstractAsyncContextManager[Storage]:
        """Return the storage of the URL, or the given storage, which its owner closes."""
        if self._storage is not None:
            return _borrowed(self._storage)
        return open_storage(self._url_with_options())

    def open_another(self, opened: Storage) -> AbstractAsyncContextManager[Storage]:
        """Return a storage with its own connections, or the one that is open if there can be no other."""
        return _borrowed(opened) if self._storage is not None or self.in_memory else self.open()

    def _url_with_options(self) -> str:
        return self.url if self.idle_sec is None else limit_idle_transactions(self.url, self.idle_sec)


def blocks_writers(storage: Storage) -> bool:
    """Return whether an open transaction of this storage blocks all other writers."""
    return isinstance(storage, SQLStorage) and not storage.features.row_locks


@asynccontextmanager
async def _borrowed(storage: Storage) -> AsyncIterator[Storage]:
    yield storage


def _check_database(database: object, kind: str) -> None:
    if isinstance(database, str):
        return
    if not hasattr(database, "create_instances"):
        raise TypeError(
            f"{kind}(…) takes a database URL, such as 'sqlite:///orders.db', or an open storage, not {database!r}"
        )
    if isinstance(database, SQLStorage) and not database.is_open:
        raise EngineError(
            f"the storage given to {kind}(…) is not open: use `async with open_storage(url) as storage:` around it"
        )
