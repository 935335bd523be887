"""What a dotted name in a module stands for, by the imports of that module."""

import ast
from collections.abc import Iterator


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Give the full dotted origin of every name that an import binds, wherever it stands."""
    origins: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    origins[alias.asname] = alias.name
                else:
                    top = alias.name.partition(".")[0]
                    origins[top] = top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                origins[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return origins


def imported_modules(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """Give every import statement with each dotted name that it asks for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)


def dotted(node: ast.expr, origins: dict[str, str]) -> str | None:
    """Resolve `a.b.c` to what it was imported as; None where it begins with something else."""
    if isinstance(node, ast.Name):
        return origins.get(node.id)
    if isinstance(node, ast.Attribute):
        base = dotted(node.value, origins)
        return f"{base}.{node.attr}" if base else None
    return None


def references(tree: ast.Module) -> Iterator[tuple[ast.expr, str]]:
    """Give every use of an imported name with its full dotted origin, longest form only."""
    origins = imported_names(tree)
    inner: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Attribute, ast.Name)):
            continue
        if isinstance(node, ast.Attribute):
            inner.add(id(node.value))
        name = None if id(node) in inner else dotted(node, origins)
        if name:
            yield node, name
