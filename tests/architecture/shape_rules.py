"""House rules on how a module is cut: its size, its name, its imports, its signatures."""

import ast
from collections.abc import Iterator
from pathlib import PurePosixPath

from tests.architecture.names import imported_modules, imported_names
from tests.architecture.sources import Sin, Source

MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
POSITIONS_MAX = 1
NAMELESS = frozenset(
    {"common", "core", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}
)
# The demo starts its services before Django may be set up.
MAY_IMPORT_LATE = ("manage.py",)
PROMISING_ROOMS = (
    "leaseq/api.py",
    "leaseq/services/",
    "leaseq/rules/",
    "leaseq/providers/base.py",
    "leaseq/testing/",
)

type_of_function = (ast.FunctionDef, ast.AsyncFunctionDef)


def a_module_is_short(source: Source) -> Iterator[Sin]:
    lines = source.text.count("\n")
    if lines > MODULE_LINES_MAX:
        yield source.sin(
            MODULE_LINES_MAX + 1,
            "a module is short",
            f"{lines} lines, at most {MODULE_LINES_MAX}: split it by what it decides",
        )


def a_function_is_short(source: Source) -> Iterator[Sin]:
    for function in _functions(source.tree):
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield source.sin(
                function,
                "a function is short",
                f"{function.name} has {lines} lines, at most {FUNCTION_LINES_MAX}: keep the ifs, "
                "move straight-line work out",
            )


def a_module_has_a_name(source: Source) -> Iterator[Sin]:
    for part in PurePosixPath(source.path).with_suffix("").parts:
        if part in NAMELESS:
            yield source.sin(
                1, "a module has a name", f"{part!r} says nothing: name it for what it holds"
            )


def imports_stand_at_the_top(source: Source) -> Iterator[Sin]:
    if source.lies_in(*MAY_IMPORT_LATE):
        return
    ready = _ready_methods(source.tree)
    for function in _functions(source.tree):
        if function in ready:
            continue
        for node in ast.walk(function):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                yield source.sin(
                    node,
                    "imports stand at the top",
                    f"{function.name} imports inside: only AppConfig.ready may; move the function",
                )


def no_import_hides_in_a_string(source: Source) -> Iterator[Sin]:
    origins = imported_names(source.tree)
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        named = node.args[0]
        called = _last_name(node.func)
        called = origins.get(called, called).rpartition(".")[2]
        ours = isinstance(named, ast.Constant) and str(named.value).startswith("leaseq")
        if ours and called in {"__import__", "import_module", "import_string"}:
            yield source.sin(
                node,
                "no import hides in a string",
                "a layer is not passed by naming a module of ours in a string",
            )


def the_door_is_for_users(source: Source) -> Iterator[Sin]:
    if not source.lies_in("leaseq/") or source.path == "leaseq/api.py":
        return
    for node, name in imported_modules(source.tree):
        if name == "leaseq.api" or name.startswith("leaseq.api."):
            yield source.sin(
                node, "the door is for users", "nothing inside leaseq imports leaseq.api"
            )


def a_promise_has_a_docstring(source: Source) -> Iterator[Sin]:
    if not source.lies_in(*PROMISING_ROOMS):
        return
    for node in _public(source.tree.body):
        if not ast.get_docstring(node):
            yield source.sin(
                node,
                "a promise has a docstring",
                f"{node.name} is public here: say what it promises",
            )


def a_verb_has_one_subject(source: Source) -> Iterator[Sin]:
    if not source.lies_in("leaseq/services/"):
        return
    for node in source.tree.body:
        if not isinstance(node, type_of_function) or node.name.startswith("_"):
            continue
        arguments = node.args
        positions = len(arguments.posonlyargs) + len(arguments.args) + bool(arguments.vararg)
        if positions > POSITIONS_MAX:
            what = f"{node.name} takes {positions} by position: all but the subject by keyword"
            yield source.sin(node, "a verb has one subject", what)
        if arguments.kwarg and arguments.kwarg.arg != "ids":  # an error's, as errors.py takes them
            what = f"{node.name} takes **{arguments.kwarg.arg}: name what it takes"
            yield source.sin(node, "a verb has one subject", what)


def the_time_is_handed_in(source: Source) -> Iterator[Sin]:
    if not source.lies_in("leaseq/", "leaseq_admin/"):
        return
    for function in _functions(source.tree):
        arguments = function.args
        optional = arguments.args[len(arguments.args) - len(arguments.defaults) :]
        optional += [
            one
            for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if default is not None
        ]
        if any(one.arg == "now" for one in optional):
            yield source.sin(
                function, "the time is handed in", f"{function.name} has a default for `now`"
            )


def leaseq_is_synchronous(source: Source) -> Iterator[Sin]:
    if not source.lies_in("leaseq/", "leaseq_admin/"):
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.AsyncFunctionDef):
            yield source.sin(node, "leaseq is synchronous", f"{node.name} is async")


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, type_of_function))


def _ready_methods(tree: ast.AST) -> set[ast.AST]:
    """Find the `ready` of every class that is an AppConfig."""
    return {
        member
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(_last_name(base) == "AppConfig" for base in node.bases)
        for member in node.body
        if isinstance(member, ast.FunctionDef) and member.name == "ready"
    }


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _public(
    body: list[ast.stmt],
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Give the public functions and classes of a module, and the public methods of the latter."""
    for node in body:
        if not isinstance(node, (*type_of_function, ast.ClassDef)) or node.name.startswith("_"):
            continue
        if any(_last_name(decorator) == "overload" for decorator in node.decorator_list):
            continue
        yield node
        if isinstance(node, ast.ClassDef):
            yield from _public([one for one in node.body if isinstance(one, type_of_function)])
