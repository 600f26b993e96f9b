"""Loads target, draft model and speculators, with settings that fit into memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from headstart.app.exact import make_exact
from headstart.app.model_files import Models
from headstart.app.speculation import make_speculator
from headstart.config import LEAST_CONTEXT, Config, EngineConfig, SchedulerConfig
from headstart.control.controller import Controller
from headstart.control.state import StateFile
from headstart.engine.context import LlamaEngine
from headstart.engine.draft_context import LlamaDraftContext
from headstart.engine.drafters import Drafter, state_layers, why_not
from headstart.engine.embedding import EncoderEngine, LlamaEmbedder
from headstart.engine.fit import Fitted, Part, fit, free_memory
from headstart.engine.footprint import HOST, REPACKED, can_measure, uses_of
from headstart.engine.gguf_header import GgufHeader
from headstart.engine.machine import available_memory
from headstart.engine.media import Projector
from headstart.engine.model import Model
from headstart.engine.parameters import ENCODERS, Limits
from headstart.engine.prompt_reader import LEAST_ROWS
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.guarded_speculator import GuardedSpeculator
from headstart.text.vocabulary.replacements import parse_pairs
from headstart.text.vocabulary.templates import find_replacements
from headstart.text.vocabulary.vocabulary_translator import VocabularyTranslator
from headstart.types import DraftMode
from headstart.types.errors import ConfigError, ModelError
from headstart.types.widths import WidthClasses

log = logging.getLogger(__name__)


def _max_draft(config: Config) -> int:
    """Most draft tokens a step, of any request."""
    speculation = config.speculation
    return 0 if speculation.mode is DraftMode.OFF else speculation.longest_draft(DraftMode.AUTO)


def fit_models(config: Config, models: Models, free: Mapping[str, int] | None = None) -> Fitted:
    """Find settings with which the target and its drafters fit into memory.

    Args:
        free: bytes to treat as free, by device, instead of the actual ones.

    Raises:
        ConfigError: there are none; says what to lower.
        ModelError: libllama cannot read one of them.
    """
    parallel, longest, drafter = config.scheduler.parallel, _max_draft(config), models.drafter
    is_asked = config.speculation.draft_max is not None or config.speculation.spec == "fixed"
    # what reads hidden states always makes short drafts
    least = 3 if drafter is not None and drafter.reads_states else 0
    least = longest if is_asked else least
    limits = Limits(parallel, parallel * (1 + longest), longest, least)
    mtp = drafter is not None and drafter.is_in_target
    part = Part(models.target, replace(config.engine, mtp=mtp), limits)

    vectors = Part(models.target, config.engine, Limits(parallel, 1, 0, embeds=True))

    def beside(settings: EngineConfig) -> list[Part]:
        parts = [drafter_part(config, drafter, settings)] if drafter else []
        if config.embedding.is_on:
            # with the requested context, not the one that fits beside it
            own = replace(settings, context=config.engine.context)
            parts.append(Part(models.target, own, replace(vectors.limits, shares_weights=True)))
        return parts

    def assumed() -> dict[str, int]:
        found = free_memory() | dict(free or {})
        if models.projector is not None:  # libmtmd does not report its memory use in advance
            gpus = [name for name in found if name != HOST]
            is_on_gpu = bool(gpus) and config.images.mmproj_offload
            found[gpus[0] if is_on_gpu else HOST] -= 5 * models.projector.stat().st_size // 4
        return found

    if only_embeds(config, models.target):
        return fit(vectors, free=assumed)
    return fit(part, beside, free=assumed)


@dataclass(frozen=True, slots=True)
class Target:
    """The loaded target model, and what runs it."""

    engine: LlamaEngine | EncoderEngine
    fitted: Fitted
    embedder: LlamaEmbedder | None = None
    classes: WidthClasses | None = None  # in exact mode
    media: Projector | None = None  # if it reads images or audio


def only_embeds(config: Config, path: Path) -> bool:
    """Whether the model serves embeddings only.

    Raises:
        ModelError: it is missing or no GGUF file.
    """
    return config.embedding.is_on and GgufHeader(path).architecture in ENCODERS


def load_target(config: Config, models: Models) -> Target:
    """The target model with settings that fit; for texts, for vectors, or for both.

    Raises:
        ConfigError, ModelError: it cannot be used as the settings say.
    """
    fitted = fit_models(config, models)
    model = Model(models.target, fitted.config)
    if only_embeds(config, models.target):
        embedder = LlamaEmbedder(model, fitted.config, config.embedding)
        return Target(EncoderEngine(model, embedder.max_tokens), fitted, embedder)
    engine = LlamaEngine(model, fitted.config, fitted.limits)
    classes = None
    if fitted.config.exact:
        # excludes weights on a GPU, and formats without such kernels
        has_repacked = not can_measure() or REPACKED in uses_of(engine.handle)
        classes = make_exact(engine, is_repacked=fitted.config.repack and has_repacked)
    if fitted.config.exact and classes is None:
        engine.close()
        model.close()
        unpacked = replace(config, engine=replace(config.engine, repack=False))
        return load_target(unpacked, models)
    unpack_prompts(engine, fitted.config)
    engine.context_size = most_tokens(config.scheduler, engine.context_size, engine.num_cells)
    # with the requested context, not the one that fits beside it
    wanted = config.embedding
    vectors = LlamaEmbedder(model, config.engine, wanted) if wanted.is_on else None
    media = None
    if models.projector is not None:
        rows = engine.params.n_ubatch
        media = Projector(models.projector, model, fitted.config, config.images, rows)
        engine.can_shift = False  # positions of cells after an image differ from their index
    return Target(engine, fitted, vectors, classes, media)


def unpack_prompts(engine: LlamaEngine, config: EngineConfig) -> None:
    """Let prompts be decoded with weights that are not repacked for the CPU, if that is faster and
    the mapped file fits into memory beside the others.
    """
    is_mapped = config.mmap and not config.mlock
    is_wide = engine.max_batch_tokens >= LEAST_ROWS
    if not (engine.reader and is_wide and config.repack and is_mapped and can_measure()):
        return
    uses = uses_of(engine.handle)
    spare = available_memory() - 2 * sum(use.weights for use in uses.values())
    if REPACKED not in uses or spare < 0:
        return
    cell_bytes = sum(use.cache for use in uses.values()) / engine.params.n_ctx
    cells = min(engine.params.n_ctx, int(spare / 4 / cell_bytes) // 256 * 256)
    engine.reader.unpack(Model(engine.model.path, replace(config, repack=False)), cells)
    speedup = engine.reader.speedup(engine.handle)
    is_faster = speedup >= 1.05  # of 32 rows; longer prompts gain more
    if not is_faster:
        engine.reader.unpack(None)
    log.info(
        "prompts are processed with %s weights: unpacked ones are %.2f times as fast",
        "unpacked" if is_faster else "repacked",
        speedup,
    )


def most_tokens(config: SchedulerConfig, context: int, num_cells: int) -> int:
    """Maximum length of a request, if a sequence can have `context` tokens and all `num_cells`.

    Raises:
        ConfigError: too small to be useful.
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


