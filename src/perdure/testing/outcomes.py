"""The outcomes of a stub: what each call of an activity returns or raises."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from perdure.engine.history.hints import signature
from perdure.engine.replay.definitions import ActivityDefinition
from perdure.engine.replay.stubs import UNSET, StubbedCall
from perdure.errors import SerializationError, StubError

Raised = Exception | type[Exception]
Function = Callable[..., Any]


class Outcomes:
    """The outcomes of calls of an activity; an attempt that is executed again has the same one."""

    def __init__(
        self, activity: ActivityDefinition, returns: object, each: object, using: object, raises: object
    ) -> None:
        self._activity = activity
        self._name = activity.function.__name__
        self._what = f"{self._name}.stub"
        self._numbers: dict[str, int] = {}  # of the calls, by the idempotency key of their step
        self._count = 0
        self._first: Sequence[Raised] = ()  # of the first attempts
        self._always: Raised | None = None
        if _is_raised(raises):
            self._always = raises
        else:
            self._first = self._list_of(raises, "raises", _is_raised, "an exception, or a list of exceptions")
        self._check_single(returns, each, using)
        self._using = None if using is UNSET else self._checked_function(using)
        self._each = None if each is UNSET else self._checked_each(each)
        self._returned = None if returns is UNSET else returns
        if self._always is None and self._using is None and self._each is None:
            self._check_returned(returns)

    def of(self, step: str | None, attempt: int) -> object:
        """Return the outcome of an attempt: an exception to raise, a function to call, or else a value.

        `step` is the idempotency key of the step, or None for a direct call.
        """
        number = self._number_of(step)
        if self._always is not None:
            return self._always
        if attempt <= len(self._first):
            return self._first[attempt - 1]
        if self._each is None:
            return self._returned if self._using is None else self._using
        if number < len(self._each):
            return self._each[number]
        raise StubError(
            f"{self._what}(each=) has {len(self._each)} outcomes, and {self._activity.name!r} was called "
            f"{self._count} times: give an outcome for each call"
        )

    def _number_of(self, step: str | None) -> int:
        if step is not None and step in self._numbers:
            return self._numbers[step]
        number, self._count = self._count, self._count + 1
        if step is not None:
            self._numbers[step] = number
        return number

    async def play(self, outcome: object, call: StubbedCall) -> Any:
        """Return or raise an outcome."""
        if _is_raised(outcome):
            raise outcome if isinstance(outcome, type) else outcome.with_traceback(None)
        if self._using is None or outcome is not self._using:
            return outcome
        return await self._call(self._using, call)

    async def _call(self, using: Function, call: StubbedCall) -> Any:
        args, kwargs = call.args, call.kwargs
        try:
            signature(using).bind(*args, **kwargs)
        except TypeError as error:
            raise StubError(f"{self._what}(using=) cannot be called as {self._name}() is: {error}") from None
        except ValueError:
            pass  # a callable without a signature
        if inspect.iscoroutinefunction(using):
            value = await using(*args, **kwargs)
        else:
            value = await call.call_plain(lambda: using(*args, **kwargs))
            value = await value if inspect.isawaitable(value) else value
        if reason := _misfit(self._activity, value):
            raise StubError(f"{self._what}(using=) returned {value!r}: {reason}")
        return value

    # Checks of the arguments.

    def _check_single(self, *given: object) -> None:
        names = [name for name, value in zip(("returns", "each", "using"), given, strict=True) if value is not UNSET]
        if self._always is not None and names:
            raise TypeError(
                f"{self._what}() got {names[0]}= and an exception that every attempt raises: to fail only the first "
                "attempts, use a list, raises=[…]"
            )
        if len(names) > 1:
            raise TypeError(f"{self._what}() got {'= and '.join(names)}=: use one of them")

    def _check_returned(self, returns: object) -> None:
        reason = _misfit(self._activity, self._returned)
        if reason and returns is UNSET:
            raise TypeError(f"{self._what}() needs returns=, each=, using= or raises=: {reason}")
        if reason:
            raise TypeError(f"{self._what}(returns=) got {returns!r}: {reason}")

    def _checked_each(self, each: object) -> Sequence[object]:
        outcomes = self._list_of(each, "each", lambda _: True, "a list of results and exceptions")
        for outcome in outcomes:
            reason = None if _is_raised(outcome) else _misfit(self._activity, outcome)
            if reason:
                raise TypeError(f"{self._what}(each=) has {outcome!r}: {reason}")
        return outcomes

    def _checked_function(self, using: object) -> Function:
        activity = self._activity
        if isinstance(using, ActivityDefinition) and using.origin is activity:
            raise TypeError(f"{self._what}(using=) got the stubbed activity itself: use {self._name}.function")
        if not callable(using):
            raise TypeError(f"{self._what}(using=) must be a function, not {using!r}: use returns= for a result")
        if activity.plain and activity.transactional and inspect.iscoroutinefunction(using):
            raise TypeError(
                f"{self._what}(using=) must be a plain function, because {activity.name!r} is one and its connection() "
                "blocks"
            )
        return using

    def _list_of(self, given: object, name: str, fits: Callable[[object], bool], kind: str) -> Sequence[Any]:
        if not isinstance(given, list | tuple) or not all(map(fits, given)):
            raise TypeError(f"{self._what}({name}=) must be {kind}, not {given!r}")
        return list(given)


def _is_raised(value: object) -> TypeGuard[Raised]:
    return isinstance(value, Exception) or (isinstance(value, type) and issubclass(value, Exception))


def _misfit(activity: ActivityDefinition, value: object) -> str | None:
    """Return why a value cannot be the recorded result of an activity, or None if it can."""
    try:
        activity.signature.decode_result(activity.signature.encode_result(value))
    except SerializationError as error:
        return str(error)
    return None
