"""LoRA adapters: loaded once, applied to all requests of a context."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from headstart.config import EngineConfig
from headstart.engine.library import api, take_errors
from headstart.errors import ConfigError, ModelError


def adapter_files(config: EngineConfig) -> list[tuple[Path, float]]:
    """The files that were asked for, with their scales.

    Raises:
        ConfigError: a scale is missing or is no number, or a file does not exist.
    """
    found = [(Path(name), 1.0) for name in (config.lora or "").split(",") if name]
    for part in (config.lora_scaled or "").split(","):
        if not part:
            continue
        name, _, scale = part.rpartition(":")
        try:
            found.append((Path(name), float(scale)))
        except ValueError:
            raise ConfigError(
                f"--lora-scaled has {part!r} but must be FILE:SCALE, for instance tone.gguf:0.5"
            ) from None
    for path, _ in found:
        if not path.is_file():
            raise ConfigError(f"adapter file {path} does not exist")
    return found


def apply_adapters(model: Any, context: Any, config: EngineConfig) -> None:
    """Load the adapters (they live as long as the model) and use them in this context.

    Raises:
        ConfigError: as `adapter_files`.
        ModelError: an adapter is not for this model.
    """
    files = adapter_files(config)
    if not files:
        return
    adapters = []
    for path, _ in files:
        take_errors()
        adapter = api.llama_adapter_lora_init(model.handle, str(path).encode())
        if not adapter:
            raise ModelError(
                f"{path} is no adapter for {model.path.name}: {take_errors() or 'no reason given'}"
            )
        adapters.append(adapter)
    scales = (ctypes.c_float * len(files))(*[scale for _, scale in files])
    array = (ctypes.c_void_p * len(files))(*adapters)
    if api.llama_set_adapters_lora(context, array, len(files), scales) != 0:
        names = ", ".join(path.name for path, _ in files)
        raise ModelError(f"libllama does not apply {names}: {take_errors() or 'no reason given'}")


__all__ = ["adapter_files", "apply_adapters"]
