"""The source of a workflow as blocks: steps, branches, loops, handlers and concurrent parts, without running any of it.

Names are resolved as the function resolves them, so an alias of an activity is found. A call that is known only when
the function runs is a block of its own, `dynamic`. Code without durable calls is left out.
"""

import ast
import inspect
import textwrap
import types
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain

from perdure.engine.api import calls
from perdure.engine.replay.definitions import WorkflowDefinition
from perdure.views.source_names import UNKNOWN, DurableCall, Names, is_asynchronous, is_concurrent, is_transparent

SOURCE_MAX = 200_000  # characters of a source that is parsed
BLOCKS_MAX = 200
DEPTH_MAX = 8  # blocks in blocks: more do not fit on a phone
LABEL_MAX = 60
TEST = "test"  # the label of the part of a loop that is executed before each round


class BlockKind(StrEnum):
    """What a block is."""

    STEP = "step"
    DYNAMIC = "dynamic"  # code whose steps are known only when the function runs
    CHOICE = "choice"
    LOOP = "loop"
    TRY = "try"
    PARALLEL = "parallel"
    RETURN = "return"
    RAISE = "raise"
    BREAK = "break"
    CONTINUE = "continue"


@dataclass(frozen=True, slots=True)
class Part:
    """One way through a block: a branch, the body of a loop, a concurrent task, or of a `try` what `label` says.

    `line` is that of its head, such as an `except`, if it is not that of the block and known.
    """

    label: str
    blocks: tuple["Block", ...] = ()
    line: int = 0


