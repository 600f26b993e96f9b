"""Memory use of a model by device, measured without loading its weights.

libllama creates model and context without allocating anything, and reports what it would allocate.
For a real context the same numbers are its allocations.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from ctypes import c_uint64
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headstart.config import EngineConfig
from headstart.engine import library
from headstart.engine.library import api
from headstart.engine.parameters import (
    Facts,
    Limits,
    context_params,
    embedding_params,
    model_params,
)
from headstart.engine.prompt_reader import reader_params, reads_apart
from headstart.types.errors import ModelError

HOST = "main memory"
REPACKED = "CPU"  # for the CPU's repacked weights


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes of one device that a model takes."""

    weights: int = 0
    cache: int = 0
    compute: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.compute

    def __add__(self, other: Use) -> Use:
        return Use(
            self.weights + other.weights, self.cache + other.cache, self.compute + other.compute
        )


Uses = dict[str, Use]  # by device name; HOST for data in main memory as stored
Measured = tuple[Facts, Uses]  # of a model


def measure(path: Path, config: EngineConfig, limits: Limits, context: int) -> Measured:
    """Properties of a model in libllama, and its memory use; call it only if `can_measure`.

    Raises:
        ModelError: libllama cannot create it.
        ConfigError: settings that contradict each other or the model.
    """
    library.start(config.numa)
    params, keep = model_params(config)
    params.no_alloc, params.load_mode = True, 0
    with library.muted():
        model = api.llama_model_load_from_file(str(path).encode(), params)
        del keep
        if not model:
            raise library.libllama_error(ModelError, f"cannot read {path}")
        try:
            facts = Facts.of(model, config.override_kv)
            if limits.embeds:
                settings = embedding_params(facts, config)
            else:
                settings = context_params(facts, config, limits, context)
            settings.ctx_type = int(limits.is_heads)
            made = api.llama_init_from_model(model, settings)
            if made:
                uses = uses_of(made)
                is_apart = reads_apart(made, facts, config, limits)
                api.llama_free(made)
                if is_apart:
                    _add_reader(uses, model, settings)
            elif limits.reads_states:  # needs the target's context; its own is small
                library.take_errors()
                uses = {HOST: Use(weights=path.stat().st_size)}
            else:
                words = f"cannot make a context of {context} tokens for {path}"
                raise library.libllama_error(ModelError, words)
        finally:
            api.llama_model_free(model)
    # logits are copied to main memory
    outputs = 0 if limits.embeds else 4 * settings.n_outputs_max * facts.vocab_size
    uses[HOST] = uses.get(HOST, Use()) + Use(compute=outputs)
    if limits.shares_weights:
        uses = {name: replace(use, weights=0) for name, use in uses.items()}
    return facts, uses


def _add_reader(uses: Uses, model: Any, params: Any) -> None:
    """Add the separate cache in which prompts are decoded."""
    if made := api.llama_init_from_model(model, reader_params(params)):
        for name, use in uses_of(made).items():
            uses[name] = uses.get(name, Use()) + replace(use, weights=0)
        api.llama_free(made)


def can_measure() -> bool:
    """Whether `uses_of` supports this platform's calling convention, and libllama exports it."""
    is_known = sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")
    return is_known and not api.why_not("llama_get_memory_breakdown")


def uses_of(context: Any) -> Uses:
    """Memory use of a context and its model, by device.

    Not in the public API: a C++ function that returns a std::map. It is built in our memory by the
    x86-64 ABI, and read in libstdc++'s layout.
    """
    header = (c_uint64 * 6)()  # comparator; colour, root, first, last; number of nodes
    api.llama_get_memory_breakdown(ctypes.addressof(header), context)
    uses: Uses = {}
    pending = [header[2]]
    while pending:
        if not (address := pending.pop()):
            continue
        node = (c_uint64 * 8).from_address(address)  # colour, parent, left, right; key; 3 values
        pending += [node[2], node[3]]
        is_host = api.ggml_backend_buft_is_host(node[4])
        device = None if is_host else api.ggml_backend_buft_get_device(node[4])
        name = api.ggml_backend_dev_name(device).decode() if device else HOST
        uses[name] = uses.get(name, Use()) + Use(node[5], node[6], node[7])
    return uses
