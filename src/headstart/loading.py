"""Target and draft model together: what fits into memory, and the draft model's engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headstart.config import Config, EngineConfig
from headstart.engine.adapters import Adapters
from headstart.engine.context import LlamaEngine
from headstart.engine.embedding import LlamaEmbedder
from headstart.engine.encoder import EncoderEngine
from headstart.engine.fit import Fitted, Part, fit, free_memory
from headstart.engine.model import Model
from headstart.engine.parameters import Limits
from headstart.errors import ModelError
from headstart.types import Engine, MemoryKind, SequenceMode


def _max_draft(config: Config) -> int:
    """Most draft tokens a step, of any request."""
    speculation = config.speculation
    return (
        0 if speculation.mode is SequenceMode.OFF else speculation.longest_draft(SequenceMode.AUTO)
    )


def fit_models(
    config: Config, target: Path, draft: Path | None, free: Mapping[str, int] | None = None
) -> Fitted:
    """Settings with which target and draft model fit into memory.

    Args:
        free: bytes to count as free instead of what is, by device.

    Raises:
        ConfigError: they cannot; the message says what to lower.
        ModelError: libllama cannot read one of them.
    """
    parallel, longest = config.scheduler.parallel, _max_draft(config)

    def draft_part(settings: EngineConfig) -> Part:
        assert draft is not None
        own = config.draft_engine.applied_to(settings, parallel)
        return Part(draft, own, Limits(parallel, parallel, 0))

    limits = Limits(parallel, parallel * (1 + longest), longest)
    is_asked = config.speculation.draft_max is not None or config.speculation.spec == "fixed"
    part = Part(target, config.engine, limits, is_asked)
    assumed = (lambda: free_memory() | dict(free)) if free else None
    return fit(part, draft_part if draft else None, free=assumed)


@dataclass(frozen=True, slots=True)
class Target:
    """The loaded target model, and what runs it."""

    model: Model
    engine: Engine
    fitted: Fitted
    embedder: LlamaEmbedder | None = None
    why_no_text: str = ""
    adapters: Adapters | None = None  # where there are some


def only_embeds(config: Config, path: Path) -> bool:
    """Whether the model is served for its vectors alone.

    Raises:
        ModelError: libllama cannot read it.
    """
    if not config.embedding.is_on:
        return False
    return Model(path, config.engine, vocab_only=True).facts.is_encoder


def load_target(config: Config, path: Path, draft: Path | None) -> Target:
    """The target model with settings that fit; for texts, for vectors, or for both.

    Raises:
        ConfigError, ModelError: it cannot be used as the settings say.
    """
    if only_embeds(config, path):
        model = Model(path, config.engine)
        embedder = LlamaEmbedder(model, config.engine, config.embedding)
        encoder = EncoderEngine(model, embedder.max_tokens)
        fitted = Fitted(config.engine, Limits(config.scheduler.parallel, 1, 0))
        return Target(model, encoder, fitted, embedder, encoder.why_no_text)
    fitted = fit_models(config, path, draft)
    model = Model(path, fitted.config)
    engine = LlamaEngine(model, fitted.config, fitted.limits)
    # with the context that was asked for, not the one that fits beside it
    wanted = config.embedding
    vectors = LlamaEmbedder(model, config.engine, wanted) if wanted.is_on else None
    adapters = engine.adapters if engine.adapters.describe() else None
    return Target(model, engine, fitted, vectors, adapters=adapters)


def load_draft(config: Config, path: Path, fitted: Fitted) -> LlamaEngine:
    """The draft model's engine.

    Raises:
        ModelError: it cannot draft for this target; the server does not start without it.
    """
    parallel = config.scheduler.parallel
    draft_config = config.draft_engine.applied_to(fitted.config, parallel)
    drafter = LlamaEngine(Model(path, draft_config), draft_config, Limits(parallel, parallel, 0))
    if drafter.memory is not MemoryKind.CUT:
        raise ModelError(
            f"{path} cannot draft: its memory ({drafter.memory.value}) cannot take back rejected "
            "tokens; choose a draft model with attention only"
        )
    return drafter