@dataclass(frozen=True, slots=True)
class Block:
    """A block of the source.

    - `id`: a number that no other block has.
    - `label`: what a person reads.
    - `line`, `end_line`: in the text of the source, from 1. Of a block with parts, the lines of its head.
    - `step`: the name that its steps have in a history; `what`: what kind of step it is, as a word.
    - `topic`: the event type or channel that a wait names, if it is a constant.
    - `parts`: what it contains. A choice or a loop that may do nothing has an empty part as its last one. A loop whose
      test has steps has them as its first part, `TEST`.
    """

    id: int
    kind: BlockKind
    label: str
    line: int
    end_line: int
    step: str = ""
    what: str = ""
    topic: str = ""
    parts: tuple[Part, ...] = ()

    @property
    def body(self) -> int:
        """Return which part is the body of a loop."""
        return int(self.parts[0].label == TEST)


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a workflow and its blocks; `problem` says why there are no blocks."""

    text: str = ""
    first_line: int = 1
    module: str = ""
    blocks: tuple[Block, ...] = ()
    problem: str = ""


def source_of(workflow: WorkflowDefinition) -> Source:
    """Return the source of a workflow with its blocks."""
    target = inspect.unwrap(workflow.function)
    if not workflow.source or not isinstance(target, types.FunctionType):
        return Source(
            problem="Python has no source of this workflow: it was not defined in a file, or the file is not there."
        )
    found = Source(textwrap.dedent(workflow.source), target.__code__.co_firstlineno, target.__module__)
    if len(found.text) > SOURCE_MAX:
        return replace(found, problem=f"The source is longer than {SOURCE_MAX:,} characters, so it is not drawn.")
    try:
        # Inside an `if`, because the function may be indented and contain a text that is not.
        tree = ast.parse("if True:\n" + "".join(f" {line}\n" for line in workflow.source.split("\n")))
        match tree.body:
            case [ast.If(body=[ast.AsyncFunctionDef(name=target.__name__) as function])]:
                ast.increment_lineno(tree, -1)
                blocks = _Cut().blocks(_Reader(Names(target, function)).statements(function.body))
                problem = "" if blocks else "The source has no durable call, so there is nothing to draw."
                return replace(found, blocks=blocks, problem=problem)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return replace(found, problem="The source cannot be parsed by itself, so it is not drawn.")
    return replace(found, problem="The source is no `async def` of this name, so it is not drawn.")


# The blocks.


class _Reader:
    """Reads statements and expressions into blocks."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._count = 0

    def _new(
        self, kind: BlockKind, label: str, node: ast.expr | ast.stmt, parts: Iterable[Part] = (), end: int | None = None
    ) -> Block:
        self._count += 1
        return Block(
            self._count, kind, _short(label), node.lineno, end or node.end_lineno or node.lineno, parts=tuple(parts)
        )

    def statements(self, body: Sequence[ast.stmt]) -> tuple[Block, ...]:
        """Return the blocks of statements."""
        return tuple(chain.from_iterable(map(self._statement, body)))

    def _statement(self, node: ast.stmt) -> list[Block]:
        """Return the blocks of a statement; none if it has no durable call and does not leave the code around it."""
        match node:
            case ast.If():
                return self._if(node)
            case ast.Match(subject=subject, cases=cases):
                parts = [self._case(each) for each in cases]
                last = cases[-1]
                is_whole = isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None and last.guard is None
                label = f"match {_text(subject)}"
                return [*self._of(subject), *self._choice(node, label, parts, subject, not is_whole)]
            case ast.While(test=test, body=body, orelse=orelse):
                tested, inner = self._of(test), self.statements(body)
                is_endless = isinstance(test, ast.Constant) and bool(test.value)
                return self._loop(node, f"while {_text(test)}", inner, test, orelse, not is_endless, tested)
            case ast.For(target=target, iter=iterable, body=body, orelse=orelse):
                label = f"for {_text(target)} in {_text(iterable)}"
                before = self._of(iterable)
                return [*before, *self._loop(node, label, self.statements(body), iterable, orelse)]
            case ast.AsyncFor(target=target, iter=iterable, body=body, orelse=orelse):
                label = f"async for {_text(target)} in {_text(iterable)}"
                tested = self._awaited(iterable)
                return self._loop(node, label, self.statements(body), iterable, orelse, test=tested)
            case ast.Try() | ast.TryStar():
                return self._try(node)
            case ast.With(items=items, body=body):
                return [*self._each(item.context_expr for item in items), *self.statements(body)]
            case ast.AsyncWith(items=items, body=body):
                return self._async_with(node, [item.context_expr for item in items], body)
            case ast.Return(value=value):
                return [*self._of(value), self._new(BlockKind.RETURN, _text(node), node)]
            case ast.Raise(exc=error):
                return [*self._of(error), self._new(BlockKind.RAISE, _text(node), node)]
            case ast.Break():
                return [self._new(BlockKind.BREAK, "break", node)]
            case ast.Continue():
                return [self._new(BlockKind.CONTINUE, "continue", node)]
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return []
        return self._of(node)

    def _choice(
        self, node: ast.expr | ast.stmt, label: str, parts: list[Part], head: ast.expr, skip: bool
    ) -> list[Block]:
        if not any(part.blocks for part in parts):
            return []
        parts += [Part("no" if len(parts) == 1 else "else")] if skip else []
        return [self._new(BlockKind.CHOICE, label, node, parts, head.end_lineno)]

    def _case(self, case: ast.match_case) -> Part:
        guard = "" if case.guard is None else f" if {_text(case.guard)}"
        label = _short(f"case {_text(case.pattern)}{guard}")
        return Part(label, (*self._of(case.guard), *self.statements(case.body)), case.pattern.lineno)

    def _if(self, node: ast.If) -> list[Block]:
        before = self._of(node.test)
        branches, rest = [(node.test, node.body)], node.orelse
        while len(rest) == 1 and isinstance(rest[0], ast.If) and not self._of(rest[0].test):  # elif
            branches.append((rest[0].test, rest[0].body))
            rest = rest[0].orelse
        is_chain = len(branches) > 1
        parts = [
            Part(
                _short(_text(test)) if is_chain else "yes",
                self.statements(body),
                test.lineno if test is not node.test else 0,
            )
            for test, body in branches
        ]
        if rest:
            parts.append(Part("else" if is_chain else "no", self.statements(rest)))
        label = "if … elif …" if is_chain else f"if {_text(node.test)}"
        return [*before, *self._choice(node, label, parts, node.test, not rest)]

    def _loop(
        self,
        node: ast.expr | ast.stmt,
        label: str,
        inner: tuple[Block, ...],
        head: ast.expr,
        orelse: Sequence[ast.stmt] = (),
        skip: bool = True,
        test: Sequence[Block] = (),
    ) -> list[Block]:
        after = self._choice(node, "loop ended without break", [Part("yes", self.statements(orelse))], head, True)
        if not inner and not test:
            return after
        tested = [Part(TEST, tuple(test))] if test else []
        parts = [*tested, Part("", inner), *([Part("")] if skip else [])]
        return [self._new(BlockKind.LOOP, label, node, parts, head.end_lineno), *after]

    def _try(self, node: ast.Try | ast.TryStar) -> list[Block]:
        handlers = [
            Part(
                f"except {_text(each.type)}" if each.type is not None else "except",
                self.statements(each.body),
                each.lineno,
            )
            for each in node.handlers
        ]
        parts = [Part("try", self.statements(node.body)), *handlers]
        if node.orelse:
            parts.append(Part("else", self.statements(node.orelse)))
        if node.finalbody:
            parts.append(Part("finally", self.statements(node.finalbody)))
        if not any(part.blocks for part in parts):
            return []
        return [self._new(BlockKind.TRY, f"try … {parts[-1].label.partition(' ')[0]}", node, parts, node.lineno)]

    def _async_with(self, node: ast.AsyncWith, items: Sequence[ast.expr], body: Sequence[ast.stmt]) -> list[Block]:
        before = [block for item in items for block in self._awaited(item)]
        inner = self.statements(body)
        functions = [self._names.found(item.func) for item in items if isinstance(item, ast.Call)]
        if inner and any(map(is_concurrent, functions)):
            return [*before, self._new(BlockKind.PARALLEL, "task group", node, [Part("", inner)], node.lineno)]
        return [*before, *inner]

    # Expressions.

    def _each(self, nodes: Iterable[ast.AST], is_awaited: bool = False) -> list[Block]:
        return list(chain.from_iterable(self._of(node, is_awaited) for node in nodes))

    def _awaited(self, node: ast.expr) -> list[Block]:
        """Return the blocks of what `async for` and `async with` call, which may have steps of its own."""
        return self._of(node, True) if isinstance(node, ast.Call) else [self._new(BlockKind.DYNAMIC, _text(node), node)]

    def _of(self, node: ast.AST | None, is_awaited: bool = False) -> list[Block]:
        """Return the blocks of an expression, in the order of its calls; `is_awaited` if it is, also by a task."""
        match node:
            case None | ast.Lambda():
                return []
            case ast.Await(value=value):
                return self._of(value, True)
            case ast.Starred(value=value):
                return self._of(value, is_awaited)
            case ast.Call():
                return self._call(node, is_awaited)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                parts = [
                    Part("yes", tuple(self._of(body, is_awaited))),
                    Part("no", tuple(self._of(orelse, is_awaited))),
                ]
                return [*self._of(test), *self._choice(node, f"if {_text(test)}", parts, node, False)]
            case ast.BoolOp(op=op, values=[first, second, *more]):
                other = ast.copy_location(ast.BoolOp(op, [second, *more]), second) if more else second
                parts = [Part("yes", tuple(self._of(other)))]
                word = "if" if isinstance(node.op, ast.And) else "if not"
                return [*self._of(first), *self._choice(node, f"{word} {_text(first)}", parts, node, True)]
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
                return self._comprehension(node, node.generators, self._each(values, is_awaited))
            case ast.List() | ast.Tuple() | ast.Set():
                return self._each(node.elts, is_awaited)
        return self._each(ast.iter_child_nodes(node))

    def _comprehension(
        self, node: ast.expr, generators: Sequence[ast.comprehension], inner: Sequence[Block]
    ) -> list[Block]:
        """Return the loops of a comprehension, one in the other."""
        first, *others = generators
        if others:
            inner = self._comprehension(node, others, inner)
        if tests := self._each(first.ifs):
            label = f"if {' and '.join(map(_text, first.ifs))}"
            inner = [*tests, *self._choice(node, label, [Part("yes", tuple(inner))], node, True)]
        label = _text(first).strip()
        if first.is_async:
            return self._loop(node, label, tuple(inner), node, test=self._awaited(first.iter))
        return [*self._of(first.iter), *self._loop(node, label, tuple(inner), node)]

    def _call(self, node: ast.Call, is_awaited: bool) -> list[Block]:
        found = self._names.found(node.func)
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        if found is calls.recur:
            return [*self._each(given), self._new(BlockKind.RETURN, _text(node), node)]
        if (call := self._names.call(found)) is not None:
            return [*self._each(given), self._step(node, call)]
        if is_concurrent(found):
            tasks = [part for each in node.args for part in self._tasks(each)]
            label = f"{_text(node.func)}()"
            return [self._new(BlockKind.PARALLEL, label, node, tasks)] if tasks else []
        creates_task = isinstance(node.func, ast.Attribute) and node.func.attr == "create_task"  # of a task group
        if is_transparent(found) or (found is UNKNOWN and creates_task):
            return self._each(given, True)
        before = [*self._of(node.func), *self._each(given)]
        if is_awaited or is_asynchronous(found):
            before.append(self._new(BlockKind.DYNAMIC, f"{_text(node.func)}()", node))
        return before

    def _tasks(self, node: ast.expr) -> list[Part]:
        """Return the concurrent parts of an argument, such as of the list that `asyncio.wait()` takes."""
        elements = node.elts if isinstance(node, ast.List | ast.Tuple | ast.Set) else [node]
        return [Part("", tuple(blocks)) for each in elements if (blocks := self._of(each, True))]

    def _step(self, node: ast.Call, call: DurableCall) -> Block:
        label, topic = call.label, ""
        if node.args and call.what not in ("activity", "child") and call.step != "start":
            argument = node.args[0]
            topic = argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else ""
            label += f" {topic or _text(argument)}"
        block = self._new(BlockKind.STEP, label, node)
        return replace(block, step=call.step, what=call.what, topic=topic if call.what in ("event", "message") else "")


