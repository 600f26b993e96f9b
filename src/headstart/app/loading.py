"""Target and draft model together: what fits into memory, and the draft model's engine."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from headstart.config import LEAST_CONTEXT, Config, EngineConfig, SchedulerConfig
from headstart.engine import drafters
from headstart.engine.adapters import Adapters
from headstart.engine.context import LlamaEngine
from headstart.engine.draft_context import LlamaDraftContext
from headstart.engine.embedding import LlamaEmbedder
from headstart.engine.encoder import EncoderEngine
from headstart.engine.fit import Fitted, Part, fit, free_memory
from headstart.engine.heads import read_facts, why_not
from headstart.engine.model import Model
from headstart.engine.parameters import Limits
from headstart.speculators.state_batch import MERGED_ROWS
from headstart.types import DraftMode, Engine
from headstart.types.errors import ConfigError, ModelError

log = logging.getLogger(__name__)

# rows of a text that a draft model reads at once where it tells what it would have picked
READ_OUTPUTS = 16


def _max_draft(config: Config) -> int:
    """Most draft tokens a step, of any request."""
    speculation = config.speculation
    return 0 if speculation.mode is DraftMode.OFF else speculation.longest_draft(DraftMode.AUTO)


@dataclass(frozen=True, slots=True)
class Heads:
    """Multi-token heads of the target: in its own file, or in one beside it."""

    path: Path
    count: int
    is_in_target: bool

    def describe(self) -> dict[str, Any]:
        """For /props and the log."""
        where = "of its own" if self.is_in_target else f"of {self.path.name}"
        words = f"{self.count} multi-token head{'s' * (self.count > 1)} {where}"
        return {"path": str(self.path), "num_heads": self.count, "words": words}

    def settings(self, config: Config, base: EngineConfig) -> EngineConfig:
        """Of their context. Each head has sequences, and so cells, of its own."""
        parallel = config.scheduler.parallel
        own = config.draft_engine.applied_to(base, parallel)
        num_cells = own.context + parallel * (1 + _max_draft(config))  # drafts take some besides
        return replace(own, context=num_cells * self.count, mtp=True)

    def limits(self, config: Config) -> Limits:
        """What their context must be able to do."""
        parallel = config.scheduler.parallel
        outputs = parallel * (MERGED_ROWS + 1 + self.count)
        return Limits(
            parallel * self.count, outputs, 0, is_heads=True, shares_weights=self.is_in_target
        )


def find_heads(target: Path, draft: Path | None) -> Heads | None:
    """The heads to draft with, if there are some.

    They are in the file that was named for drafting, in the target's own, or in one beside it whose
    name begins with mtp-, as the hub stores them: of several that fit, the one that is named most
    like the target.

    Raises:
        ModelError: a file is missing or no GGUF.
    """
    facts = read_facts(target)
    if facts.why_none:
        log.warning("multi-token heads are not used: %s", facts.why_none)
    if draft is not None:
        found = read_facts(draft)
        return Heads(draft, found.num_heads, False) if found.is_heads_alone else None
    if facts.num_heads:
        return Heads(target, facts.num_heads, True)
    beside = {path: read_facts(path) for path in sorted(target.parent.glob("mtp-*.gguf"))}
    fitting = [path for path, file in beside.items() if not file.why_not_heads_of(facts)]
    if not fitting:
        return None
    path = max(fitting, key=lambda path: _num_common(path.name.removeprefix("mtp-"), target.name))
    log.info("multi-token heads were found beside %s: %s", target.name, path)
    return Heads(path, beside[path].num_heads, False)


def _num_common(one: str, other: str) -> int:
    """Characters with which both names begin."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def fit_models(
    config: Config,
    target: Path,
    draft: Path | None,
    heads: Heads | None = None,
    free: Mapping[str, int] | None = None,
) -> Fitted:
    """Settings with which target and what drafts for it fit into memory.

    Args:
        free: bytes to count as free instead of what is, by device.

    Raises:
        ConfigError: they cannot; the message says what to lower.
        ModelError: libllama cannot read one of them.
    """
    parallel, longest = config.scheduler.parallel, _max_draft(config)

    def beside(settings: EngineConfig) -> list[Part]:
        parts = []
        if draft is not None:
            own = config.draft_engine.applied_to(settings, parallel)
            parts.append(Part(draft, *_draft_limits(config, draft, own)))
        if heads is not None:
            parts.append(Part(heads.path, heads.settings(config, settings), heads.limits(config)))
        return parts

    limits = Limits(parallel, parallel * (1 + longest), longest)
    is_asked = config.speculation.draft_max is not None or config.speculation.spec == "fixed"
    mtp = heads is not None and heads.is_in_target
    reads_states = heads is not None or (draft is not None and drafters.reads_states(draft))
    part = Part(target, replace(config.engine, mtp=mtp), limits, is_asked, reads_states)
    assumed = (lambda: free_memory() | dict(free)) if free else None
    return fit(part, beside, free=assumed)


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


