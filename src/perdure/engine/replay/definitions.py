"""What a workflow or activity is: its function, its settings, and the registries of all that are defined.

The decorators of the public API make subclasses of these classes, which can also be called and started.
"""

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, update_wrapper
from typing import Any, cast

from perdure.engine.history.codec import Signature
from perdure.engine.history.digests import Call
from perdure.engine.history.hints import signature
from perdure.model import limits, schedules
from perdure.model.durations import Duration, seconds
from perdure.model.retries import Retry
from perdure.model.schedules import Schedule

UNDO_RETRY = Retry(attempts=10)


class ActivityDefinition:
    """A function whose result is recorded as a step of a run."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        retry: Retry,
        timeout: Duration | None,
        transactional: bool = False,
        origin: "ActivityDefinition | None" = None,
    ) -> None:
        if not isinstance(retry, Retry):
            raise TypeError(f"retry= of activity {name!r} must be a Retry, such as Retry(attempts=3), not {retry!r}")
        self.transactional = transactional
        self.function = function
        self.name: str = limits.name(name, "activity name", 150)
        self.retry = retry
        self.timeout = None if timeout is None else seconds(timeout, f"timeout= of activity {name!r}", positive=True)
        self.plain: bool = not inspect.iscoroutinefunction(function)
        self.signature = Signature.of(function)  # encodes the arguments and the result
        self._origin = origin  # the activity that `options()` was called on, which has the compensation
        self._undo: ActivityDefinition | None = None
        update_wrapper(cast(Any, self), function)

    @property
    def origin(self) -> "ActivityDefinition":
        """Return the activity that was decorated, without the settings of `options()`."""
        return self if self._origin is None else self._origin.origin

    @property
    def undo(self) -> "ActivityDefinition | None":
        """Return the compensation, or None."""
        return self._undo if self._origin is None else self._origin.undo

    @property
    def compensated_name(self) -> str:
        """Return the name under which the compensation is registered."""
        return self.name if self._origin is None else self._origin.compensated_name

    def __repr__(self) -> str:
        return f"<activity {self.name}>"


class WorkflowDefinition:
    """A durable async function."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        max_tries: int | None,
        schedule: Schedule | None,
        event: str | None = None,
    ) -> None:
        self.function = function
        self.name: str = (
            limits.name(name, "workflow name")
            if schedule is None
            else limits.name(name, "the name of a workflow with cron=", schedules.NAME_MAX)
        )
        self.max_tries = max_tries
        self.schedule = schedule
        self.event = event  # the type of the events that start it
        self.signature = Signature.of(function)  # encodes the arguments and the result
        self.undo: ActivityDefinition | None = None
        self.failure_handler: ActivityDefinition | None = None
        update_wrapper(cast(Any, self), function)

    @cached_property
    def source(self) -> str:
        """Return the source code of the function, or an empty string if it is not available."""
        try:
            return inspect.getsource(self.function)
        except (OSError, TypeError):
            return ""

    @cached_property
    def source_hash(self) -> str:
        """Return a hash of the source code, which identifies a version of the workflow."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    def call(self, args: Sequence[object], kwargs: Mapping[str, object], data: bytes, *about: object) -> Call:
        """Return the call to compare with the history on replay, where another call has the same step id."""
        _, values = self.signature.bind_values(args, kwargs)
        return Call(*about, *values, encoded=data, what=self.name)

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"


WORKFLOWS: dict[str, WorkflowDefinition] = {}  # all that are defined; an App may execute fewer
ACTIVITIES: dict[str, ActivityDefinition] = {}
COMPENSATIONS: dict[str, ActivityDefinition] = {}  # the activities that have a compensation, by name
UNDOABLE_WORKFLOWS: dict[str, WorkflowDefinition] = {}


def register(kind: str, known: dict[str, Any], name: str, defined: Any) -> None:
    other = known.get(name)
    if other is not None and _home(other.function) != _home(defined.function):
        raise ValueError(
            f"two {kind} are named {name!r}, in {_home(other.function)} and {_home(defined.function)}: "
            "give one of them another name="
        )
    known[name] = defined


def _home(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def check_function(function: object, what: str, *, asynchronous: bool = False) -> None:
    """Raise `TypeError` unless this is a function that can be a workflow, activity or compensation."""
    kind = "an `async def` function" if asynchronous else "a function"
    if isinstance(function, ActivityDefinition | WorkflowDefinition):
        raise TypeError(f"{function!r} is already decorated: a function is a workflow or an activity, not both")
    if isinstance(function, staticmethod | classmethod):
        raise TypeError(f"{what} must be {kind} of a module, not a {type(function).__name__}: move it out of the class")
    if isinstance(function, str):
        raise TypeError(f"{what} must be {kind}, not {function!r}: to give it a name, use name={function!r}")
    if not inspect.isfunction(function):
        raise TypeError(f"{what} must be {kind}, not {function!r}: use a function of a module")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{what} must return its result, and {function.__qualname__} is a generator (it has a `yield`): return a "
            "list instead"
        )
    if asynchronous and not inspect.iscoroutinefunction(function):
        raise TypeError(
            f"{what} must be an `async def`, and {function.__qualname__} is a plain function: write "
            f"`async def {function.__name__}`, or use @activity"
        )


def name_of(given: object, function: Callable[..., Any], what: str) -> str:
    if given is not None and not isinstance(given, str):
        raise TypeError(f"name= of {what} must be a text, not {given!r}")
    if given is None and function.__name__ == "<lambda>":
        raise TypeError(f"{what} needs a name, and a lambda has none: use def, or name=")
    return function.__name__ if given is None else given


def check_undo(function: Callable[..., Any], undone: Callable[..., Any], what: str, *more: str) -> None:
    """Raise `TypeError` if a function cannot be called with the arguments of the other one, passed by name."""
    known = [*signature(undone).parameters, *more]
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name, parameter in signature(function).parameters.items():
        if name not in known and parameter.default is inspect.Parameter.empty and parameter.kind not in free:
            raise TypeError(
                f"{what}, {function.__qualname__}(), has a parameter {name!r} that it is not given: it can take "
                f"{', '.join(known)}"
            )
