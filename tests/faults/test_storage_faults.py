"""Faults at the calls of storage operations: the errors raised, the rows written and the locks held.

The suite plays two faults of every operation, on one database each; PERDURE_FAULTS=all plays all of them on all, and
PERDURE_FAULTS=append_history:alone:after:3 this one.
"""

import os
from collections.abc import AsyncIterator
from zlib import crc32

import pytest

from perdure.storage.contract import Storage
from tests.conftest import BackendDatabase
from tests.faults.calls import Kind
from tests.faults.enumerator import ALONE, CAUGHT, Case, Enumerator, all_pairs, enumerating
from tests.faults.operations import OPERATIONS
from tests.support.databases import DATABASES

CHOSEN = os.environ.get("PERDURE_FAULTS", "")
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # see conftest.py
KINDS = tuple(Kind)
FOUND = {  # once wrong, and always played
    "sqlite": ["try_acquire_lock:caught:before:9", "deliver_pending__for_values:alone:after:7"],
    "postgresql": ["try_acquire_lock:alone:hang:1", "try_acquire_lock:alone:after:2", "db__execute:alone:after:1"],
    "mysql": [
        "acquire_locks:alone:hang:4",
        "create_instance:caught:before:6",
        "deliver_channel_message__leased:alone:after:14",
        "db__execute:alone:after:1",
    ],
}
NOT_OPERATIONS = {
    *("begin_transaction", "commit_transaction", "rollback_transaction", "transaction", "in_transaction", "conn"),
    *("register_post_commit_callback", "detached", "initialize", "close", "db", "wakeups"),
}


@pytest.fixture(params=DATABASES)
async def enumerator(request: pytest.FixtureRequest, backend_database: BackendDatabase) -> AsyncIterator[Enumerator]:
    async with backend_database(request.param) as database, enumerating(database) as made:
        yield made


async def spread(enumerator: Enumerator, place: int) -> list[Case]:
    """Two cases of every third operation, in one of its ways: one fault anywhere, one at the last call."""
    ways: dict[str, list[str]] = {}
    for name, way in all_pairs():
        ways.setdefault(name, []).append(way)
    found = []
    for index, name in enumerate(OPERATIONS):
        if index % len(DATABASES) != place:
            continue
        chance = crc32(name.encode())
        way = ways[name][chance % len(ways[name])]
        calls = len((await enumerator.baseline(name, way)).calls)
        kinds = [Kind.BEFORE] * 2 if way == CAUGHT else [KINDS[chance // 7 % 6], KINDS[index % 6]]
        found += [Case(name, way, kinds[0], chance // 5 % calls + 1), Case(name, way, kinds[1], calls)]
    return found


@pytest.mark.timeout(14_400 if CHOSEN == "all" or CHOSEN in OPERATIONS else 120)
async def test_fault_at_any_call_is_reported_and_the_operation_is_atomic(
    enumerator: Enumerator, request: pytest.FixtureRequest
) -> None:
    if CHOSEN == "all":
        cases = await enumerator.cases(all_pairs())
    elif CHOSEN in OPERATIONS:
        cases = await enumerator.cases([pair for pair in all_pairs() if pair[0] == CHOSEN])
    elif CHOSEN.count(":") == 3:
        cases = [Case.parse(CHOSEN)]
    else:
        backend = request.node.callspec.params["enumerator"]
        cases = [Case.parse(text) for text in FOUND[backend]] + await spread(enumerator, DATABASES.index(backend))
    wrong = [each for case in cases for each in await enumerator.play(case)]
    print(f"{len(cases)} cases, {len(wrong)} wrong", *wrong, sep="\n")
    assert not wrong, "\n".join(wrong[:20])


async def test_timers_fire_without_an_error_although_the_answer_is_lost(enumerator: Enumerator) -> None:
    """To fire them again does no harm, so the storage repeats it and the work loop has no reason to pause."""
    baseline = await enumerator.baseline("fire_timers", ALONE)
    found = await enumerator.outcome(Case("fire_timers", ALONE, Kind.AFTER, baseline.turned))
    assert isinstance(found, list), found
    assert await enumerator.state() == baseline.after


def test_every_operation_of_the_contract_is_enumerated() -> None:
    operations = {name for name in dir(Storage) if not name.startswith("_")} - NOT_OPERATIONS
    assert operations <= {name.partition("__")[0] for name in OPERATIONS}
