"""Activities: the `@activity` decorator, and what it makes."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from perdure.engine.api import current
from perdure.engine.api.coroutines import mark_coroutine, named
from perdure.engine.replay import context
from perdure.engine.replay.definitions import (
    ACTIVITIES,
    COMPENSATIONS,
    UNDO_RETRY,
    ActivityDefinition,
    check_function,
    check_undo,
    name_of,
    register,
)
from perdure.engine.replay.stubs import UNSET, StubbedCall
from perdure.model.durations import Duration
from perdure.model.retries import Retry

if TYPE_CHECKING:
    from perdure.testing.stubs import RunFilter, Stub

P = ParamSpec("P")
R = TypeVar("R")

Undo = Callable[..., Any]
Raised = Exception | type[Exception]


class Activity(ActivityDefinition, Generic[P, R]):
    """A function whose result is recorded as a step of a run; made by `@activity`.

    A call returns a coroutine, also for a plain function. In a workflow the call is a step: it is executed, retried if
    it fails, and its result is recorded. Anywhere else the coroutine just runs the function.
    """

    function: Callable[P, Any]

    @overload
    def compensation(self, function: Undo, /) -> "Activity[..., Any]": ...

    @overload
    def compensation(
        self, function: None = None, /, *, retry: Retry = ..., timeout: Duration | None = None
    ) -> "Callable[[Undo], Activity[..., Any]]": ...

    def compensation(
        self, function: Undo | None = None, /, *, retry: Retry = UNDO_RETRY, timeout: Duration | None = None
    ) -> Any:
        """Register the compensation of this activity; use it as a decorator, with or without parentheses.

        The function takes any of the activity's parameters by name, and optionally `result`. When the run fails or is
        cancelled, the compensations of its completed steps run in reverse order, each at least once.

        - `retry`: the retry policy (default: 10 attempts).
        - `timeout`: maximum duration of one attempt, in seconds or as a timedelta (default: none).

        Returns the compensation. Raises `TypeError` if it is not a function, and `ValueError` if another activity with
        a compensation has the same name.
        """

        def define(function: Undo) -> "Activity[..., Any]":
            check_function(function, "a compensation")
            check_undo(function, self.function, f"the compensation of {self.name!r}", "result")
            undo: Activity[..., Any] = Activity(function, function.__name__, retry, timeout)
            self._undo = undo
            register("activities with a compensation", COMPENSATIONS, self.name, self)
            return undo

        return define if function is None else define(function)

    def options(
        self, *, retry: Retry | None = None, timeout: Duration | None = None, name: str | None = None
    ) -> "Activity[P, R]":
        """Return a copy of this activity with other settings: `await charge.options(timeout=60)(order_id)`.

        - `retry`: the retry policy.
        - `timeout`: maximum duration of one attempt, in seconds or as a timedelta.
        - `name`: the name in the step's id; not for an activity with a compensation.

        Each setting defaults to that of this activity.
        """
        return Activity(
            self.function,
            self.name if name is None else name,
            self.retry if retry is None else retry,
            self.timeout if timeout is None else timeout,
            self.transactional,
            self,
        )

    @overload
    def stub(
        self: "Activity[P, None]",
        *,
        raises: Sequence[Raised] = (),
        delay: Duration = 0,
        run: "RunFilter | None" = None,
    ) -> "Stub[P, None]": ...

    @overload
    def stub(self, *, raises: Raised, delay: Duration = 0, run: "RunFilter | None" = None) -> "Stub[P, R]": ...

    @overload
    def stub(
        self, *, returns: R, raises: Sequence[Raised] = (), delay: Duration = 0, run: "RunFilter | None" = None
    ) -> "Stub[P, R]": ...

    @overload
    def stub(
        self,
        *,
        each: Sequence[R | Raised],
        raises: Sequence[Raised] = (),
        delay: Duration = 0,
        run: "RunFilter | None" = None,
    ) -> "Stub[P, R]": ...

    @overload
    def stub(
        self,
        *,
        using: Callable[P, R] | Callable[P, Awaitable[R]],
        raises: Sequence[Raised] = (),
        delay: Duration = 0,
        run: "RunFilter | None" = None,
    ) -> "Stub[P, R]": ...

    def stub(
        self,
        *,
        returns: object = UNSET,
        each: object = UNSET,
        using: object = UNSET,
        raises: object = (),
        delay: Duration = 0,
        run: "RunFilter | None" = None,
    ) -> Any:
        """Replace this activity in a test: `with charge.stub(returns=receipt) as stub:`.

        Inside the block, workflows and direct calls get the outcome of the stub. It applies to the App of the test
        that enters it, and to no other test. `stub.calls` has the calls with their arguments.

        - `returns`: the result of every call (default: None, for an activity that returns None).
        - `each`: the outcomes of the calls in turn, results or exceptions; all attempts of a call have the same one.
        - `using`: a function to call instead, async or plain.
        - `raises`: an exception that every attempt raises; or a list with those of the first attempts of each call,
          after which it has the outcome above.
        - `delay`: how long each attempt takes, in seconds or as a timedelta (default: 0). With more than the
          activity's `timeout`, it times out.
        - `run`: the id of the only run that gets the stub, or a function that is called with the `ActivityInfo` of an
          attempt and returns whether it gets the stub (default: all runs, and direct calls).

        Raises `TypeError` if a result does not match the type hint of the activity. If a call has no valid outcome, it
        raises `StubError`, and so does the end of the block.
        """
        from perdure.testing.stubs import Stub  # only tests need it

        return Stub(self, returns=returns, each=each, using=using, raises=raises, delay=delay, run=run)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R]:
        run = context.current_run()
        if run is None:
            return named(self._run_here(args, kwargs), self.function)
        return named(run.activity(self, args, kwargs), self.function)

    async def _run_here(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
        if len(scopes := current.stub_scopes()) == 1 and scopes[0].installed:
            info = context.ATTEMPT.get()
            if (stub := scopes[0].find(self, info)) is not None:
                call = StubbedCall(self, args, kwargs, None, info, scopes[0].sleep, _call_here)
                return cast(R, await stub.call(call))
        result: Any = self.function(*args, **kwargs)
        return cast(R, result if self.plain else await result)


async def _call_here(function: Callable[[], Any]) -> Any:
    return function()


mark_coroutine(Activity)
mark_coroutine(Activity.__call__)


class Decorator(Protocol):
    """The type of `@activity(...)`, which accepts async and plain functions."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Activity[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Activity[P, R]: ...


