"""Flags that llama-server's users bring along and that do not exist here: what to do instead."""

from __future__ import annotations

# flag -> field of a request
IN_REQUEST = {
    "-n": "n_predict",
    "--predict": "n_predict",
    "--n-predict": "n_predict",
    "-s": "seed",
    "--seed": "seed",
    "--temp": "temperature",
    "--temperature": "temperature",
    "--top-k": "top_k",
    "--top-p": "top_p",
    "--min-p": "min_p",
    "--top-nsigma": "top_n_sigma",
    "--top-n-sigma": "top_n_sigma",
    "--typical": "typical_p",
    "--typical-p": "typical_p",
    "--xtc-probability": "xtc_probability",
    "--xtc-threshold": "xtc_threshold",
    "--dynatemp-range": "dynatemp_range",
    "--dynatemp-exp": "dynatemp_exponent",
    "--repeat-last-n": "repeat_last_n",
    "--repeat-penalty": "repeat_penalty",
    "--presence-penalty": "presence_penalty",
    "--frequency-penalty": "frequency_penalty",
    "--dry-multiplier": "dry_multiplier",
    "--dry-base": "dry_base",
    "--dry-allowed-length": "dry_allowed_length",
    "--dry-penalty-last-n": "dry_penalty_last_n",
    "--dry-sequence-breaker": "dry_sequence_breakers",
    "--samplers": "samplers",
    "--sampler-seq": "samplers",
    "--sampling-seq": "samplers",
    "-l": "logit_bias",
    "--logit-bias": "logit_bias",
    "--ignore-eos": "ignore_eos",
    "-r": "stop",
    "--reverse-prompt": "stop",
    "--sse-ping-interval": "sse_ping_interval",
}

ALWAYS_SO = (
    "--jinja", "-cb", "--cont-batching", "-kvu", "--kv-unified", "--no-context-shift",
    "--no-mmproj", "--no-mmproj-auto", "--log-prefix", "--log-timestamps",
)  # fmt: skip

NOT_SUPPORTED = (
    "--lora", "--lora-scaled", "--lora-init-without-apply", "--control-vector",
    "--control-vector-scaled", "-mm", "--mmproj", "-mmu", "--mmproj-url", "--mmproj-auto",
    "--mmproj-offload", "--no-mmproj-offload", "--image-min-tokens", "--image-max-tokens",
    "--media-path", "--ssl-key-file", "--ssl-cert-file", "--api-prefix", "--reuse-port",
    "--tools", "-ag", "--agent", "--models-dir", "--models-preset",
    "--models-max", "--embedding", "--embeddings", "--rerank", "--reranking", "--pooling",
    "--grammar", "--grammar-file", "-j", "--json-schema", "-jf", "--json-schema-file",
    "--mirostat", "--mirostat-lr", "--mirostat-ent", "--adaptive-target", "--adaptive-decay",
    "--reasoning-budget-message",
    "--no-jinja", "-nocb", "--no-cont-batching", "-no-kvu", "--no-kv-unified", "--context-shift",
    "--keep", "--cache-reuse", "-cram", "--cache-ram", "-ctxcp", "--ctx-checkpoints",
    "--swa-checkpoints", "--swa-full", "--slot-save-path", "-sps", "--slot-prompt-similarity",
    "--props", "--sleep-idle-seconds", "--rpc", "--numa", "--prio", "--prio-batch", "--poll",
    "--poll-batch", "-C", "--cpu-mask", "-Cr", "--cpu-range", "--cpu-strict", "-nkvo",
    "--no-kv-offload", "-nr", "--no-repack", "--no-host", "--no-op-offload", "-ot",
    "--override-tensor", "--override-kv", "-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe",
    "--check-tensors", "-fit", "--fit", "--rope-scaling", "--rope-scale", "--rope-freq-base",
    "--rope-freq-scale", "--yarn-orig-ctx", "--yarn-ext-factor", "--yarn-attn-factor",
    "--yarn-beta-slow", "--yarn-beta-fast", "--spec-draft-p-split", "--draft-p-split",
    "--spec-ngram-simple-min-hits",
)  # fmt: skip

_HEADS = "multi-token heads are not supported yet"
INSTEAD = {
    "--list-devices": "run headstart devices",
    "--mtp": _HEADS,
    "--eagle3": _HEADS,
    "--dflash": _HEADS,
    "-mu": "download the file, or name its repository with --hf-repo",
    "--model-url": "download the file, or name its repository with --hf-repo",
    "-lm": "use --mmap, --no-mmap or --mlock",
    "--load-mode": "use --mmap, --no-mmap or --mlock",
    "--spec-default": "leave it out, speculation is on by default",
    "--spec-synth-len": "use --spec-synthetic-length",
    "--spec-synth-rates": "use --spec-synthetic-rate",
    "--threads-http": "leave it out, HTTP needs no threads of its own",
    "--warmup": "leave it out, the first start with a model times some decodes",
    "--no-warmup": "leave it out, only the first start with a model times some decodes",
    "-lv": "use --log-level",
    "--verbosity": "use --log-level",
    "--log-verbosity": "use --log-level",
    "--log-disable": "use --log-level error",
    "--log-file": "redirect standard error",
}


def advice(flag: str) -> str | None:
    """Return what to do instead of a flag of llama-server; None if it is none that we know."""
    if field := IN_REQUEST.get(flag):
        return f"set it in the request, as {field}"
    if flag in ALWAYS_SO:
        return "it is always so here, leave it out"
    if flag in NOT_SUPPORTED:
        return "it is not supported"
    return INSTEAD.get(flag)
