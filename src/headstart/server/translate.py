"""Turns request bodies into `Request`s: values, limits, defaults."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

from headstart.config import speculators_named
from headstart.server.adapters import adapter_key, request_scales
from headstart.server.body import MAX_PROMPTS, check_length
from headstart.server.constraints import read_constraint
from headstart.server.conversation import tagged_thoughts
from headstart.server.errors import not_supported, wrong_value
from headstart.server.prompts import Prompt
from headstart.server.sampling import read_names, sampling_params
from headstart.server.schemas import ChatBody, CompletionBody, GenerationBody, SpeculativeBody
from headstart.server.service import RequestDefaults, ServedModel
from headstart.types import DraftMode
from headstart.types.errors import RequestError
from headstart.types.report import WorkerInfo
from headstart.types.request import Request, SpeculativeParams


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request for text, and the model that answers it."""

    id: str
    created: int  # seconds since 1970
    tenant: str
    fingerprint: str
    model: ServedModel
    info: WorkerInfo
    adapter_scales: tuple[float, ...] | None = None  # for bodies without `lora`


def make_requests(body: GenerationBody, prompts: list[Prompt], call: Call) -> list[Request]:
    """A request for each prompt and choice; choices of a prompt are adjacent and differ in seed.

    Raises:
        RequestError: a value is not supported.
    """
    _refuse(body)
    num_each = _num_choices(body, call.info)
    if len(prompts) * num_each > MAX_PROMPTS:
        raise RequestError(
            f"{len(prompts)} prompts with n = {num_each} exceed {MAX_PROMPTS} answers in one call"
        )
    defaults, vocab = call.model.defaults, call.model.vocab
    config = call.model.config.scheduler
    max_tokens = _max_tokens(body, defaults)
    num_logprobs = _num_logprobs(body, max_tokens, prompts, num_each, call)
    sampling = sampling_params(body, defaults, vocab)
    adapters = request_scales(body.lora, call.adapter_scales, call.info)
    # OpenAI's `echo` with log probabilities includes those of the prompt
    scores_prompt = isinstance(body, CompletionBody) and body.echo and num_logprobs is not None
    has_tools = isinstance(body, ChatBody) and bool(body.tools) and body.tool_choice != "none"
    own_stop = call.model.template.stop if isinstance(body, ChatBody) else ()
    constraint = read_constraint(body, vocab) or (None if has_tools else defaults.constraint)
    # wraps around, as in llama-server
    slot_id = None if body.id_slot < 0 else body.id_slot % call.info.num_slots
    make = partial(
        Request,
        max_tokens=max_tokens,
        stop=_stop(body.stop or list(defaults.stop)) + tuple(stop.encode() for stop in own_stop),
        min_indent=max(0, body.n_indent),
        num_logprobs=num_logprobs,
        post_sampling_probs=body.post_sampling_probs,
        cache_prompt=not scores_prompt
        and (config.cache_prompt if body.cache_prompt is None else body.cache_prompt),
        cache_reuse=max(
            0, config.cache_reuse if body.n_cache_reuse is None else body.n_cache_reuse
        ),
        num_keep=max(-1, config.keep if body.n_keep is None else body.n_keep),
        num_discard=max(0, body.n_discard),
        priority=body.priority,
        max_seconds=body.t_max_predict_ms / 1000 if body.t_max_predict_ms > 0 else None,
        speculative=speculative_params(body.speculative),
        constraint=constraint,
        adapters=adapters,
        namespace=call.tenant + adapter_key(adapters, call.info),
        wants_progress=body.return_progress or body.timings_per_token,
        wants_provenance=body.provenance,
        wants_prompt_scores=scores_prompt,
        store=body.store,
    )
    thoughts = [tagged_thoughts(body, prompt.text, call.model) for prompt in prompts]
    requests = [
        make(
            request_id=f"{call.id}-{index}" if index else call.id,
            prompt=prompt.tokens,
            media=prompt.media,
            slot_id=None if index else slot_id,  # the others would have to wait
            thoughts=thoughts[index // num_each],
            sampling=dataclasses.replace(sampling, seed=(sampling.seed + index % num_each) % 2**32),
        )
        for index, prompt in enumerate(prompt for prompt in prompts for _ in range(num_each))
    ]
    _check_told(requests[0], prompts, num_each)
    return requests


def _check_told(first: Request, prompts: list[Prompt], num_choices: int) -> None:
    """Limit how much request data is echoed back: every choice repeats its own request."""
    constraint = first.constraint.text if first.constraint else ""
    # an entry of logit_bias is an object, which is written as fast as many characters
    own = len(constraint) + 256 * len(first.sampling.logit_bias)
    size = num_choices * sum(own + len(prompt.text) for prompt in prompts)
    most = 1 << 24
    if size > most and len(prompts) * num_choices > 1:
        raise RequestError(
            f"the answers would repeat {size} characters of prompts, logit_bias and the constraint "
            f"but at most {most} are sent; ask for fewer at once"
        )


def speculative_params(body: SpeculativeBody) -> SpeculativeParams:
    """The body's speculation; `type: "none"` is llama-server's name for off."""
    if None not in (body.types, body.type) and body.types != body.type:
        raise RequestError(
            "speculative.types and speculative.type are two names of one field; send one of them"
        )
    names = body.type if body.types is None else body.types
    mode, types = body.mode, read_names("speculative.types", names)
    if types and "none" in types:
        if len(types) > 1:
            raise RequestError(
                f"speculative.types is {', '.join(types)} but none cannot stand beside others"
            )
        if mode not in (None, DraftMode.OFF):
            raise RequestError(
                f"speculative.mode is {mode.value} but speculative.types is none; leave out one of "
                "them"
            )
        mode, types = DraftMode.OFF, None
    return SpeculativeParams(
        mode=mode,
        types=None if types is None else speculators_named(types),
        n_max=body.n_max,
        n_min=body.n_min,
        p_min=body.p_min,
    )


def _num_logprobs(
    body: GenerationBody, max_tokens: int | None, prompts: list[Prompt], num_each: int, call: Call
) -> int | None:
    """Alternatives to show per token; None for no log probabilities."""
    field, value = body.wanted_logprobs
    size, num_answers = call.info.context_size, len(prompts) * num_each
    num_tokens = max(1, size if max_tokens is None else min(size, max_tokens))
    most = 1 << 21  # for all tokens of the answers, at most some 250 MB
    few = max(20, 128 // num_answers)  # answers are mostly shorter than they may be
    limit = min(max(few, most // (num_tokens * num_answers)), call.model.vocab.size)
    if isinstance(body, CompletionBody) and body.echo:  # as many for all tokens of the prompts
        num_scored = num_each * sum(len(prompt.tokens) for prompt in prompts)
        limit = min(limit, max(1, most // max(1, num_scored)))
    if value is None or value < 0:  # off, as in llama-server
        return None
    if value > limit:
        raise wrong_value(
            field,
            value,
            f"from 0 to {limit}; ask for fewer, or for fewer tokens or answers at once",
        )
    return value


def _refuse(body: GenerationBody) -> None:
    """Refuse unsupported fields that would change the text."""
    if body.mirostat:
        raise not_supported(
            f"mirostat is {body.mirostat} but only 0 is supported: its state cannot be rolled back "
            "with a draft; top_n_sigma or min_p keep unlikely tokens out without a state"
        )
    if body.adaptive_target is not None and body.adaptive_target >= 0:
        raise not_supported(
            f"adaptive_target is {body.adaptive_target} but only less than 0, off, is supported"
        )


def _num_choices(body: GenerationBody, info: WorkerInfo) -> int:
    number = body.n if body.n_cmpl is None else body.n_cmpl
    if not 1 <= number <= info.num_slots:
        raise wrong_value(
            "n", number, f"from 1 to {info.num_slots}, the number of slots (--parallel)"
        )
    return number


def _max_tokens(body: GenerationBody, defaults: RequestDefaults) -> int | None:
    for name in ("n_predict", "max_completion_tokens", "max_tokens"):
        value: int | None = getattr(body, name)
        if value is not None:
            return None if value == -1 else value
    return defaults.max_tokens


def _stop(stop: Any) -> tuple[bytes, ...]:
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(stops, list) or not all(isinstance(text, str) for text in stops):
        raise RequestError("stop must be a text or a list of texts")
    check_length("stop", stops, 64, "texts")
    encoded = tuple(text.encode() for text in stops if text)
    for one in encoded:
        check_length("stop", one, 1024, "bytes")
    return encoded
