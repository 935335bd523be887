"""House rules on what code may do: tell the time, draw chance, catch, wait, write SQL."""

import ast
import re
from collections.abc import Iterator

from tests.architecture.names import imported_names, references
from tests.architecture.sources import Sin, Source

ONE_DOOR = ("leaseq/db/clock.py", "leaseq/db/identity.py", "leaseq/owner/clock.py")
NOT_PRODUCT = ("tests/", "project/", "manage.py", ".ci/")
TIME_AND_CHANCE = frozenset(
    {
        "datetime.date.today",
        "datetime.datetime.now",
        "datetime.datetime.today",
        "datetime.datetime.utcnow",
        "django.db.models.functions.Now",
        "django.utils.timezone.now",
        "django.utils.timezone.localtime",
        "os.urandom",
        "time.time",
        "time.time_ns",
        "uuid.uuid1",
        "uuid.uuid4",
    }
)
CHANCE_MODULES = frozenset({"random", "secrets"})

# Where a foreign failure must not end the process, and why it may be met whole.
PROCESS_EDGES = (
    "leaseq/worker/heartbeat.py",  # a heartbeat that dies silently loses every lease it renews
    "leaseq/worker/runner.py",  # whatever a task raises is its outcome
    "leaseq/worker/stop.py",  # a watch that dies silently stops nobody any more
)
BROAD = frozenset({"BaseException", "Exception"})

STATEMENTS = ("leaseq/db/", "leaseq/migrations/")
SQL_VERBS = frozenset({"execute", "executemany", "copy", "raw", "RawSQL"})
SQL_CLOCK = re.compile(
    r"\b(clock_timestamp|statement_timestamp|transaction_timestamp|current_timestamp"
    r"|localtimestamp)\b|\bnow\s*\(\s*\)",
    re.IGNORECASE,
)


def time_and_chance_come_through_one_door(source: Source) -> Iterator[Sin]:
    if source.lies_in(*ONE_DOOR, *NOT_PRODUCT):
        return
    rule = "time and chance come through one door"
    for use, name in references(source.tree):
        if name in TIME_AND_CHANCE or name.partition(".")[0] in CHANCE_MODULES:
            yield source.sin(use, rule, f"{name} belongs in {' or '.join(ONE_DOOR[:2])}")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.keyword) and node.arg in {"auto_now", "auto_now_add"}:
            yield source.sin(node.value, rule, f"{node.arg} reads the clock of this process")


def a_broad_except_stands_at_an_edge(source: Source) -> Iterator[Sin]:
    if source.lies_in("tests/", *PROCESS_EDGES):
        return
    for node in broad_catches(source):
        yield source.sin(
            node,
            "a broad except stands at an edge",
            "name the exceptions, or move this to a process edge",
        )


def nothing_is_swallowed(source: Source) -> Iterator[Sin]:
    """At an edge too: logged and raised again, or turned into a verdict."""
    if source.lies_in("tests/"):
        return
    for node in broad_catches(source):
        body = node.body if isinstance(node, ast.ExceptHandler) else []
        if not any(_does_something(statement) for statement in body):
            yield source.sin(
                node,
                "nothing is swallowed",
                "a broad except must log, raise again, or make a verdict",
            )


def no_sql_is_put_together(source: Source) -> Iterator[Sin]:
    if source.lies_in("tests/", *STATEMENTS):
        return
    built = _built_texts(source.tree)
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call) or _called(node) not in SQL_VERBS or not node.args:
            continue
        text = node.args[0]
        if _is_built(text) or (isinstance(text, ast.Name) and text.id in built):
            yield source.sin(
                node,
                "no SQL is put together",
                "pass a constant text with parameters, from leaseq/db",
            )


def the_orm_is_not_bypassed(source: Source) -> Iterator[Sin]:
    rule = "the ORM is not bypassed"
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr in {"raw", "extra"}:
            yield source.sin(node, rule, f".{node.func.attr}(): write the statement in leaseq/db")
        elif _called(node) == "RawSQL":
            yield source.sin(node, rule, "RawSQL: write the statement in leaseq/db")


def the_database_tells_the_time_in_one_room(source: Source) -> Iterator[Sin]:
    if source.lies_in("leaseq/db/", "tests/"):
        return
    docs = _docstrings(source.tree)
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if id(node) not in docs and (found := SQL_CLOCK.search(node.value)):
            yield source.sin(
                node,
                "the database tells the time in one room",
                f"{found.group()} belongs in leaseq/db, read after the lock",
            )


def a_test_waits_for_signals(source: Source) -> Iterator[Sin]:
    """A loop that looks again until something is true may pause between its looks."""
    if not source.lies_in("tests/"):
        return
    pauses = {
        id(inner)
        for loop in ast.walk(source.tree)
        if isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant)
        for inner in ast.walk(loop)
    }
    for node, name in references(source.tree):
        if name == "time.sleep" and id(node) not in pauses:
            yield source.sin(
                node,
                "a test waits for signals",
                "no sleep: wait on an event, a queue or a barrier, or look until a deadline",
            )


def nothing_is_left_for_later(source: Source) -> Iterator[Sin]:
    rule = "nothing is left for later"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name) and node.id == "NotImplementedError":
            yield source.sin(node, rule, "NotImplementedError: build it, or leave it out")
    for number, line in enumerate(source.text.splitlines(), start=1):
        if re.search(r"#.*\b(T[O]DO|FIXM[E]|X{3}|HAC[K])\b", line):
            yield source.sin(number, rule, "do it, or file it where it is seen")


def broad_catches(source: Source) -> Iterator[ast.ExceptHandler | ast.Call]:
    origins = imported_names(source.tree)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler):
            if node.type is None or _names_everything(node.type):
                yield node
        elif isinstance(node, ast.Call):
            called = _called(node)
            suppresses = origins.get(called, called).rpartition(".")[2] == "suppress"
            if suppresses and any(_names_everything(one) for one in node.args):
                yield node


def _names_everything(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):
        return any(_names_everything(one) for one in node.elts)
    return isinstance(node, ast.Name) and node.id in BROAD


def _does_something(statement: ast.stmt) -> bool:
    return any(
        isinstance(node, (ast.Raise, ast.Call, ast.Assign, ast.AugAssign))
        or (isinstance(node, ast.Return) and not _is_none(node.value))
        for node in ast.walk(statement)
    )


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _is_built(node: ast.expr) -> bool:
    """Whether a text is made of pieces; psycopg's own SQL objects are not texts."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, (ast.Add, ast.Mod))
    if isinstance(node, ast.JoinedStr):
        return any(isinstance(part, ast.FormattedValue) for part in node.values)
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"format", "format_map", "join", "replace"}
        and not isinstance(node.func.value, ast.Call)
    )


def _built_texts(tree: ast.AST) -> set[str]:
    """Name the variables that somewhere in this module hold a text made of pieces."""
    built: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _is_built(node.value):
            built |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif (
            isinstance(node, (ast.AnnAssign, ast.AugAssign))
            and isinstance(node.target, ast.Name)
            and node.value is not None
            and (isinstance(node, ast.AugAssign) or _is_built(node.value))
        ):
            built.add(node.target.id)
    return built


def _docstrings(tree: ast.AST) -> set[int]:
    """Find the constants that are docstrings or stand alone below a name."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
