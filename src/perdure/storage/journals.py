"""Write the journals of many instances in one commit: their events, and the completions that follow the last ones.

An instance is not completed if one of its events is refused, so the history of a completed instance has everything that
its worker recorded. Each way returns exactly the answers that writing one event and then one completion at a time would
return. A batch for which that is not certain is not plain, and is written in that way.
"""

from collections.abc import Sequence

from perdure.database.dialects import Features
from perdure.database.operation import Operation, Work
from perdure.errors import StorageError
from perdure.model.records import HistoryEvent, Lease
from perdure.model.states import WorkflowStatus
from perdure.storage import history, instance_sets, instances, sets, transactions
from perdure.storage.history import Items
from perdure.storage.instance_sets import Build, Completions
from perdure.storage.sql import load_statements
from perdure.storage.wakeups import RESUMABLE, Say, Wakeups

S = load_statements("journals")

Events = Sequence[tuple[HistoryEvent, Lease | None]]
Ends = Sequence[tuple[Lease, bytes]]
Answers = list[int | StorageError | None]  # of the events, then of the completions
UNSETTLED = StorageError("it is not known yet why this was not accepted")
Refused = dict[str, StorageError]  # by the instance's id


class Journals(Wakeups):
    """Implement the part of HistoryManager that completes instances, too."""

    async def append_and_complete(self, events: Events, completions: Ends) -> Answers:
        """Record many events, then complete many leased instances, in one commit.

        Return an id or an error for each event, and then None or an error for each completion. If an event of an
        instance is refused, the instance is not completed, with the same error.
        """
        if not events and not completions:
            return []
        build = _writing(self._features, events, completions, apart=not self.in_transaction())
        work = Work(lambda: _one_by_one(events, completions)) if build is None else build(None)
        answers = await self._announce(
            RESUMABLE, work, _ends_of(len(events), completions), build if work.single else None
        )
        return await self._settle(events, completions, answers) if UNSETTLED in answers else answers

    async def _settle(self, events: Events, completions: Ends, answers: Answers) -> Answers:
        """Find out why the statement of a batch did not accept some items.

        The rest of the batch is committed. So this is an operation of its own, and if it fails, only these items get
        its error.
        """
        left = _unsettled(events, completions, answers)
        try:
            found = await self._announce(RESUMABLE, Work(lambda: _one_by_one(*left)), _ends_of(len(left[0]), left[1]))
        except StorageError as error:
            found = [error] * answers.count(UNSETTLED)
        return _settled(answers, found)


def _unsettled(events: Events, completions: Ends, answers: Answers) -> tuple[Events, Ends]:
    """Return the events and the completions that the statement did not accept."""
    fates = iter(answers)
    left = [each for each in events if next(fates) is UNSETTLED]
    return left, [each for each in completions if next(fates) is UNSETTLED]


def _settled(answers: Answers, found: Sequence[int | StorageError | None]) -> Answers:
    """Return the answers with those that were found later."""
    rest = iter(found)
    return [next(rest) if answer is UNSETTLED else answer for answer in answers]


def _ends_of(number: int, completions: Ends) -> Say[Answers]:
    """Return what announces the completions of a batch with this number of events."""
    say = instances.first_effect(lambda position: instances.ended(completions[position][0].instance_id)(None))
    return lambda found: say(found[number:])


def _writing(features: Features, events: Events, completions: Ends, *, apart: bool) -> Build[Answers] | None:
    """Return what builds the operation that writes a plain batch, or None; `apart`: in a transaction of its own."""
    items, ends = history.plain(events) if events else [], instance_sets.completions(completions)
    if items is None or not ends:
        return None
    leases = {end.lease.instance_id: end.lease for end in ends}
    if any(leases.get(lease.instance_id, lease) != lease for _, lease in items):
        return None
    if len(sets.split(items, history.size)) > 1 or len(sets.split(ends, instance_sets.size)) > 1:
        return lambda _: Work(lambda: _in_turn(features, items, ends))
    if features.one_statement_writes and apart:
        return lambda kind: Work(lambda: _write_at_once(items, ends, kind), single=True)
    if features.one_statement_writes:
        return lambda kind: Work(lambda: _write_wholly(items, ends, kind, events, completions))
    write = _write_undoably if features.repeated_calls else _write_locked
    return lambda _: Work(lambda: write(items, ends))


