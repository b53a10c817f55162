"""What a database has for the people who operate it: their actions, their saved searches, and what workers hold."""

from dataclasses import dataclass
from datetime import datetime

from perdure.model.states import WorkflowStatus

REQUESTED = "requested"  # the outcome of an action until it has one


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """Describe an action of a person, as it is stored.

    - `id`: grows with each record.
    - `at`: when, by the clock of the database.
    - `actor`, `action`: who did what.
    - `target`: the id of the run or event, or the name of the saved search; of an action on many runs, the id of the
      run that carries it out.
    - `query`: the search that selected the runs of an action on many; else empty.
    - `reason`: what the person entered.
    - `outcome`: `requested` until the action has ended, and for good if the process died meanwhile.
    """

    id: int
    at: datetime
    actor: str
    action: str
    target: str
    query: str
    reason: str
    outcome: str


@dataclass(frozen=True, slots=True)
class SavedView:
    """Describe a search for runs that a person saved under a name."""

    name: str
    query: str
    created_by: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class HeldLease:
    """Describe the lease on an instance. `locked_by` has the form of the engine, with the number of tries."""

    instance_id: str
    workflow_name: str
    status: WorkflowStatus
    locked_by: str
    locked_at: datetime | None
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class ChannelUse:
    """Describe a channel: how many messages are stored, and how many instances are subscribed."""

    channel: str
    messages: int
    subscribers: int


@dataclass(frozen=True, slots=True)
class GroupUse:
    """Describe a group of instances."""

    group_name: str
    members: int