def drafter_part(config: Config, drafter: Drafter, base: EngineConfig) -> Part:
    """Settings of a drafter's context beside a target with `base`, and what it must do."""
    parallel = config.scheduler.parallel
    own = config.draft_engine.applied_to(base, parallel)
    if not drafter.reads_states:
        return Part(drafter.path, own, Limits(parallel, parallel, 0))
    num_heads = drafter.num_heads or 1  # each has its own sequences, and so cells
    rows = max(1 + num_heads, drafter.block_size)
    cells = num_heads * (own.context + parallel * (rows + _max_draft(config)))  # room for drafts
    is_heads = drafter.num_heads > 0
    limits = Limits(
        parallel * num_heads,
        parallel * rows,
        0,
        is_heads=is_heads,
        shares_weights=drafter.is_in_target,
        reads_states=not is_heads,
    )
    return Part(drafter.path, replace(own, context=cells, mtp=is_heads), limits)


def load_drafter(config: Config, models: Models, target: Target) -> dict[str, Any]:
    """Load the drafter of a target, by constructor arguments of speculators.

    Raises:
        ModelError: it does not fit the target, or libllama cannot create it; the server does
            not start without it.
    """
    drafter, engine = models.drafter, target.engine
    if drafter is None:
        return {}
    part = drafter_part(config, drafter, target.fitted.config)
    if not drafter.reads_states:
        room = target.fitted.limits.checkpoint_bytes
        limits = replace(part.limits, checkpoint_bytes=room)
        return {"engine": LlamaEngine(Model(drafter.path, part.config), part.config, limits)}
    assert isinstance(engine, LlamaEngine), "a model that only embeds has no drafter"
    facts = engine.model.facts
    if not drafter.num_heads and (reason := why_not(drafter, engine.model.path, facts)):
        raise ModelError(
            f"{drafter.path} cannot draft for {engine.model.path.name}: {reason}; name a draft "
            "model that was made for it, or leave it out"
        )
    model = engine.model
    if not drafter.is_in_target:
        model = Model(drafter.path, part.config, is_drafter=True)
    context = LlamaDraftContext(model, part.config, part.limits, engine)
    if drafter.num_heads:
        return {"heads": context}
    return {"context": context, "layers": state_layers(drafter.path, facts.num_layers)}


def make_drafting(
    config: Config,
    types: tuple[str, ...],
    target: Target,
    loaded: Mapping[str, Any],
    controller: Controller,
    file: StateFile | None,
) -> Drafting:
    """Create the named speculators for this target, and their control.

    Args:
        config: their options.
        types: their names, in order of preference.
        target: the loaded model.
        loaded: result of `load_drafter`.
        controller, file: what control has learned, and where it is kept.

    Raises:
        ConfigError, ModelError: a speculator cannot be created.
    """
    engine, model = target.engine, target.engine.model
    parts = speculator_parts(config, model, loaded)
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
    return Drafting(speculators, config.speculation, controller, unusable, file)


def speculator_parts(
    config: Config, target: Model, loaded: Mapping[str, Any]
) -> dict[str, Callable[[], Any]]:
    """What constructors of speculators may ask for by parameter name; `loaded`: the drafter."""
    return {
        **{name: partial(loaded.__getitem__, name) for name in loaded},
        "vocab": lambda: target.vocab,
        "translator": lambda: make_translator(config, target, loaded["engine"].model),
    }


def make_translator(config: Config, target: Model, draft: Model) -> VocabularyTranslator | None:
    """Translation between the two vocabularies; None if their ids mean the same.

    Raises:
        ModelError: they have no text in common.
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
    if translator.mode == "identical" and config.speculation.spec_replace:
        log.warning("--spec-replace is not used: the draft model has the target's own tokens")
    return None if translator.mode == "identical" else translator
