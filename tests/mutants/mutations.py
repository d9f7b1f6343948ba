"""The small changes that a test must notice, made in the text of one module.

    mutants = mutants_of(Path("helper/ledger/chain.py"), source)
    changed = mutants[0].applied(source)

Annotations, docstrings, messages, log lines and what stands in an f-string are left alone.
"""

import ast
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

LOCK: Final = "lock"
WEIGHTS: Final = {
    "comparison": 5,
    "constant": 3,
    "arithmetic": 3,
    "guard": 4,
    "logic": 2,
    "removed statement": 5,
    "removed raise": 1,
    "returned early": 2,
    "result": 1,
    "swapped arguments": 2,
    "off by one": 1,
    "block": 1,
    LOCK: 2,
}
"""The kinds of changes, and how often a sample holds each."""

_COMPARISONS: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
_SYMMETRIC: Final = {"min", "max", "minimum", "maximum", "gcd", "compare_digest"}
_OTHER_NAMES: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LOCKS: Final = re.compile(r"lock|_changed|condition|turn|guard|mutex|only_one|alone", re.IGNORECASE)
_LOGS: Final = re.compile(r"^(_?LOG|_?log|logger|warnings|assert_never)\b")
_KERNELS: Final = {"kernel", "inline"}
_DROPPED_BLOCK: Final = '__import__("contextlib").nullcontext()'


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of one module.

    Attributes:
        path: The module's, from the root of the tree.
        function: The qualified name of the function or class around it; empty at the module's level.
        kind: One of `WEIGHTS`.
        line: Where the change begins.
        lines: The lines whose execution can show it: the statement's, or those of the whole function.
        statement: The statement's first line as `ast.unparse` writes it.
        change: What was there and what is there now.
        start: The first byte that is replaced.
        end: The byte after the last.
        text: What stands there instead.
        is_compiled: Whether numba compiles the function, so that no line of it is seen to run.
    """

    path: str
    function: str
    kind: str
    line: int
    lines: range
    statement: str
    change: str
    start: int
    end: int
    text: str
    is_compiled: bool = False

    def applied(self, source: bytes) -> bytes:
        """Return the changed source."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """What stays the same when lines around it move."""
        return self.path, self.function, self.statement, self.change


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Return every mutant of a module that still compiles, in the order of the text."""
    finder = _Finder(path, source)
    finder.visit_body(ast.parse(source))
    found = {(one.start, one.end, one.text): one for one in finder.found}
    return sorted(
        filter(partial(_compiles, source), found.values()), key=lambda one: (one.start, one.end, one.text)
    )


