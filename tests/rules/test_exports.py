"""`__all__`, where a module has one, names exactly what is public."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.rules.source import Source, sources


def test_all_is_complete() -> None:
    wrong = {}
    for source in sources():
        exported = _exported(source)
        if exported is None:
            continue
        public = sorted({*_public(source), *_imported(source).intersection(exported)})
        if sorted(exported) != public:  # RUF022 holds the order
            wrong[str(source)] = (exported, public)
    assert wrong == {}


def _exported(source: Source) -> list[str] | None:
    for node in source.tree.body:
        if isinstance(node, ast.Assign) and _names(node) == ["__all__"]:
            names: list[str] = ast.literal_eval(node.value)
            return names
    return None


def _public(source: Source) -> Iterator[str]:
    """Names defined here; a package also exports what it imports from its own modules."""
    for node in source.tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names = [] if _is_logger(node) else _names(node)
        elif isinstance(node, ast.ImportFrom) and source.path.name == "__init__.py":
            is_own = (node.module or "").startswith(source.module)
            names = [alias.asname or alias.name for alias in node.names] if is_own else []
        else:
            names = []
        yield from (name for name in names if not name.startswith("_") or name == "__version__")


def _imported(source: Source) -> set[str]:
    """A module may pass on what it imports, if it says so."""
    imports = [node for node in source.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return {alias.asname or alias.name for node in imports for alias in node.names}


def _is_logger(node: ast.Assign | ast.AnnAssign) -> bool:
    return node.value is not None and ast.unparse(node.value).startswith("logging.getLogger(")


def _names(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]
