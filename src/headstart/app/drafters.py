"""From the names of speculators and what was loaded to speculators at work."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from headstart.app.speculation import make_speculator
from headstart.config import Config
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.guarded_speculator import GuardedSpeculator
from headstart.structures.token_log import VocabularyId
from headstart.text.vocabulary.comparison import TranslationMode
from headstart.text.vocabulary.replacements import parse_pairs
from headstart.text.vocabulary.templates import find_replacements
from headstart.text.vocabulary.vocabulary_translator import TranslationOptions, VocabularyTranslator
from headstart.types.errors import ModelError

if TYPE_CHECKING:
    from headstart.app.loading import Target
    from headstart.app.saved_control import SavedControl
    from headstart.engine.model import Model

log = logging.getLogger(__name__)


def make_drafting(
    config: Config,
    types: tuple[str, ...],
    target: Target,
    drafters: Mapping[str, Any],
    learned: SavedControl,
) -> Drafting:
    """The named speculators for this target, and control over them.

    Args:
        config: their options.
        types: their names, in order of preference.
        target: the loaded model.
        drafters: what drafts beside it, by the name under which constructors ask for it.
        learned: what control knows.

    Raises:
        ConfigError, ModelError: a speculator cannot be made.
    """
    model, engine = target.model, target.engine
    parts: dict[str, Callable[[], Any]] = {
        **{name: partial(_given, part) for name, part in drafters.items()},
        "vocab": lambda: model.vocab,
        "vocabulary_id": lambda: VocabularyId.of(model.vocab),
        "translator": lambda: _translator(config, model, drafters["engine"].model),
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


def _translator(config: Config, target: Model, draft: Model) -> VocabularyTranslator | None:
    """Translation between the two vocabularies; None if their ids mean the same.

    Raises:
        ModelError: no text of one can be said in the other.
    """

    pairs = parse_pairs(config.speculation.spec_replace)
    pairs += find_replacements(target.chat_template or "", draft.chat_template or "")
    translator = VocabularyTranslator(
        target.vocab,
        draft.vocab,
        TranslationOptions(tuple(pairs)),
    )
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
