"""LoRA adapters and control vectors: loaded once; their scales may change."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from headstart.config import EngineConfig
from headstart.engine.gguf_header import GgufHeader, check_file
from headstart.engine.library import api, libllama_error, take_errors
from headstart.types.errors import ConfigError, ModelError
from headstart.types.request import MAX_SCALE


def scaled_files(names: str | None, scaled: str | None, flag: str) -> list[tuple[Path, float]]:
    """The files named by two flags, with their scales.

    Raises:
        ConfigError: a scale is missing, not a number or too large, or a file does not exist.
    """
    found = [(Path(name), 1.0) for name in (names or "").split(",") if name]
    for part in (scaled or "").split(","):
        if not part:
            continue
        name, _, scale = part.rpartition(":")
        try:
            factor = float(scale)
        except ValueError:
            factor = nan
        if not abs(factor) <= MAX_SCALE:
            raise ConfigError(
                f"{flag}-scaled has {part!r} but must be FILE:SCALE with a scale from "
                f"{-MAX_SCALE:g} to {MAX_SCALE:g}, for instance tone.gguf:0.5"
            )
        found.append((Path(name), factor))
    for path, _ in found:
        if not path.is_file():
            raise ConfigError(f"{flag} names {path}, which does not exist")
    return found


class Adapters:
    """The LoRA adapters of a context, which has one set of scales at a time, and its control
    vectors.
    """

    def __init__(self, model: Any, context: Any, config: EngineConfig) -> None:
        """Load and apply the adapters; they live as long as the model.

        Raises:
            ConfigError: as `scaled_files`.
            ModelError: a file is not for this model.
        """
        self._model, self._context = model, context
        files = scaled_files(config.lora, config.lora_scaled, "--lora")
        self._paths = [path for path, _ in files]
        self._handles = [_load(model, path) for path in self._paths]
        is_off = config.lora_init_without_apply
        self._loaded = tuple(0.0 if is_off else scale for _, scale in files)
        self._scales = (0.0,) * len(files)
        self.use(())
        vectors = scaled_files(
            config.control_vector, config.control_vector_scaled, "--control-vector"
        )
        if vectors:
            _apply_vectors(model, context, vectors)

    def use(self, scales: tuple[float, ...]) -> None:
        """Set the scales from the next decode on; (): as loaded."""
        wanted = scales or self._loaded
        if wanted == self._scales or len(wanted) != len(self._handles):
            return
        chosen = [(h, s) for h, s in zip(self._handles, wanted, strict=True) if s]
        array = (ctypes.c_void_p * max(1, len(chosen)))(*[h for h, _ in chosen])
        factors = (ctypes.c_float * max(1, len(chosen)))(*[s for _, s in chosen])
        status = api.llama_set_adapters_lora(self._context, array, len(chosen), factors)
        assert status == 0, "adapters are checked when they are loaded, their scales never"
        self._scales = wanted

    def describe(self) -> tuple[dict[str, Any], ...]:
        """Path, scale, task and prefix of each adapter, JSON-ready."""
        return tuple(
            {
                "path": str(path),
                "scale": scale,
                "task_name": _metadata(handle, "adapter.lora.task_name"),
                "prompt_prefix": _metadata(handle, "adapter.lora.prompt_prefix"),
            }
            for path, scale, handle in zip(self._paths, self._loaded, self._handles, strict=True)
        )


def _load(model: Any, path: Path) -> Any:
    check_file(path)
    take_errors()
    adapter = api.llama_adapter_lora_init(model.handle, str(path).encode())
    if not adapter:
        raise libllama_error(ModelError, f"{path} is no adapter for {model.path.name}")
    if api.llama_adapter_get_alora_n_invocation_tokens(adapter):
        raise ModelError(
            f"{path} is an adapter that a text switches on (aLoRA), which is not supported; leave "
            "it out"
        )
    return adapter


def _metadata(adapter: Any, key: str) -> str:
    buffer = ctypes.create_string_buffer(1024)
    found = api.llama_adapter_meta_val_str(adapter, key.encode(), buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace") if found > 0 else ""


def _apply_vectors(model: Any, context: Any, files: list[tuple[Path, float]]) -> None:
    """Apply the vectors of all layers from the second on, in one array as libllama expects."""
    width = int(api.llama_model_n_embd(model.handle))
    num_layers = model.facts.num_layers
    values = np.zeros((num_layers - 1, width), np.float32)
    for path, scale in files:
        header = GgufHeader(path)
        found = [header.values(f"direction.{layer}", np.float32) for layer in range(1, num_layers)]
        directions = [(row, one) for row, one in zip(values, found, strict=True) if one is not None]
        is_longer = header.shape(f"direction.{num_layers}") or header.shape("direction.0")
        if not directions or is_longer or any(vector.size != width for _, vector in directions):
            raise ModelError(
                f"{path} is no control vector for {model.path.name}: it needs tensors "
                f"direction.1 to direction.{num_layers - 1} of {width} numbers"
            )
        for row, vector in directions:
            row += np.float32(scale) * vector
    data = values.ctypes.data_as(POINTER(c_float))
    status = api.llama_set_adapter_cvec(context, data, values.size, width, 1, num_layers)
    if status != 0:
        raise libllama_error(ModelError, "libllama does not apply the control vector")
