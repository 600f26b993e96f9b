"""Writes src/headstart/engine/binding.py and media_binding.py: what the engine uses of llama.h and
mtmd.h, for ctypes.

    python scripts/make_binding.py

Needs llama-cpp-python, whose binding is read; tests/real/test_binding.py compares the result with
the headers through a compiler.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from collections.abc import Collection
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as theirs
import llama_cpp.mtmd_cpp as theirs_of_media

ROOT = Path(__file__).parents[1]
FILE = ROOT / "src/headstart/engine/binding.py"
MEDIA_FILE = FILE.with_name("media_binding.py")
USED = re.compile(r"\b(?:api|mtmd)\.((?:llama|LLAMA|mtmd)_\w+)")
# by size, because c_ulong has another on Windows
SIMPLE = {
    ctypes.c_bool: "c_bool", ctypes.c_int8: "c_int8", ctypes.c_uint8: "c_uint8",
    ctypes.c_int32: "c_int32", ctypes.c_uint32: "c_uint32", ctypes.c_int64: "c_int64",
    ctypes.c_uint64: "c_uint64", ctypes.c_float: "c_float", ctypes.c_double: "c_double",
    ctypes.c_char: "c_char", ctypes.c_char_p: "c_char_p", ctypes.c_void_p: "c_void_p",
    None: "None",
}  # fmt: skip
ALL = vars(theirs_of_media) | vars(theirs)
NAMED = {id(value): name for name, value in reversed(ALL.items()) if name.startswith("llama_")}
HEAD = '''"""@HEADER@ as far as the engine uses it, for ctypes. Written by scripts/make_binding.py.

Functions are bound when they are first used: `functions` says their results and arguments.
"""

# ruff: noqa: D101

from __future__ import annotations

@IMPORTS@
from typing import Any

@LOAD@

'''
END = '''

def __getattr__(name: str) -> Any:
    """Bind a function."""
    if name not in functions:
        raise AttributeError(f"{name} is not bound; run scripts/make_binding.py")
    function = getattr(@LIBRARY@, name)
    function.restype, *function.argtypes = functions[name]
    globals()[name] = function
    return function
'''


class Writer:
    """Definitions in the order in which they need each other."""

    def __init__(self, used: Collection[str]) -> None:
        self.lines: list[str] = []
        self._used = used  # other structures are opaque behind their pointers
        self._known: set[int] = set()

    def type(self, kind: Any) -> str:
        """How the file names a ctypes type; what it needs is defined first."""
        if kind in SIMPLE:
            return SIMPLE[kind]
        if issubclass(kind, ctypes.Array):
            return f"{self.type(kind._type_)} * {kind._length_}"
        if issubclass(kind, ctypes.Structure | ctypes.Union):
            self._define(kind, self._struct)
            return kind.__name__
        if issubclass(kind, ctypes._Pointer):
            target = kind._type_
            is_opaque = issubclass(target, ctypes.Structure) and target.__name__ not in self._used
            return "c_void_p" if is_opaque else f"POINTER({self.type(target)})"
        if NAMED.get(id(kind)) in self._used:  # a function that libllama calls
            self._define(kind, self._callback)
            return NAMED[id(kind)]
        return "c_void_p"

    def _define(self, kind: Any, lines: Any) -> None:
        if id(kind) not in self._known:
            self._known.add(id(kind))
            self.lines += [*lines(kind), ""]

    def _struct(self, kind: Any) -> list[str]:
        fields = [f'        ("{name}", {self.type(of)}),' for name, of in kind._fields_]
        base = "Union" if issubclass(kind, ctypes.Union) else "Structure"
        return [f"class {kind.__name__}({base}):", "    _fields_ = [", *fields, "    ]", ""]

    def _callback(self, kind: Any) -> list[str]:
        arguments = ", ".join(map(self.type, (kind._restype_, *kind._argtypes_)))
        return [f"{NAMED[id(kind)]} = CFUNCTYPE({arguments})"]


def names() -> list[str]:
    """What the engine, the tests and the benchmarks use of the headers."""
    folders, made = ("src", "tests", "benchmarks"), (FILE, MEDIA_FILE)
    files = (f for folder in folders for f in (ROOT / folder).rglob("*.py") if f not in made)
    texts = (file.read_text("utf-8") for file in files)
    return sorted({name for text in texts for name in USED.findall(text)})


def written(*, media: bool = False) -> str:
    """The file; `media`: the other one."""
    used = [name for name in names() if name.startswith("mtmd") == media]
    writer, functions, constants = Writer(used), list[str](), list[str]()
    for name in used:
        one = ALL.get(f"{name}_wrapper", ALL[name])  # where theirs does more than to call it
        if isinstance(one, int):
            constants.append(f"{name} = {one}")
        elif isinstance(one, type):
            found = writer.type(one)
            if found != name:
                writer.lines += [f"{name} = {found}", ""]
        else:
            types = [*map(writer.type, (one.restype, *(one.argtypes or ())))]
            comma = "," * (len(types) == 1)
            functions.append(f'    "{name}": ({", ".join(types)}{comma}),')
    table = ["functions: dict[str, tuple[Any, ...]] = {", *functions, "}"]
    about = [
        f'VERSION = "{theirs.llama_version().decode()}"  # what llama_version() must say',
        f'RELEASE = "{version("llama-cpp-python")}"  # the release that brings it',
    ]
    load, library = "from headstart.engine.find_library import load", "_lib"
    opening = "_lib, folder = load(RELEASE)"
    if media:
        about, library = [], "_library()"
        load = "from headstart.engine.binding import folder\n" + load + "_beside"
        opening = "_library = cache(partial(load_beside, folder))"
    end = opening + "\n" + END.replace("@LIBRARY@", library)
    body = "\n".join([*about, *constants, "", *writer.lines, *table, "", end])
    words = set(re.findall(r"\w+", body))
    known = {"CFUNCTYPE", "POINTER", "Structure", "Union", *SIMPLE.values()} - {"None"}
    imports = f"from ctypes import {', '.join(sorted(known & words))}"
    if media:
        imports += "\nfrom functools import cache, partial"
    head = HEAD.replace("@HEADER@", "mtmd.h" if media else "llama.h")
    return head.replace("@IMPORTS@", imports).replace("@LOAD@", load) + body


if __name__ == "__main__":
    FILE.write_text(written(), "utf-8")
    MEDIA_FILE.write_text(written(media=True), "utf-8")
    for command in (("format", "-q"), ("check", "--fix", "-q")):
        subprocess.run([sys.executable, "-m", "ruff", *command, FILE, MEDIA_FILE], check=True)
