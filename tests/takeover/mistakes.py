"""The mistakes of the catalogue (`tests/mistakes`) across a change of worker: a person sees the same.

The programs of the catalogue are played as they are, with two replacements. `App` is a client, with workers that the
rig changes. And each workflow executes an activity and sleeps for an hour before its own code, so that the change can
come before the mistake, at it and after it. A deployment deploys the same code, because the programs define their
workflows in a function.
"""

import asyncio
import functools
import gc
import inspect
import logging
import re
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from perdure import Client, RunHandle, WorkflowStatus, activity, sleep, workflow
from perdure.engine.replay import body
from perdure.engine.replay.loop import BodyLoop
from perdure.engine.worker import results, stuck
from perdure.model.states import TERMINAL
from tests.engine.waiting import row_of, until
from tests.mistakes import bodies, calling, catalogue, running, starting
from tests.mistakes.catalogue import MISTAKES, Mistake, Seen, Shop, definitions_of_its_own, normalised
from tests.takeover.deployment import Deployment
from tests.takeover.features import Aspect, Change, Feature
from tests.takeover.marks import Marks
from tests.takeover.outcomes import Outcome
from tests.takeover.plays import CaseError, Play
from tests.takeover.rig import Player
from tests.takeover.workers import IS_POLL, LEASE_SEC, POLL_SEC, Clock, ClockedDatabase, Gate

HOUR = 3600.0
SLEPT = "2:timer"  # the step before the workflow's own code
LIMIT_SEC = 60.0
BLOCKED_SEC = 0.015  # a program that has called nothing for so long waits for its runs, for whose ends it polls
BLOCKED_LOOKS = 4  # and in so many looks: a busy machine may stop the process, and each look gives the program a turn
NEVER_SEC = 1e6
CALLBACKS_MAX, STEPS_MAX = 100_000, 100  # so that a body soon exceeds the limits of the engine
GROUPS = (bodies, calling, running, starting)
GIVEN = {"url", "shop"}
NO_RUN = {  # the program of these fails before it has started a run
    "calling: start() that is not awaited",
    "calling: result() of a start() that is not awaited",
    "calling: a missing argument",
    "calling: an unknown keyword",
    "calling: an argument that is not JSON",
    "calling: nan as an argument",
    "calling: a SyncClient in a coroutine beside an App",
    "starting: a text for a number",
    "starting: a number for a text",
    "starting: options as arguments of start()",
    "starting: an input of 9 MB",
    "starting: a URL as in_transaction=",
    "starting: True as in_transaction=",
}
BY_CHANCE = {
    "bodies: CancelledError is swallowed in a timeout": "its deadline passes during the takeover",
    "bodies: wait_event() whose timeout is not caught": "its wait of 0 s may end before anybody sees it",
    "running: a run that takes longer than its timeout": "its deadline passes during the takeover",
    "bodies: a lock of the module, shared by two runs": "either of the two runs may fail",
    "calling: a handle used in a body": "its two runs are executed at the same time, in any order",
}


@functools.cache
def programs() -> dict[str, Mistake]:
    """The mistakes that concern a run, by group and title."""
    groups = {module.__name__.rpartition(".")[2] for module in GROUPS}
    named = {f"{each.group}: {each.title}": each for each in MISTAKES if each.group in groups}
    return {
        name: each
        for name, each in named.items()
        if set(each.needs) <= GIVEN and _opens_app(each) and name not in NO_RUN and name not in BY_CHANCE
    }


def _opens_app(mistake: Mistake) -> bool:
    source = inspect.getsource(mistake.function)
    return "App(" in source or "changed(" in source


class Caller(Client):
    """What a program gets instead of an App: the workers are those of the rig."""

    def __init__(self, url: str, clock: Clock, gate: Gate) -> None:
        super().__init__(url)
        self._database = CallersDatabase(url, clock, gate)


Caller.__name__ = "App"  # for the messages


class CallersDatabase(ClockedDatabase):
    """The database of a program, whose calls are counted."""

    def __init__(self, url: str, clock: Clock, gate: Gate) -> None:
        super().__init__(url, clock)
        self._gate = gate

    def open(self) -> Any:
        storage: Any = super().open()
        self._gate.guard(storage)
        return storage


