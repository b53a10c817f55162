"""Record stuck instances, whose attempts end without progress, and why."""

from collections.abc import Sequence
from datetime import datetime
from operator import itemgetter

from perdure.model import limits
from perdure.model.records import Lease, StuckInstance
from perdure.model.states import TERMINAL
from perdure.testing.reference.arguments import bounded
from perdure.testing.reference.fences import Fences
from perdure.testing.reference.tables import Row, change, remove
from perdure.testing.reference.transactions import reads, writes

BACKED_OFF = "~put-off"  # the owner of a lease that keeps workers away, followed by `#` and the number of attempts
PAGE = 100


class Stuck(Fences):
    """Manage stuck instances, an addition to the API page."""

    @writes
    def back_off(self, lease: Lease, tries: int, reason: str, pause_sec: float) -> None:
        """End a lease after so many attempts without progress, and let no worker take the instance for a while."""
        limits.count(tries, "tries")
        limits.text(reason, "reason", limits.METADATA_MAX)
        until = self._after(limits.seconds(pause_sec, "pause_sec"))
        row, table = self._hold(lease.instance_id, lease), self._tables.perdure_stuck
        known = table.get(lease.instance_id)
        change(
            self._tables.workflow_instances,
            lease.instance_id,
            locked_by=f"{BACKED_OFF}#{tries}",
            locked_at=self._now,
            lock_token=lease.token + 1,
            lock_expires_at=until,
        )
        table[lease.instance_id] = {
            "instance_id": lease.instance_id,
            "reason": reason,
            "tries": tries,
            "since": known["since"] if known is not None and _continues(known, tries, row) else self._now,
            "next_retry_at": until,
            "progressed_at": row["updated_at"],
        }

    @writes
    def clear_stuck(self, instance_ids: Sequence[str]) -> None:
        """Mark these instances as no longer stuck."""
        ids = [limits.name(each, "instance_id") for each in bounded(instance_ids)]
        remove(self._tables.perdure_stuck, ids)

    @reads
    def get_stuck(self, instance_ids: Sequence[str]) -> list[StuckInstance | None]:
        """Return why each of these instances is stuck; None for each that is not."""
        found = {row["instance_id"]: row for row in self._stuck()}
        return [_from(found[each]) if each in found else None for each in bounded(instance_ids)]

    @reads
    def list_stuck(self, limit: int = 0, *, after: tuple[datetime, str] | None = None) -> list[StuckInstance]:
        """Return stuck instances, the longest stuck first, after a position in that order."""
        page = limits.page(limit, PAGE)
        place = None if after is None else (limits.moment(after[0], "after"), after[1])
        rows = sorted(self._stuck(), key=itemgetter("since", "instance_id"))
        return [_from(row) for row in rows if place is None or (row["since"], row["instance_id"]) > place][:page]

    def _stuck(self) -> list[Row]:
        """Return those to which nothing has happened since."""
        instances = self._tables.workflow_instances
        return [
            row
            for name, row in self._tables.perdure_stuck.items()
            if instances[name]["status"] not in TERMINAL and instances[name]["updated_at"] <= row["progressed_at"]
        ]


def _from(row: Row) -> StuckInstance:
    return StuckInstance(**{key: value for key, value in row.items() if key != "progressed_at"})


def _continues(known: Row, tries: int, row: Row) -> bool:
    """Return whether the number of tries grows, or stays and nothing has happened to the instance."""
    return known["tries"] < tries or (known["tries"], known["progressed_at"]) == (tries, row["updated_at"])
