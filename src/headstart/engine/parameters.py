"""Our settings as libllama's parameters, with the limits that it enforces by aborting."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from headstart.config import CACHE_TYPES, PLAIN_CACHE_TYPES, EngineConfig
from headstart.engine.devices import device_array, list_devices
from headstart.engine.library import api
from headstart.engine.machine import default_threads
from headstart.types.errors import ConfigError
from headstart.types.widths import LEAST_WIDEST

_GGML_TYPES = dict(zip(CACHE_TYPES, (0, 1, 30, 8, 2, 3, 20, 6, 7), strict=True))
# libllama makes no cache for these, so they embed texts but generate none
ENCODERS = frozenset((
    "bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "neo-bert",
    "eurobert", "modern-bert", "gemma-embedding",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Facts:
    """Properties of a model that determine its context's parameters."""

    is_recurrent: bool  # some layers keep a state that cannot be truncated
    window: int  # tokens seen by sliding-window layers; 0 without such layers
    train_context: int
    num_layers: int
    vocab_size: int
    architecture: str = ""
    num_experts: int = 0
    original_context: int = 0  # before extension by RoPE factors; 0: not extended
    key_size: int = 0  # numbers in the key of one head; 0: layers have other ones

    @classmethod
    def of(cls, handle: Any, overrides: str | None) -> Facts:
        """Read from a loaded model, even without weights.

        Args:
            overrides: its --override-kv, which libllama does not apply when a value is read.
        """
        entries = kv_overrides(overrides) if overrides else ()
        ints = [one for one in reversed(entries) if one.tag == 0]  # the first entry wins
        numbers = {one.key: one.value.val_i64 & 0xFFFF_FFFF for one in ints}

        def text_of(key: str) -> str:
            if key.encode() in numbers:
                return str(numbers[key.encode()])
            value = ctypes.create_string_buffer(64)
            found = api.llama_model_meta_val_str(handle, key.encode(), value, len(value))
            return value.value.decode("utf-8", "replace") if found > 0 else ""

        architecture = text_of("general.architecture")

        def number_of(key: str) -> int:
            text = text_of(f"{architecture}.{key}")
            return int(text) if text.isdigit() else 0

        key_size, num_heads = number_of("attention.key_length"), number_of("attention.head_count")
        if not key_size and num_heads:
            key_size = api.llama_model_n_embd(handle) // num_heads
        has_state = api.llama_model_is_recurrent(handle) or api.llama_model_is_hybrid(handle)
        return cls(
            is_recurrent=bool(has_state),
            window=int(api.llama_model_n_swa(handle)),
            train_context=int(api.llama_model_n_ctx_train(handle)),
            num_layers=int(api.llama_model_n_layer(handle)),
            vocab_size=int(api.llama_vocab_n_tokens(api.llama_model_get_vocab(handle))),
            architecture=architecture,
            num_experts=number_of("expert_count"),
            original_context=number_of("rope.scaling.original_context_length"),
            key_size=key_size,
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """What a context must support."""

    num_sequences: int  # ids 0 .. num_sequences - 1
    max_outputs: int  # most rows with logits in one decode
    max_draft: int  # longest draft that may have to be rolled back
    least_draft: int = 0  # where that takes memory, at least drafts of this length
    checkpoint_bytes: int = 2**30  # main memory for checkpoints
    is_heads: bool = False  # runs multi-token heads
    shares_weights: bool = False  # weights are loaded with another part
    reads_states: bool = False  # may require the target's context
    embeds: bool = False  # for embeddings only


def model_params(config: EngineConfig, *, vocab_only: bool = False) -> tuple[Any, list[Any]]:
    """libllama's model parameters, and the objects that must stay alive while it loads.

    Raises:
        ConfigError: impossible devices, splits or overrides.
    """
    params = api.llama_model_default_params()
    params.vocab_only = vocab_only
    params.n_gpu_layers = config.gpu_layers
    params.split_mode = {"none": 0, "layer": 1, "row": 2, "tensor": 3}[config.split_mode]
    params.main_gpu = config.main_gpu
    # libllama's values: -1 default, 0 read, 2 lock, 3 map and lock
    modes = {(True, False): -1, (False, False): 0, (False, True): 2, (True, True): 3}
    params.load_mode = modes[config.mmap, config.mlock]
    params.check_tensors = config.check_tensors
    params.load_mtp = config.mtp
    params.use_extra_bufts = config.repack
    arrays = {
        "devices": device_array(config.device, can_be_remote=config.rpc is not None),
        "tensor_split": _shares(config.tensor_split) if config.tensor_split else None,
        "kv_overrides": kv_overrides(config.override_kv) if config.override_kv else None,
        "tensor_buft_overrides": None if vocab_only else tensor_overrides(config),
    }
    for name, array in arrays.items():
        if array is not None:
            setattr(params, name, ctypes.cast(array, dict(params._fields_)[name]))
    return params, list(arrays.values())


def context_params(facts: Facts, config: EngineConfig, limits: Limits, context: int) -> Any:
    """libllama's context parameters.

    Raises:
        ConfigError: settings that contradict each other or the model.
    """
    if facts.architecture in ENCODERS and not limits.embeds:
        raise ConfigError(
            f"{facts.architecture} models generate no text and cannot draft; start with "
            "--embeddings, or with --rerank if it is a reranker"
        )
    params = api.llama_context_default_params()
    params.n_seq_max = limits.num_sequences
    params.kv_unified = not config.exact
    # Rows may be padded beyond the end of a sequence, hence the spare cells.
    params.n_ctx = context if not config.exact else (context + 256) * limits.num_sequences
    params.n_batch = min(config.batch, max(context, 64))
    params.n_ubatch = params.n_batch
    if not config.exact:
        params.n_ubatch = min(params.n_batch, config.ubatch or config.batch)
    # libllama does not report the window size of hybrid models. A window's cells are a ring buffer,
    # in which drafts would change the order of summation.
    params.swa_full = config.swa_full or facts.is_recurrent or config.exact
    if facts.window and not params.swa_full:
        # Rows that libllama computes later in the same decode may take cells that a draft before
        # them needs when it is rejected; in one micro-batch there is no later.
        params.n_batch = params.n_ubatch
    # at most 256 MiB of logits in one decode
    outputs = min(limits.max_outputs, params.n_batch, 2**26 // max(1, facts.vocab_size))
    # For padding rows. One more is free if all sequences share their cells.
    is_shared = not (config.exact or facts.is_recurrent or facts.window)
    params.n_seq_max += is_shared and params.n_seq_max < params.n_batch
    if config.exact:  # outputs are padded too
        # widths of up to 64 rows are compared
        outputs = min(params.n_batch, max(outputs, 64) + 64)
    params.n_outputs_max = max(params.n_seq_max, outputs)
    # The last tokens of a sequence, one more than there are snapshots, must fit into a micro-batch
    # with room to spare: libllama aborts otherwise. Snapshots are valid until another sequence is
    # decoded, and exact decodes have one each. libllama mixes up those of lfm2 after a rollback if
    # sequences share a batch: see the fuzz test in tests/real/test_architectures.py.
    is_mixed = config.exact or facts.architecture in ("lfm2", "lfm2moe")
    if limits.num_sequences == 1 or not is_mixed:
        # all sequences' drafts, padded to the longest, must fit too
        most = min(params.n_ubatch - 2, params.n_ubatch // limits.num_sequences - 1)
        params.n_rs_seq = max(0, min(limits.max_draft, most))
    params.n_threads = config.threads or default_threads()
    params.n_threads_batch = config.threads_batch or params.n_threads
    attention = "on" if config.exact and config.flash_attn == "auto" else config.flash_attn
    params.flash_attn_type = {"auto": -1, "off": 0, "on": 1}[attention]
    params.type_k = _GGML_TYPES[config.cache_type_k]
    params.type_v = _GGML_TYPES[config.cache_type_v]
    params.offload_kqv = config.kv_offload
    params.op_offload = config.op_offload
    _set_positions(params, config)
    _check(facts, config, limits, params)
    return params


def embedding_params(facts: Facts, config: EngineConfig) -> Any:
    """Parameters of a context that keeps nothing between decodes, each of whole texts."""
    ubatch = config.ubatch or config.batch
    # at most 64 texts in one decode; libllama aborts if they do not divide its tokens
    most = 1 if facts.is_recurrent else min(64, ubatch)
    num_texts = next(number for number in range(most, 0, -1) if ubatch % number == 0)
    cells = min(facts.train_context, 8192)
    if config.context:
        cells = min(config.context, facts.train_context)
    cells = max(cells, ubatch)
    limits = Limits(num_texts, 1, 0, embeds=True)
    params = context_params(facts, replace(config, batch=ubatch), limits, cells)
    params.n_ctx, params.n_seq_max = cells, num_texts
    params.n_batch = params.n_ubatch = ubatch
    params.n_outputs_max = params.n_batch
    params.n_rs_seq = 0
    params.kv_unified = True
    params.embeddings = True
    return params


def _check(facts: Facts, config: EngineConfig, limits: Limits, params: Any) -> None:
    """Refuse what libllama would compute wrongly, or abort on."""
    # libllama finds out only if flash attention may be on, and aborts otherwise
    if config.cache_type_k not in PLAIN_CACHE_TYPES and facts.key_size % 32:
        raise ConfigError(
            f"--cache-type-k {config.cache_type_k} stores 32 numbers at a time, but a key of this "
            f"{facts.architecture} model has {facts.key_size}; choose one of "
            f"{', '.join(PLAIN_CACHE_TYPES)}, with --draft-cache-type-k if it is the draft model"
        )
    if limits.num_sequences > 1 and facts.architecture == "plamo2":
        raise ConfigError(
            f"--parallel is {limits.num_sequences} but libllama computes {facts.architecture} "
            "models wrongly for several requests at once; start with --parallel 1"
        )
    if limits.num_sequences > 255:  # including the spare one
        raise ConfigError(
            f"all slots and heads together need {limits.num_sequences} sequences and libllama has "
            "255; lower --parallel"
        )
    if config.exact and params.n_batch < LEAST_WIDEST:
        raise ConfigError(
            f"--exact needs decodes of {LEAST_WIDEST} tokens and --batch is {config.batch}; raise "
            "it"
        )
    if params.n_batch < limits.num_sequences:
        raise ConfigError(
            f"--parallel is {limits.num_sequences} but a decode takes {params.n_batch} tokens; "
            "lower --parallel or raise --batch, --ubatch or --context"
        )


def _set_positions(params: Any, config: EngineConfig) -> None:
    """RoPE and YaRN parameters, under libllama's names."""
    params.rope_scaling_type = {None: -1, "none": 0, "linear": 1, "yarn": 2}[config.rope_scaling]
    params.rope_freq_base = config.rope_freq_base
    params.rope_freq_scale = config.rope_freq_scale
    if config.rope_scale:
        params.rope_freq_scale = 1.0 / config.rope_scale
    params.yarn_orig_ctx = config.yarn_orig_ctx
    params.yarn_ext_factor = config.yarn_ext_factor
    params.yarn_attn_factor = config.yarn_attn_factor
    params.yarn_beta_fast = config.yarn_beta_fast
    params.yarn_beta_slow = config.yarn_beta_slow


def _shares(text: str) -> Any:
    limit = api.llama_max_devices()
    try:
        values = [float(part) for part in text.replace("/", ",").split(",")]
    except ValueError:
        raise ConfigError(f"--tensor-split is {text!r} but must be numbers such as 3,1") from None
    if len(values) > limit or any(v < 0 for v in values) or not any(values):
        raise ConfigError(
            f"--tensor-split has {len(values)} shares; at most {limit}, none negative, one above 0"
        )
    return (ctypes.c_float * limit)(*values)


_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
# --override-kv: libllama's type id, its field for the value, and the parser
_KV_KINDS: dict[str, tuple[int, str, Callable[[str], Any]]] = {
    "int": (0, "val_i64", int),
    "float": (1, "val_f64", float),
    "bool": (2, "val_bool", {"true": True, "false": False}.__getitem__),
    "str": (3, "val_str", str.encode),
}
_MOST_BYTES = 127  # of a key, and of a text value


def kv_overrides(text: str) -> Any:
    """Array for llama_model_params.kv_overrides, ended by an empty key.

    Raises:
        ConfigError: an entry cannot be parsed.
    """
    entries = [_kv_override(part) for part in text.split(",")]
    return (api.llama_model_kv_override * (len(entries) + 1))(*entries)


def _kv_override(text: str) -> Any:
    matched = re.fullmatch(r"([^=]+)=(int|float|bool|str):(.*)", text.strip(), re.DOTALL)
    if not matched:
        raise ConfigError(
            f"--override-kv has {text.strip()!r} but must be KEY=TYPE:VALUE with one of the types "
            f"{', '.join(_KV_KINDS)}, for instance tokenizer.ggml.add_bos_token=bool:false"
        )
    key, kind, value = matched.groups()
    for name, part in (("key", key), ("value", value)):
        if len(part.encode()) > _MOST_BYTES:
            raise ConfigError(
                f"--override-kv has a {name} of {len(part.encode())} bytes; libllama takes "
                f"{_MOST_BYTES}"
            )
    tag, field, read = _KV_KINDS[kind]
    entry = api.llama_model_kv_override(tag=tag, key=key.encode())
    try:
        setattr(entry.value, field, read(value))
    except (ValueError, KeyError):
        raise ConfigError(f"--override-kv {key} is {value!r}, which is no {kind}") from None
    return entry


def tensor_overrides(config: EngineConfig) -> Any:
    """Array for llama_model_params.tensor_buft_overrides, ended by an empty entry; None if empty.

    Raises:
        ConfigError: a pattern or a buffer cannot be used.
    """
    wanted: list[tuple[str, int]] = []
    types = [api.ggml_backend_dev_buffer_type(device.handle) for device in list_devices()]
    buffers = {api.ggml_backend_buft_name(buffer).decode(): buffer for buffer in types if buffer}
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
        # Otherwise the logits of each row would cross the network: 600 KB for a large vocabulary.
        wanted.append((r"^(output|token_embd)\.weight$", buffers["CPU"]))
    wanted += [(rf"blk\.{i}{_EXPERTS}", buffers["CPU"]) for i in range(config.n_cpu_moe)]
    if not wanted:
        return None
    entries = [(pattern.encode(), buffer) for pattern, buffer in wanted]
    return (api.llama_model_tensor_buft_override * (len(wanted) + 1))(*entries)