class _Cut:
    """Leaves out blocks that are too many or too deep: a dynamic block stands for them."""

    def __init__(self) -> None:
        self._room = BLOCKS_MAX

    def blocks(self, blocks: Sequence[Block], depth: int = 1) -> tuple[Block, ...]:
        """Return the blocks that there is room for. A part needs room, too: it may end in a block for its rest."""
        found: list[Block] = []
        for number, block in enumerate(blocks):
            if not self._room:
                found.append(_not_drawn(blocks[number:]))
                break
            self._room -= 1
            if block.parts and (depth > DEPTH_MAX or len(block.parts) > self._room):
                found.append(_not_drawn([block]))
            elif block.parts:
                self._room -= len(block.parts)
                parts = [replace(part, blocks=self.blocks(part.blocks, depth + 1)) for part in block.parts]
                found.append(replace(block, parts=tuple(parts)))
            else:
                found.append(block)
        return tuple(found)


def _not_drawn(blocks: Sequence[Block]) -> Block:
    first, last = blocks[0], max(map(_last_line, blocks))
    label = f"not drawn: {last - first.line + 1:,} lines"
    return Block(first.id, BlockKind.DYNAMIC, label, first.line, last)


def _last_line(block: Block) -> int:
    inner = (_last_line(each) for part in block.parts for each in part.blocks)
    return max(block.end_line, max(inner, default=0))


def _text(node: ast.AST) -> str:
    return ast.unparse(node)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LABEL_MAX else f"{text[: LABEL_MAX - 1]}…"
