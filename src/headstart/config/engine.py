"""Engine settings for loading and running models, for the target and the draft model."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from typing import Any

from headstart.config.fields import SWITCH_WORDS, flag_of, option, option_of
from headstart.types.errors import ConfigError

# tokens; libllama takes no batch larger than the context, and ours are at least so large
LEAST_CONTEXT, MOST_CONTEXT = 64, 1 << 24  # planning more would take gigabytes
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
# values of the others can only be read by flash attention
PLAIN_CACHE_TYPES = ("f32", "f16", "bf16")
_BY_DEFAULT = {"-1": None, "0": None}


def rpc_endpoints(text: str) -> list[tuple[str, int]]:
    """Host and port of each worker of `--rpc`.

    Raises:
        ConfigError: it is not HOST:PORT,...
    """
    endpoints = []
    for part in text.split(","):
        host, _, port = part.strip().rpartition(":")
        if not host or ":" in host or not re.fullmatch(r"\d{1,5}", port) or int(port) > 65535:
            raise ConfigError(
                f"--rpc has {part.strip()!r} but must be HOST:PORT,... with a name or an IPv4 "
                "address, for instance 192.168.1.20:50052"
            )
        endpoints.append((host, int(port)))
    if len(set(endpoints)) < len(endpoints) or len(endpoints) > 16:  # libllama's limit
        raise ConfigError(
            f"--rpc names {len(endpoints)} workers, {len(set(endpoints))} different ones; at most "
            "16, each once"
        )
    return endpoints


def fit_targets(text: str) -> list[int]:
    """MiB that `--fit-target` leaves free: of all devices, or of each of the first GPUs.

    Raises:
        ConfigError: one is no number.
    """
    parts = text.split(",")
    if not all(re.fullmatch(r"\s*\d{1,12}\s*", part, re.ASCII) for part in parts):
        raise ConfigError(f"--fit-target is {text!r} but must be MiB, as 1024 or 1024,512")
    return [int(part) for part in parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Engine settings of a model. Built twice: for the target and for the draft model."""

    threads: int | None = option(
        None, "CPU threads while generating; default: physical cores", least=1, words=_BY_DEFAULT
    )
    threads_batch: int | None = option(
        None,
        "CPU threads while processing prompts; default: as --threads",
        least=1,
        words=_BY_DEFAULT,
    )
    gpu_layers: int = option(
        -1, "layers on the GPU; -1 for all", least=-1, words={"all": -1, "auto": -1}
    )
    device: str | None = option(
        None,
        "devices to use: NAME,... (see `headstart devices`); none: the CPU",
    )
    rpc: str | None = option(
        None,
        "machines that compute part of the model: HOST:PORT,... of their `headstart rpc-worker`s, "
        "whose devices are RPC0, RPC1 ...",
    )
    split_mode: str = option(
        "layer", "how to split the model over devices", choices=("none", "layer", "row", "tensor")
    )
    main_gpu: int = option(0, "index of the device that holds the model with --split-mode none")
    tensor_split: str | None = option(None, "share of the model per device, for instance 3,1")
    cache_type_k: str = option("f16", "type of the cached keys", choices=CACHE_TYPES)
    cache_type_v: str = option("f16", "type of the cached values", choices=CACHE_TYPES)
    flash_attn: str = option(
        "auto",
        "flash attention",
        choices=("auto", "on", "off"),
        bare="on",
        words={word: "on" if is_on else "off" for word, is_on in SWITCH_WORDS.items()},
    )
    context: int = option(
        0,
        "context size in tokens, shared by all slots; 0: as the model was trained",
        "--ctx-size",
        least=LEAST_CONTEXT,
        most=MOST_CONTEXT,
        words={"0": 0},
    )
    batch: int = option(2048, "maximum tokens in one decode call", "--batch-size", least=2)
    ubatch: int = option(
        512,
        "maximum tokens computed at once; 0: as --batch",
        "--ubatch-size",
        least=2,
        words={"0": 0},
    )
    swa_full: bool = option(
        False,
        "keep the whole context in layers with a sliding window: several times the memory, but "
        "a cached prompt can be continued at any position",
    )
    ctx_checkpoints: int = option(
        32,
        "maximum checkpoints per slot of models with recurrent layers or sliding windows, so that "
        "an edited history is not processed again from the start",
        least=0,
    )
    fit: str = option(
        "on",
        "choose what is not set of context size, GPU layers and CPU experts so that all fits into "
        "free memory",
        choices=("on", "off"),
    )
    fit_target: str = option(
        "1024", "MiB that --fit leaves free on each device, or on each GPU: 1024, or 1024,512"
    )
    fit_ctx: int = option(
        4096,
        "smallest context size that --fit chooses, if the model supports it",
        least=LEAST_CONTEXT,
        words={"0": LEAST_CONTEXT},
    )
    kv_offload: bool = option(True, "keep the cache on the GPU for layers that are there")
    op_offload: bool = option(
        True, "let the GPU compute large batches for layers that are on the CPU"
    )
    cpu_moe: bool = option(False, "keep the weights of all experts on the CPU")
    n_cpu_moe: int = option(
        0, "keep the experts' weights of the first N layers on the CPU", least=0
    )
    override_tensor: str | None = option(
        None,
        "where to keep tensors: PATTERN=BUFFER,..., for instance 'ffn_.*_exps=CPU'",
        separator=",",
    )
    override_kv: str | None = option(
        None,
        "override metadata of the model file: KEY=TYPE:VALUE,...; types int, float, bool, str",
        separator=",",
    )
    prio: int = option(
        0,
        "priority of the engine process: -1 low, 0 normal, 1 medium, 2 high, 3 realtime",
        least=-1,
        most=3,
    )
    cpu_mask: str | None = option(None, "CPUs that the engine may use, as a hexadecimal mask")
    cpu_range: str | None = option(None, "CPUs that the engine may use, as FIRST-LAST")
    rope_scaling: str | None = option(
        None,
        "scaling of positions; default: as the model says",
        choices=("none", "linear", "yarn"),
    )
    rope_scale: float = option(0.0, "factor by which the context grows; 0: the model's", least=0)
    rope_freq_base: float = option(0.0, "base frequency of RoPE; 0: the model's", least=0)
    rope_freq_scale: float = option(
        0.0, "scaling of RoPE's frequencies, 1/--rope-scale; 0: the model's", least=0
    )
    yarn_orig_ctx: int = option(
        0, "context size before YaRN, in tokens; 0: as the model was trained", least=0
    )
    yarn_ext_factor: float = option(-1.0, "YaRN: extrapolation mix factor; below 0: the model's")
    yarn_attn_factor: float = option(-1.0, "YaRN: attention scale; below 0: the model's")
    yarn_beta_fast: float = option(-1.0, "YaRN: low correction; below 0: the model's")
    yarn_beta_slow: float = option(-1.0, "YaRN: high correction; below 0: the model's")
    lora: str | None = option(None, "LoRA adapters: FILE,...", separator=",")
    lora_scaled: str | None = option(
        None, "LoRA adapters with the scale of each: FILE:SCALE,...", separator=","
    )
    lora_init_without_apply: bool = option(
        False, "load the LoRA adapters with a scale of 0; requests and POST /lora-adapters set it"
    )
    control_vector: str | None = option(None, "control vectors: FILE,...", separator=",")
    control_vector_scaled: str | None = option(
        None, "control vectors with the scale of each: FILE:SCALE,...", separator=","
    )
    repack: bool = option(
        True,
        "rearrange weights so that a CPU computes a few rows faster; prompts are processed "
        "without, where that is faster and memory holds both",
        "-repack",
    )
    check_tensors: bool = option(False, "check the weights for invalid values when loading")
    libllama: str | None = option(
        None,
        "folder of libllama; default: what headstart backend install put there, else that of the "
        "package llama-cpp-python",
    )
    numa: str | None = option(
        None,
        "distribute the threads over all NUMA nodes, isolate them on the one where the server "
        "starts, or leave it to numactl",
        choices=("distribute", "isolate", "numactl"),
    )
    mtp: bool = option(
        True,
        "draft with the model's multi-token heads, from its file or from one next to it or in "
        "--hf-repo (mtp-*)",
    )
    mmap: bool = option(True, "map the model file into memory instead of reading it")
    mlock: bool = option(False, "keep the model in RAM")
    exact: bool = option(
        False,
        "the same text with and without drafts and other requests, rounding included; slower, and "
        "each slot has its own cache",
    )

    def __post_init__(self) -> None:
        if self.rpc:
            rpc_endpoints(self.rpc)
            if self.exact:
                raise ConfigError(
                    "--exact compares what this machine computes, and a worker of --rpc may "
                    "compute otherwise; drop one of the two"
                )
        if self.rope_scale and self.rope_freq_scale:
            raise ConfigError("--rope-scale and --rope-freq-scale say the same; leave one out")
        fit_targets(self.fit_target)


