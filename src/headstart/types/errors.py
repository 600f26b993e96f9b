"""Our exceptions.

HeadstartError
  ConfigError              the configuration cannot work; raised before a model is loaded
    MemoryFullError        the model does not fit into the memory that is free
  ModelError               this GGUF cannot do what was asked (missing, damaged, not capable)
  RequestError             a request, or a value in it, cannot be honoured; 400
    ContextLengthError     the prompt does not fit the context; 400 exceed_context_size_error
    LexerLimitError        an answer cannot be followed further in its constraint; 400
    NotSupportedError      this server or model cannot do that; 501
  CapacityError            try again later: too much waits, the engine starts, the server ends; 503
    QuotaError             a tenant has its share of something and others want it too; 429
  EngineError              libllama failed; becomes 500, the requests of that batch fail
  RpcWorkerError           a machine of --rpc does not answer or does not fit; it is asked again
  WorkerDeadError          the engine process stopped; requests in flight get 500, then a restart
  BackendError             a server that requests are passed to failed; becomes 502
"""

from __future__ import annotations


class HeadstartError(Exception):
    """Base of all errors this package raises on purpose; says how HTTP reports one."""

    status = 500
    type = ""  # in the body; empty: the usual one of the status
    retry_after = 0  # seconds; 0: time is no help


class ConfigError(HeadstartError):
    """The configuration cannot work."""


class MemoryFullError(ConfigError):
    """What was configured does not fit into the memory that is free."""


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
            # clients that shorten a prompt by themselves look for llama-server's words
            f"request ({num_prompt_tokens} tokens) exceeds the available context size "
            f"({context_size} tokens), of which one must stay free for the answer; shorten it, or "
            "start with a larger --context or, where the slots divide it, with --kv-unified"
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.context_size = context_size


class LexerLimitError(RequestError):
    """An answer cannot be followed further in its constraint: llguidance gave up."""


class NotSupportedError(RequestError):
    """This server or model cannot do what was asked."""

    status = 501


class CapacityError(HeadstartError):
    """Nothing can be answered now: too much waits, the engine restarts, or the server ends."""

    status = 503


QUOTAS = ("queue", "reading", "requests", "listeners", "slot files", "constraints")


class QuotaError(CapacityError):
    """A tenant has its share of something that others may use too."""

    status = 429

    def __init__(self, quota: str, message: str, retry_after: int = 1) -> None:
        """`quota`: one of QUOTAS; `retry_after`: seconds, 0 if time is no help."""
        super().__init__(message)
        self.quota = quota
        self.retry_after = retry_after


class EngineError(HeadstartError):
    """libllama reported a failure while decoding."""


class RpcWorkerError(HeadstartError):
    """A machine that is to compute part of the model does not answer, or does not fit."""


class WorkerDeadError(HeadstartError):
    """The engine process ended while the request was in flight."""


class BackendError(HeadstartError):
    """Another server, which was to answer, did not; `was_sent` if it may have read the request."""

    status = 502

    def __init__(self, message: str, *, was_sent: bool = True) -> None:
        super().__init__(message)
        self.was_sent = was_sent
