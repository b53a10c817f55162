"""Sources as blocks, and the paths of runs through them; without a database."""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest

from perdure import StepInfo, StepKind, StepStatus, WorkflowStatus, activity, sleep, wait_event, workflow
from perdure.engine.replay.definitions import ACTIVITIES, WORKFLOWS, WorkflowDefinition
from perdure.views.path_taken import Mark, Path, path_of
from perdure.views.source_blocks import BLOCKS_MAX, Block, BlockKind, Source, source_of

# What the bodies call is global, as in a module of a program. The names of steps are short: see `step()`.


@activity(name="a")
async def a(value: object = None) -> bool:
    return True


@activity(name="b")
async def b(value: object = None) -> bool:
    return True


@activity(name="c")
async def c(value: object = None) -> bool:
    return True


@workflow(name="child")
async def child() -> None: ...


async def helper(value: object = None) -> None:
    await a()


@pytest.fixture(autouse=True)
def _registries() -> Iterator[None]:
    """Forget what a test defines."""
    workflows, activities = dict(WORKFLOWS), dict(ACTIVITIES)
    yield
    for known, before in ((WORKFLOWS, workflows), (ACTIVITIES, activities)):
        for name in set(known) - set(before):
            del known[name]


def read(body: Callable[..., Any]) -> Source:
    return source_of(workflow(name=f"body.{body.__name__}")(body))


def shape(blocks: Sequence[Block]) -> str:
    """Return blocks as a short text: steps by their labels, others by their kind and parts."""
    found = []
    for block in blocks:
        parts = " | ".join(shape(part.blocks) for part in block.parts)
        found.append(f"{block.kind}({parts})" if parts or block.parts else _leaf(block))
    return " ".join(found)


def _leaf(block: Block) -> str:
    return block.label if block.kind is BlockKind.STEP else f"{block.kind}:{block.label}"


def step(text: str) -> StepInfo:
    """Return a step: `3:a`, with `!` if it has failed, `?` if it waits or is executed."""
    id = text.rstrip("!?")
    name = id.partition(":")[2]
    kinds = {"timer": StepKind.TIMER, "wait_event": StepKind.EVENT, "child": StepKind.CHILD}
    statuses = {"!": StepStatus.FAILED, "?": StepStatus.WAITING}
    return StepInfo(id, name, kinds.get(name, StepKind.ACTIVITY), statuses.get(text[-1], StepStatus.COMPLETED), 1)


def path(source: Source, steps: str, status: WorkflowStatus | None = None, **more: Any) -> Path:
    return path_of(source.blocks, [step(each) for each in steps.split()], status, **more)


