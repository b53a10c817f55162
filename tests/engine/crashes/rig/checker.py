"""The checker: compares the rows of a database and the effect log with what was acknowledged to the load driver.

Of every run:
- it is stored if its start was acknowledged, completed, with the value it had to return, and its row has not changed
  since its end was first seen;
- its history's ids ascend, no step stands in it twice, and the marks that the workflow returned are the recorded ones.
Of every step, by the lines of its executions in the log:
- the recorded execution has ended, and no execution of the step began after it;
- nothing began after a worker learned that the step was recorded;
- the key is always the same, and attempts are counted: attempt n+1 begins only after a failure of attempt n, which for
  a transactional step may be that of its commit;
- once a later step of the same task began, the step never begins again: it was durable by then.
Of every run's executions: their fences never go down, so no worker began anything after another had taken over.
Of the effect table: a transactional step that was recorded has one row, of the execution that counted; nothing else
has any.
Of messages: each job was taken once, by one job worker; news came to every listener, in order.
Of time: no nap was too short, and what a kill interrupted continued within the lease's time and a second.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from perdure.engine.worker.back_off import DEATHS_MAX, DEATHS_PATIENCE
from perdure.model.records import HistoryEvent, ListInstancesOptions, WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage.stores import SQLStorage
from tests.engine.crashes.rig import workflows as w
from tests.engine.crashes.rig.effect_log import Line
from tests.engine.crashes.rig.effect_table import Entry, is_entry
from tests.engine.crashes.rig.fork_server import LEASE_SEC
from tests.engine.crashes.rig.load_driver import Observed
from tests.engine.crashes.rig.scheduling_delay import Lateness

SLACK_SEC = 1.0  # for two busy cores
CLOCKS_SEC = 0.02  # rows have the database's clock
COMPLETED, ATTEMPT_FAILED = "ActivityCompleted", "ActivityAttemptFailed"

Step = tuple[str, str]  # a run and a step's id


@dataclass(slots=True)
class Rows:
    """What the database holds."""

    instances: dict[str, WorkflowInstance]
    history: dict[str, list[HistoryEvent]]
    entries: list[Entry] = field(default_factory=list)

    def marks(self, run: str) -> dict[str, str]:
        """The tokens that were recorded, by step."""
        rows = [(event.activity_id, _json(event)) for event in self.history[run] if event.event_type == COMPLETED]
        return {step: data["token"] for step, data in rows if isinstance(data, dict) and "token" in data}


async def read_rows(storage: SQLStorage) -> Rows:
    """All instances with their histories."""
    instances: dict[str, WorkflowInstance] = {}
    token: str | None = None
    while True:
        page = await storage.list_instances(ListInstancesOptions(limit=500, page_token=token))
        instances |= {each.instance_id: each for each in page.instances}
        token = page.next_page_token
        if token is None:
            break
    return Rows(instances, {run: await _history(storage, run) for run in instances})


async def _history(storage: SQLStorage, run: str) -> list[HistoryEvent]:
    events: list[HistoryEvent] = []
    more = True
    while more:
        page, more = await storage.get_history_paginated(run, events[-1].id if events else 0)
        events += page
    return events


@dataclass(slots=True)
class Checker:
    """All that is wrong, in `wrong`."""

    rows: Rows
    lines: list[Line]
    wrong: list[str] = field(default_factory=list)
    resumed_sec: list[float] = field(default_factory=list)

    def check(self, observed: Observed) -> None:
        self.check_runs(observed)
        self.check_histories(observed)
        self.check_steps()
        self.check_fences()
        self.check_entries()
        self.check_naps()
        self.check_jobs(observed)

    def expect(self, fine: bool, what: str) -> None:
        if not fine:
            self.wrong.append(what)

    # Runs.

    def check_runs(self, observed: Observed) -> None:
        stored = set(self.rows.instances)
        self.expect(set(observed.started) <= stored, f"lost: {set(observed.started) - stored}")
        self.expect(stored <= set(observed.expected), f"from nowhere: {stored - set(observed.expected)}")
        for run, row in self.rows.instances.items():
            self.expect(row.status is WorkflowStatus.COMPLETED, f"{run} is {row.status}, held by {row.locked_by}")
            self.expect(
                observed.ended.get(run) in (None, row), f"{run} changed after its end: {observed.ended.get(run)} {row}"
            )
        for run, account in observed.results.items():
            expected = observed.expected[run]
            self.expect(expected in (None, account.value), f"{run} gave {account.value}, not {expected}")
            output = json.loads(self.rows.instances[run].output_data or b"null")
            self.expect(output["value"] == account.value, f"{run} is stored with {output}")
        self.expect(
            set(observed.started) <= set(observed.results),
            f"no result: {set(observed.started) - set(observed.results)}",
        )

    def check_histories(self, observed: Observed) -> None:
        for run, events in self.rows.history.items():
            ids, steps = [event.id for event in events], [event.activity_id for event in events]
            self.expect(all(a < b for a, b in pairwise(ids)), f"{run} has ids {ids}")
            self.expect(len(set(steps)) == len(steps), f"{run} has a step twice: {steps}")
            if run in observed.results:
                returned = {mark.step: mark.token for mark in observed.results[run].marks}
                self.expect(
                    len(returned) == len(observed.results[run].marks), f"{run} was given a step twice: {returned}"
                )
                self.expect(returned == self.rows.marks(run), f"{run}: {returned} != {self.rows.marks(run)}")

    # Steps.

    def check_steps(self) -> None:
        begun, ended = self._by_step("begin"), self._by_step("end")
        for run, events in self.rows.history.items():
            recorded, rows = self.rows.marks(run), Counter(event.activity_id for event in events)
            for step, token in recorded.items():
                where = f"{run} {step}"
                self.expect(token in {line.token for line in ended[run, step]}, f"{where}: {token} never ended")
                last = begun[run, step][-1] if begun[run, step] else None
                self.expect(last is not None and last.token == token, f"{where} ran after {token} was recorded: {last}")
                self._check_attempts(where, step, begun[run, step], rows)
        self._check_told()
        self._check_order()

    def _by_step(self, what: str) -> defaultdict[Step, list[Line]]:
        found: defaultdict[Step, list[Line]] = defaultdict(list)
        for line in self.lines:
            if line.what == what:
                found[line.run, line.step].append(line)
        return found

    def _check_attempts(self, where: str, step: str, begun: list[Line], rows: Counter[str]) -> None:
        attempts = [line.attempt for line in begun]
        self.expect(attempts == sorted(attempts), f"{where}: attempts in this order: {attempts}")
        self.expect(len({line.key for line in begun}) <= 1, f"{where} has several keys")
        for attempt in range(1, max(attempts, default=1)):
            failed = is_entry(step) or any(self._failed(line) for line in begun if line.attempt == attempt)
            self.expect(failed and rows[f"{step}#{attempt}"] == 1, f"{where}: attempt {attempt} is not accounted for")

    def _failed(self, begun: Line) -> bool:
        return any(line.what == "fail" and line.token == begun.token for line in self.lines)

    def _check_told(self) -> None:
        recorded: set[Step] = set()
        for line in self.lines:
            if line.what == "hook.StepCompleted":
                recorded.add((line.run, line.step))
            elif line.what == "begin":
                self.expect((line.run, line.step) not in recorded, f"{line} began though its result was recorded")

    def _check_order(self) -> None:
        """Tasks of these workflows do one thing after the other, except where activities themselves are gathered."""
        reached: dict[Step, int] = {}
        for line in self.lines:
            row = self.rows.instances.get(line.run)
            if line.what != "begin" or row is None or row.workflow_name == w.detained.name:
                continue
            scope, _, number = line.step.partition(":")[0].rpartition(".")
            place = line.run, scope
            self.expect(int(number) >= reached.get(place, 0), f"{line} began again after step {reached.get(place)}")
            reached[place] = max(int(number), reached.get(place, 0))

    def check_fences(self) -> None:
        newest: dict[str, Line] = {}
        for line in self.lines:
            if line.what == "begin":
                before = newest.get(line.run, line)
                self.expect(line.fence >= before.fence, f"{line} began though {before} had taken over")
                newest[line.run] = line

    def check_entries(self) -> None:
        marks = [(run, *mark) for run in self.rows.history for mark in self.rows.marks(run).items()]
        recorded = Counter(Entry(*mark) for mark in marks if is_entry(mark[1]))
        entered = Counter(self.rows.entries)
        self.expect(not recorded - entered, f"recorded without its effect: {recorded - entered}")
        self.expect(not entered - recorded, f"took effect too often, or unrecorded: {entered - recorded}")

    # Time and messages.

    def check_naps(self) -> None:
        times = {line.token: line.at for line in self.lines if line.what == "end"}
        began = {line.token: line.at for line in self.lines if line.what == "begin"}
        for run, row in self.rows.instances.items():
            if row.workflow_name == w.napping.name and row.status is WorkflowStatus.COMPLETED:
                tokens = list(self.rows.marks(run).values())
                slept = began[tokens[2]] - times[tokens[1]]
                self.expect(slept >= w.NAP_SEC - CLOCKS_SEC, f"{run} slept {slept:.3f} s")

    def check_jobs(self, observed: Observed) -> None:
        workers = [run for run, row in self.rows.instances.items() if row.workflow_name == w.job_worker.name]
        taken = Counter(str(job) for run in workers if run in observed.results for job in observed.results[run].value)
        self.expect(not observed.jobs - taken, f"jobs that no run took: {observed.jobs - taken}")
        self.expect(not taken - observed.jobs - observed.unsure_jobs, f"taken too often: {taken - observed.jobs}")

    def check_resumed(self, kills: dict[int, float], lateness: Lateness) -> None:
        """What a killed worker was doing continues soon; every worker that took it over in between and was killed, too,
        may have kept it for as long. Where the rig had to wait for a core, so had server and worker, in turn. A run
        whose workers died many times in a row is backed off, for a time that grows."""
        ended = {line.token for line in self.lines if line.what in ("end", "fail")}
        first: dict[tuple[str, str], int] = {}  # the fencing token of the first interrupted execution of a step
        for index, line in enumerate(self.lines):
            if line.what != "begin" or line.token in ended or line.pid not in kills:
                continue
            again = next((each for each in self.lines[index + 1 :] if _is_again(each, line)), None)
            if again is None:
                self.wrong.append(f"{line} was interrupted and never done again")
                continue
            took, turns = again.at - kills[line.pid], again.fence - line.fence
            deaths = again.fence - first.setdefault((line.run, line.step), line.fence)
            limit = turns * (LEASE_SEC + 1) + SLACK_SEC + 2 * lateness.between(kills[line.pid], again.at)
            limit += sum(_longest_pause(tries) for tries in range(deaths - turns + 1, deaths + 1))
            self.expect(took <= limit, f"{line} continued {took:.2f} s after the kill, {turns} turns later")
            self.resumed_sec += [took] if turns == 1 else []

    def check_undisturbed(self, kills: dict[int, float]) -> None:
        """Next to no execution is given up by a worker that lives; a heartbeat may starve on two busy cores."""
        ended = {line.token for line in self.lines if line.what in ("end", "fail")}
        begun = [line for line in self.lines if line.what == "begin"]
        lost = [line for line in begun if line.token not in ended and line.pid not in kills]
        self.expect(len(lost) <= max(2, len(begun) // 100), f"given up without a kill: {lost}")

    def figures(self) -> dict[str, float]:
        """What there was to check; times are those of steps that began again with no other worker killed meanwhile."""
        begun = sum(line.what == "begin" for line in self.lines)
        found = {"runs": len(self.rows.instances), "executions": begun, "entries": len(self.rows.entries)}
        if not self.resumed_sec:
            return {**found}
        spread = {"resume_median_max_sec": median(self.resumed_sec), "resume_max_sec": max(self.resumed_sec)}
        return {**found, "resumed": len(self.resumed_sec), **{name: round(sec, 2) for name, sec in spread.items()}}


def _longest_pause(deaths: int) -> float:
    """Return for how long a run is backed off at most after so many deaths of workers in a row."""
    return 1.25 * 2.0 ** max(0, deaths - DEATHS_PATIENCE) if deaths >= DEATHS_MAX else 0.0


def _is_again(line: Line, before: Line) -> bool:
    return line.what == "begin" and (line.run, line.step) == (before.run, before.step)


def _json(event: HistoryEvent) -> object:
    return json.loads(event.event_data or b"null")


def all_right(wrong: Iterable[str]) -> None:
    """Fail with what is wrong, if anything is."""
    found = list(wrong)
    assert not found, f"{len(found)} things are wrong:\n" + "\n".join(found[:20])
