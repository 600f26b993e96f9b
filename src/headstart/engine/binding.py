"""libllama and libmtmd for ctypes: what `signatures` names, made or bound when it is first used."""

from __future__ import annotations

import ctypes
import re
from functools import cache, partial
from typing import Any

from headstart.engine import signatures
from headstart.engine.find_library import load, load_beside

_lib, folder = load(signatures.RELEASE)
_mtmd = cache(partial(load_beside, folder))
_FUNCTIONS = {
    name: (result, arguments)
    for result, name, arguments in re.findall(r"(\S+) (\w+)\((.*)\)", signatures.FUNCTIONS)
}


@cache
def type_of(name: str) -> Any:
    """The ctypes type of a type in C's words."""
    if name in ("void", "void*", "char*"):
        return {"void": None, "void*": ctypes.c_void_p, "char*": ctypes.c_char_p}[name]
    if name.endswith("*"):
        return ctypes.POINTER(type_of(name[:-1]))
    if name.endswith("]"):
        kind, _, size = name[:-1].partition("[")
        return type_of(kind) * int(size)
    if name in _FUNCTIONS:  # that libllama calls
        return ctypes.CFUNCTYPE(*arguments_of(name))
    if name not in signatures.STRUCTURES:
        return getattr(ctypes, f"c_{name}")
    words = [field.split() for field in signatures.STRUCTURES[name].split(",")]
    fields = [(field, type_of(kind)) for kind, field in words]
    base: type = ctypes.Union if name.endswith("_value") else ctypes.Structure
    return type(name, (base,), {"_fields_": fields})


def arguments_of(function: str) -> list[Any]:
    """The types of a function's result, then of its arguments."""
    result, arguments = _FUNCTIONS[function]
    return [type_of(name) for name in (result, *arguments.split(", ")) if name]


def __getattr__(name: str) -> Any:
    """Make a type, or bind a function."""
    found: Any = getattr(signatures, name, None)
    if name in signatures.STRUCTURES or name.endswith(("_callback", "_t")):
        found = type_of(name)
    elif name in _FUNCTIONS:
        found = getattr(_mtmd() if name.startswith("mtmd") else _lib, name)
        found.restype, *found.argtypes = arguments_of(name)
    if found is None:
        raise AttributeError(f"{name} is not bound; run scripts/make_binding.py")
    globals()[name] = found
    return found
