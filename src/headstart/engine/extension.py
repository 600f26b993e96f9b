"""Symbols that libllama exports but does not name in its public header: what drafters read of a
target model.

Each is looked up once, by the name that the compiler gave it. A libllama that changed one of them
has another name for it, so that only those speculators are unavailable that need it.

Source: llama.cpp, src/llama-ext.h
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from ctypes import POINTER, c_bool, c_int32, c_uint32, c_void_p
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.engine.library import api, prototype
from headstart.types.errors import ModelError

_IDS = POINTER(c_int32)
# name: (its symbols with Itanium's and with Microsoft's rules, result, arguments)
_SYMBOLS: dict[str, tuple[tuple[str, ...], Any, tuple[Any, ...]]] = {
    "llama_set_embeddings_nextn": (
        (
            "_Z26llama_set_embeddings_nextnP13llama_contextbb",
            "?llama_set_embeddings_nextn@@YAXPEAUllama_context@@_N1@Z",
        ),
        None,
        (c_void_p, c_bool, c_bool),
    ),
    "llama_get_embeddings_nextn": (
        (
            "_Z26llama_get_embeddings_nextnP13llama_context",
            "?llama_get_embeddings_nextn@@YAPEAMPEAUllama_context@@@Z",
        ),
        c_void_p,
        (c_void_p,),
    ),
    "llama_set_nextn_layer_offset": (
        (
            "_Z28llama_set_nextn_layer_offsetP13llama_contexti",
            "?llama_set_nextn_layer_offset@@YAXPEAUllama_context@@H@Z",
        ),
        None,
        (c_void_p, c_int32),
    ),
    "llama_set_embeddings_layer_inp": (
        (
            "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
            "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z",
        ),
        None,
        (c_void_p, c_uint32, c_bool),
    ),
    "llama_get_embeddings_layer_inp": (
        (
            "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
            "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z",
        ),
        c_void_p,
        (c_void_p, c_uint32),
    ),
    "llama_get_ctx_other": (
        (
            "_Z19llama_get_ctx_otherP13llama_context",
            "?llama_get_ctx_other@@YAPEAUllama_context@@PEAU1@@Z",
        ),
        c_void_p,
        (c_void_p,),
    ),
    "llama_model_target_layer_ids": (
        (
            "_Z28llama_model_target_layer_idsPK11llama_model",
            "?llama_model_target_layer_ids@@YAPEBHPEBUllama_model@@@Z",
        ),
        _IDS,
        (c_void_p,),
    ),
    "llama_model_target_layer_ids_n": (
        (
            "_Z30llama_model_target_layer_ids_nPK11llama_model",
            "?llama_model_target_layer_ids_n@@YAIPEBUllama_model@@@Z",
        ),
        c_uint32,
        (c_void_p,),
    ),
    "llama_model_dflash_selector_top_k": (
        (
            "_Z33llama_model_dflash_selector_top_kPK11llama_model",
            "?llama_model_dflash_selector_top_k@@YAHPEBUllama_model@@@Z",
        ),
        c_int32,
        (c_void_p,),
    ),
}

# What each way of drafting from the target's states calls.
NEXTN = ("llama_set_embeddings_nextn", "llama_get_embeddings_nextn")
LAYER_INPUTS = ("llama_set_embeddings_layer_inp", "llama_get_embeddings_layer_inp")
HEADS = (*NEXTN, "llama_set_nextn_layer_offset", "llama_get_ctx_other")
TARGET_LAYERS = (
    *NEXTN,
    *LAYER_INPUTS,
    "llama_model_target_layer_ids",
    "llama_model_target_layer_ids_n",
    "llama_model_dflash_selector_top_k",
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


def shares_memory(context: Any, target: Any) -> bool:
    """Whether a drafting context took over the target's context, and with it the target's cache.

    Only contexts of gemma4-assistant, eagle3 and dflash models keep it; only the first shares.
    """
    other = symbol("llama_get_ctx_other")(context)
    return bool(other) and other == ctypes.cast(target, c_void_p).value


def target_layers(model: Any) -> tuple[int, ...]:
    """The layers of the target whose inputs a draft model reads."""
    count = symbol("llama_model_target_layer_ids_n")(model)
    ids = symbol("llama_model_target_layer_ids")(model)
    return tuple(ids[index] for index in range(count))


def selector_size(model: Any) -> int:
    """How many tokens the selector of a DFlash2 model weighs per position; 0: it has none."""
    return int(symbol("llama_model_dflash_selector_top_k")(model))


@cache
def _find(name: str) -> Callable[..., Any] | None:
    names, result, arguments = _SYMBOLS[name]
    for exported in (name, *names):
        if hasattr(api._lib, exported):
            # what a ctypes prototype makes is Any to mypy
            return prototype(api._lib, exported, result, *arguments)  # type: ignore[no-any-return]
    return None


def _view(address: int | None, rows: int, width: int) -> NDArray[np.float32]:
    if not address:
        raise ModelError("libllama kept no hidden states of the last decode")
    memory: Any = (ctypes.c_float * (rows * width)).from_address(address)
    return np.frombuffer(memory, np.float32).reshape(rows, width)


__all__ = [
    "HEADS",
    "LAYER_INPUTS",
    "NEXTN",
    "TARGET_LAYERS",
    "layer_input",
    "selector_size",
    "set_head",
    "set_layer_input",
    "set_states",
    "shares_memory",
    "states",
    "symbol",
    "target_layers",
    "why_not",
]
