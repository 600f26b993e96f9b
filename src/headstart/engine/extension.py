"""Symbols that libllama exports but does not name in its public header: what drafters read of a
target model.

Each is looked up once, by the name that the compiler gave it. A libllama that changed one of them
has another name for it, so that only those speculators are unavailable that need it.

Source: llama.cpp, src/llama-ext.h
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.engine.library import api, prototype
from headstart.types.errors import ModelError

# in C's words, then what Itanium's rules put behind the name, and what Microsoft's do
_SYMBOLS = {
    words[1]: words
    for words in re.findall(
        r"(\S+) (\w+)\((.*)\) (\S+) (\S+)",
        """
void llama_set_embeddings_nextn(void*, bool, bool) P13llama_contextbb YAXPEAUllama_context@@_N1
void* llama_get_embeddings_nextn(void*) P13llama_context YAPEAMPEAUllama_context@@
void llama_set_nextn_layer_offset(void*, int32) P13llama_contexti YAXPEAUllama_context@@H
void llama_set_embeddings_layer_inp(void*, uint32, bool) P13llama_contextjb YAXPEAUllama_context@@I_N
void* llama_get_embeddings_layer_inp(void*, uint32) P13llama_contextj YAPEAMPEAUllama_context@@I
int32* llama_model_target_layer_ids(void*) PK11llama_model YAPEBHPEBUllama_model@@
uint32 llama_model_target_layer_ids_n(void*) PK11llama_model YAIPEBUllama_model@@
        """,  # noqa: E501
    )
}

# What each way of drafting from the target's states calls.
NEXTN = ("llama_set_embeddings_nextn", "llama_get_embeddings_nextn")
LAYER_INPUTS = ("llama_set_embeddings_layer_inp", "llama_get_embeddings_layer_inp")
HEADS = (*NEXTN, "llama_set_nextn_layer_offset")
TARGET_LAYERS = (
    *NEXTN,
    *LAYER_INPUTS,
    "llama_model_target_layer_ids",
    "llama_model_target_layer_ids_n",
)


def why_not(names: Iterable[str]) -> str | None:
    """Which of these symbols this libllama lacks, in words; None if it has them all."""
    missing = [name for name in names if _find(name) is None]
    if not missing:
        return None
    return f"this libllama does not export {', '.join(missing)}"


def symbol(name: str) -> Callable[..., Any]:
    """A function of this name, with its prototype.

    Raises:
        ModelError: this libllama does not export it.
    """
    found = _find(name)
    if found is None:
        raise ModelError(
            f"{why_not([name])}; install the version of llama-cpp-python that headstart names, or "
            "leave out the speculator that needs it"
        )
    return found


def set_states(context: Any, *, is_on: bool, outputs_only: bool = False) -> None:
    """Keep the last state of every row (or of output rows only) that the next decodes compute."""
    symbol("llama_set_embeddings_nextn")(context, is_on, outputs_only)


def states(context: Any, rows: int, width: int) -> NDArray[np.float32]:
    """The last states of the last decode, shape (rows, width): a view until the next decode.

    Rows are in the order of the batch; with `outputs_only`, those with outputs.
    """
    return _view(symbol("llama_get_embeddings_nextn")(context), rows, width)


def set_layer_input(context: Any, layer: int, *, is_on: bool) -> None:
    """Keep what enters this layer, of every row.

    libllama aborts in the next decode if the model's architecture does not publish it: ask
    `hidden_states` first.
    """
    symbol("llama_set_embeddings_layer_inp")(context, layer, is_on)


def layer_input(context: Any, layer: int, rows: int, width: int) -> NDArray[np.float32]:
    """What entered this layer, shape (rows, width): a view until the next decode."""
    return _view(symbol("llama_get_embeddings_layer_inp")(context, layer), rows, width)


def set_head(context: Any, head: int) -> None:
    """Which of several heads the next decodes of a context for heads run, from 0."""
    symbol("llama_set_nextn_layer_offset")(context, head)


def target_layers(model: Any) -> tuple[int, ...]:
    """The layers of the target whose inputs a draft model reads."""
    count = symbol("llama_model_target_layer_ids_n")(model)
    ids = symbol("llama_model_target_layer_ids")(model)
    return tuple(ids[index] for index in range(count))


@cache
def _find(name: str) -> Callable[..., Any] | None:
    result, _, arguments, itanium, microsoft = _SYMBOLS[name]
    for exported in (name, f"_Z{len(name)}{name}{itanium}", f"?{name}@@{microsoft}@Z"):
        if hasattr(api._lib, exported):
            types = map(api.type_of, (result, *arguments.split(", ")))
            # what a ctypes prototype makes is Any to mypy
            return prototype(api._lib, exported, *types)  # type: ignore[no-any-return]
    return None


def _view(address: int | None, rows: int, width: int) -> NDArray[np.float32]:
    if not address:
        raise ModelError("libllama kept no hidden states of the last decode")
    memory: Any = (ctypes.c_float * (rows * width)).from_address(address)
    return np.frombuffer(memory, np.float32).reshape(rows, width)
