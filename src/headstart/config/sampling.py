"""Sampling defaults of requests: llama-server's sampling flags.

None means: what the model file recommends (`general.sampling.*`), else llama-server's default.
"""

from __future__ import annotations

from dataclasses import dataclass

from headstart.config.fields import option
from headstart.types.errors import ConfigError

__all__ = ["SamplingConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """Defaults of requests; ranges are checked as those of a request."""

    predict: int = option(-1, "maximum tokens of an answer; -1 for no limit")
    seed: int = option(-1, "seed of the random numbers; -1 picks a new one for each request")
    temp: float | None = option(None, "temperature; 0 always takes the likeliest token (0.8)")
    top_k: int | None = option(None, "sample from the k likeliest tokens; 0 from all (40)")
    top_p: float | None = option(
        None, "sample from the likeliest tokens that together have this probability (0.95)"
    )
    min_p: float | None = option(
        None, "drop tokens less likely than this share of the likeliest (0.05)"
    )
    typical_p: float | None = option(None, "locally typical sampling; 1 is off (1)")
    top_n_sigma: float | None = option(
        None, "drop logits this many standard deviations below the best; -1 is off (-1)"
    )
    xtc_probability: float | None = option(None, "how often XTC drops the best tokens (0)")
    xtc_threshold: float | None = option(
        None, "minimum probability of the tokens that XTC drops (0.1)"
    )
    dynatemp_range: float | None = option(None, "how much the temperature varies (0)")
    dynatemp_exp: float | None = option(None, "exponent of the varying temperature (1)")
    repeat_last_n: int | None = option(
        None, "tokens that penalties look back; 0 is off, -1 the whole context (64)"
    )
    repeat_penalty: float | None = option(None, "penalty for repeated tokens; 1 is off (1)")
    presence_penalty: float | None = option(None, "subtracted from tokens seen before (0)")
    frequency_penalty: float | None = option(
        None, "subtracted from tokens for each time they were seen (0)"
    )
    dry_multiplier: float | None = option(
        None, "strength of the DRY repetition penalty; 0 is off (0)"
    )
    dry_base: float | None = option(None, "base of DRY's penalty (1.75)")
    dry_allowed_length: int | None = option(
        None, "repetitions up to this length are not penalized (2)"
    )
    dry_penalty_last_n: int | None = option(
        None, "tokens that DRY looks back; 0 is off, -1 the whole context (-1)"
    )
    dry_sequence_breaker: str | None = option(
        None,
        'text that ends a repetition for DRY, instead of \\n, :, " and *; repeatable; none: no '
        "text does",
        separator="\n",
    )
    samplers: str | None = option(
        None,
        "samplers in order, separated by semicolons "
        "(penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature)",
    )
    sampler_seq: str | None = option(
        None, "same as --samplers with one letter for each (edskypmxt)"
    )
    ignore_eos: bool = option(False, "continue past the model's end of text")
    logit_bias: str | None = option(
        None,
        "logit biases as ID+BIAS or ID-BIAS, separated by commas; repeatable",
        separator=",",
    )
    reverse_prompt: str | None = option(
        None, "stop string of requests that name none; repeatable", separator="\n"
    )
    grammar: str | None = option(
        None,
        "grammar (GBNF, or Lark after %llguidance) for answers to requests without a constraint "
        "or tools of their own",
    )
    grammar_file: str | None = option(None, "the same from a file")
    json_schema: str | None = option(None, "JSON schema for such answers; {} for any JSON")
    json_schema_file: str | None = option(None, "the same from a file")
    escape: bool = option(
        True, "read escapes such as \\n and \\t in --reverse-prompt and --dry-sequence-breaker"
    )

    def __post_init__(self) -> None:
        if self.predict < -2:
            raise ConfigError(
                f"--predict is {self.predict} but must be 0 or more, or -1 for no limit"
            )
        forms = ("grammar", "grammar_file", "json_schema", "json_schema_file")
        given = [f"--{name.replace('_', '-')}" for name in forms if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} both say what form answers have; use one")
        if self.samplers is not None and self.sampler_seq is not None:
            raise ConfigError("--samplers and --sampler-seq are two ways to say one thing; use one")
