"""mtmd.h as far as the engine uses it, for ctypes. Written by scripts/make_binding.py.

Functions are bound when they are first used: `functions` says their results and arguments.
"""

# ruff: noqa: D101

from __future__ import annotations

from ctypes import (
    POINTER,
    Structure,
    c_bool,
    c_char_p,
    c_float,
    c_int32,
    c_int64,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache, partial
from typing import Any

from headstart.engine.binding import folder
from headstart.engine.find_library import load_beside


class mtmd_context_params(Structure):
    _fields_ = [
        ("use_gpu", c_bool),
        ("device", c_void_p),
        ("print_timings", c_bool),
        ("n_threads", c_int32),
        ("image_marker", c_char_p),
        ("media_marker", c_char_p),
        ("flash_attn_type", c_int32),
        ("warmup", c_bool),
        ("image_min_tokens", c_int32),
        ("image_max_tokens", c_int32),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("batch_max_tokens", c_int32),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
    ]


class mtmd_helper_bitmap_wrapper(Structure):
    _fields_ = [
        ("bitmap", c_void_p),
        ("video_ctx", c_void_p),
    ]


class mtmd_helper_video_init_params(Structure):
    _fields_ = [
        ("fps_target", c_float),
        ("ffmpeg_bin_dir", c_char_p),
        ("timestamp_interval_ms", c_int64),
    ]


class mtmd_helper_init_opt(Structure):
    _fields_ = [
        ("video_params", mtmd_helper_video_init_params),
    ]


class mtmd_decoder_pos(Structure):
    _fields_ = [
        ("t", c_uint32),
        ("x", c_uint32),
        ("y", c_uint32),
        ("z", c_uint32),
    ]


class mtmd_input_text(Structure):
    _fields_ = [
        ("text", c_char_p),
        ("text_len", c_uint64),
        ("add_special", c_bool),
        ("parse_special", c_bool),
    ]


functions: dict[str, tuple[Any, ...]] = {
    "mtmd_bitmap_free": (None, c_void_p),
    "mtmd_bitmap_init": (c_void_p, c_uint32, c_uint32, POINTER(c_uint8)),
    "mtmd_context_params_default": (mtmd_context_params,),
    "mtmd_decode_use_mrope": (c_bool, c_void_p),
    "mtmd_decode_use_non_causal": (c_bool, c_void_p, c_void_p),
    "mtmd_encode_chunk": (c_int32, c_void_p, c_void_p),
    "mtmd_free": (None, c_void_p),
    "mtmd_get_output_embd": (POINTER(c_float), c_void_p),
    "mtmd_helper_bitmap_init_from_buf": (
        mtmd_helper_bitmap_wrapper,
        c_void_p,
        POINTER(c_uint8),
        c_uint64,
        c_bool,
        mtmd_helper_init_opt,
    ),
    "mtmd_helper_init_opt_default": (mtmd_helper_init_opt,),
    "mtmd_helper_log_set": (None, c_void_p, c_void_p),
    "mtmd_image_tokens_get_decoder_pos": (mtmd_decoder_pos, c_void_p, c_int32, c_uint64),
    "mtmd_init_from_file": (c_void_p, c_char_p, c_void_p, mtmd_context_params),
    "mtmd_input_chunk_copy": (c_void_p, c_void_p),
    "mtmd_input_chunk_free": (None, c_void_p),
    "mtmd_input_chunk_get_n_pos": (c_int32, c_void_p),
    "mtmd_input_chunk_get_n_tokens": (c_uint64, c_void_p),
    "mtmd_input_chunk_get_tokens_image": (c_void_p, c_void_p),
    "mtmd_input_chunk_get_tokens_text": (POINTER(c_int32), c_void_p, POINTER(c_uint64)),
    "mtmd_input_chunk_get_type": (c_int32, c_void_p),
    "mtmd_input_chunks_free": (None, c_void_p),
    "mtmd_input_chunks_get": (c_void_p, c_void_p, c_uint64),
    "mtmd_input_chunks_init": (c_void_p,),
    "mtmd_input_chunks_size": (c_uint64, c_void_p),
    "mtmd_support_vision": (c_bool, c_void_p),
    "mtmd_tokenize": (
        c_int32,
        c_void_p,
        c_void_p,
        POINTER(mtmd_input_text),
        POINTER(c_void_p),
        c_uint64,
    ),
}

_library = cache(partial(load_beside, folder))


def __getattr__(name: str) -> Any:
    """Bind a function."""
    if name not in functions:
        raise AttributeError(f"{name} is not bound; run scripts/make_binding.py")
    function = getattr(_library(), name)
    function.restype, *function.argtypes = functions[name]
    globals()[name] = function
    return function
