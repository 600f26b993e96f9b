"""Our exceptions.

HeadstartError
  ConfigError              the configuration cannot work; raised before a model is loaded
  ModelError               this GGUF cannot do what was asked (missing, damaged, not capable)
  RequestError             a request, or a value in it, cannot be honoured; 400
    ContextLengthError     the prompt does not fit the context; 400 exceed_context_size_error
    LexerLimitError        the lexer of a constraint reached its limits; 400
    NotSupportedError      this server or model cannot do that; 501
  CapacityError            try again later: queue full, engine starting, server ending; 503
    QuotaError             a tenant used its share of something others want too; 429
  EngineError              libllama failed; 500 for the requests of that batch
  RpcWorkerError           an RPC worker is unreachable or incompatible; tried again
  WorkerDeadError          the engine process stopped; requests in flight get 500, then a restart
  BackendError             an upstream server failed; 502
"""

from __future__ import annotations

import copyreg
import difflib
from collections.abc import Iterable


class HeadstartError(Exception):
    """Base of all errors this package raises on purpose; says how HTTP reports them."""

    status = 500
    type = ""  # `type` in the body; empty: the default of the status
    retry_after = 0  # seconds; 0: retrying does not help

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle without calling the constructor, whose arguments may not be those of the base."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class ConfigError(HeadstartError):
    """The configuration cannot work."""


class ModelError(HeadstartError):
    """A model file cannot be used for what was asked."""


class RequestError(HeadstartError):
    """The request, or a value in it, cannot be honoured."""

    status = 400


class ContextLengthError(RequestError):
    """The prompt does not fit into the context."""

    type = "exceed_context_size_error"

    def __init__(self, num_prompt_tokens: int, context_size: int) -> None:
        super().__init__(
            # clients that shorten prompts look for llama-server's message
            f"request ({num_prompt_tokens} tokens) exceeds the available context size "
            f"({context_size} tokens), of which one must stay free for the answer; shorten it, or "
            "start with a larger --context or, where the slots divide it, with --kv-unified"
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.context_size = context_size


class LexerLimitError(RequestError):
    """The lexer of a constraint reached llguidance's limits in an answer."""


class NotSupportedError(RequestError):
    """This server or model cannot do what was asked."""

    status = 501


class CapacityError(HeadstartError):
    """Nothing can be answered now: the queue is full, or the engine restarts or ends."""

    status = 503
    retry_after = 1


QUOTAS = ("queue", "requests", "listeners", "slot files", "constraints")


class QuotaError(CapacityError):
    """A tenant has used its share of something that others want too."""

    status = 429

    def __init__(self, quota: str, message: str, retry_after: int = 1) -> None:
        """`quota`: one of QUOTAS; `retry_after`: seconds, 0 if retrying does not help."""
        super().__init__(message)
        self.quota, self.retry_after = quota, retry_after


class EngineError(HeadstartError):
    """libllama reported a failure while decoding."""


class RpcWorkerError(HeadstartError):
    """An RPC worker is unreachable or incompatible."""


class WorkerDeadError(HeadstartError):
    """The engine process ended while the request was in flight."""


class BackendError(HeadstartError):
    """An upstream server failed; `was_sent` if it may have received the request."""

    status = 502

    def __init__(self, message: str, *, was_sent: bool = True) -> None:
        super().__init__(message)
        self.was_sent = was_sent


def in_words(error: BaseException) -> str:
    """Its kind and, unless reading it fails, its message, in text that JSON can hold."""
    try:
        return plain_text(f"{type(error).__name__}: {error}")
    except Exception:
        return type(error).__name__


def plain_text(text: str) -> str:
    """The text with "?" for what UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def closest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """`; did you mean X?`, or "" if no name is close: a poor guess is worse than none.

    `prefix` is common to all and not compared, because it would make any two names similar.
    """
    names = [one.removeprefix(prefix) for one in known if one.startswith(prefix)]
    word = word.removeprefix(prefix)
    matches = difflib.get_close_matches(word, names, n=3, cutoff=0.75)
    if not matches and len(word.lstrip("-")) > 2:
        matches = [name for name in names if name.startswith(f"{word}-")]
    matches.sort(key=lambda match: sorted(match) != sorted(word))  # letters in another order
    return f"; did you mean {prefix}{matches[0]}?" if matches else ""
