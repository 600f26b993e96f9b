"""llama.h as far as the engine uses it, for ctypes. Written by scripts/make_binding.py.

Functions are bound when they are first used: `functions` says their results and arguments.
"""

# ruff: noqa: D101

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    Union,
    c_bool,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int8,
    c_int32,
    c_int64,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

from headstart.engine.find_library import load

VERSION = "0.5.0-dev"  # what llama_version() must say
RELEASE = "0.3.36"  # the release that brings it
LLAMA_STATE_SEQ_MAGIC = 1734833009
LLAMA_STATE_SEQ_VERSION = 3
LLAMA_TOKEN_ATTR_CONTROL = 8
LLAMA_TOKEN_ATTR_LSTRIP = 128
LLAMA_TOKEN_ATTR_UNKNOWN = 1
LLAMA_TOKEN_ATTR_USER_DEFINED = 16

llama_adapter_lora_p_ctypes = POINTER(c_void_p)


class llama_batch(Structure):
    _fields_ = [
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    ]


class llama_context_params(Structure):
    _fields_ = [
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32),
        ("n_outputs_max", c_uint32),
        ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("ctx_type", c_int32),
        ("rope_scaling_type", c_int32),
        ("pooling_type", c_int32),
        ("attention_type", c_int32),
        ("flash_attn_type", c_int32),
        ("rope_freq_base", c_float),
        ("rope_freq_scale", c_float),
        ("yarn_ext_factor", c_float),
        ("yarn_attn_factor", c_float),
        ("yarn_beta_fast", c_float),
        ("yarn_beta_slow", c_float),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int32),
        ("type_v", c_int32),
        ("abort_callback", c_void_p),
        ("abort_callback_data", c_void_p),
        ("embeddings", c_bool),
        ("offload_kqv", c_bool),
        ("no_perf", c_bool),
        ("op_offload", c_bool),
        ("swa_full", c_bool),
        ("kv_unified", c_bool),
        ("samplers", c_void_p),
        ("n_samplers", c_uint64),
        ("ctx_other", c_void_p),
    ]


llama_log_callback = CFUNCTYPE(None, c_int32, c_char_p, c_void_p)

llama_progress_callback = CFUNCTYPE(c_bool, c_float, c_void_p)


class llama_model_kv_override_value(Union):
    _fields_ = [
        ("val_i64", c_int64),
        ("val_f64", c_double),
        ("val_bool", c_bool),
        ("val_str", c_char * 128),
    ]


class llama_model_kv_override(Structure):
    _fields_ = [
        ("tag", c_int32),
        ("key", c_char * 128),
        ("value", llama_model_kv_override_value),
    ]


class llama_model_params(Structure):
    _fields_ = [
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int32),
        ("load_mode", c_int32),
        ("lazy_mode", c_int32),
        ("main_gpu", c_int32),
        ("tensor_split", POINTER(c_float)),
        ("progress_callback", llama_progress_callback),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", POINTER(llama_model_kv_override)),
        ("vocab_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool),
        ("no_host", c_bool),
        ("no_alloc", c_bool),
        ("load_mtp", c_bool),
    ]


llama_model_set_tensor_data_t = CFUNCTYPE(None, c_void_p, c_void_p)


class llama_token_data(Structure):
    _fields_ = [
        ("id", c_int32),
        ("logit", c_float),
        ("p", c_float),
    ]


class llama_token_data_array(Structure):
    _fields_ = [
        ("data", POINTER(llama_token_data)),
        ("size", c_uint64),
        ("selected", c_int64),
        ("sorted", c_bool),
    ]


class llama_sampler_chain_params(Structure):
    _fields_ = [
        ("no_perf", c_bool),
    ]


