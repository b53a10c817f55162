"""What was acknowledged, held against the rows that are there."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.power_load import BATCH, COMPLETED

INSTANCES = "SELECT instance_id, status, output_data, lock_token FROM workflow_instances"
HISTORY = "SELECT instance_id, activity_id, event_type, event_data FROM workflow_history ORDER BY id"
EFFECTS = "SELECT nonce, run FROM effects"
OUTBOX = "SELECT event_id FROM outbox_events"
MESSAGES = "SELECT message_id FROM channel_messages"
QUERIES = (INSTANCES, HISTORY, EFFECTS, OUTBOX, MESSAGES)

Fetch = Callable[[str], Sequence[Sequence[Any]]]


@dataclass(slots=True)
class Acknowledgements:
    """Everything that was acknowledged to a client so far."""

    what: set[str] = field(default_factory=set)
    tokens: dict[str, int] = field(default_factory=dict)
    steps: dict[str, str] = field(default_factory=dict)  # nonces, and of which run
    messages: set[str] = field(default_factory=set)
    never: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    started: dict[str, int] = field(default_factory=dict)
    results: dict[str, int] = field(default_factory=dict)
    pragmas: dict[str, object] = field(default_factory=dict)

    @property
    def count(self) -> int:
        of_writers = len(self.tokens) + len(self.steps) + len(self.messages) + len(self.done)
        return of_writers + len(self.started) + len(self.results)

    def acknowledge(self, what: str, /, **about: Any) -> None:
        self.what.add(what)
        match what:
            case "token":
                self.tokens[about["run"]] = about["token"]
            case "step":
                self.steps[about["nonce"]] = about["run"]
            case "message":
                self.messages.add(about["nonce"])
            case "never":
                self.never.add(about["nonce"])
            case "done":
                self.done.add(about["run"])
            case "started":
                self.started[about["run"]] = about["number"]
            case "result":
                self.results[about["run"]] = about["result"]
            case "pragmas":
                self.pragmas = about


def violations(acknowledged: Acknowledgements, fetch: Fetch) -> list[str]:
    """Everything that is wrong with the rows, as sentences; nothing but `QUERIES` is fetched."""
    instances = {row[0]: row[1:] for row in fetch(INSTANCES)}
    writers: defaultdict[str, list[tuple[str, Any]]] = defaultdict(list)
    paid: Counter[str] = Counter()
    for run, step, kind, data in fetch(HISTORY):
        if run.startswith("writer"):
            writers[run].append((step, json.loads(data)))
        else:
            paid[run] += kind == COMPLETED and "pay" in step
    effects: dict[str, str] = dict(map(tuple, fetch(EFFECTS)))
    nonces = Nonces(
        kinds={data["nonce"]: data["kind"] for rows in writers.values() for _, data in rows},
        effects={nonce for nonce, run in effects.items() if run.startswith("writer")},
        outbox={nonce for (nonce,) in fetch(OUTBOX)},
        messages={nonce for (nonce,) in fetch(MESSAGES)},
    )
    wrong = _lost(acknowledged, instances, nonces)
    wrong += nonces.halves()
    wrong += [f"said not to be written, but there: {nonce}" for nonce in acknowledged.never & nonces.all]
    for run, rows in writers.items():
        wrong += _out_of_order(run, rows)
    payments = Counter(effects.values())
    for run in instances.keys() - writers.keys():
        if not run.startswith("writer") and paid[run] != payments[run]:
            wrong.append(f"half: {run} has {paid[run]} results of payments and {payments[run]} payments")
    return wrong


@dataclass(slots=True)
class Nonces:
    """Which nonces stand in which tables."""

    kinds: dict[str, str]  # of those in histories
    effects: set[str]
    outbox: set[str]
    messages: set[str]

    @property
    def all(self) -> set[str]:
        return {*self.kinds, *self.effects, *self.outbox, *self.messages}

    def halves(self) -> list[str]:
        """Transactions over three tables of which one table has a row that another has not."""
        whole = {nonce for nonce, kind in self.kinds.items() if kind == "whole"}
        missing = (whole | self.effects | self.outbox) - (whole & self.effects & self.outbox)
        return [
            f"half: {nonce} is in {nonce in whole}, {nonce in self.effects}, {nonce in self.outbox}"
            for nonce in missing
        ]


def _lost(acknowledged: Acknowledgements, instances: dict[str, Sequence[Any]], nonces: Nonces) -> list[str]:
    wrong = [f"lost: step {nonce}" for nonce in acknowledged.steps.keys() - nonces.kinds.keys()]
    wrong += [f"lost: message {nonce}" for nonce in acknowledged.messages - nonces.messages]
    wrong += [
        f"lost: run {run}" for run in (acknowledged.tokens.keys() | acknowledged.started.keys()) - instances.keys()
    ]
    for run, (status, output, token) in instances.items():
        if token < acknowledged.tokens.get(run, 0):
            wrong.append(f"the token of {run} fell from {acknowledged.tokens[run]} to {token}")
        if run in acknowledged.done and status != "completed":
            wrong.append(f"lost: the end of {run}, which is {status}")
        if run in acknowledged.results and (status != "completed" or json.loads(output) != acknowledged.results[run]):
            wrong.append(f"lost: the result of {run}, which is {status} with {output!r}")
    return wrong


def _out_of_order(run: str, rows: list[tuple[str, Any]]) -> list[str]:
    """Steps follow each other without a gap, and a batch is whole."""
    steps: list[int] = []
    for name, data in rows:
        number, _, part = name.partition(".")
        if part in ("", "0"):
            steps.append(int(number))
        elif not steps or steps[-1] != int(number):
            return [f"the history of {run} has {name} after step {steps[-1:]}"]
        if data["kind"] == "batch" and sum(each["nonce"] == data["nonce"] for _, each in rows) != BATCH:
            return [f"half: the batch {data['nonce']}"]
    return [] if steps == list(range(1, len(steps) + 1)) else [f"the history of {run} has steps {steps}"]
