"""The devices libllama can compute on."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from typing import Any

from headstart.engine.library import ggml_base_library, ggml_library, prototype, start
from headstart.errors import ConfigError

_KINDS = {0: "CPU", 1: "GPU", 2: "integrated GPU", 3: "accelerator", 4: "meta"}


@dataclass(frozen=True, slots=True)
class Device:
    """One backend device; memory in bytes."""

    name: str
    description: str
    kind: str
    free_bytes: int
    total_bytes: int
    handle: int


def list_devices() -> list[Device]:
    """All devices, as libllama numbers them."""
    start()
    count = prototype(ggml_library(), "ggml_backend_dev_count", c_size_t)
    get = prototype(ggml_library(), "ggml_backend_dev_get", c_void_p, c_size_t)
    return [_describe(get(index)) for index in range(count())]


def _describe(handle: int) -> Device:
    base = ggml_base_library()
    name = prototype(base, "ggml_backend_dev_name", c_char_p, c_void_p)
    description = prototype(base, "ggml_backend_dev_description", c_char_p, c_void_p)
    kind = prototype(base, "ggml_backend_dev_type", c_int, c_void_p)
    memory = prototype(base, "ggml_backend_dev_memory", None, c_void_p, c_void_p, c_void_p)
    free, total = c_size_t(), c_size_t()
    memory(handle, ctypes.addressof(free), ctypes.addressof(total))
    return Device(
        name(handle).decode(),
        description(handle).decode(),
        _KINDS.get(kind(handle), "other"),
        free.value,
        total.value,
        handle,
    )


def device_array(names: str | None) -> Any:
    """NULL-terminated array for llama_model_params.devices; None means libllama's choice.

    Raises:
        ConfigError: a name is unknown.
    """
    if names is None:
        return None
    wanted = [] if names.strip() in ("", "none") else [n.strip() for n in names.split(",")]
    known = {d.name: d.handle for d in list_devices()}
    for name in wanted:
        if name not in known:
            raise ConfigError(f"--device names {name!r}, but this machine has {', '.join(known)}")
    return (c_void_p * (len(wanted) + 1))(*[known[n] for n in wanted], None)
