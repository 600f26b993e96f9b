"""The devices libllama can compute on."""

from __future__ import annotations

import ctypes
from ctypes import c_void_p
from dataclasses import dataclass
from typing import Any

from headstart.config import EngineConfig
from headstart.engine.library import api, start
from headstart.types.errors import ConfigError

FLASH_TILE = 64  # GGML_FA_TILE_Q of ggml-cpu


@dataclass(frozen=True, slots=True)
class Device:
    """One backend device; memory in bytes."""

    name: str
    description: str
    kind: str
    free_bytes: int
    total_bytes: int
    handle: int
    is_remote: bool = False  # a worker of --rpc


def list_devices() -> list[Device]:
    """All devices, in libllama's order."""
    start()
    return [_describe(api.ggml_backend_dev_get(i)) for i in range(api.ggml_backend_dev_count())]


def _describe(handle: int) -> Device:
    kinds = {0: "CPU", 1: "GPU", 2: "integrated GPU", 3: "accelerator", 4: "meta"}
    free, total = ctypes.c_uint64(), ctypes.c_uint64()
    api.ggml_backend_dev_memory(handle, ctypes.byref(free), ctypes.byref(total))
    return Device(
        api.ggml_backend_dev_name(handle).decode(),
        api.ggml_backend_dev_description(handle).decode(),
        kinds.get(api.ggml_backend_dev_type(handle), "other"),
        free.value,
        total.value,
        handle,
        is_remote=api.ggml_backend_reg_name(api.ggml_backend_dev_backend_reg(handle)) == b"RPC",
    )


def attention_tile(config: EngineConfig) -> int:
    """Rows that attention computes together, over all cells that any of them sees.

    More than one in the CPU's flash-attention kernel for unquantized caches of one type, if a
    decode has at least that many rows; the reference kernels have no tiles.
    """
    types = {config.cache_type_k, config.cache_type_v}
    is_plain = config.flash_attn != "off" and types in ({"f16"}, {"f32"})
    has_tiles = is_plain and not config.exact and not attends_on_gpu(config)
    return FLASH_TILE if has_tiles else 1


def attends_on_gpu(config: EngineConfig) -> bool:
    """Whether a device other than the CPU may compute attention."""
    if config.rpc is not None:
        return True  # perhaps on another machine
    if not config.gpu_layers or not config.kv_offload or config.device in ("", "none"):
        return False
    return any("GPU" in device.kind for device in list_devices())


def device_array(names: str | None, *, can_be_remote: bool = True) -> Any:
    """NULL-terminated array for llama_model_params.devices; None means libllama's choice.

    Args:
        can_be_remote: without names, whether libllama may choose workers of --rpc.

    Raises:
        ConfigError: a name is unknown.
    """
    if names is None and can_be_remote:
        return None
    devices = list_devices()
    known = {d.name: d.handle for d in devices}
    if names is None:
        if not any(d.is_remote for d in devices):
            return None
        wanted = [d.name for d in devices if d.kind == "GPU" and not d.is_remote]
    else:
        wanted = [] if names.strip() in ("", "none") else [n.strip() for n in names.split(",")]
    for name in wanted:
        if name not in known:
            raise ConfigError(f"--device names {name!r}, but this machine has {', '.join(known)}")
    return (c_void_p * (len(wanted) + 1))(*[known[n] for n in wanted], None)
