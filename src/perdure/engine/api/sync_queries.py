"""Queries for runs, for blocking programs."""

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol, TypeVar

from perdure.engine.api.queries import COUNT_MAX, PAGE, BulkResult, RunPage, RunQuery
from perdure.engine.api.run_info import RunInfo

T = TypeVar("T")


class Ask(Protocol):
    """Runs a method of a query and returns its result."""

    def __call__(self, work: Callable[[RunQuery], Coroutine[Any, Any, T]], /) -> T: ...


class SyncRunQuery:
    """A query for runs, made by `SyncClient.runs()`. Nothing is read until it is used.

    Iterate over the runs with `for`, read them with `first()`, `page()` and `count()`, or change all of them with
    `cancel()`, `retry()` and `delete()`.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def __iter__(self) -> Iterator[RunInfo]:
        token, more = None, True
        while more:
            page = self.page(PAGE, token)
            yield from page.runs
            token, more = page.next_token, page.next_token is not None

    def first(self) -> RunInfo | None:
        """Return the first run, or None if there is none."""
        return self._ask(lambda query: query.first())

    def page(self, limit: int = PAGE, token: str | None = None, *, payloads: bool = True) -> RunPage:
        """Return a page of at most `limit` runs (default: 100).

        `token` is the `next_token` of the page before (default: None, the first page). With `payloads=False` inputs and
        results are not read, which may be large: `input` is empty, and `result` is None. Raises `ValueError` for a
        limit out of range, and `InvalidPageTokenError` for an invalid token.
        """
        return self._ask(lambda query: query.page(limit, token, payloads=payloads))

    def count(self, limit: int = COUNT_MAX) -> int:
        """Return the number of runs, counted up to `limit` (default: 10,000); `limit` means that many or more."""
        return self._ask(lambda query: query.count(limit))

    def cancel(self, reason: str = "", *, dry_run: bool = False) -> BulkResult:
        """Cancel all runs of the query that have not ended, with `reason` (default: empty).

        With `dry_run` only count them (default: False).
        """
        return self._ask(lambda query: query.cancel(reason, dry_run=dry_run))

    def retry(self, *, dry_run: bool = False) -> BulkResult:
        """Start all failed and cancelled runs of the query again, each as a new run; see `SyncClient.retry`.

        With `dry_run` only count them (default: False).
        """
        return self._ask(lambda query: query.retry(dry_run=dry_run))

    def delete(self, *, dry_run: bool = False) -> BulkResult:
        """Delete all runs of the query that have ended, with their histories.

        With `dry_run` only count them (default: False).
        """
        return self._ask(lambda query: query.delete(dry_run=dry_run))