class Polls:
    """The polls of programs for the ends of their runs. On a busy machine there is always one under way."""

    def __init__(self) -> None:
        self._began: dict[results.Results, float] = {}  # the last one that has ended, of those that wait
        self._look = results.Results._look

    async def look(self, of: results.Results) -> None:
        """Take the place of `Results._look`."""
        if not of._alone:  # of a worker
            await self._look(of)
            return
        began, token = time.monotonic(), IS_POLL.set(True)
        try:
            await self._look(of)
        finally:
            IS_POLL.reset(token)
            self._began[of] = began

    def have_seen(self, moment: float, client: Client) -> bool:
        """Return whether a client knows which of its runs had ended at a moment."""
        found = client._results
        return not (found._waiting or found._watched) or self._began.get(found, 0.0) > moment


class ProgramMarks(Marks):
    """Marks with the runs numbered in the order of their appearance, because their ids are random."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._numbers: dict[str, int] = {}

    def name(self, run: str, before: str = "") -> str:
        root, slash, child = run.partition("/")
        number = self._numbers.setdefault(root, len(self._numbers) + 1)
        name = f"run{number}{slash}{child}{' recurred' if before else ''}"
        self.seen.update({f"{name} lease 0": None, f"{name} is running 1": None})  # as its caller has stored it
        return name


class SameCode(Deployment):
    """Deploys the code as it is."""

    def deploy(self) -> None:
        pass


class ProgramPlay(Play):
    """Plays a program of the catalogue until it ends."""

    def __init__(self, player: Player, mistake: Mistake, change: Change | None, point: str) -> None:
        feature = Feature(mistake.title, ends="", hours=0)
        super().__init__(player.url, player.storage, SameCode(), feature, change, point)
        self.seen = Seen()
        self._mistake = mistake
        self._program: asyncio.Task[None] | None = None
        self._callers = Gate(_nothing)
        self._clients: list[Client] = []  # of the program
        self.polls = Polls()
        self._requests: list[tuple[dict[str, Any] | None, asyncio.Future[None]]] = []
        self._app_settings: dict[str, Any] = {}
        self._blocked_since, self._blocked_looks = 0.0, 0
        self._had_stopped = False  # at the last look
        self._until = time.monotonic() + LIMIT_SEC
        self._is_over = False
        self._awaited: Callable[[], Awaitable[bool]] | None = None  # the condition for which the program waits

    # What the program calls.

    def app(self, url: str, **settings: Any) -> Any:
        """Take the place of `App`."""
        play = self

        class Stage:
            async def __aenter__(self) -> Client:
                await play.request(settings)
                self.caller = Caller(url, play._clock, play._callers)
                client: Client = await play._callers.counted(self.caller.__aenter__())
                play._clients.append(client)
                return client

            async def __aexit__(self, *error: Any) -> None:
                await play.request(None)
                await self.caller.__aexit__(None, None, None)
                play._clients.remove(self.caller)

        return Stage()

    async def request(self, settings: dict[str, Any] | None) -> None:
        """Wait until the rig has opened a worker with these settings, or closed all workers."""
        if not self._is_over:
            self._requests.append((settings, asyncio.get_running_loop().create_future()))
            await self._requests[-1][1]

    async def watch(self, run: RunHandle[Any]) -> None:
        """Wait until a run has ended, and raise what it ended with, or until a worker has recorded that it is stuck."""

        async def has_ended_or_is_stuck() -> bool:
            return (await row_of(run)).status in TERMINAL or await self._reason(run.id) is not None

        await self._until_seen(has_ended_or_is_stuck)
        if (await row_of(run)).status in TERMINAL:
            await run.result()
        else:
            self.seen.lines.append(f"stuck: {await self._reason(run.id)}")

    async def waiting(self, client: Client, run: str) -> None:
        """Wait until a run waits for something in its own code, or is stuck."""

        async def is_waiting() -> bool:
            if any(worker.is_busy for worker in self._live):  # the rig has not seen its last commit yet
                return False
            is_prepared = bool(await self._storage.get_events([run], [SLEPT]))
            has_stopped = (await row_of(client, run)).status is not WorkflowStatus.RUNNING
            return (is_prepared and has_stopped) or await self._reason(run) is not None

        await self._until_seen(is_waiting)

    async def _until_seen(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait for a condition. The clock stands still once it holds, until the program has seen that."""
        self._awaited, token = condition, IS_POLL.set(True)
        try:
            await until(condition, LIMIT_SEC)
        finally:
            IS_POLL.reset(token)
            self._awaited = None

    async def _reason(self, run: str) -> str | None:
        (found,) = await self._storage.get_stuck([run])
        return None if found is None else found.reason

    # The play.

    async def _start(self) -> None:
        self._began = await self._storage.now()
        self._marks = ProgramMarks(self._storage, self._began)
        given = {"url": self._url, **({"shop": Shop()} if "shop" in self._mistake.needs else {})}
        self._program = asyncio.create_task(self._execute({name: given[name] for name in self._mistake.needs}))

    async def _execute(self, given: dict[str, Any]) -> None:
        try:
            await self._mistake.function(**given)
        except Exception as error:
            self.seen.raised(error)
            error.__traceback__ = None

    @property
    def _has_ended(self) -> bool:
        return self._program is None or self._program.done()

    @property
    def _has_stopped(self) -> bool:
        """Whether the program does nothing before the rig does."""
        return bool(self._requests) or self._has_ended

    def _settings(self) -> dict[str, Any]:
        return self._app_settings

    async def _is_quiet(self) -> bool:
        self._had_stopped = self._has_stopped  # asked first: what follows sees only earlier calls
        if self._has_ended and not self._live:
            return True
        if time.monotonic() > self._until:
            raise await self._stalled()
        if (self._live and not await super()._is_quiet()) or self._callers.calls:
            self._blocked_looks = 0
            return False
        if self._had_stopped:
            return True
        if not self._blocked_looks:
            self._blocked_since = time.monotonic()
        self._blocked_looks += 1
        has_waited = self._blocked_looks > BLOCKED_LOOKS and time.monotonic() - self._blocked_since > BLOCKED_SEC
        return has_waited and all(self.polls.have_seen(self._blocked_since, each) for each in self._clients)

    async def _move_on(self) -> bool:
        self._blocked_looks = 0
        if self._has_stopped and not self._had_stopped:
            return True  # after the last look: its runs may have something to do
        if self._requests:
            gone = [each.app.worker_id for each in self._workers if each not in self._live]
            if self._live and await self._leased(gone):  # the program ends after the takeover
                await self._move_to(await self._storage.now() + timedelta(seconds=LEASE_SEC))
                return True
            settings, done = self._requests.pop(0)
            if settings is None:
                for worker in self._live:
                    await worker.close()
            else:
                self._app_settings = settings
                await self._open_worker()
            done.set_result(None)
            return True
        if self._has_ended:
            return False
        dues = await self._dues()
        if dues and not (self._awaited is not None and await self._awaited()):
            await self._move_to(min(dues))
        return True

    async def close(self) -> None:
        self._is_over = True
        if self._program is not None and not self._program.done():
            self._program.cancel()
            await asyncio.wait([self._program])
        await super().close()


