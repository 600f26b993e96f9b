"""Hidden states of a target model, for speculators that read them.

libllama aborts on requests for states that an architecture's graph does not keep, so the
architectures that keep them are listed here.

Source: llama.cpp, src/models (`t_h_nextn` and `t_layer_inp`)
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.engine.c_batch import floats_at
from headstart.engine.library import api
from headstart.engine.parameters import Facts
from headstart.types import FINAL_STATE, LAST_STATE

# architectures whose multi-token heads libllama computes, from the last state
HEAD_ARCHITECTURES = frozenset((
    "bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "glm-dsa", "glm4moe",
    "hy_v3", "mimo2", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next", "step35",
))  # fmt: skip
_WITH_LAST_STATE = HEAD_ARCHITECTURES | {"gemma4", "gpt-oss", "nemotron_h"}
_WITH_LAYER_INPUTS = frozenset((
    "bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "hunyuan_vl", "lfm2", "lfm2moe", "llama",
    "mimo2", "minimax-01", "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h",
    "nemotron_h_moe", "qwen3", "qwen35", "qwen35moe", "qwen3moe", "qwen3next", "qwen4exp",
))  # fmt: skip
# these also keep the output of the last layer, under the number of layers
_WITH_LAST_OUTPUT = frozenset(("deepseek4", "mimo2", "nemotron_h", "nemotron_h_moe"))


def why_not(facts: Facts, layers: Collection[int]) -> str | None:
    """Why a model cannot provide these states, in words; None if it can."""
    inputs = {layer for layer in layers if layer != LAST_STATE}
    if LAST_STATE in layers and facts.architecture not in _WITH_LAST_STATE:
        return f"libllama does not show the last state of {facts.architecture} models"
    if not inputs:
        return None
    if facts.architecture not in _WITH_LAYER_INPUTS:
        return f"libllama does not show what enters the layers of {facts.architecture} models"
    last = facts.num_layers - (facts.architecture not in _WITH_LAST_OUTPUT)
    if wrong := sorted(layer for layer in inputs if not 0 <= layer <= last):
        return f"there is no layer {wrong[0]} to read: they are 0 to {last}"
    return None


def has_final_state(facts: Facts, model: Any, context: Any) -> bool:
    """Whether libllama shows it, of each row, beside the logits, which lfm2 models then lack.

    It aborts on models with wider states between their layers (deepseek4).
    """
    is_alike = api.llama_model_n_embd_out(model) == api.llama_model_n_embd(model)
    is_by_row = api.llama_pooling_type(context) == 0
    return bool(is_alike and is_by_row and facts.architecture not in ("lfm2", "lfm2moe"))


def publish(context: Any, layers: Collection[int]) -> None:
    """Make a context keep these states for all rows of its decodes."""
    for layer in layers:
        if layer == LAST_STATE:
            api.llama_set_embeddings_nextn(context, True, False)
        else:
            api.llama_set_embeddings_layer_inp(context, layer, True)


def published(
    context: Any, model: Any, layers: Collection[int], num_rows: int
) -> dict[int, NDArray[np.float32]]:
    """By layer, the states of all rows of the last decode: views, valid until the next."""
    found = {}
    for layer in layers:
        if layer == LAST_STATE:
            address, width = api.llama_get_embeddings_nextn(context), api.llama_model_n_embd_out
        elif layer == FINAL_STATE:
            address, width = api.llama_get_embeddings(context), api.llama_model_n_embd_out
        else:
            address = api.llama_get_embeddings_layer_inp(context, layer)
            width = api.llama_model_n_embd
        found[layer] = floats_at(address, num_rows, int(width(model)))
    return found
