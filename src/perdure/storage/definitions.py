"""Store the definitions of workflows, to which their instances refer."""

from collections.abc import Mapping

from perdure.database.operation import Operation, Work
from perdure.model import limits
from perdure.storage.sql import load_statements
from perdure.storage.transactions import Transactions

S = load_statements("definitions")


class Definitions(Transactions):
    """Implement the definitions of InstanceManager."""

    async def define_workflows(self, versions: Mapping[str, str]) -> None:
        """Store definitions, by name and source hash, unless they exist; creating an instance would do so, too.

        Until its commit, a transaction that inserts a definition blocks all others that need the same one. If the
        definition exists before, transactions that create instances don't wait for each other.
        """
        check_versions(versions)
        if versions:
            await self._run(Work(lambda: _define(versions), repeat=True))


def check_versions(versions: Mapping[str, str]) -> None:
    """Raise `LimitError` for an invalid name or source hash."""
    for name, source_hash in versions.items():
        limits.name(name, "workflow_name")
        if source_hash:
            limits.name(source_hash, "source_hash", 64)


def _define(versions: Mapping[str, str]) -> Operation[None]:
    names = sorted(versions)
    known = {tuple(row) for row in (yield S.known(names=names))}
    for name in names:
        if (name, versions[name]) not in known:
            yield S.define(workflow_name=name, source_hash=versions[name], source_code="")
