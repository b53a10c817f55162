"""Coroutines that look like those of the user's function, and callables that frameworks recognise as async."""

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

R = TypeVar("R")


def named(coroutine: Coroutine[Any, Any, R], function: Callable[..., Any]) -> Coroutine[object, None, R]:
    """Give the coroutine the name of the user's function, for "coroutine 'charge' was never awaited"."""
    renamed: Any = coroutine
    renamed.__name__, renamed.__qualname__ = function.__name__, function.__qualname__
    return coroutine  # without Any in its type, which would make mypy lose the types of gather()


def mark_coroutine(callable: Any) -> None:
    """Mark a callable so that frameworks await its result although it is not an `async def`."""
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(callable)
    else:
        callable._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