functions: dict[str, tuple[Any, ...]] = {
    "llama_adapter_get_alora_n_invocation_tokens": (c_uint64, POINTER(c_void_p)),
    "llama_adapter_lora_init": (POINTER(c_void_p), c_void_p, c_char_p),
    "llama_adapter_meta_val_str": (c_int32, POINTER(c_void_p), c_char_p, c_char_p, c_uint64),
    "llama_backend_init": (None,),
    "llama_batch_free": (None, llama_batch),
    "llama_batch_get_one": (llama_batch, POINTER(c_int32), c_int32),
    "llama_batch_init": (llama_batch, c_int32, c_int32, c_int32),
    "llama_context_default_params": (llama_context_params,),
    "llama_decode": (c_int32, c_void_p, llama_batch),
    "llama_encode": (c_int32, c_void_p, llama_batch),
    "llama_free": (None, c_void_p),
    "llama_ftype_name": (c_char_p, c_int32),
    "llama_get_embeddings": (POINTER(c_float), c_void_p),
    "llama_get_embeddings_seq": (POINTER(c_float), c_void_p, c_int32),
    "llama_get_logits": (POINTER(c_float), c_void_p),
    "llama_get_memory": (c_void_p, c_void_p),
    "llama_init_from_model": (c_void_p, c_void_p, llama_context_params),
    "llama_log_set": (None, llama_log_callback, c_void_p),
    "llama_max_devices": (c_uint64,),
    "llama_memory_can_shift": (c_bool, c_void_p),
    "llama_memory_clear": (None, c_void_p, c_bool),
    "llama_memory_seq_add": (None, c_void_p, c_int32, c_int32, c_int32, c_int32),
    "llama_memory_seq_cp": (None, c_void_p, c_int32, c_int32, c_int32, c_int32),
    "llama_memory_seq_pos_max": (c_int32, c_void_p, c_int32),
    "llama_memory_seq_pos_min": (c_int32, c_void_p, c_int32),
    "llama_memory_seq_rm": (c_bool, c_void_p, c_int32, c_int32, c_int32),
    "llama_model_chat_template": (c_char_p, c_void_p, c_char_p),
    "llama_model_default_params": (llama_model_params,),
    "llama_model_free": (None, c_void_p),
    "llama_model_ftype": (c_int32, c_void_p),
    "llama_model_get_vocab": (c_void_p, c_void_p),
    "llama_model_has_decoder": (c_bool, c_void_p),
    "llama_model_has_encoder": (c_bool, c_void_p),
    "llama_model_init_from_user": (
        c_void_p,
        c_void_p,
        llama_model_set_tensor_data_t,
        c_void_p,
        llama_model_params,
    ),
    "llama_model_is_diffusion": (c_bool, c_void_p),
    "llama_model_is_hybrid": (c_bool, c_void_p),
    "llama_model_is_recurrent": (c_bool, c_void_p),
    "llama_model_load_from_file": (c_void_p, c_char_p, llama_model_params),
    "llama_model_meta_count": (c_int32, c_void_p),
    "llama_model_meta_key_by_index": (c_int32, c_void_p, c_int32, c_char_p, c_uint64),
    "llama_model_meta_val_str": (c_int32, c_void_p, c_char_p, c_char_p, c_uint64),
    "llama_model_meta_val_str_by_index": (c_int32, c_void_p, c_int32, c_char_p, c_uint64),
    "llama_model_n_cls_out": (c_uint32, c_void_p),
    "llama_model_n_ctx_train": (c_int32, c_void_p),
    "llama_model_n_embd": (c_int32, c_void_p),
    "llama_model_n_embd_inp": (c_int32, c_void_p),
    "llama_model_n_embd_out": (c_int32, c_void_p),
    "llama_model_n_layer": (c_int32, c_void_p),
    "llama_model_n_layer_nextn": (c_int32, c_void_p),
    "llama_model_n_params": (c_uint64, c_void_p),
    "llama_model_n_swa": (c_int32, c_void_p),
    "llama_model_size": (c_uint64, c_void_p),
    "llama_n_ctx_seq": (c_uint32, c_void_p),
    "llama_n_rs_seq": (c_uint32, c_void_p),
    "llama_numa_init": (None, c_int32),
    "llama_pooling_type": (c_int32, c_void_p),
    "llama_print_system_info": (c_char_p,),
    "llama_sampler_accept": (None, c_void_p, c_int32),
    "llama_sampler_apply": (None, c_void_p, POINTER(llama_token_data_array)),
    "llama_sampler_chain_add": (None, c_void_p, c_void_p),
    "llama_sampler_chain_default_params": (llama_sampler_chain_params,),
    "llama_sampler_chain_init": (c_void_p, llama_sampler_chain_params),
    "llama_sampler_clone": (c_void_p, c_void_p),
    "llama_sampler_free": (None, c_void_p),
    "llama_sampler_init_dry": (
        c_void_p,
        c_void_p,
        c_float,
        c_float,
        c_int32,
        c_int32,
        POINTER(c_char_p),
        c_uint64,
    ),
    "llama_sampler_init_infill": (c_void_p, c_void_p),
    "llama_sampler_init_min_p": (c_void_p, c_float, c_uint64),
    "llama_sampler_init_penalties": (c_void_p, c_int32, c_int32, c_float, c_float, c_float),
    "llama_sampler_init_temp_ext": (c_void_p, c_float, c_float, c_float),
    "llama_sampler_init_top_k": (c_void_p, c_int32),
    "llama_sampler_init_top_n_sigma": (c_void_p, c_float),
    "llama_sampler_init_top_p": (c_void_p, c_float, c_uint64),
    "llama_sampler_init_typical": (c_void_p, c_float, c_uint64),
    "llama_sampler_init_xtc": (c_void_p, c_float, c_float, c_uint64, c_uint32),
    "llama_set_adapter_cvec": (
        c_int32,
        c_void_p,
        POINTER(c_float),
        c_uint64,
        c_int32,
        c_int32,
        c_int32,
    ),
    "llama_set_adapters_lora": (
        c_int32,
        c_void_p,
        POINTER(POINTER(c_void_p)),
        c_uint64,
        POINTER(c_float),
    ),
    "llama_set_causal_attn": (None, c_void_p, c_bool),
    "llama_state_seq_get_data_ext": (
        c_uint64,
        c_void_p,
        POINTER(c_uint8),
        c_uint64,
        c_int32,
        c_uint32,
    ),
    "llama_state_seq_get_size_ext": (c_uint64, c_void_p, c_int32, c_uint32),
    "llama_state_seq_load_file": (
        c_uint64,
        c_void_p,
        c_char_p,
        c_int32,
        POINTER(c_int32),
        c_uint64,
        POINTER(c_uint64),
    ),
    "llama_state_seq_save_file": (
        c_uint64,
        c_void_p,
        c_char_p,
        c_int32,
        POINTER(c_int32),
        c_uint64,
    ),
    "llama_state_seq_set_data_ext": (
        c_uint64,
        c_void_p,
        POINTER(c_uint8),
        c_uint64,
        c_int32,
        c_uint32,
    ),
    "llama_supports_rpc": (c_bool,),
    "llama_token_to_piece": (c_int32, c_void_p, c_int32, c_char_p, c_int32, c_int32, c_bool),
    "llama_tokenize": (
        c_int32,
        c_void_p,
        c_char_p,
        c_int32,
        POINTER(c_int32),
        c_int32,
        c_bool,
        c_bool,
    ),
    "llama_version": (c_char_p,),
    "llama_vocab_bos": (c_int32, c_void_p),
    "llama_vocab_eos": (c_int32, c_void_p),
    "llama_vocab_eot": (c_int32, c_void_p),
    "llama_vocab_fim_mid": (c_int32, c_void_p),
    "llama_vocab_fim_pre": (c_int32, c_void_p),
    "llama_vocab_fim_rep": (c_int32, c_void_p),
    "llama_vocab_fim_sep": (c_int32, c_void_p),
    "llama_vocab_fim_suf": (c_int32, c_void_p),
    "llama_vocab_get_add_bos": (c_bool, c_void_p),
    "llama_vocab_get_add_eos": (c_bool, c_void_p),
    "llama_vocab_get_add_sep": (c_bool, c_void_p),
    "llama_vocab_get_attr": (c_int32, c_void_p, c_int32),
    "llama_vocab_get_text": (c_char_p, c_void_p, c_int32),
    "llama_vocab_is_control": (c_bool, c_void_p, c_int32),
    "llama_vocab_is_eog": (c_bool, c_void_p, c_int32),
    "llama_vocab_mask": (c_int32, c_void_p),
    "llama_vocab_n_tokens": (c_int32, c_void_p),
    "llama_vocab_sep": (c_int32, c_void_p),
    "llama_vocab_type": (c_int32, c_void_p),
}

_lib, folder = load(RELEASE)


def __getattr__(name: str) -> Any:
    """Bind a function."""
    if name not in functions:
        raise AttributeError(f"{name} is not bound; run scripts/make_binding.py")
    function = getattr(_lib, name)
    function.restype, *function.argtypes = functions[name]
    globals()[name] = function
    return function
