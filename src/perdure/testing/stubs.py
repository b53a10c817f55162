"""Stubs of activities: `with charge.stub(returns=receipt) as stub:`; see `Activity.stub`.

A stub replaces the function of an activity in the apps of the test that enters it. Its outcomes depend only on the
call and the number of the attempt, so an attempt that is executed again after a crash has the same outcome.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar

from perdure.engine.api import current
from perdure.engine.history.hints import signature
from perdure.engine.replay.context import ActivityInfo
from perdure.engine.replay.definitions import ActivityDefinition
from perdure.engine.replay.stubs import UNSET, StubbedCall, StubScope, new_scope
from perdure.errors import EngineError, StubError
from perdure.model.durations import Duration, seconds
from perdure.testing.outcomes import Outcomes

P = ParamSpec("P")
R = TypeVar("R")

RunFilter = str | Callable[[ActivityInfo], bool]

SHOWN_MAX = 20  # maximum number of calls in a stub's repr


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a stub; each attempt is one.

    - `arguments`: the arguments by name, as the activity's function would get them, defaults included.
    - `run_id`, `step`: the run and the step; None for a direct call outside a run. For a direct call in an activity,
      those of that activity.
    - `attempt`: the number of the attempt, from 1.
    """

    arguments: Mapping[str, object]
    run_id: str | None = None
    step: str | None = None
    attempt: int = 1

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        where = "" if self.run_id is None else f" in run {self.run_id}, step {self.step}, attempt {self.attempt}"
        return f"({given}){where}"


class Stub(Generic[P, R]):
    """What replaces an activity inside `with charge.stub(…) as stub:`."""

    scope: StubScope
    _entered = True  # until the arguments are checked: a wrong one raises an error, which is enough

    def __init__(
        self,
        activity: ActivityDefinition,
        *,
        returns: object = UNSET,
        each: object = UNSET,
        using: object = UNSET,
        raises: object = (),
        delay: Duration = 0,
        run: RunFilter | None = None,
    ) -> None:
        self._activity = activity.origin
        self._what = f"{self._activity.function.__name__}.stub"  # as the code of the test has it
        self._outcomes = Outcomes(self._activity, returns, each, using, raises)
        self._delay_sec = seconds(delay, f"{self._what}(delay=)")
        self._run = _as_filter(run, f"{self._what}(run=)")
        self._calls: list[Call] = []
        self._mistakes: list[StubError] = []
        self._installed = ExitStack()
        self._entered = False

    @property
    def calls(self) -> list[Call]:
        """Return the calls so far, one for each attempt, in the order in which they began."""
        if not self._entered:
            raise EngineError(f"{self._what}(…) was not entered, so it replaces nothing: use `with {self._what}(…):`")
        return list(self._calls)

    def called_with(self, *args: P.args, **kwargs: P.kwargs) -> list[Call]:
        """Return the calls with exactly these arguments: `assert stub.called_with("A-1", amount=9.5)`."""
        wanted = _arguments(self._activity, args, kwargs)
        return [call for call in self.calls if call.arguments == wanted]

    def __enter__(self) -> Self:
        if self._entered:
            raise EngineError(f"{self._what}(…) can be entered only once: make another stub")
        self._entered = True
        self.scope = self._installed.enter_context(new_scope(_scope_here(f"{self._what}()")))
        self.scope.installed.append(self)
        self._installed.callback(self.scope.installed.remove, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._installed.close()
        _report(self._mistakes, error)

    def __repr__(self) -> str:
        calls = "".join(f"\n  {call}" for call in self._calls[:SHOWN_MAX])
        more = "\n  …" if len(self._calls) > SHOWN_MAX else ""
        return f"<stub of {self._activity.name}, calls: {len(self._calls)}{calls}{more}>"

    def __del__(self) -> None:
        if not self._entered:
            message = f"{self._what}(…) was never entered, so it replaced nothing: use `with {self._what}(…):`"
            warnings.warn(message, RuntimeWarning, stacklevel=1, source=self)

    # For the engine.

    def applies_to(self, activity: ActivityDefinition, info: ActivityInfo | None) -> bool:
        """Return whether this stub replaces a call."""
        return activity.origin is self._activity and (self._run is None or (info is not None and self._run(info)))

    async def call(self, call: StubbedCall) -> Any:
        """Record a call, wait for the delay, and return or raise the outcome."""
        given, info = _arguments(self._activity, call.args, call.kwargs), call.info
        made = Call(given) if info is None else Call(given, info.workflow_id, info.step, info.attempt)
        self._calls.append(made)
        try:
            outcome = self._outcomes.of(call.step, made.attempt)
            if self._delay_sec:
                await call.sleep(self._delay_sec)
            return await self._outcomes.play(outcome, call)
        except StubError as error:
            self._mistakes.append(error)
            raise


class _Forbidden:
    """What replaces every activity that a strict test has not stubbed."""

    def __init__(self, scope: StubScope) -> None:
        self.scope = scope
        self.mistakes: list[StubError] = []

    def applies_to(self, activity: ActivityDefinition, info: ActivityInfo | None) -> bool:
        return True

    async def call(self, call: StubbedCall) -> Any:
        activity, info = call.activity.origin, call.info
        name, where = activity.function.__name__, ""
        if info is not None:
            where = f" in run {info.workflow_id!r}, step {info.step!r}"
        error = StubError(
            f"activity {activity.name!r} was called{where}, and has no stub in a strict test: use "
            f"`with {name}.stub(…):`, or {name}.stub(using={name}.function) to execute it"
        )
        self.mistakes.append(error)
        raise error


@contextmanager
def only_stubs() -> Iterator[None]:
    """Let every activity without a stub raise `StubError` in the apps of this test; so does the end of the block."""
    with new_scope(_scope_here("a strict test")) as scope:
        forbidden = _Forbidden(scope)
        others = sum(isinstance(each, _Forbidden) for each in scope.installed)
        scope.installed.insert(others, forbidden)  # before all stubs: the last one that applies is called
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            scope.installed.remove(forbidden)
            _report(forbidden.mistakes, error)


def _report(mistakes: Sequence[StubError], error: BaseException | None) -> None:
    """Raise the first mistake at the end of a test, because the workflow may have handled the error.

    If the test fails with another error, the mistake is a note of it.
    """
    if not mistakes:
        return
    if error is None:
        raise mistakes[0].with_traceback(None)
    if str(mistakes[0]) not in (str(error), str(error.__cause__)):
        error.add_note(str(mistakes[0]))


def _scope_here(what: str) -> StubScope | None:
    """Return the scope of the only app that is open here, or None if none is; a scope of the context comes first."""
    scopes = current.stub_scopes()
    if len(scopes) > 1:
        raise EngineError(
            f"{what} was entered where {len(scopes)} Apps or Clients are open: enter it inside the `async with` of one "
            "of them, or before all of them"
        )
    return scopes[0] if scopes else None


def _as_filter(run: object, what: str) -> Callable[[ActivityInfo], bool] | None:
    if run is None:
        return None
    if isinstance(run, str):
        return lambda info: info.workflow_id == run
    if not callable(run):
        raise TypeError(
            f"{what} must be the id of a run, or a function that is called with an ActivityInfo, not {run!r}"
        )
    return lambda info: bool(run(info))


def _arguments(activity: ActivityDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, object]:
    bound = signature(activity.function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)
