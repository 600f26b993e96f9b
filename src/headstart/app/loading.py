"""Loads target, draft model and speculators, with settings that fit into memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from headstart.app.exact import make_exact
from headstart.app.model_files import Models
from headstart.app.saved_control import SavedControl
from headstart.app.speculation import make_speculator
from headstart.config import LEAST_CONTEXT, Config, EngineConfig, SchedulerConfig
from headstart.engine import drafters
from headstart.engine.adapters import Adapters
from headstart.engine.context import LlamaEngine
from headstart.engine.draft_context import LlamaDraftContext
from headstart.engine.embedding import EncoderEngine, LlamaEmbedder
from headstart.engine.fit import Fitted, Part, fit, free_memory
from headstart.engine.footprint import HOST, REPACKED, can_measure, uses_of
from headstart.engine.heads import read_facts, why_not
from headstart.engine.media import Projector
from headstart.engine.model import Model
from headstart.engine.parameters import Limits
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.guarded_speculator import GuardedSpeculator
from headstart.structures.vocabulary_id import VocabularyId
from headstart.text.vocabulary.comparison import TranslationMode
from headstart.text.vocabulary.replacements import parse_pairs
from headstart.text.vocabulary.templates import find_replacements
from headstart.text.vocabulary.vocabulary_translator import VocabularyTranslator
from headstart.types import DraftMode, Engine
from headstart.types.errors import ConfigError, ModelError
from headstart.types.state_batch import MERGED_ROWS
from headstart.types.widths import WidthClasses

log = logging.getLogger(__name__)


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
        num_cells = own.context + parallel * (1 + _max_draft(config))  # room for drafts
        return replace(own, context=num_cells * self.count, mtp=True)

    def limits(self, config: Config) -> Limits:
        """Requirements on their context."""
        parallel = config.scheduler.parallel
        outputs = parallel * (MERGED_ROWS + 1 + self.count)
        return Limits(
            parallel * self.count, outputs, 0, is_heads=True, shares_weights=self.is_in_target
        )


def find_heads(target: Path, draft: Path | None) -> Heads | None:
    """The heads to draft with, if there are some.

    They are in the draft model's file, in the target's own, or in one beside it named mtp-*, as the
    hub stores them: of several that fit, the one whose name is most like the target's.

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

    def num_common(path: Path) -> int:  # characters with which both names begin
        pairs = zip(path.name.removeprefix("mtp-"), target.name, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    path = max(fitting, key=num_common)
    log.info("multi-token heads were found beside %s: %s", target.name, path)
    return Heads(path, beside[path].num_heads, False)


def fit_models(config: Config, models: Models, free: Mapping[str, int] | None = None) -> Fitted:
    """Settings with which the target and its drafters fit into memory.

    Args:
        free: bytes to count as free instead of what is, by device.

    Raises:
        ConfigError: they cannot; the message says what to lower.
        ModelError: libllama cannot read one of them.
    """
    parallel, longest = config.scheduler.parallel, _max_draft(config)
    draft, heads = models.draft, models.heads

    def beside(settings: EngineConfig) -> list[Part]:
        parts = []
        if draft is not None:
            parts.append(Part(draft, *_draft_limits(config, draft, settings)))
        if heads is not None:
            parts.append(Part(heads.path, heads.settings(config, settings), heads.limits(config)))
        return parts

    limits = Limits(parallel, parallel * (1 + longest), longest)
    is_asked = config.speculation.draft_max is not None or config.speculation.spec == "fixed"
    mtp = heads is not None and heads.is_in_target
    reads_states = heads is not None or (draft is not None and drafters.reads_states(draft))
    part = Part(models.target, replace(config.engine, mtp=mtp), limits, is_asked, reads_states)

    def assumed() -> dict[str, int]:
        found = free_memory() | dict(free or {})
        if models.projector is not None:  # libmtmd does not tell what it will take
            gpus = [name for name in found if name != HOST]
            is_on_gpu = bool(gpus) and config.images.mmproj_offload
            found[gpus[0] if is_on_gpu else HOST] -= 5 * models.projector.stat().st_size // 4
        return found

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
    classes: WidthClasses | None = None  # where it is exact
    media: Projector | None = None  # where it reads images or sounds


def only_embeds(config: Config, path: Path) -> bool:
    """Whether the model serves embeddings only.

    Raises:
        ModelError: libllama cannot read it.
    """
    if not config.embedding.is_on:
        return False
    return Model(path, config.engine, vocab_only=True).facts.is_encoder


def load_target(config: Config, models: Models) -> Target:
    """The target model with settings that fit; for texts, for vectors, or for both.

    Raises:
        ConfigError, ModelError: it cannot be used as the settings say.
    """
    if only_embeds(config, models.target):
        model = Model(models.target, config.engine)
        embedder = LlamaEmbedder(model, config.engine, config.embedding)
        encoder = EncoderEngine(model, embedder.max_tokens)
        fitted = Fitted(config.engine, Limits(config.scheduler.parallel, 1, 0))
        return Target(model, encoder, fitted, embedder, encoder.why_no_text)
    fitted = fit_models(config, models)
    model = Model(models.target, fitted.config)
    engine = LlamaEngine(model, fitted.config, fitted.limits)
    classes = None
    if fitted.config.exact:
        # not the weights on a card, nor those of a format without such kernels
        has_repacked = not can_measure() or REPACKED in uses_of(engine.handle)
        classes = make_exact(engine, is_repacked=fitted.config.repack and has_repacked)
    if fitted.config.exact and classes is None:
        engine.close()
        model.close()
        unpacked = replace(config, engine=replace(config.engine, repack=False))
        return load_target(unpacked, models)
    engine.context_size = most_tokens(config.scheduler, engine.context_size, engine.num_cells)
    # with the context that was asked for, not the one that fits beside it
    wanted = config.embedding
    vectors = LlamaEmbedder(model, config.engine, wanted) if wanted.is_on else None
    adapters = engine.adapters if engine.adapters.describe() else None
    media = None
    if models.projector is not None:
        rows = engine.params.n_ubatch
        media = Projector(models.projector, model, fitted.config, config.images, rows)
        engine.can_shift = False  # cells behind an image are not where their number says
    return Target(model, engine, fitted, vectors, adapters=adapters, classes=classes, media=media)


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
            f"--kv-unified-per-slot, but needs {LEAST_CONTEXT}; raise --context, lower "
            "--parallel, or start with --kv-unified"
        )
    return most