def _one_by_one(events: Events, completions: Ends) -> Operation[Answers]:
    appending = transactions.prepared(lambda item: history.appending(*item), events)
    answers = yield from transactions.together(appending)
    refused = _refused([event.instance_id for event, _ in events], answers)
    left = [item for item in completions if item[0].instance_id not in refused]
    completing = transactions.prepared(lambda item: instances.completing(item[0].instance_id, item[1], item[0]), left)
    fates = iter((yield from transactions.together(completing)))
    ids = [lease.instance_id for lease, _ in completions]
    return [*answers, *(refused[id] if id in refused else next(fates) for id in ids)]


def _refused(ids: Sequence[str], answers: Sequence[int | StorageError]) -> Refused:
    """Return the first error of each instance."""
    refused: Refused = {}
    for instance_id, answer in zip(ids, answers, strict=True):
        if isinstance(answer, StorageError):
            refused.setdefault(instance_id, answer)
    return refused


def _in_turn(features: Features, items: Items, ends: Completions) -> Operation[Answers]:
    """Write the sets of a large batch one after the other."""
    answers = yield from history.in_turn(history.append_many(features), sets.split(items, history.size))
    refused, left = _left(items, answers, ends)
    refused |= yield from instance_sets.complete_all(features, left, instances.complete_singly)
    return _joined(answers, ends, refused)


def _left(items: Items, answers: Sequence[int | StorageError], ends: Completions) -> tuple[Refused, Completions]:
    """Return the errors of the instances with a refused event, and the completions of the others."""
    refused = _refused([lease.instance_id for _, lease in items], answers)
    return refused, [end for end in ends if end.lease.instance_id not in refused]


def _joined(answers: Sequence[int | StorageError], ends: Completions, refused: Refused) -> Answers:
    return [*answers, *(refused.get(end.lease.instance_id) for end in ends)]


def _write_at_once(items: Items, ends: Completions, kind: str | None) -> Operation[Answers]:
    """Write the whole batch in one statement; `UNSETTLED` is the answer for what it did not accept."""
    rows = yield S.append_and_complete(
        tokens=[lease.token for _, lease in items],
        worker_ids=[lease.worker_id for _, lease in items],
        **history.columns(items),
        ending_ids=[end.lease.instance_id for end in ends],
        ending_tokens=[end.lease.token for end in ends],
        ending_worker_ids=[end.lease.worker_id for end in ends],
        outputs=[end.output for end in ends],
        kind=kind,
        reason=WorkflowStatus.COMPLETED.value,
    )
    events = [UNSETTLED if event_id is None else event_id for event_id, _ in rows[: len(items)]]
    return [*events, *(None if done else UNSETTLED for _, done in rows[len(items) :])]


def _write_wholly(
    items: Items, ends: Completions, kind: str | None, events: Events, completions: Ends
) -> Operation[Answers]:
    """Write the batch in one statement and settle the rest, in a transaction with others."""
    answers = yield from _write_at_once(items, ends, kind)
    if UNSETTLED not in answers:
        return answers
    return _settled(answers, (yield from _one_by_one(*_unsettled(events, completions, answers))))


def _write_locked(items: Items, ends: Completions) -> Operation[Answers]:
    """Lock the rows first, then write for the leases that are current."""
    ids = {end.lease.instance_id for end in ends} | {lease.instance_id for _, lease in items}
    standing = yield from instance_sets.lock(sorted(ids))
    holders = {id: (token, worker_id) for id, (_, token, worker_id) in standing.items()}
    answers = (yield from history.append_standing(items, holders)) if items else []
    refused, left = _left(items, answers, ends)
    refused |= yield from instance_sets.complete_standing(left, standing)
    return _joined(answers, ends, refused)


def _write_undoably(items: Items, ends: Completions) -> Operation[Answers]:
    """Complete, fence the other instances and write all events; if one is refused, undo it and write one by one."""
    newest = {params["instance_id"]: params["activity_id"] for params, _ in items}
    ending = {end.lease.instance_id for end in ends}
    others = [item for item in items if item[1].instance_id not in ending]
    yield transactions.S.savepoint()
    done = (yield from instance_sets.complete_many(ends, newest)) and (yield from history.fence_all(others))
    ids: Sequence[int] | None = None
    if done:
        ids = (yield from history.insert_for_each(items)) if items else ()
    if ids is None:
        yield transactions.S.undo()
    yield transactions.S.release()
    if ids is not None:
        return [*ids, *[None] * len(ends)]
    answers = yield from history.fates(items, [None] * len(items))
    refused, left = _left(items, answers, ends)
    fates = yield from instances.complete_singly(left)
    refused |= {end.lease.instance_id: fate for end, fate in zip(left, fates, strict=True) if fate is not None}
    return _joined(answers, ends, refused)
