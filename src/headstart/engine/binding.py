"""ctypes bindings of libllama, libmtmd and ggml: declared in C syntax, bound on first use."""

from __future__ import annotations

import ctypes
import re
from functools import cache, partial
from typing import Any

from headstart.engine import signatures
from headstart.engine.find_library import load, load_beside, loaded_with, remedy
from headstart.types.errors import ModelError

_lib, folder = load()
_mtmd = cache(partial(load_beside, folder))
ggml = cache(partial(loaded_with, folder))
# of ggml.h, ggml-backend.h, ggml-cpu.h and gguf.h, which the binding of llama-cpp-python lacks, and
# those of llama.h that are addresses here
OF_GGML = """
uint64 ggml_backend_dev_count()
void* ggml_backend_dev_get(uint64)
void* ggml_backend_load(char*)
void* ggml_backend_reg_by_name(char*)
void ggml_backend_register(void*)
void* ggml_backend_buft_get_device(void*)
bool ggml_backend_buft_is_host(void*)
char* ggml_backend_buft_name(void*)
void* ggml_backend_dev_backend_reg(void*)
void* ggml_backend_dev_buffer_type(void*)
char* ggml_backend_dev_description(void*)
void ggml_backend_dev_memory(void*, uint64*, uint64*)
char* ggml_backend_dev_name(void*)
int32 ggml_backend_dev_type(void*)
char* ggml_backend_name(void*)
void* ggml_backend_reg_get_proc_address(void*, char*)
char* ggml_backend_reg_name(void*)
void* ggml_backend_sched_get_backend(void*, int32)
int32 ggml_backend_sched_get_n_backends(void*)
void ggml_backend_tensor_set(void*, void*, uint64, uint64)
char* ggml_get_name(void*)
uint64 ggml_nbytes(void*)
char* ggml_version()
int64 gguf_find_key(void*, char*)
int64 gguf_find_tensor(void*, char*)
void gguf_free(void*)
void* gguf_get_arr_data(void*, int64)
uint64 gguf_get_arr_n(void*, int64)
int32 gguf_get_arr_type(void*, int64)
uint64 gguf_get_data_offset(void*)
int32 gguf_get_kv_type(void*, int64)
int64 gguf_get_n_tensors(void*)
int64* gguf_get_tensor_ne(void*, int64)
uint64 gguf_get_tensor_offset(void*, int64)
uint64 gguf_get_tensor_size(void*, int64)
int32 gguf_get_tensor_type(void*, int64)
void* gguf_get_val_data(void*, int64)
char* gguf_get_val_str(void*, int64)
void* gguf_init_from_file(char*, gguf_init_params)
void ggml_backend_cpu_set_use_ref(void*, bool)
void* llama_get_embeddings(void*)
void* llama_get_embeddings_seq(void*, int32)
void* llama_get_logits(void*)
"""
# exported, but not declared in any header; followed by its mangled name
UNNAMED = """
void llama_set_embeddings_nextn(void*, bool, bool) _Z26llama_set_embeddings_nextnP13llama_contextbb
void* llama_get_embeddings_nextn(void*) _Z26llama_get_embeddings_nextnP13llama_context
void llama_set_nextn_layer_offset(void*, int32) _Z28llama_set_nextn_layer_offsetP13llama_contexti
void llama_set_embeddings_layer_inp(void*, uint32, bool) _Z30llama_set_embeddings_layer_inpP13llama_contextjb
void* llama_get_embeddings_layer_inp(void*, uint32) _Z30llama_get_embeddings_layer_inpP13llama_contextj
uint32 llama_model_target_layer_ids_n(void*) _Z30llama_model_target_layer_ids_nPK11llama_model
void* llama_get_memory_breakdown(void*, void*) _Z26llama_get_memory_breakdownPK13llama_context
void* llama_context_get_sched(void*) _ZNK13llama_context9get_schedEv
"""  # noqa: E501
STRUCTURES = signatures.STRUCTURES | {
    "gguf_init_params": "bool no_alloc, void* ctx",
    "llama_model_tensor_buft_override": "char* pattern, void* buft",
}
_FUNCTIONS = {
    name: (result, arguments, [name, *exported.split()])
    for result, name, arguments, exported in re.findall(
        r"(\S+) (\w+)\((.*)\)(.*)", signatures.FUNCTIONS + OF_GGML + UNNAMED
    )
}


@cache
def type_of(name: str) -> Any:
    """The ctypes type of a C type."""
    if name in ("void", "void*", "char*"):
        return {"void": None, "void*": ctypes.c_void_p, "char*": ctypes.c_char_p}[name]
    if name.endswith("*"):
        return ctypes.POINTER(type_of(name[:-1]))
    if name.endswith("]"):
        kind, _, size = name[:-1].partition("[")
        return type_of(kind) * int(size)
    if name in _FUNCTIONS:  # called by libllama
        return ctypes.CFUNCTYPE(*arguments_of(name))
    if name not in STRUCTURES:
        return getattr(ctypes, f"c_{name}")
    words = [field.split() for field in STRUCTURES[name].split(",")]
    fields = [(field, type_of(kind)) for kind, field in words]
    base: type = ctypes.Union if name.endswith("_value") else ctypes.Structure
    return type(name, (base,), {"_fields_": fields})


def arguments_of(function: str) -> list[Any]:
    """The types of a function's result, then of its arguments."""
    result, arguments, _ = _FUNCTIONS[function]
    return [type_of(name) for name in (result, *arguments.split(", ")) if name]


def _library_of(function: str) -> ctypes.CDLL:
    if function.startswith("mtmd"):
        return _mtmd()
    if function.startswith("llama"):
        return _lib
    parts = map(ggml, ("libggml-base", "libggml", "libggml-cpu"))
    return next((part for part in parts if hasattr(part, function)), _lib)


def _exported(function: str) -> str | None:
    """The name under which the function is exported; None if it is not."""
    library, names = _library_of(function), _FUNCTIONS[function][2]
    return next((name for name in names if hasattr(library, name)), None)


def why_not(words: str) -> str | None:
    """Which functions matching this pattern libllama lacks; None if it has them all."""
    names = [name for name in _FUNCTIONS if re.search(words, name) and not _exported(name)]
    return f"this libllama does not export {', '.join(names)}" if names else None


def __getattr__(name: str) -> Any:
    """Create a type or bind a function on first access."""
    found: Any = getattr(signatures, name, None)
    if name in STRUCTURES or name.endswith(("_callback", "_t")):
        found = type_of(name)
    elif name in _FUNCTIONS:
        exported = _exported(name)
        if exported is None:
            raise ModelError(f"this libllama does not export {name}; {remedy()}")
        found = _library_of(name)[exported]
        found.restype, *found.argtypes = arguments_of(name)
    if found is None:
        raise AttributeError(f"{name} is not bound; run scripts/make_binding.py")
    globals()[name] = found
    return found