def load_drafters(config: Config, models: Models, target: Target) -> dict[str, Any]:
    """The drafters of a target, by the names under which speculators ask for them.

    Raises:
        ModelError: something does not belong to the target.
    """
    engine, fitted, draft, heads = target.engine, target.fitted, models.draft, models.heads
    loaded: dict[str, Any] = {}
    if draft and isinstance(engine, LlamaEngine) and drafters.reads_states(draft):
        loaded["context"], loaded["layers"] = _load_state_reader(config, draft, engine, fitted)
    elif draft:
        loaded["engine"] = load_draft(config, draft, fitted)
    if heads is not None and isinstance(engine, LlamaEngine):
        loaded["heads"] = _load_heads(config, heads, engine, fitted)
    return loaded


def load_draft(config: Config, path: Path, fitted: Fitted) -> LlamaEngine:
    """The draft model's engine.

    Raises:
        ModelError: libllama cannot make it; the server does not start without it.
    """
    settings, limits = _draft_limits(config, path, fitted.config)
    limits = replace(limits, checkpoint_bytes=fitted.limits.checkpoint_bytes)
    return LlamaEngine(Model(path, settings), settings, limits)


def _load_state_reader(
    config: Config, path: Path, target: LlamaEngine, fitted: Fitted
) -> tuple[LlamaDraftContext, tuple[int, ...]]:
    """The context of a draft model that reads hidden states, and the layers that they come from.

    Raises:
        ModelError: it does not belong to this target.
    """
    settings, limits = _draft_limits(config, path, fitted.config)
    if reason := drafters.why_not(path, target.model.path, target.model.facts):
        raise ModelError(
            f"{path} cannot draft for {target.model.path.name}: {reason}; name a draft model that "
            "was made for it"
        )
    layers = drafters.state_layers(path, target.model.facts.num_layers)
    model = Model(path, settings, is_drafter=True)
    return LlamaDraftContext(model, settings, limits, target), layers


def _draft_limits(config: Config, path: Path, base: EngineConfig) -> tuple[EngineConfig, Limits]:
    """Settings of a draft model's context beside a target with `base`, and what it must do."""
    parallel = config.scheduler.parallel
    own = config.draft_engine.applied_to(base, parallel)
    if not drafters.reads_states(path):
        return own, Limits(parallel, parallel, 0)
    rows = max(MERGED_ROWS + 2, drafters.block_size(path))
    cells = own.context + parallel * (rows + _max_draft(config))  # room for drafts
    return replace(own, context=cells), Limits(parallel, parallel * rows, 0, reads_states=True)


def _load_heads(
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


def make_drafting(
    config: Config,
    types: tuple[str, ...],
    target: Target,
    loaded: Mapping[str, Any],
    learned: SavedControl,
) -> Drafting:
    """The named speculators for this target, and control over them.

    Args:
        config: their options.
        types: their names, in order of preference.
        target: the loaded model.
        loaded: what drafts beside it, from `load_drafters`.
        learned: what control knows.

    Raises:
        ConfigError, ModelError: a speculator cannot be made.
    """
    model, engine = target.model, target.engine
    parts: dict[str, Callable[[], Any]] = {
        **{name: partial(_given, part) for name, part in loaded.items()},
        "vocab": lambda: model.vocab,
        "vocabulary_id": lambda: VocabularyId.of(model.vocab),
        "translator": lambda: make_translator(config, model, loaded["engine"].model),
    }
    options = config.speculation.options
    vocab_size = model.vocab.size
    speculators = [
        GuardedSpeculator(make_speculator(name, options, parts), vocab_size) for name in types
    ]
    unusable = ""
    if speculators and not engine.max_rollback:
        kind = model.info().architecture
        unusable = (
            f"the memory of {kind} models goes back to checkpoints only and --ctx-checkpoints is "
            "0; allow at least 1"
        )
        log.warning("speculation is off: %s", unusable)
    return Drafting(speculators, config.speculation, learned.controller, unusable, learned.file)


def make_translator(config: Config, target: Model, draft: Model) -> VocabularyTranslator | None:
    """Translation between the two vocabularies; None if their ids mean the same.

    Raises:
        ModelError: no text of one can be said in the other.
    """
    pairs = parse_pairs(config.speculation.spec_replace)
    pairs += find_replacements(target.chat_template or "", draft.chat_template or "")
    translator = VocabularyTranslator(target.vocab, draft.vocab, pairs)
    if reason := translator.why_not():
        raise ModelError(
            f"{draft.path} cannot draft for {target.path.name}: {reason}; choose another draft "
            "model"
        )
    log.info("draft model %s: %s", draft.path.name, translator.describe())
    if translator.mode is TranslationMode.IDENTICAL and config.speculation.spec_replace:
        log.warning("--spec-replace is not used: the draft model has the target's own tokens")
    return None if translator.mode is TranslationMode.IDENTICAL else translator


def _given(part: Any) -> Any:
    return part
