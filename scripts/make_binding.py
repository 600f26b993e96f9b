"""Writes src/headstart/engine/signatures.py: what the engine uses of llama.h and mtmd.h.

    python scripts/make_binding.py

Needs llama-cpp-python, whose binding is read; tests/real/test_binding.py compares the result with
the headers through a compiler.
"""

from __future__ import annotations

import ctypes
import re
from importlib.metadata import version
from pathlib import Path
from textwrap import fill
from typing import Any

import llama_cpp.llama_cpp as theirs
import llama_cpp.mtmd_cpp as theirs_of_media

ROOT = Path(__file__).parents[1]
FILE = ROOT / "src/headstart/engine/signatures.py"
USED = re.compile(r"\bapi\.((?:llama|mtmd)_\w+)")
NUMBERS = ("bool", "int8", "uint8", "int32", "uint32", "int64", "uint64", "float", "double", "char")
# by size, because c_ulong has another on Windows
SIMPLE = {getattr(ctypes, f"c_{name}"): name for name in NUMBERS}
SIMPLE |= {ctypes.c_char_p: "char*", ctypes.c_void_p: "void*", None: "void"}
ALL = vars(theirs_of_media) | vars(theirs)
NAMED = {id(value): name for name, value in reversed(ALL.items()) if name.startswith("llama_")}


class Writer:
    """What is used, in C's words."""

    def __init__(self) -> None:
        self.structures: dict[str, str] = {}
        self.functions: list[str] = []
        self._used = names()  # other structures are opaque behind their pointers
        for name in self._used:
            one = ALL.get(f"{name}_wrapper", ALL[name])  # where theirs does more than to call it
            if isinstance(one, type):
                self._type(one)
            else:
                self._function(name, one.restype, *(one.argtypes or ()))

    def _function(self, name: str, *types: Any) -> None:
        result, *arguments = map(self._type, types)
        self.functions.append(f"{result} {name}({', '.join(arguments)})")

    def _type(self, kind: Any) -> str:
        """The name of a ctypes type; what it needs is written too."""
        if kind in SIMPLE:
            return SIMPLE[kind]
        if issubclass(kind, ctypes.Array):
            return f"{self._type(kind._type_)}[{kind._length_}]"
        if issubclass(kind, ctypes.Structure | ctypes.Union):
            fields = [f"{self._type(of)} {name}" for name, of in kind._fields_]
            self.structures[kind.__name__] = ", ".join(fields)
            return kind.__name__
        if issubclass(kind, ctypes._Pointer):
            target = kind._type_
            is_opaque = issubclass(target, ctypes.Structure) and target.__name__ not in self._used
            return "void*" if is_opaque else f"{self._type(target)}*".replace("void**", "void*")
        if (name := NAMED.get(id(kind))) in self._used:  # a function that libllama calls
            if not any(f" {name}(" in line for line in self.functions):
                self._function(name, kind._restype_, *kind._argtypes_)
            return name
        return "void*"


def names() -> list[str]:
    """What the engine, the tests and the benchmarks use of the headers; `binding` has the rest."""
    files = (f for folder in ("src", "tests", "benchmarks") for f in (ROOT / folder).rglob("*.py"))
    used = {name for file in files for name in USED.findall(file.read_text("utf-8"))}
    return sorted(used & ALL.keys())


def written() -> str:
    """The file."""
    writer = Writer()
    structures = [
        f'    "{name}": """\n{fill(fields, 98, initial_indent=" " * 8, subsequent_indent=" " * 8)}'
        '\n    """,'
        for name, fields in writer.structures.items()
    ]
    lines = [
        '"""What the engine uses of llama.h and mtmd.h. Written by scripts/make_binding.py."""',
        "",
        f'VERSION = "{theirs.llama_version().decode()}"  # expected result of llama_version()',
        f'RELEASE = "{version("llama-cpp-python")}"  # the release that contains it',
        "",
        f"STRUCTURES = {{\n{chr(10).join(structures)}\n}}",
        "",
        '# "void*" is any pointer whose target the engine does not look into',
        'FUNCTIONS = """',
        *sorted(writer.functions, key=lambda line: line.partition("(")[0].split()[-1]),
        '"""  # noqa: E501',
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    FILE.write_text(written(), "utf-8")
