"""What no honest client sends: how much of a field is read before it is refused.

Each limit is there because more of it once held up or ended a server; each refusal names the field,
the size, the limit and what to do.
"""

from __future__ import annotations

from collections.abc import Sized

from headstart.server.errors import ApiError
from headstart.types.errors import RequestError

MAX_PROMPTS = 256  # answers of one call
MAX_INPUTS = 2048  # texts to embed or rank in one call, as at OpenAI
MAX_VALUES = 1 << 23  # numbers in the vectors of one answer, some 100 MB of JSON
MAX_STOPS, MAX_STOP_BYTES = 64, 1024
MAX_SAMPLERS = 32
# libllama searches the whole vocabulary for each, 20 ms of a large one, and reads 40 bytes of it
MAX_BREAKERS, MAX_BREAKER_BYTES = 32, 256
MAX_NAMES = 64  # of speculators, of fields of the answer
MAX_BIAS_TEXTS, MAX_BIAS_TEXT_BYTES = 1024, 1024  # those that have to be tokenized
# Beyond it biases are the same to every sampler, and no temperature makes them infinite.
MAX_BIAS = 1e30
# alternatives per token: of a whole vocabulary they were 757 MB for 300 tokens
MAX_PROBS = 128
# A text is refused before it is tokenized if tokens of so many bytes would not make it fit.
BYTES_PER_TOKEN = 32
# tokens of a text that is only to be counted, or of ids that are only to be read, on a server with
# a smaller context
MIN_COUNTED_TOKENS = 131_072

# Of the whole body. Parsing holds up all threads, and what is small in JSON is large in Python.
MAX_FIELDS = 256
MAX_ENTRIES = 32_768  # of a list whose entries are objects or texts
ANY_LENGTH = frozenset(
    {"prompt", "tokens", "content", "input", "logit_bias", "input_prefix", "input_suffix"}
)
MAX_TEXTS, MAX_CONTAINERS = 100_000, 400_000


def check_structure(body: bytes) -> None:
    """Raise for a body of very many small parts, before they are made. Counts bytes, so brackets in
    texts count too.

    Raises:
        RequestError: 400.
    """
    for what, count, limit in (
        ("texts and keys", (body.count(b'"') - body.count(b'\\"')) // 2, MAX_TEXTS),
        ("lists and objects", body.count(b"[") + body.count(b"{"), MAX_CONTAINERS),
    ):
        if count > limit:
            raise RequestError(
                f"the body holds {count} {what} but at most {limit} are read; send fewer"
            )


def check_length(field: str, value: Sized, limit: int, what: str = "entries") -> None:
    """Raise if the value is longer than that.

    Raises:
        RequestError: 400.
    """
    if len(value) > limit:
        raise RequestError(
            f"{field} holds {len(value)} {what} but at most {limit} are taken; send fewer"
        )


def check_fits(num_bytes: int, num_tokens: int, flag: str = "--context") -> None:
    """Raise for a prompt that cannot fit what `flag` sets, before it is tokenized.

    Raises:
        RequestError: 400.
    """
    if num_bytes > BYTES_PER_TOKEN * num_tokens:
        raise ApiError(
            400,
            f"the prompt has {num_bytes} bytes, more than {BYTES_PER_TOKEN} for each of the "
            f"{num_tokens} tokens that are taken; shorten it, or start with a larger {flag}",
            type="exceed_context_size_error",
        )


def check_bytes(field: str, text: str, limit: int) -> None:
    """Raise if the text is longer than that in UTF-8.

    Raises:
        RequestError: 400.
    """
    # characters first: encoding a long text only to refuse it takes memory
    size = len(text) if len(text) > limit else len(text.encode("utf-8", "replace"))
    if size > limit:
        raise RequestError(
            f"{field} holds a text of {size} bytes but at most {limit} are taken; send a "
            "shorter one"
        )