def _as_target(name: str, default: Any = None) -> Any:
    """A setting that the draft model has too: values, words and range are the target's."""
    words = f"{flag_of(name)} of the draft model"
    (of_target,) = (option_of(one) for one in fields(EngineConfig) if one.name == name)
    declared = replace(of_target, help=words, aliases=(f"{flag_of(name)}-draft",))
    return field(default=default, metadata={"option": declared})


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftEngineConfig:
    """Settings that may differ for the draft model; None means as for the target."""

    draft_threads: int | None = _as_target("threads")
    draft_threads_batch: int | None = _as_target("threads_batch")
    draft_gpu_layers: int | None = _as_target("gpu_layers")
    draft_device: str | None = _as_target("device")
    draft_cache_type_k: str | None = _as_target("cache_type_k")
    draft_cache_type_v: str | None = _as_target("cache_type_v")
    draft_override_tensor: str | None = _as_target("override_tensor")
    draft_cpu_moe: bool = _as_target("cpu_moe", False)
    draft_n_cpu_moe: int = _as_target("n_cpu_moe", 0)
    draft_context: int | None = option(
        None,
        "context size of the draft model, in tokens",
        "-cd",
        "--ctx-size-draft",
        least=LEAST_CONTEXT,
        most=MOST_CONTEXT,
    )

    def applied_to(self, base: EngineConfig, parallel: int) -> EngineConfig:
        """The target's settings with these on top; no more context than the target has."""
        given = {one.name.removeprefix("draft_"): getattr(self, one.name) for one in fields(self)}
        own = {name: value for name, value in given.items() if value is not None}
        settings: dict[str, Any] = {
            "context": base.context * (parallel if base.exact else 1),
            "batch": 512,
            # A draft model's steps would take a round trip each. Where it was named a remote
            # device, that one is known by then.
            "rpc": None,
            "tensor_split": None if self.draft_device else base.tensor_split,
            "exact": False,
            "swa_full": True,  # rolls back the tokens of many decodes
            "ctx_checkpoints": 8,  # of recurrent layers: states to go back to after a rejection
            "mtp": False,
        }
        adapters = ("lora", "lora_scaled", "control_vector", "control_vector_scaled")
        for name in ("override_tensor", "override_kv", *adapters):  # of the target's tensors
            settings[name] = None
        return replace(base, **(settings | own))


