"""Request bodies: names and types of their fields, documented for OpenAPI.

Ranges are checked by `SamplingParams`, `SpeculativeParams` and `translate`. Fields of several types
(prompt, stop, logit_bias ...) are `Any` here. Null means absent. Unknown fields are ignored, as by
llama-server and OpenAI, except in `speculative`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, ConfigDict, Field, create_model, model_validator

from headstart.server.body import Body, Count, Int, Many, Seed
from headstart.server.errors import wrong_value
from headstart.types import DraftMode
from headstart.types.errors import RequestError
from headstart.types.request import MAX_SCALE
from headstart.types.sampling_params import NUMBERS

# a field for each number of SamplingParams; absent ones have the server's default
if TYPE_CHECKING:
    SamplingBody = Body
else:
    _TYPES = {"int": Int | None, "float": float | None}
    SamplingBody = create_model(
        "SamplingBody",
        __base__=Body,
        **{one.name: (_TYPES[one.type], None) for one in NUMBERS if one.name != "seed"},
    )


class SpeculativeBody(Body):
    """Speculation settings of this request; absent fields have the server's default."""

    model_config = ConfigDict(extra="forbid")

    mode: Annotated[DraftMode, Field(strict=False)] | None = Field(
        default=None, description="auto, fixed or off"
    )
    types: Any = Field(
        default=None, description="speculators in order of preference: list, or names with commas"
    )
    type: Any = Field(default=None, description="the same as types")
    n_max: Int | None = Field(default=None, description="most draft tokens a step; 0 for none")
    n_min: Int | None = Field(
        default=None, description="shorter drafts are dropped, but never one of n_max tokens"
    )
    p_min: float | None = Field(
        default=None, description="a draft model stops before a token less likely than this"
    )


class AdapterScale(Body):
    """An adapter's id and scale."""

    id: Int = -1
    scale: float = Field(0.0, allow_inf_nan=False, ge=-MAX_SCALE, le=MAX_SCALE)


class StreamOptions(Body):
    """How to stream."""

    include_usage: bool = False


class FormatBody(Body):
    """The form of the answer, which some chat templates show to the model."""

    response_format: dict[str, Any] | None = Field(
        None, description="type text, json_object or json_schema"
    )
    json_schema: Any = Field(None, description="the answer is JSON of this schema")


