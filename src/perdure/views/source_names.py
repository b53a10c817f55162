"""What the names in the source of a workflow mean, found without executing any code of it."""

import ast
import asyncio
import inspect
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from perdure.engine.api import calls
from perdure.engine.history import ids
from perdure.engine.history.hints import closure
from perdure.engine.replay.definitions import ActivityDefinition, WorkflowDefinition


@dataclass(frozen=True, slots=True)
class DurableCall:
    """A durable function: the name and the kind of its steps, and what a person reads."""

    step: str
    what: str
    label: str


def _durable_functions() -> dict[int, DurableCall]:
    sends = (calls.publish, calls.send_to, calls.send_event, calls.send_to_group)
    memberships = (calls.subscribe, calls.unsubscribe, calls.join_group, calls.leave_group)
    named: dict[Callable[..., object], DurableCall] = {
        calls.sleep: DurableCall(ids.TIMER, "timer", "sleep"),
        asyncio.sleep: DurableCall(ids.TIMER, "timer", "sleep"),
        calls.sleep_until: DurableCall(ids.TIMER, "timer", "sleep until"),
        calls.wait_event: DurableCall("wait_event", "event", "wait for event"),
        calls.receive: DurableCall("receive", "message", "receive from"),
        **{
            each: DurableCall(each.__name__, "call", each.__name__.replace("_", " ")) for each in (*sends, *memberships)
        },
    }
    return {id(function): call for function, call in named.items()}


_DURABLE = _durable_functions()
_CONCURRENT = frozenset(id(each) for each in (asyncio.gather, asyncio.wait, asyncio.as_completed, asyncio.TaskGroup))
UNKNOWN = object()


class Names:
    """Resolves the names in a function to objects, as far as they are known before it runs."""

    def __init__(self, function: types.FunctionType, tree: ast.AsyncFunctionDef) -> None:
        self._outside = {**function.__globals__, **closure(function)}
        self._local = {*function.__code__.co_varnames, *function.__code__.co_cellvars}
        bound = Counter(chain.from_iterable(map(_bound, ast.walk(tree))))
        self._aliases = {
            node.targets[0].id: node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and bound[node.targets[0].id] == 1
        }

    def found(self, node: ast.expr, depth: int = 5) -> object:
        """Return what an expression means: an object, a `DurableCall` for a configured activity, or `UNKNOWN`."""
        if not depth:
            return UNKNOWN
        match node:
            case ast.Name(id=name) if name in self._local:
                return self.found(self._aliases[name], depth - 1) if name in self._aliases else UNKNOWN
            case ast.Name(id=name):
                return self._outside.get(name, UNKNOWN)
            case ast.Attribute(value=value, attr="start"):
                owner = self.found(value, depth - 1)
                call = self.call(owner)
                if call is not None and call.what == "child":
                    return DurableCall("start", "call", f"start {call.label}")
                return _attribute(owner, "start")
            case ast.Attribute(value=value, attr=name):
                return _attribute(self.found(value, depth - 1), name)
            case ast.Call(func=ast.Attribute(value=value, attr="options"), keywords=keywords):
                call = self.call(self.found(value, depth - 1))
                return UNKNOWN if call is None else _configured(call, keywords)
        return UNKNOWN

    @staticmethod
    def call(found: object) -> DurableCall | None:
        """Return the durable call that an object is, or None."""
        if not _is_function(found):
            return None
        match found:
            case DurableCall():
                return found
            case ActivityDefinition(name=name):
                return DurableCall(name, "activity", name)
            case WorkflowDefinition(name=name):
                return DurableCall(name, "child", name)
        return _DURABLE.get(id(found))


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the name that a node binds to a value, or removes."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name


def _is_function(found: object) -> bool:
    """Return whether an object can be asked what it does. Others, such as proxies, may execute code of the user.

    `isinstance()` would ask the object for its `__class__`.
    """
    kinds = (DurableCall, ActivityDefinition, WorkflowDefinition, types.FunctionType, types.BuiltinFunctionType)
    return issubclass(type(found), kinds)


def _attribute(owner: object, name: str) -> object:
    """Return an attribute without executing code, such as that of a property."""
    return UNKNOWN if owner is UNKNOWN else inspect.getattr_static(owner, name, UNKNOWN)


def _configured(call: DurableCall, keywords: Sequence[ast.keyword]) -> object:
    """Return the meaning of `activity.options(…)`, which may have another name."""
    for keyword in keywords:
        match keyword:
            case ast.keyword(arg="name", value=ast.Constant(value=str(name))):
                return replace(call, step=name, label=name)
            case ast.keyword(arg="name" | None):
                return UNKNOWN
    return call


def is_transparent(found: object) -> bool:
    """Return whether a function has no steps but those of its arguments."""
    module = f"{getattr(found, '__module__', '')}." if _is_function(found) else ""
    return module.startswith(("asyncio.", "perdure.engine."))


def is_asynchronous(found: object) -> bool:
    return _is_function(found) and (inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found))


def is_concurrent(found: object) -> bool:
    """Return whether a function executes its arguments, or the block below it, concurrently."""
    return id(found) in _CONCURRENT