POOLINGS = ("none", "mean", "cls", "last", "rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingConfig:
    """Embeddings and reranking."""

    embeddings: bool = option(False, "serve embeddings")
    rerank: bool = option(False, "serve /rerank; needs a model with a classification head")
    pooling: str | None = option(
        None, "how the embeddings of a text's tokens are combined; default: as the model says",
        choices=POOLINGS,
    )  # fmt: skip
    embd_normalize: int = option(
        2,
        "normalization of embeddings: -1 none, 0 scale the largest number to 32760, 1 taxicab, "
        "2 Euclidean, above 2 this p-norm",
        least=-1,
    )

    def __post_init__(self) -> None:
        if self.rerank and self.pooling not in (None, "rank"):
            raise ConfigError(f"--rerank needs --pooling rank, not {self.pooling}; drop --pooling")

    @property
    def is_on(self) -> bool:
        """Whether the model turns texts into vectors or scores."""
        return self.embeddings or self.rerank


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig:
    """Images in prompts."""

    mmproj: str | None = option(
        None, "GGUF file of a projector, which lets the model read images or sounds; default: the "
        "one in the model's repository on the hub",
    )  # fmt: skip
    mmproj_auto: bool = option(True, "use the projector in the model's repository on the hub")
    mmproj_offload: bool = option(True, "compute the projector on the GPU")
    image_min_tokens: int = option(
        0, "minimum tokens per image, if the model allows a choice; 0: the model's",
        least=0, words={"-1": None},
    )  # fmt: skip
    image_max_tokens: int = option(
        0, "maximum tokens per image, if the model allows a choice; 0: the model's",
        least=0, words={"-1": None},
    )  # fmt: skip

    def __post_init__(self) -> None:
        if 0 < self.image_max_tokens < self.image_min_tokens:
            raise ConfigError(
                f"--image-min-tokens is {self.image_min_tokens} but --image-max-tokens is "
                f"{self.image_max_tokens}; lower the first or raise the second"
            )