def every(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        for part in block.parts:
            yield from every(part.blocks)


def marks(source: Source, found: Path) -> dict[str, str]:
    """Return what was done with each block that has no parts: how often, `!` failed, `?` now, `>` next, `≈` unsure."""

    result = {}
    for block in every(source.blocks):
        if not block.parts:
            passed = found.of(block)
            sign = {Mark.FAILED: "!", Mark.NOW: "?", Mark.NEXT: ">"}.get(passed.mark, "")
            result[f"{block.label} {block.line}"] = f"{passed.count}{sign}{'≈' if passed.is_uncertain else ''}"
    return result


async def in_order(x: int) -> bool:
    y = x + 1
    await a(y)
    return await b(await c(x))


async def branches(x: int) -> None:
    if x > 1:
        await a()
    elif x > 0:
        await b()
    else:
        return
    if x:
        print(x)


async def matches(x: object) -> None:
    match x:
        case 1:
            await a()
        case {"k": v} if v:
            await b()
        case _:
            raise ValueError(x)


async def loops(xs: list[int]) -> None:
    for x in xs:
        if x < 0:
            break
        if x == 0:
            continue
        await a(x)
    else:
        await b()
    while True:
        await sleep(1)


async def async_loop(xs: Any) -> None:
    async for x in xs.pages():
        await a(x)
    async for _ in xs:
        pass


async def handlers() -> None:
    try:
        await a()
    except (ValueError, TypeError):
        await b()
    except Exception:
        pass
    else:
        await c()
    finally:
        await sleep(1)


async def contexts(lock: Any, file: Any) -> None:
    async with asyncio.timeout(5), lock:
        await wait_event("paid")
    with file.open(await a()):
        await b()


async def concurrent(xs: list[int]) -> None:
    await asyncio.gather(a(), b(), *(c(x) for x in xs))
    async with asyncio.TaskGroup() as group:
        group.create_task(a())
        task = asyncio.create_task(helper())
    await asyncio.wait([asyncio.ensure_future(b())])
    await task


async def expressions(x: Any) -> object:
    found = await a() if x else await b()
    _ = x and await c()
    x = {k: await a(k) for k in range(x) if await b(k)}
    return found or x


async def dynamic(name: str, things: dict[str, Callable[[], Awaitable[None]]]) -> None:
    async def inner() -> None:
        await a()

    await inner()
    await things[name]()
    await helper()
    await asyncio.gather(*(helper(x) for x in name))
    later = helper()
    await later
    print(lambda: a())


async def polls() -> None:
    while not await a():
        await b()
        await c()
        await b()
        await c()
        await b()
    await c()


async def nested_loops(xs: Any) -> None:
    print([await c(y) for x in xs(await a()) for y in xs(x) if await b(y)])


async def guarded(x: object) -> None:
    match x:
        case int() if await a():
            await b()
        case _:
            await c()


async def chained() -> None:
    print(await a() and await b() and await c())


async def not_aliases(pay: Any, xs: Any) -> None:
    if not pay:
        pay = a
    await pay()
    try:
        call = b
    except ValueError as call:
        print(call)
    await call()  # type: ignore[misc]


async def aliases() -> None:
    pay = b.options(name="pay")
    also = a
    await pay()
    await also.options(timeout=3)()
    await child()
    await child.options(id="x").start()


async def no_call() -> int:
    class Local:
        async def method(self) -> None:
            await a()

    return 0


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def around(*args: Any) -> Any:
        return await function(*args)

    return around


def hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    async def around(*args: Any) -> Any:
        return await function(*args)

    return around


@wrapped
async def decorated() -> None:
    await a()


@hidden
async def not_visible() -> None:
    await a()


SHAPES = {
    in_order: "a c b return:return await b(await c(x))",
    branches: "choice(a | b | return:return)",
    matches: "choice(a | b | raise:raise ValueError(x))",
    loops: "loop(choice(break:break | ) choice(continue:continue | ) a | ) choice(b | ) loop(sleep 1)",
    async_loop: "loop(dynamic:xs.pages() | a | ) loop(dynamic:xs |  | )",
    handlers: "try(a | b |  | c | sleep 1)",
    contexts: "dynamic:lock wait for event paid a b",
    concurrent: "parallel(a | b | loop(c | )) parallel(a dynamic:helper()) parallel(b)",
    expressions: "choice(a | b) choice(c | ) loop(b choice(a | ) | ) return:return found or x",
    dynamic: "dynamic:inner() dynamic:things[name]() dynamic:helper() "
    "parallel(loop(dynamic:helper() | )) dynamic:helper()",
    polls: "loop(a | b c b c b | ) c",
    nested_loops: "a loop(loop(b choice(c | ) | ) | )",
    guarded: "choice(a b | c)",
    chained: "a choice(b choice(c | ) | )",
    not_aliases: "dynamic:pay() dynamic:call()",
    aliases: "pay a child start child",
    no_call: "return:return 0",
    decorated: "a",
    not_visible: "dynamic:function() return:return await function(*args)",
}


@pytest.mark.parametrize("body", SHAPES, ids=lambda body: body.__name__)
def test_source_is_read_into_blocks(body: Callable[..., Any]) -> None:
    source = read(body)
    assert shape(source.blocks) == SHAPES[body]
    assert source.problem == ""


class Proxy:
    """An object that must not be asked for anything, as one that belongs to a request outside of it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"outside of a request: {name}")


proxy: Any = None


async def uses_proxy() -> None:
    await proxy()
    await proxy.pay()
    await proxy.start()
    async with proxy:
        await proxy.options(name="x")()


def test_no_code_of_the_user_is_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    known: WorkflowDefinition = workflow(name="body.uses_proxy")(uses_proxy)
    monkeypatch.setitem(globals(), "proxy", Proxy())
    names = ("proxy()", "proxy.pay()", "proxy.start()", "proxy", "proxy.options(name='x')()")
    assert shape(source_of(known).blocks) == " ".join(f"dynamic:{each}" for each in names)


def test_nested_function_with_a_text_at_the_margin_is_read() -> None:
    async def order() -> None:
        text = """
at the margin"""
        await a(text)

    assert shape(read(order).blocks) == "a"


def test_function_without_source_says_so() -> None:
    known: dict[str, Any] = {}
    exec("async def made(): ...", known)
    assert read(known["made"]).problem.startswith("Python has no source")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = [lambda: 1,\n", "cannot be parsed"),
        ("async def other(): ...\n", "no `async def` of this name"),
        ("async def in_order(): return " + "-" * 5000 + "1\n", "cannot be parsed"),
        ("async def in_order():\n pass\n" + " #" + "x" * 300_000, "longer than"),
        ("async def in_order():\n pass\n", "no durable call"),
    ],
)
def test_source_that_cannot_be_drawn_says_why(text: str, problem: str) -> None:
    known: WorkflowDefinition = workflow(name="body.changed")(in_order)
    known.__dict__["source"] = text  # as if the file had changed after the import
    found = source_of(known)
    assert problem in found.problem
    assert found.blocks == ()


def test_long_and_deep_sources_are_cut_and_the_rest_is_dynamic() -> None:
    known: WorkflowDefinition = workflow(name="body.long")(in_order)
    known.__dict__["source"] = "async def in_order():\n" + "    await a()\n" * 1000
    found = source_of(known).blocks
    assert len(found) == BLOCKS_MAX + 1
    assert _leaf(found[-1]) == f"dynamic:not drawn: {1000 - BLOCKS_MAX} lines"
    known.__dict__["source"] = (
        "async def in_order():\n" + "".join(f"{' ' * n}if x:\n" for n in range(1, 60)) + " " * 60 + "await a()"
    )
    assert shape(source_of(known).blocks).startswith("choice(" * 8 + "dynamic:not drawn: 52 lines")


@pytest.mark.parametrize(
    "body",
    [
        "    await asyncio.gather(" + "a(), " * 3000 + ")\n",
        "    return " + "await a() if x else (" * 60 + "0" + ")" * 60 + "\n",
        "    match x:\n" + "".join(f"        case {n}:\n            await a()\n" for n in range(1000)),
        "    if x:\n        await a()\n        return 1\n    else:\n        await b()\n" * 400,
    ],
    ids=["wide", "deep", "cases", "2,000 lines"],
)
def test_every_large_source_is_cut(body: str) -> None:
    known: WorkflowDefinition = workflow(name="body.large")(in_order)
    known.__dict__["source"] = "async def in_order(x):\n" + body
    begin = time.process_time()
    source = source_of(known)
    assert 0 < len(list(every(source.blocks))) <= 2 * BLOCKS_MAX + 1
    assert "not drawn" in str(source.blocks)
    found = path_of(source.blocks, [step(f"{number}:a") for number in range(1, 2000)], DONE)
    assert found.blocks
    assert time.process_time() - begin < 5


DONE, FAILED = WorkflowStatus.COMPLETED, WorkflowStatus.FAILED
PATHS: list[tuple[Callable[..., Any], str, WorkflowStatus | None, dict[str, str]]] = [
    (in_order, "1:a 2:c? ", None, {"a 3": "1", "c 4": "1?", "b 4": "0"}),
    (in_order, "1:a 2:c 3:b!", FAILED, {"a 3": "1", "c 4": "1", "b 4": "1!"}),
    (branches, "1:b", DONE, {"a 3": "0", "b 5": "1", "return 7": "0"}),
    (branches, "", DONE, {"a 3": "0", "b 5": "0", "return 7": "1"}),
    (matches, "", FAILED, {"a 4": "0", "b 6": "0", "raise ValueError(x) 8": "1"}),
    (loops, "1:a 2:a 3:b 4:timer 5:timer?", None, {"a 7": "2", "b 9": "1", "sleep 1 11": "2?"}),
    (handlers, "1:a! 2:b 3:timer", DONE, {"a 3": "1!", "b 5": "1", "c 9": "0", "sleep 1 11": "1"}),
    (handlers, "1:a 2:c 3:timer", DONE, {"a 3": "1", "b 5": "0", "c 9": "1", "sleep 1 11": "1"}),
    (concurrent, "2:b 3:c 4:c", None, {"a 2": "0", "b 2": "1", "c 2": "2", "a 4": "0", "helper() 5": "0", "b 6": "0"}),
    (polls, "1:a 2:b 3:c 4:b 5:c 6:b 7:a 8:c", DONE, {"a 2": "2", "b 3": "1", "c 8": "1"}),
    (polls, "1:a 2:c", DONE, {"a 2": "1", "b 3": "0", "c 8": "1"}),
    (nested_loops, "1:a 2:b 3:b 4:c 5:b 6:c", DONE, {"a 2": "1", "b 2": "3", "c 2": "2"}),
    (guarded, "1:a 2:b", DONE, {"a 3": "1", "b 4": "1", "c 6": "0"}),
    (chained, "1:a 2:b", DONE, {"a 2": "1", "b 2": "1", "c 2": "0"}),
    (aliases, "1:pay 2:a 3:child? ", None, {"pay 4": "1", "a 5": "1", "child 6": "1?", "start child 7": "0"}),
]


@pytest.mark.parametrize(("body", "steps", "status", "expected"), PATHS)
def test_path_has_the_steps_of_each_call(
    body: Callable[..., Any], steps: str, status: WorkflowStatus | None, expected: dict[str, str]
) -> None:
    source = read(body)
    found = path(source, steps, status)
    assert {key: value for key, value in marks(source, found).items() if key in expected} == expected
    assert found.strays == []


def test_steps_of_dynamic_code_belong_to_it() -> None:
    source = read(dynamic)
    found = path(source, "1:a 2:x 3:y 4:a 5.1:a 6.1:a", None)
    assert found.strays == []
    assert sum(found.of(block).names.total() for block in every(source.blocks)) == 6


async def helpers(x: int, things: Any) -> None:
    if x:
        await helper(x)
    await a()
    for thing in things:
        await helper(thing)
    await things.close()
    await asyncio.gather(*(helper(each) for each in things))
    await b()


def test_steps_of_a_task_belong_to_the_dynamic_code_that_is_executed_in_one() -> None:
    source = read(helpers)
    found = path(source, "1:a 2:c 4.1:c 5.1:c 6:b", DONE)
    names = [(block.label, dict(found.of(block).names)) for block in every(source.blocks) if found.of(block).names]
    assert names == [("a", {"a": 1}), ("things.close()", {"c": 1}), ("helper()", {"c": 2}), ("b", {"b": 1})]


def test_dynamic_code_without_steps_is_taken_where_the_path_passes_it() -> None:
    source = read(helpers)
    found = path(source, "1:a 2:b", DONE)
    choice, _, loop, close, _, _ = source.blocks
    assert found.of(close).mark is Mark.TAKEN
    (inside,) = choice.parts[0].blocks
    assert (found.of(inside).mark, found.of(inside).is_uncertain) == (Mark.NOT_TAKEN, True)
    assert found.of(loop).is_uncertain  # how many rounds?


def test_only_what_is_certain_is_taken_before_the_next_call() -> None:
    source = read(branches)
    found = path(source, "", WorkflowStatus.RUNNING, is_executed=True)
    (choice,) = source.blocks
    assert found.of(choice).mark is Mark.TAKEN
    assert not found.of(choice).parts


def test_equal_branches_are_uncertain() -> None:
    async def equal(x: int) -> None:
        if x:
            await a(1)
        else:
            await a(2)

    source = read(equal)
    assert sorted(marks(source, path(source, "1:a", DONE)).values()) == ["0≈", "1≈"]


def test_topics_tell_events_apart() -> None:
    async def either(x: int) -> None:
        if x:
            await wait_event("one")
        else:
            await wait_event("two")

    source = read(either)
    found = marks(source, path(source, "1:wait_event?", None, topics={"1:wait_event": "two"}))
    assert found == {"wait for event one 3": "0", "wait for event two 5": "1?"}


def test_changed_source_keeps_what_matches() -> None:
    source = read(in_order)
    found = path(source, "1:gone 2:a 3:removed 4:b", DONE)
    assert [each.id for each in found.strays] == ["1:gone", "3:removed"]
    assert marks(source, found) == {"a 3": "1", "c 4": "0", "b 4": "1", "return await b(await c(x)) 4": "1"}
    nothing = path(source, "1:x 2:y 3:z odd.id:w", FAILED)
    assert len(nothing.strays) == 4


def test_call_that_is_executed_now_may_be_next() -> None:
    source = read(branches)
    found = marks(source, path(source, "", WorkflowStatus.RUNNING, is_executed=True))
    assert (found["a 3"], found["b 5"]) == ("0>", "0>")
    source = read(in_order)
    assert marks(source, path(source, "1:a", WorkflowStatus.RUNNING, is_executed=True))["c 4"] == "0>"


def test_compensated_steps_are_counted() -> None:
    source = read(in_order)
    found = path(source, "1:a 2:c!", FAILED, compensated=frozenset({"1:a"}))
    assert found.of(source.blocks[0]).compensated == 1


async def many(xs: list[int]) -> None:
    for x in xs:
        match x:
            case 0:
                await a(x)
            case 1:
                await b(x)
            case 2:
                await helper(x)
            case _:
                await asyncio.gather(c(x), a(x))
        await sleep(1)


@pytest.mark.parametrize("is_random", [False, True])
def test_path_of_ten_thousand_steps_is_found_quickly(is_random: bool) -> None:
    source = read(many)
    names = [("a", "b", "c", "timer", "x")[(n * n * 7919 // 13 if is_random else n) % 5] for n in range(10_000)]
    steps = [step(f"{number}:{name}") for number, name in enumerate(names, 1)]
    begin = time.process_time()
    found = path_of(source.blocks, steps, DONE)
    assert time.process_time() - begin < (2 if is_random else 0.5)
    assert sum(each.names.total() for each in found.blocks.values()) + len(found.strays) > 7_000