@overload
def activity(function: Callable[P, Coroutine[Any, Any, R]], /) -> Activity[P, R]: ...


@overload
def activity(function: Callable[P, R], /) -> Activity[P, R]: ...


@overload
def activity(
    *, name: str | None = None, retry: Retry = ..., timeout: Duration | None = None, transactional: bool = False
) -> "Decorator": ...


def activity(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retry: Retry = Retry(),  # noqa: B008 - frozen
    timeout: Duration | None = None,
    transactional: bool = False,
) -> Any:
    """Make a function an activity; use it as a decorator, with or without parentheses.

    An activity is executed at least once; its result is recorded exactly once. A plain function runs in a thread.

    - `name`: the name in the ids of its steps (default: the function's name).
    - `retry`: the retry policy (default: `Retry()`, three attempts).
    - `timeout`: maximum duration of one attempt, in seconds or as a timedelta (default: none).
    - `transactional`: commit the SQL on `connection()`, sent messages and the result in one transaction, so that the
      activity takes effect exactly once (default: False).

    Returns the `Activity`. Raises `TypeError` or `ValueError` for a function or option that cannot work, and for a name
    that another activity has.
    """
    if not isinstance(transactional, bool):
        raise TypeError(f"activity(transactional=) must be True or False, not {transactional!r}")

    def define(function: Callable[..., Any]) -> Activity[..., Any]:
        check_function(function, "an activity")
        made: Activity[..., Any] = Activity(
            function, name_of(name, function, "an activity"), retry, timeout, transactional
        )
        if "<locals>" not in function.__qualname__:  # a nested function is defined again at each call of the outer one
            register("activities", ACTIVITIES, made.name, made)
        return made

    return define if function is None else define(function)
