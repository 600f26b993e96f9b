"""The package's source files, parsed once for all rules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/headstart"


@dataclass(frozen=True)
class Source:
    """One module; `folder` is its first name below headstart, `server` or `config`."""

    path: Path
    folder: str
    tree: ast.Module
    num_lines: int

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def module(self) -> str:
        """Dotted name, that of the package for an `__init__.py`."""
        names = self.path.relative_to(PACKAGE.parent).with_suffix("").parts
        return ".".join(names[:-1] if names[-1] == "__init__" else names)

    def imports(self) -> Iterator[str]:
        """Dotted names of all imports, those inside functions included."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self}:{node.lineno}: import by the full name"
                # `from headstart import x` imports a module, `from headstart.types import X` not
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                yield from names if node.module == "headstart" else [str(node.module)]


@cache
def sources() -> tuple[Source, ...]:
    """All modules of the package."""
    return tuple(_parse(path) for path in sorted(PACKAGE.rglob("*.py")))


def _parse(path: Path) -> Source:
    text = path.read_text("utf-8")
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return Source(path, first, ast.parse(text, str(path)), len(text.splitlines()))