class GenerationBody(FormatBody, SamplingBody):
    """Fields of all routes that generate text."""

    asks_model: ClassVar[bool] = True
    # libllama searches the vocabulary for each, which takes 20 ms if it is large
    dry_sequence_breakers: list[Annotated[str, Field(max_length=256)]] | None = Field(
        None, min_length=1, max_length=32
    )
    ignore_eos: bool | None = None
    seed: Seed | None = Field(None, description="-1 takes a random one, which the answer reports")
    samplers: Any = Field(None, description="list of names, or one letter each in a string")
    logit_bias: Any = Field(
        None, description='{"id or text": bias} or [[id or text, bias]]; bias false bans'
    )
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    n: Int = 1
    n_cmpl: Int | None = Field(None, description="the same as n")
    n_predict: Int | None = Field(
        None, ge=-1, description="most tokens; -1 no limit, 0 only fills the cache"
    )
    max_completion_tokens: Int | None = Field(None, ge=-1, description="the same as n_predict")
    max_tokens: Int | None = Field(None, ge=-1, description="the same as n_predict")
    stop: Any = Field(None, description="a string or a list of strings")
    n_indent: Int = Field(
        0, description="end before a new line with less white space in front than this; 0 is off"
    )
    n_probs: Int | None = Field(None, description="alternatives per token, with log probabilities")
    post_sampling_probs: bool = False
    cache_prompt: bool | None = None  # None: the server's default
    n_cache_reuse: Int | None = Field(None, description="see --cache-reuse")
    n_keep: Int | None = Field(None, description="see --keep")
    n_discard: Int = Field(0, description="tokens that a context shift drops; 0 for half")
    id_slot: Int = -1
    priority: Int = Field(
        0, description="of requests of one key that wait the lowest goes first, then the oldest"
    )
    t_max_predict_ms: Int = Field(
        0, description="time limit in ms, after which the text ends with its line; 0 is off"
    )
    timings_per_token: bool = False
    return_tokens: bool = False
    return_progress: bool = False
    return_metrics: bool = Field(
        False, description="the whole block `metrics`: by speculator, and why none drafted"
    )
    verbose: bool | None = Field(
        None, description="`__verbose`: the answer as /completion gives it; default: with --verbose"
    )
    provenance: bool = Field(False, description="who drafted each token; what each step verified")
    sse_ping_interval: Int | None = Field(
        None, ge=-1, description="seconds between comments in a silent stream; 0 or -1 none"
    )
    echo: bool = False
    store: bool | None = Field(
        None,
        description="false: neither recorded nor kept among the prompts on the disk; true: may be "
        "recorded (--record-texts)",
    )
    speculative: SpeculativeBody = SpeculativeBody()
    mirostat: Int = Field(0, description="only 0")
    adaptive_target: float | None = Field(None, description="only below 0, which is off")
    lora: list[AdapterScale] | None = Field(
        None, max_length=256, description="LoRA adapters; those that are not named are off"
    )
    reasoning_budget_tokens: Int | None = Field(
        None,
        ge=-1,
        description="tokens after which reasoning is ended; -1 is no limit, 0 no reasoning; "
        "outside chats with reasoning_budget_start_tag and _end_tags",
    )
    thinking_budget_tokens: Int | None = Field(
        None, ge=-1, description="the same as reasoning_budget_tokens"
    )
    reasoning_control: bool = Field(
        False, description="reasoning can be ended by POST /v1/chat/completions/control"
    )
    reasoning_budget_message: str | None = Field(
        None, max_length=4096, description="text in front of the end of reasoning that was too long"
    )
    reasoning_budget_start_tag: str | None = Field(
        None,
        max_length=256,
        description="not of chats: what reasoning begins with, for reasoning_budget_tokens",
    )
    reasoning_budget_end_tags: list[Annotated[str, Field(max_length=256)]] | None = Field(
        None,
        max_length=16,
        description="what they end with; the first one ends those that are too long",
    )
    reasoning_budget_end_tag: str | None = Field(
        None, max_length=256, description="the same, a single one"
    )
    grammar: str | None = Field(None, description="GBNF; Lark if it begins with %llguidance")
    regex: str | None = Field(None, description="the whole answer matches it; Rust's syntax")
    lark: str | None = Field(None, description="a grammar in llguidance's Lark")
    grammar_lazy: bool = Field(
        False, description="the constraint begins at one of grammar_triggers"
    )
    grammar_triggers: Any = Field(
        None, description='[{"type": 1, "value": text}] or [{"type": 0, "token": id}]'
    )

    @property
    def wanted_logprobs(self) -> tuple[str, int | None]:
        """The field that requests log probabilities, and the number of alternatives per token.

        None: no log probabilities; as in llama-server `n_probs: 0` requests none.

        Raises:
            RequestError: the fields contradict each other.
        """
        return "n_probs", self.n_probs or None

    @model_validator(mode="before")
    @classmethod
    def _fold_dotted(cls, data: Any) -> Any:
        """Read "speculative.n_max" like {"speculative": {"n_max": ...}}; the dotted key wins."""
        dotted = {
            key.removeprefix("speculative."): value
            for key, value in data.items()
            if key.startswith("speculative.") and value is not None
        }
        nested = data.get("speculative") or {}
        has_both = dotted and isinstance(nested, dict)
        return data | {"speculative": nested | dotted} if has_both else data


class TemplateBody(FormatBody):
    """What makes the prompt of a chat; all that is checked where only the prompt is wanted."""

    messages: Many[dict[str, Any]]
    add_generation_prompt: bool | None = None
    continue_final_message: Any = Field(
        None,
        description='true, "content" or "reasoning_content"; default: if the last message is the '
        "assistant's",
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="variables for the template, such as enable_thinking"
    )
    reasoning_effort: str | None = None
    tools: list[Any] | None = Field(None, description="OpenAI's, of type function")