def load_target(
    config: Config, path: Path, draft: Path | None, heads: Heads | None = None
) -> Target:
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
    fitted = fit_models(config, path, draft, heads)
    model = Model(path, fitted.config)
    engine = LlamaEngine(model, fitted.config, fitted.limits)
    engine.context_size = most_tokens(config.scheduler, engine.context_size, engine.num_cells)
    # with the context that was asked for, not the one that fits beside it
    wanted = config.embedding
    vectors = LlamaEmbedder(model, config.engine, wanted) if wanted.is_on else None
    adapters = engine.adapters if engine.adapters.describe() else None
    return Target(model, engine, fitted, vectors, adapters=adapters)


def most_tokens(config: SchedulerConfig, context: int, num_cells: int) -> int:
    """Of one request, where a sequence can have `context` tokens and all `num_cells`.

    Raises:
        ConfigError: too few to be of use.
    """
    share = context if config.kv_unified else num_cells // config.parallel
    most = min(context, share, config.kv_unified_per_slot or context)
    if most < min(LEAST_CONTEXT, context):
        raise ConfigError(
            f"a slot has {most} of the context's {num_cells} tokens with --no-kv-unified or "
            f"--kv-unified-per-slot, but needs {LEAST_CONTEXT}; raise --context, or lower "
            "--parallel"
        )
    return most


def load_drafters(
    config: Config, target: Target, draft: Path | None, heads: Heads | None
) -> dict[str, Any]:
    """What drafts beside the target, by the names under which speculators ask for it.

    Raises:
        ModelError: something does not belong to the target.
    """
    engine, fitted = target.engine, target.fitted
    loaded: dict[str, Any] = {}
    if draft and isinstance(engine, LlamaEngine) and drafters.reads_states(draft):
        loaded["context"], loaded["layers"] = load_state_reader(config, draft, engine, fitted)
    elif draft:
        loaded["engine"] = load_draft(config, draft, fitted)
    if heads is not None and isinstance(engine, LlamaEngine):
        loaded["heads"] = load_heads(config, heads, engine, fitted)
    return loaded


def load_draft(config: Config, path: Path, fitted: Fitted) -> LlamaEngine:
    """The draft model's engine.

    Raises:
        ModelError: libllama cannot make it; the server does not start without it.
    """
    parallel = config.scheduler.parallel
    draft_config = config.draft_engine.applied_to(fitted.config, parallel)
    limits = replace(
        _draft_limits(config, path, draft_config)[1],
        checkpoint_bytes=fitted.limits.checkpoint_bytes,
    )
    return LlamaEngine(Model(path, draft_config), draft_config, limits)


def load_state_reader(
    config: Config, path: Path, target: LlamaEngine, fitted: Fitted
) -> tuple[LlamaDraftContext, tuple[int, ...]]:
    """The context of a draft model that reads hidden states, and the layers whose they are.

    Raises:
        ModelError: it does not belong to this target.
    """
    own = config.draft_engine.applied_to(fitted.config, config.scheduler.parallel)
    settings, limits = _draft_limits(config, path, own)
    if reason := drafters.why_not(path, target.model.path, target.model.facts):
        raise ModelError(
            f"{path} cannot draft for {target.model.path.name}: {reason}; name a draft model that "
            "was made for it"
        )
    layers = drafters.state_layers(path, target.model.facts.num_layers)
    model = Model(path, settings, is_drafter=True)
    return LlamaDraftContext(model, settings, limits, target), layers


def _draft_limits(config: Config, path: Path, own: EngineConfig) -> tuple[EngineConfig, Limits]:
    """Settings of a draft model's context and what it must be able to do."""
    parallel = config.scheduler.parallel
    if not drafters.reads_states(path):
        return own, Limits(parallel, max(parallel, READ_OUTPUTS), 0)
    rows = max(MERGED_ROWS + 2, drafters.block_size(path))
    cells = own.context + parallel * (rows + _max_draft(config))  # drafts take some besides
    return replace(own, context=cells), Limits(parallel, parallel * rows, 0, reads_states=True)


def load_heads(
    config: Config, heads: Heads, target: LlamaEngine, fitted: Fitted
) -> LlamaDraftContext:
    """The context of the target's multi-token heads.

    Raises:
        ModelError: they are of another model; libllama would abort.
    """
    settings, limits = heads.settings(config, fitted.config), heads.limits(config)
    model = target.model
    if not heads.is_in_target:
        model = Model(heads.path, settings, is_drafter=True)
    if reason := why_not(model, target.model, limits.num_sequences):
        raise ModelError(
            f"the multi-token heads in {heads.path} cannot draft for {target.model.path.name}: "
            f"{reason}; or start with --no-mtp"
        )
    return LlamaDraftContext(model, settings, limits, target, is_heads=True)
