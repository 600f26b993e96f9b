"""What may be overridden while a model loads: values of its keys, and where its tensors go."""

from __future__ import annotations

import ctypes
import re
from ctypes import c_char_p, c_void_p
from typing import Any

from headstart.config import EngineConfig
from headstart.engine.devices import list_devices
from headstart.engine.library import api, ggml_base_library, prototype
from headstart.types.errors import ConfigError

_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_TAGS = {"int": 0, "float": 1, "bool": 2, "str": 3}
_MOST_BYTES = 127  # of a key and of a text value


def kv_overrides(text: str) -> Any:
    """Array for llama_model_params.kv_overrides, ended by an empty key.

    Raises:
        ConfigError: an entry cannot be read.
    """
    entries = [_kv_override(part) for part in text.split(",")]
    return (api.llama_model_kv_override * (len(entries) + 1))(*entries)


def _kv_override(text: str) -> Any:
    matched = re.fullmatch(r"([^=]+)=(int|float|bool|str):(.*)", text.strip(), re.DOTALL)
    if not matched:
        raise ConfigError(
            f"--override-kv has {text.strip()!r} but must be KEY=TYPE:VALUE with one of the types "
            f"{', '.join(_TAGS)}, for instance tokenizer.ggml.add_bos_token=bool:false"
        )
    key, kind, value = matched.groups()
    for name, part in (("key", key), ("value", value)):
        if len(part.encode()) > _MOST_BYTES:
            raise ConfigError(
                f"--override-kv has a {name} of {len(part.encode())} bytes; libllama takes "
                f"{_MOST_BYTES}"
            )
    entry = api.llama_model_kv_override(tag=_TAGS[kind], key=key.encode())
    try:
        if kind == "int":
            entry.value.val_i64 = int(value)
        elif kind == "float":
            entry.value.val_f64 = float(value)
        elif kind == "bool":
            entry.value.val_bool = {"true": True, "false": False}[value]
        else:
            entry.value.val_str = value.encode()
    except (ValueError, KeyError):
        raise ConfigError(f"--override-kv {key} is {value!r}, which is no {kind}") from None
    return entry


def tensor_overrides(config: EngineConfig) -> Any:
    """Array for llama_model_params.tensor_buft_overrides, ended by an empty entry; None: nothing.

    Raises:
        ConfigError: a pattern or a buffer cannot be used.
    """
    wanted: list[tuple[str, int]] = []
    buffers = buffer_types()
    for part in (config.override_tensor or "").split(","):
        if not part:
            continue
        pattern, separator, name = part.rpartition("=")
        if not separator or name not in buffers:
            raise ConfigError(
                f"--override-tensor has {part!r} but must be PATTERN=BUFFER with one of the "
                f"buffers {', '.join(buffers)}"
            )
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"--override-tensor has the pattern {pattern!r}, which is no regular expression: "
                f"{error}"
            ) from None
        wanted.append((pattern, buffers[name]))
    if config.cpu_moe:
        wanted.append((_EXPERTS, buffers["CPU"]))
    if config.rpc and not any(d.kind == "GPU" and not d.is_remote for d in list_devices()):
        # Else the logits of each row would cross the network, 600 KB for a large vocabulary.
        wanted.append((r"^(output|token_embd)\.weight$", buffers["CPU"]))
    wanted += [(rf"blk\.{i}{_EXPERTS}", buffers["CPU"]) for i in range(config.n_cpu_moe)]
    if not wanted:
        return None
    entries = (_TensorOverride * (len(wanted) + 1))()
    for entry, (pattern, buffer) in zip(entries, wanted, strict=False):
        entry.pattern, entry.buffer = pattern.encode(), buffer
    return entries


class _TensorOverride(ctypes.Structure):
    _fields_ = (("pattern", c_char_p), ("buffer", c_void_p))


def buffer_types() -> dict[str, int]:
    """Kinds of memory that tensors can be put in, by libllama's names."""
    base = ggml_base_library()
    of_device = prototype(base, "ggml_backend_dev_buffer_type", c_void_p, c_void_p)
    name_of = prototype(base, "ggml_backend_buft_name", c_char_p, c_void_p)
    types = [of_device(device.handle) for device in list_devices()]
    return {name_of(buffer).decode(): buffer for buffer in types if buffer}
