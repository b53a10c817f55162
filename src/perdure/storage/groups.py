"""Manage groups: named sets of instances, in the order of joining. Every call is idempotent."""

from perdure.database.operation import Operation
from perdure.model import limits
from perdure.model.records import Lease
from perdure.storage.fences import changing
from perdure.storage.sql import load_statements
from perdure.storage.transactions import Transactions

S = load_statements("groups")


class Groups(Transactions):
    """Implement GroupManager."""

    async def join_group(self, instance_id: str, group_name: str, *, lease: Lease | None = None) -> None:
        """Add an instance to a group; a member keeps its position."""
        await self._run(changing(S.join(instance_id=instance_id, group_name=_name(group_name)), lease))

    async def leave_group(self, instance_id: str, group_name: str, *, lease: Lease | None = None) -> None:
        """Remove an instance from a group if it is a member."""
        await self._run(changing(S.leave(instance_id=instance_id, group_name=_name(group_name)), lease))

    async def leave_all_groups(self, instance_id: str, *, lease: Lease | None = None) -> None:
        """Remove an instance from every group."""
        await self._run(changing(S.leave_all(instance_id=instance_id), lease))

    async def get_group_members(self, group_name: str, *, limit: int | None = None) -> list[str]:
        """Return the instances in a group, in the order of joining."""
        return await self._scan(_members, _name(group_name), limits.some(limit))


def _name(group_name: str) -> str:
    return limits.name(group_name, "group_name")


def _members(group_name: str, limit: int) -> Operation[list[str]]:
    rows = yield S.members(group_name=group_name, limit=limit)
    return [row[0] for row in rows]
