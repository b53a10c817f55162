"""Activities: the `@activity` decorator, and what it makes."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

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
from perdure.model.durations import Duration
from perdure.model.retries import Retry

P = ParamSpec("P")
R = TypeVar("R")

Undo = Callable[..., Any]


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

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R]:
        run = context.current_run()
        if run is None:
            return named(self._run_here(args, kwargs), self.function)
        return named(run.activity(self, args, kwargs), self.function)

    async def _run_here(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
        result: Any = self.function(*args, **kwargs)
        return cast(R, result if self.plain else await result)


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