class ChatBody(GenerationBody, TemplateBody):
    """POST /v1/chat/completions."""

    logprobs: bool = False
    top_logprobs: Int | None = None
    tool_choice: Any = Field(
        None, description='auto, none, required, or {"function": {"name": ...}}'
    )
    parallel_tool_calls: bool | None = Field(
        None, description="several calls in one answer; default: if the template has them"
    )
    parse_tool_calls: bool = Field(True, description="false leaves calls in the content")
    reasoning_format: Literal["none", "auto", "deepseek", "deepseek-legacy", ""] | None = Field(
        None, description="none leaves reasoning in the content; auto, deepseek"
    )

    @property
    def wanted_logprobs(self) -> tuple[str, int | None]:
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs to be true")
        if not self.logprobs:
            return super().wanted_logprobs
        # 20 is llama-server's default
        return "top_logprobs", 20 if self.top_logprobs is None else self.top_logprobs


def shared_fields(body: Body) -> dict[str, Any]:
    """Fields of chat in a body of another API, but for those with a meaning of its own there."""
    own = {"messages", "tools", "tool_choice", "n", "n_cmpl", "logprobs", "top_logprobs", "echo"}
    known = ChatBody.model_fields.keys() - own
    return {
        name: value
        for name, value in (body.model_extra or {}).items()
        if name in known or name.startswith("speculative.")
    }


def switch_thinking(data: dict[str, Any], is_on: bool) -> None:
    """Tell the template of a chat whether to think, unless `chat_template_kwargs` says so."""
    kwargs = data.get("chat_template_kwargs") or {}
    if isinstance(kwargs, dict):  # otherwise the chat body's check refuses it
        data["chat_template_kwargs"] = {"enable_thinking": is_on} | kwargs


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: Any = Field(description="string, token ids, a mix of both, or a list of these")
    logprobs: Any = Field(None, description="number of alternatives per token")
    suffix: str | None = Field(None, description="what comes after the text to fill in")

    @property
    def wanted_logprobs(self) -> tuple[str, int | None]:
        if self.logprobs is None or self.logprobs is False:
            return super().wanted_logprobs
        if isinstance(self.logprobs, bool) or not isinstance(self.logprobs, int):
            raise wrong_value("logprobs", self.logprobs, "a whole number")
        return "logprobs", self.logprobs  # as in OpenAI's API, 0 requests the chosen token only


class NativeBody(GenerationBody):
    """POST /completion."""

    prompt: Any = Field(description="string, token ids, a mix of both, or a list of these")
    response_fields: list[Annotated[str, Field(max_length=256)]] = Field(
        default_factory=list, max_length=64
    )
    n_probs: Count | None = Field(
        None,
        validation_alias=AliasChoices("n_probs", "logprobs"),
        description="alternatives per token, with log probabilities; also named logprobs",
    )


class InfillExtra(Body):
    """A piece of another file."""

    text: str
    filename: str = "tmp"


class InfillBody(NativeBody):
    """POST /infill; otherwise as for /completion."""

    input_prefix: Any = Field(
        description="what comes before the lines of the cursor: string, token ids or both"
    )
    input_suffix: Any = Field(description="what comes after the cursor, in the same form")
    input_extra: Many[InfillExtra] = Field(
        default_factory=list, description="pieces of other files, the best last"
    )
    prompt: str = Field(default="", description="the line of the cursor up to it")


class TokenizeBody(Body):
    """POST /tokenize."""

    content: Any = Field("", description="string, or a list of strings and token ids")
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class SlotBody(Body):
    """POST /slots/{id_slot}."""

    filename: str | None = None  # in the folder of --slot-save-path


class DetokenizeBody(Body):
    """POST /detokenize."""

    tokens: Many[int] = Field([], description="list of token ids")
