"""A tiny random model of every widely run architecture, in the sizes of llama.cpp's own tests.

Only the metadata is written here: libllama builds the model of it and so tells which tensors the
architecture has and of which shape. Optional tensors are all there, for libllama is asked to make
everything that it knows.

Source: llama.cpp, tests/test-llama-archs.cpp
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, byref, c_int64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray
from tests.models import MERGES, Merges, Writer

from headstart.engine import library
from headstart.engine.library import api

CONTEXT = 2048
WINDOW = 32
Setting = int | float | bool | str | list[int] | list[bool] | list[float]
Settings = dict[str, Setting]
Values = Callable[[str, tuple[int, ...]], NDArray[np.float64] | None]

# latent attention: keys and values of all heads share one compressed row
_LATENT: Settings = {
    "embedding_length": 128,
    "attention.head_count": 1,
    "attention.head_count_kv": 1,
    "feed_forward_length": 192,
    "attention.key_length": 576,
    "attention.value_length": 512,
    "rope.dimension_count": 64,
    "attention.key_length_mla": 192,
    "attention.value_length_mla": 128,
}
# layer 1 is recurrent, layer 0 has attention
_MIXED_HEADS: Settings = {"attention.head_count": [2, 0], "attention.head_count_kv": [2, 0]}
_EXPERTS: Settings = {
    "expert_feed_forward_length": 96,
    "expert_shared_feed_forward_length": 64,
    "expert_latent_length": 96,
    "interleave_moe_layer_step": 2,
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_shared_count": 1,
    "expert_gating_func": 2,
    "expert_group_scale": 1.0,
    "experts_per_group": 1,
    "expert_weights_norm": True,
}
_ALTERNATING: Settings = {"attention.sliding_window_pattern": [False, True]}

ARCHITECTURES: dict[str, Settings] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"attention.head_count": 4, "attention.head_count_kv": 1},
    "qwen3moe": _EXPERTS,
    "phi3": {},
    "mistral3": {},
    "gemma2": {},
    "gemma3": {"block_count": 6, "attention.sliding_window_pattern": 6},
    "gemma3n": {
        "embedding_length": 64,
        "attention.head_count": 1,
        "attention.head_count_kv": 1,
        "feed_forward_length": 96,
        "block_count": 22,
    },
    "gemma4": {
        "embedding_length": 128,
        "feed_forward_length": 192,
        "block_count": 5,
        "embedding_length_per_layer_input": 64,
        "attention.shared_kv_layers": 0,
        "attention.key_length_swa": 64,
        "attention.value_length_swa": 64,
        "rope.freq_base_swa": 10000.0,
        "attention.sliding_window_pattern": [True, True, True, True, False],
    },
    "gpt-oss": _EXPERTS,
    "cohere2": {},
    "olmo2": {},
    "exaone4": {},
    "smollm3": {},
    "seed_oss": {},
    "glm4": {},
    "llama4": _EXPERTS | {"block_count": 4},
    "glm4moe": _EXPERTS,
    "deepseek2": _EXPERTS | _LATENT,
    "granitemoe": _EXPERTS,
    "ernie4_5-moe": _EXPERTS,
    "hunyuan-moe": _EXPERTS,
    "minimax-m2": _EXPERTS,
    "mimo2": _EXPERTS | _ALTERNATING,
    "step35": _EXPERTS | _ALTERNATING,
    "qwen3next": _EXPERTS | {"ssm.inner_size": 256},
    "qwen35": {"ssm.inner_size": 256},
    "qwen35moe": _EXPERTS | {"ssm.inner_size": 256},
    "deepseek4": _EXPERTS
    | {
        "attention.head_count_kv": 1,
        "attention.key_length": 64,
        "attention.value_length": 64,
        "attention.indexer.head_count": 2,
        "attention.indexer.key_length": 64,
        "attention.indexer.top_k": 4,
        "attention.output_group_count": 2,
        "attention.output_lora_rank": 32,
        "attention.compress_rope_freq_base": 10000.0,
        "attention.compress_ratios": [4, 128],
        "rope.dimension_count": 32,
        "hyper_connection.count": 4,
        "hyper_connection.sinkhorn_iterations": 2,
        "hyper_connection.epsilon": 1e-6,
        "hash_layer_count": 0,
        "swiglu_clamp_exp": 10.0,
        "expert_gating_func": 4,
        "expert_weights_scale": 1.0,
    },
    "granitehybrid": _MIXED_HEADS,
    "lfm2": _MIXED_HEADS,
    "lfm2moe": _EXPERTS | _MIXED_HEADS,
    "nemotron_h": {
        "block_count": 3,
        "attention.head_count": [2, 0, 2],
        "attention.head_count_kv": [2, 0, 2],
        "feed_forward_length": [0, 0, 384],
    },
    "falcon-h1": {},
    "jamba": _MIXED_HEADS | _EXPERTS,
    "plamo2": _MIXED_HEADS | {"ssm.group_count": 0},
    "kimi-linear": _EXPERTS
    | _LATENT
    | {"attention.head_count": [1, 0], "attention.head_count_kv": [1, 0]},
    "mamba": {},
    "mamba2": {},
    "rwkv6": {},
    "rwkv7": {},
}


def write_model(
    path: Path,
    architecture: str,
    *,
    seed: int = 0,
    changes: Settings | None = None,
    values: Values | None = None,
    keeps: Callable[[str], bool] = lambda name: True,
    merges: Merges = MERGES,
    is_quantized: bool = False,
) -> Path:
    """Write a tiny model of this architecture; equal seeds give equal files.

    `values` may give tensors other than random values, `keeps` leaves tensors out.
    """
    settings = sizes(architecture, changes or {})
    probe = Writer(path, architecture, merges=merges, seed=seed)
    _add(probe.gguf, architecture, settings | {"vocab_size": probe.vocab_size})
    probe.save()
    shapes = _tensors_of(path)
    if "nextn_predict_layers" in settings:
        # libllama counts the scales of heads as missing where it is told to leave heads out
        shapes = {n: s for n, s in shapes.items() if not n.endswith((".scale", ".input_scale"))}
        shapes = _fused(shapes) if architecture == "mimo2" else shapes
    writer = Writer(path, architecture, merges=merges, seed=seed)
    writer.is_quantized = is_quantized
    _add(writer.gguf, architecture, settings | {"vocab_size": writer.vocab_size})
    for name, shape in shapes.items():
        random = _values(name, shape, writer.random)
        chosen = values(name, shape) if values else None
        if keeps(name):
            writer.tensor(name, random if chosen is None else chosen)
    return writer.save()


def tiny_hybrid(path: Path) -> Path:
    """Write a model of recurrent and attention layers in turn."""
    changes: Settings = {"embedding_length": 64, "block_count": 4}
    return write_model(path, "qwen35", changes=changes)


def tiny_recurrent(path: Path) -> Path:
    """Write a model without attention."""
    return write_model(path, "mamba", changes={"embedding_length": 64})


def sizes(architecture: str, changes: Settings) -> Settings:
    """The metadata of a tiny model, without its vocabulary."""
    own = ARCHITECTURES.get(architecture, {}) | changes
    # a number under this key, where settings may be anything
    width = int(own.get("embedding_length", 128))  # type: ignore[call-overload]
    heads = own.get("attention.head_count", 2)
    head_count = max(heads) if isinstance(heads, list) else int(heads)
    head_size = width // head_count
    common: Settings = {
        "context_length": CONTEXT,
        "embedding_length": width,
        "features_length": width,
        "block_count": 2,
        "leading_dense_block_count": 1,
        "feed_forward_length": 192,
        "use_parallel_residual": False,
        "logit_scale": 1.0,
        "time_mix_extra_dim": 64,
        "time_decay_extra_dim": 128,
        "full_attention_interval": 2,
        "attention.head_count": head_count,
        "attention.head_count_kv": head_count,
        "attention.max_alibi_bias": 8.0,
        "attention.clamp_kqv": 1.0,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.group_norm_epsilon": 1e-5,
        "attention.group_norm_groups": 8,
        "attention.q_lora_rank": 64,
        "attention.kv_lora_rank": 512,
        "attention.relative_buckets_count": 8,
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": 2,
        "attention.decay_lora_rank": 32,
        "attention.iclr_lora_rank": 32,
        "attention.value_residual_mix_lora_rank": 32,
        "attention.gate_lora_rank": 32,
        "rope.dimension_sections": [head_size // 4] * 4,
        "token_shift_count": 2,
        "ssm.inner_size": 2 * width,
        "ssm.conv_kernel": 4,
        "ssm.state_size": 128,
        "ssm.time_step_rank": head_count,
        "ssm.group_count": 2,
        "kda.head_dim": 128,
        "wkv.head_size": head_size,
        "shortconv.l_cache": 3,
        "residual_scale": 1.0,
        "embedding_scale": 1.0,
        "attention.scale": head_size**-0.5,
    }
    return common | own


def _add(gguf: GGUFWriter, architecture: str, settings: Settings) -> None:
    for name, value in settings.items():
        key = f"{architecture}.{name}"
        if isinstance(value, bool):
            gguf.add_bool(key, value)
        elif isinstance(value, int):
            gguf.add_uint32(key, value)
        elif isinstance(value, float):
            gguf.add_float32(key, value)
        elif isinstance(value, str):
            gguf.add_string(key, value)
        else:
            gguf.add_array(key, value)


def _values(name: str, shape: tuple[int, ...], random: np.random.Generator) -> NDArray[np.float64]:
    values = random.standard_normal(shape)
    if "ssm_a" in name:
        return -np.abs(values)  # how fast a state decays
    if "norm" in name and name.endswith("weight") and len(shape) == 1:
        return 1 + 0.01 * values
    if "rope" in name:
        return np.ones(shape)
    if name.endswith("bias") or len(shape) == 1:
        return 0.1 * values
    return values * (0.5 if name == "token_embd.weight" else shape[-1] ** -0.5)


def _fused(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """One tensor for queries, keys and values of a block: heads of mimo2 know no other form."""
    fused: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        block, _, part = name.partition(".attn_")
        if part in ("q.weight", "k.weight", "v.weight"):
            name = f"{block}.attn_qkv.weight"
            shape = (shape[0] + fused.get(name, (0,))[0], shape[1])
        fused[name] = shape
    return fused


class _TensorHead(ctypes.Structure):
    """The beginning of ggml_tensor."""

    _fields_ = (("type", ctypes.c_int), ("buffer", c_void_p), ("ne", c_int64 * 4))


def _tensors_of(path: Path) -> dict[str, tuple[int, ...]]:
    """The tensors that libllama makes for this metadata, with numpy's order of dimensions.

    Raises:
        ValueError: libllama cannot make this model.
    """
    library.start()
    found: dict[str, tuple[int, ...]] = {}

    def note(tensor: int, _user: Any) -> None:
        shape = list(ctypes.cast(tensor, POINTER(_TensorHead)).contents.ne)
        while len(shape) > 1 and shape[-1] == 1:
            shape.pop()
        found[api.ggml_get_name(tensor).decode()] = tuple(reversed(shape))
        zeros = ctypes.create_string_buffer(api.ggml_nbytes(tensor))
        api.ggml_backend_tensor_set(tensor, ctypes.cast(byref(zeros), c_void_p), 0, len(zeros))

    callback = api.llama_model_set_tensor_data_t(note)
    params = api.llama_model_default_params()
    params.n_gpu_layers, params.load_mtp = 0, True
    metadata = api.gguf_init_from_file(str(path).encode(), api.gguf_init_params(True, None))
    library.take_errors()
    model = api.llama_model_init_from_user(metadata, callback, None, params)
    api.gguf_free(metadata)
    if not model:
        raise ValueError(f"{path.name}: {library.take_errors()}")
    api.llama_model_free(model)
    return found