async def _nothing(_: Gate) -> None:
    """Do nothing after a commit."""


# What a person sees.

_OF_THE_CHANGE = re.compile(
    r"WARNING perdure\.engine: (the database is unavailable, .*: this worker is dead"
    r"|worker \w+ takes over \d+ run|worker \w+ lost its lease)"
    r"|ERROR perdure\.engine: hook notify failed on RunResumed"
)
_REPORTS = {  # log messages, and the commits after which workers log them
    re.compile(r"^ERROR perdure\.engine: run .* failed"): "workflow_failed",
    re.compile(r"^WARNING perdure\.engine: run .* retries"): "ActivityAttemptFailed",
    re.compile(r"^ERROR perdure\.engine: hook notify failed on RunStarted"): "lease 1",
    re.compile(r"^ERROR perdure\.engine: hook notify failed on StepCompleted"): "ActivityCompleted",
    re.compile(r"^ERROR perdure\.engine: hook notify failed on RunWaiting"): "waiting_for_timer",
    re.compile(r"^ERROR perdure\.engine: hook notify failed on RunCompleted"): "lease 4",  # the end of the order
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One change at one point of one program."""

    program: str
    change: Change
    point: str

    def __str__(self) -> str:
        return f"{self.program}|{self.change}|{self.point}"

    @classmethod
    def parse(cls, text: str) -> "Fault":
        program, change, point = text.split("|")
        return cls(program, Change(change), point)


@dataclass(slots=True)
class FaultPlayer:
    """Plays the programs on one database."""

    player: Player
    _undisturbed: dict[str, tuple[list[str], list[str]]] = field(default_factory=dict)

    async def cases(self, program: str) -> list[Fault]:
        """All cases of a program."""
        _, points = await self.undisturbed(program)
        return [Fault(program, change, point) for change in Change for point in points]

    async def undisturbed(self, program: str) -> tuple[list[str], list[str]]:
        """What a person sees without a change, and the points of the program; played once."""
        if program not in self._undisturbed:
            self._undisturbed[program] = await self._play(program, None, "")
        return self._undisturbed[program]

    async def play(self, fault: Fault) -> list[str]:
        """Play a case and return what a person sees in addition, and what not."""
        expected, _ = await self.undisturbed(fault.program)
        try:
            found, _ = await self._play(fault.program, fault.change, fault.point)
        except CaseError as error:
            return [str(error)]
        missing = [line for line in expected if line not in found and not _died_before_logging(fault, line)]
        added = [line for line in found if line not in expected]
        return [*(f"missing: {line}" for line in missing), *(f"added: {line}" for line in added)]

    async def _play(self, program: str, change: Change | None, point: str) -> tuple[list[str], list[str]]:
        await self.player.clear()
        if not self._undisturbed:
            gc.collect()
        gc.freeze()  # what is collected in the end is only what this program left behind
        play = ProgramPlay(self.player, programs()[program], change, point)
        try:
            with _catalogue_of(play):
                try:
                    outcome = await play.run()
                finally:
                    await play.close()
                    gc.collect()  # "was never retrieved", "was never awaited"
        finally:
            gc.unfreeze()
        lines = sorted(set(map(normalised, [*play.seen.lines, *_stored(outcome)])))
        return [line for line in lines if not _OF_THE_CHANGE.match(line)], outcome.points


def _died_before_logging(fault: Fault, line: str) -> bool:
    """Whether a line reports what the worker committed when it died."""
    return fault.change is Change.DEATH and any(
        reported.search(line) and committed in fault.point for reported, committed in _REPORTS.items()
    )


def _stored(outcome: Outcome) -> Iterator[str]:
    """What the database shows of the runs that have ended; the others continue as before, from any of their rows."""
    has_left = True
    for line in outcome.aspects[Aspect.RUNS]:
        name, _, status = line.partition(": ")
        if status.partition(" ")[0] not in TERMINAL:
            yield f"{name} has not ended"
            has_left = False
            continue
        yield line
        for aspect in (Aspect.TIMES, Aspect.HISTORY):
            yield from (each for each in outcome.aspects[aspect] if each.startswith(f"{name} "))
    if has_left:
        yield from outcome.aspects[Aspect.LEFT]


@contextmanager
def _catalogue_of(play: ProgramPlay) -> Iterator[None]:
    """Let the programs of the catalogue use a play."""
    root, logger = logging.getLogger(), logging.getLogger("perdure")
    level, disabled = logger.level, logger.disabled
    with ExitStack() as stack, definitions_of_its_own(), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = play.seen.warn
        for module in (*GROUPS, catalogue):
            for name, value in {
                "App": play.app,
                "workflow": _prefaced,
                "watch": play.watch,
                "waiting": play.waiting,
            }.items():
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, value))
        stack.enter_context(patch.object(results, "ASK_SEC", POLL_SEC))
        stack.enter_context(patch.object(results.Results, "_look", lambda of: play.polls.look(of)))
        stack.enter_context(patch.object(BodyLoop.pump, "__defaults__", (CALLBACKS_MAX,)))
        stack.enter_context(patch.object(body, "STEPS_MAX", STEPS_MAX))
        stack.enter_context(patch.object(stuck, "WARN_SEC", NEVER_SEC))  # the clock of this machine
        root.addHandler(play.seen)
        logger.setLevel(logging.WARNING)
        logger.disabled = False
        try:
            yield
        finally:
            logger.setLevel(level)
            logger.disabled = disabled
            root.removeHandler(play.seen)


async def _prepare() -> str:
    return "prepared"


def _prefaced(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Take the place of `workflow`: execute an activity and sleep before the body."""
    if function is None:
        return functools.partial(_prefaced, **options)
    prepare = activity(name="prepare")(_prepare)

    @functools.wraps(function)
    async def body(*args: Any, **kwargs: Any) -> Any:
        await prepare()
        await sleep(HOUR)
        return await function(*args, **kwargs)

    return workflow(**options)(body)