def _compiles(source: bytes, mutant: Mutant) -> bool:
    try:
        compile(mutant.applied(source), mutant.path, "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


class _Finder:
    """Walks the statements of a module."""

    def __init__(self, path: str, source: bytes) -> None:
        self._path = path
        self._offsets = [0]
        for line in source.split(b"\n"):
            self._offsets.append(self._offsets[-1] + len(line) + 1)
        self._scope: tuple[str, ...] = ()
        self._function: ast.FunctionDef | ast.AsyncFunctionDef | None = None
        self._is_compiled = False
        self._statement: ast.stmt | None = None
        self.found: list[Mutant] = []

    def visit_body(self, node: ast.AST) -> None:
        for name in ("body", "orelse", "finalbody"):
            for statement in getattr(node, name, ()):
                self._visit(statement)
        for inner in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            self.visit_body(inner)

    def _visit(self, statement: ast.stmt) -> None:
        if _is_docstring(statement) or _is_for_types(statement) or _is_log(statement):
            return
        self._statement = statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._visit_scope(statement)
            return
        self._statements(statement)
        for expression in _expressions(statement):
            self._expression(expression)
        self.visit_body(statement)

    def _visit_scope(self, scope: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        outer = self._scope, self._function, self._is_compiled
        self._scope = (*self._scope, scope.name)
        if not isinstance(scope, ast.ClassDef):
            self._function = scope
            names = {
                node.id
                for one in scope.decorator_list
                for node in ast.walk(one)
                if isinstance(node, ast.Name)
            }
            self._is_compiled = self._is_compiled or bool(names & _KERNELS)
            for default in (*scope.args.defaults, *filter(None, scope.args.kw_defaults)):
                self._expression(default)
        self.visit_body(scope)
        self._scope, self._function, self._is_compiled = outer

    # Statements

    def _statements(self, statement: ast.stmt) -> None:
        match statement:
            case ast.If() | ast.While() if not _binds(statement.test):
                self._replace(statement.test, "False", kind="guard")
                if isinstance(statement, ast.If):
                    self._replace(statement.test, "True", kind="guard")
            case ast.Raise():
                self._replace(statement, "pass", kind="removed raise")
            case ast.With():
                self._with(statement)
            case ast.Break():
                self._replace(statement, "continue", kind="logic")
            case ast.Continue():
                self._replace(statement, "break", kind="logic")
            case ast.Return() if statement.value is not None:
                self._result(statement.value)
        if _is_removable(statement):
            self._replace(statement, "pass", kind="removed statement")
        if not isinstance(statement, ast.Return | ast.Raise | ast.Pass | ast.Nonlocal | ast.Global):
            self._returned_early(statement)

    def _with(self, statement: ast.With) -> None:
        for item in statement.items:
            if item.optional_vars is None:
                is_lock = _LOCKS.search(ast.unparse(item.context_expr))
                self._replace(item.context_expr, _DROPPED_BLOCK, kind=LOCK if is_lock else "block")

    def _returned_early(self, statement: ast.stmt) -> None:
        """Leave out the rest of a function, unless that is the one statement that is removed anyway."""
        function = self._function
        if function is None:
            return
        is_edge = statement is function.body[0] or statement is function.body[-1]
        if self._returns() == "None" and not (is_edge and _is_removable(statement)):
            self._replace(statement, "return", kind="returned early")
        elif self._returns() == "bool":
            self._replace(statement, "return True", kind="returned early")
            self._replace(statement, "return False", kind="returned early")

    def _result(self, value: ast.expr) -> None:
        if self._returns() == "bool":
            self._replace(value, f"not ({ast.unparse(value)})", kind="result")
        elif self._returns().endswith("| None") and ast.unparse(value) != "None":
            self._replace(value, "None", kind="result")

    def _returns(self) -> str:
        function = self._function
        return ast.unparse(function.returns) if function is not None and function.returns else ""

    # Expressions

    def _expression(self, node: ast.AST) -> None:
        if isinstance(node, ast.JoinedStr):
            return  # positions in an f-string are not those of the file
        if isinstance(node, ast.Call) and _is_error(node):
            return  # what an error says
        self._operation(node)
        for child in ast.iter_child_nodes(node):
            self._expression(child)
        if isinstance(node, ast.comprehension):
            for condition in node.ifs:
                self._replace(condition, "True", kind="guard")

    def _operation(self, node: ast.AST) -> None:
        match node:
            case ast.Compare():
                self._comparison(node)
            case ast.BinOp():
                self._arithmetic(node)
            case ast.BoolOp():
                self._logic(node)
            case ast.UnaryOp(op=ast.Not()):
                self._replace(node, f"({ast.unparse(node.operand)})", kind="logic")
            case ast.UnaryOp(op=ast.USub()):
                self._replace(node, f"({ast.unparse(node.operand)})", kind="arithmetic")
            case ast.IfExp():
                self._replace(node.test, "True", kind="guard")
                self._replace(node.test, "False", kind="guard")
            case ast.Constant():
                self._constant(node)
            case ast.Call():
                self._call(node)

    def _comparison(self, node: ast.Compare) -> None:
        for index, op in enumerate(node.ops):
            for other in _COMPARISONS[type(op)]:

                def change(changed: ast.Compare, index: int = index, other: type[ast.cmpop] = other) -> None:
                    changed.ops[index] = other()

                self._changed(node, change, kind="comparison")

    def _arithmetic(self, node: ast.BinOp) -> None:
        other = _OPERATORS.get(type(node.op))
        if other is None or any(_is_text(side) for side in (node.left, node.right)):
            return

        def change(changed: ast.BinOp) -> None:
            changed.op = other()

        self._changed(node, change, kind="arithmetic")

    def _logic(self, node: ast.BoolOp) -> None:
        def change(changed: ast.BoolOp) -> None:
            changed.op = ast.Or() if isinstance(changed.op, ast.And) else ast.And()

        self._changed(node, change, kind="logic")
        for index in range(len(node.values)):
            if not _binds(node.values[index]):
                rest = [value for place, value in enumerate(node.values) if place != index]
                left = ast.BoolOp(node.op, rest) if len(rest) > 1 else rest[0]
                self._replace(node, f"({ast.unparse(left)})", kind="guard")

    def _constant(self, node: ast.Constant) -> None:
        value = node.value
        match value:
            case bool():
                self._replace(node, repr(not value), kind="constant")
            case int():
                self._replace(node, repr(value + 1), kind="constant")
                if value > 1:
                    self._replace(node, repr(value - 1), kind="constant")
            case float():
                self._replace(node, repr(value * 1.5 if value else 1.0), kind="constant")
            case bytes():
                self._replace(node, repr(value + b"?"), kind="constant")

    def _call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in _OTHER_NAMES:
            self._replace(node.func, _OTHER_NAMES[node.func.id], kind="logic")
        if isinstance(node.func, ast.Name) and node.func.id == "range" and len(node.args) <= 2:
            self._replace(node.args[-1], f"({ast.unparse(node.args[-1])}) - 1", kind="off by one")
        plain = [one for one in node.args if not isinstance(one, ast.Starred)]
        is_symmetric = ast.unparse(node.func).rpartition(".")[2] in _SYMMETRIC
        if (
            not is_symmetric
            and len(plain) == len(node.args) >= 2
            and ast.unparse(node.args[0]) != ast.unparse(node.args[1])
        ):

            def swap(changed: ast.Call) -> None:
                changed.args[0], changed.args[1] = changed.args[1], changed.args[0]

            self._changed(node, swap, kind="swapped arguments")
        named = [one for one in node.keywords if one.arg is not None]
        if len(named) >= 2 and ast.unparse(named[0].value) != ast.unparse(named[1].value):

            def swap_named(changed: ast.Call) -> None:
                first, second = [one for one in changed.keywords if one.arg is not None][:2]
                first.value, second.value = second.value, first.value

            self._changed(node, swap_named, kind="swapped arguments")

    # What is found

    def _changed(self, node: ast.expr, change: Callable[[Any], None], *, kind: str) -> None:
        if any(isinstance(inner, ast.JoinedStr) for inner in ast.walk(node)):
            return
        changed = deepcopy(node)
        change(changed)
        self._replace(node, f"({ast.unparse(changed)})", kind=kind)

    def _replace(self, node: ast.AST, text: str, *, kind: str) -> None:
        statement, function = self._statement, self._function
        assert statement is not None
        at: Any = node
        is_outside = function is None or statement is function
        whole = function if is_outside and function is not None else statement
        self.found.append(
            Mutant(
                path=self._path,
                function=".".join(self._scope),
                kind=kind,
                line=at.lineno,
                lines=range(0) if is_outside else range(statement.lineno, _header_end(whole) + 1),
                statement=_header(statement),
                change=f"{' '.join(ast.unparse(node).split())} -> {' '.join(text.split())}",
                start=self._offsets[at.lineno - 1] + at.col_offset,
                end=self._offsets[at.end_lineno - 1] + at.end_col_offset,
                text=text,
                is_compiled=self._is_compiled,
            )
        )


def _expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """Yield what a statement evaluates itself, without annotations, targets' names and inner statements."""
    match statement:
        case ast.AnnAssign() | ast.Return():
            if statement.value is not None:
                yield statement.value
        case ast.Raise() | ast.Import() | ast.ImportFrom() | ast.Assert():
            return
        case ast.With():
            yield from (item.context_expr for item in statement.items)
        case ast.For():
            yield statement.iter
        case ast.Match():
            yield statement.subject
            yield from (case.guard for case in statement.cases if case.guard is not None)
        case _:
            yield from (child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.expr))


def _header(statement: ast.stmt) -> str:
    lines = ast.unparse(statement).splitlines()
    return next((line for line in lines if not line.startswith("@")), lines[0])[:300]


def _header_end(statement: ast.stmt) -> int:
    body = getattr(statement, "body", None)
    if body and not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return max(statement.lineno, int(body[0].lineno) - 1)
    return int(statement.end_lineno or statement.lineno)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_for_types(statement: ast.stmt) -> bool:
    """Whether only a type checker reads the statement."""
    if isinstance(statement, ast.If):
        return ast.unparse(statement.test).endswith("TYPE_CHECKING")
    if isinstance(statement, ast.Assign):
        return isinstance(statement.value, ast.Subscript | ast.BinOp) and all(
            isinstance(one, ast.Name) and one.id[:1].isupper() and not one.id.isupper()
            for one in statement.targets
        )
    return False


def _is_log(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.If) and not statement.orelse:
        return all(map(_is_log, statement.body))
    return isinstance(statement, ast.Expr) and bool(_LOGS.match(ast.unparse(statement.value)))


def _is_removable(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call() | ast.Await()):
            return True
        case ast.AugAssign() | ast.Delete():
            return True
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return True
    return False


def _binds(node: ast.expr) -> bool:
    return any(isinstance(inner, ast.NamedExpr) for inner in ast.walk(node))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_error(node: ast.Call) -> bool:
    name = ast.unparse(node.func).rpartition(".")[2]
    return name.endswith(("Error", "Rejected", "Refused", "Unavailable")) or name.startswith("Invalid")
