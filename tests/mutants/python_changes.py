"""The changes of a Python module.

Not changed: docstrings, annotations, assertions, decorators, f-strings, `__repr__`, what is logged, and the arguments
of errors.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache

from tests.mutants.changes import Change

OPERATORS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: (r"<", "<="),
    ast.LtE: (r"<=", "<"),
    ast.Gt: (r">", ">="),
    ast.GtE: (r">=", ">"),
    ast.Eq: (r"==", "!="),
    ast.NotEq: (r"!=", "=="),
    ast.Is: (r"\bis\b", "is not"),
    ast.IsNot: (r"\bis\s+not\b", "is"),
    ast.In: (r"\bin\b", "not in"),
    ast.NotIn: (r"\bnot\s+in\b", "in"),
}
OPPOSITES = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)  # changing one of these negates the comparison
UNCHANGED_CALLS = frozenset("TypeVar ParamSpec NewType getLogger ContextVar cast load_statements import_module".split())
UNCHANGED_KEYWORDS = frozenset("name thread_name_prefix extra stacklevel strict".split())  # for people; assertions
UNCHANGED_NAMES = frozenset({"__all__", "__slots__"})
UNREACHABLE = frozenset({"NotImplementedError", "AssertionError"})
SQL = re.compile(r"[A-Z]{2,}\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def changes(text: str) -> list[Change]:
    """Return all changes of a module, by position."""
    finder = _Finder(text)
    finder.visit(ast.parse(text))
    return sorted(finder.found, key=lambda change: (change.start, change.end))


@cache
def definitions(text: str) -> list[tuple[int, int]]:
    """Return the first and last line of each function, each method, and each statement outside of these."""
    return [(node.lineno, node.end_lineno or node.lineno) for node in _definitions(ast.parse(text).body)]


def _definitions(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in statements:
        if isinstance(statement, ast.ClassDef):
            yield from _definitions(statement.body)
        else:
            yield statement


class _Finder(ast.NodeVisitor):
    def __init__(self, text: str) -> None:
        self.found: list[Change] = []
        self._text = text
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._line = 0  # of the statement, in a function
        self._function = ""

    # Positions

    def _offset(self, line: int, column: int) -> int:
        """Return a position in the text; columns count bytes."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _span(self, *nodes: ast.expr | ast.stmt) -> tuple[int, int]:
        first, last = nodes[0], nodes[-1]
        assert last.end_lineno is not None
        assert last.end_col_offset is not None
        return self._offset(first.lineno, first.col_offset), self._offset(last.end_lineno, last.end_col_offset)

    def _replace(self, operator: str, node: ast.expr | ast.stmt, new: str) -> None:
        start, end = self._span(node)
        self.found.append(Change(operator, start, end, new, self._line))

    def _source(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self._text[start:end]

    def _replace_between(self, operator: str, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """Change what stands between two operands."""
        start, end = self._span(left)[1], self._span(right)[0]
        if found := re.search(old, self._text[start:end]):
            self.found.append(Change(operator, start + found.start(), start + found.end(), new, self._line))

    # Blocks

    def _block(self, statements: Sequence[ast.stmt]) -> None:
        outer = self._line
        for statement in statements:
            if self._function:
                self._line = statement.lineno
            self.visit(statement)
        self._line = outer

    def visit_Module(self, node: ast.Module) -> None:
        self._block(_without_docstring(node.body))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self._function = self._function, ""
        self._block(_without_docstring(node.body))
        self._function = outer

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_function(node)

    def _visit_function(self, node: Function) -> None:
        body = _without_docstring(node.body)
        if not body or node.name == "__repr__":
            return
        outer = self._line, self._function
        self._line, self._function = body[0].lineno, node.name
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        self._block(body)
        self._line, self._function = outer

    # Statements

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id in ("TYPE_CHECKING", "__debug__"):
            return
        self._condition(node.test)
        self._block(node.body)
        self._block(node.orelse)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._condition(node.test)
        self._block(node.body)

    def visit_For(self, node: ast.For) -> None:
        self._loop(node)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        self._loop(node)

    def _loop(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self._block(node.body)
        self._block(node.orelse)

    def visit_With(self, node: ast.With) -> None:
        self._with(node)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> None:
        self._with(node)

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            self.visit(item.context_expr)
        self._block(node.body)

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        for case in node.cases:
            if case.guard is not None:
                self._condition(case.guard)
            self._block(case.body)

    def visit_Try(self, node: ast.Try) -> None:
        self._block(node.body)
        for handler in node.handlers:
            self._drop_block("handler", handler.body, "raise" if _is_short(handler.body) else "pass")
            self._block(handler.body)
        self._block(node.orelse)
        if node.finalbody:
            self._drop_block("finally", node.finalbody, "pass")
            self._block(node.finalbody)

    def _drop_block(self, operator: str, block: Sequence[ast.stmt], new: str) -> None:
        if isinstance(block[-1], ast.Raise) and len(block) == 1:
            return
        start, end = self._span(block[0], block[-1])
        self.found.append(Change(operator, start, end, new, block[0].lineno if self._function else 0))

    def visit_Expr(self, node: ast.Expr) -> None:
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        if _is_logging(value) or isinstance(value, ast.Constant):
            return
        if isinstance(value, ast.Call | ast.YieldFrom) or (isinstance(value, ast.Yield) and value.value is not None):
            self._replace("drop", node, "pass")
        self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(target, ast.Name) and target.id in UNCHANGED_NAMES for target in node.targets):
            return
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._drop_assignment(node)
        if self._function or not _is_tuning(node.value):
            self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            if isinstance(node.target, ast.Attribute | ast.Subscript):
                self._drop_assignment(node)
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._drop_assignment(node)
        if isinstance(node.op, ast.Add | ast.Sub):
            self._replace_augmented(node)
        self.visit(node.value)

    def _replace_augmented(self, node: ast.AugAssign) -> None:
        old, new = (r"\+=", "-=") if isinstance(node.op, ast.Add) else ("-=", "+=")
        self._replace_between("arithmetic", node.target, node.value, old, new)

    def _drop_assignment(self, node: ast.stmt) -> None:
        if self._function and self._function != "__init__":  # nothing works without an attribute
            self._replace("drop", node, "pass")

    def visit_Delete(self, node: ast.Delete) -> None:
        self._replace("drop", node, "pass")

    def visit_Raise(self, node: ast.Raise) -> None:
        error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        if not (isinstance(error, ast.Name) and error.id in UNREACHABLE):
            self._replace("raise", node, "pass")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None):
            return
        self._replace("return", node.value, "None")
        self.visit(node.value)

    def visit_Break(self, node: ast.Break) -> None:
        self._replace("loop", node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace("loop", node, "break")

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    # Expressions

    def _condition(self, test: ast.expr) -> None:
        is_opposite = isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], OPPOSITES)
        if not is_opposite and not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            self._replace("negate", test, f"not ({self._source(test)})")
        self.visit(test)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        if not any(isinstance(branch, ast.JoinedStr) for branch in (node.body, node.orelse)):  # a part of a text
            self.visit(node.body)
            self.visit(node.orelse)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self.visit(node.iter)
        for condition in node.ifs:
            self._condition(condition)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            self._replace_between("compare", left, right, *OPERATORS[type(operator)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        is_and = isinstance(node.op, ast.And)
        old, new = (r"\band\b", "or") if is_and else (r"\bor\b", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._replace_between("and-or", left, right, old, new)
        for value in node.values:
            self._replace("term", value, "True" if is_and else "False")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Add | ast.Sub) and not (_is_sequence(node.left) or _is_sequence(node.right)):
            old, new = (r"\+", "-") if isinstance(node.op, ast.Add) else ("-", "+")
            self._replace_between("arithmetic", node.left, node.right, old, new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._replace("negate", node, f"({self._source(node.operand)})")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = _name(node.func)
        if name in UNCHANGED_CALLS or name.endswith(("Error", "Exception", "Warning")) or _is_logging(node):
            return
        if isinstance(node.func, ast.Name) and name in ("min", "max"):
            self._replace("min-max", node.func, "max" if name == "min" else "min")
        self.visit(node.func)
        is_check = isinstance(node.func, ast.Attribute) and _name(node.func.value) == "limits"
        for argument in node.args:
            if not (
                is_check and isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            ):  # for its error
                self.visit(argument)
        for keyword in node.keywords:
            if keyword.arg in UNCHANGED_KEYWORDS:
                continue
            if keyword.arg is not None and isinstance(keyword.value, ast.Name | ast.Attribute):
                self._replace("keyword", keyword.value, "None")
            self.visit(keyword.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._replace("constant", node, str(not value))
        elif isinstance(value, int):  # not a float: those are seconds, and no test depends on a little more of them
            self._replace("constant", node, str(value + 1))
            if value:
                self._replace("constant", node, str(value - 1))
        elif isinstance(value, str) and (" " not in value.strip() or SQL.match(value)):  # not a text for people
            self._replace("constant", node, '""' if value else '"mutant"')

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not _name(node.value)[:1].isupper():  # a type
            self.generic_visit(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.body)


def _without_docstring(body: Sequence[ast.stmt]) -> Sequence[ast.stmt]:
    first = body[0] if body else None
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return body[1:] if is_docstring else body


def _is_short(block: Sequence[ast.stmt]) -> bool:
    """Return whether a handler has nothing else to drop: the error itself is then not handled."""
    return len(block) == 1 and isinstance(block[0], ast.Pass | ast.Return | ast.Continue | ast.Break)


def _is_logging(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and _name(node.func.value) in ("log", "_log")
    )


def _is_tuning(node: ast.expr) -> bool:
    """Return whether a setting could as well be a little larger or smaller."""
    return isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value > 10


def _is_sequence(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
