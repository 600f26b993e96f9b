"""Replays speculators over recorded texts of a target, whose weights are not loaded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import cast

from headstart.app.loading import drafter_part, make_translator, speculator_parts
from headstart.app.speculation import make_speculator
from headstart.config import Config
from headstart.engine.context import LlamaEngine
from headstart.engine.drafters import DRAFT_MODEL, read_drafter
from headstart.engine.filters import LlamaFilters
from headstart.engine.model import Model
from headstart.extras.bench.comparison import OFF
from headstart.extras.distill.acceptance import Outcomes, replay
from headstart.extras.distill.texts import RecordedText
from headstart.sampling.sampler import Sampler
from headstart.types import Engine
from headstart.types.errors import ConfigError, ModelError

WIDTH = 8  # texts that a draft model follows at once
SUFFIX = "suffix"


def suffix(
    config: Config, target: Model, texts: Sequence[RecordedText], earlier: Sequence[RecordedText]
) -> list[Outcomes]:
    """Copies from a text itself and from the ones before it."""
    options = {SUFFIX: dict(config.speculation.options.get(SUFFIX, {})) | {"file": None}}
    speculator = make_speculator(SUFFIX, options, speculator_parts(config, target, {}))
    return replay(speculator, texts, partial(_sampler, target), earlier=earlier)


def draft_model(
    config: Config, target: Model, path: Path, texts: Sequence[RecordedText]
) -> tuple[list[Outcomes], float]:
    """A draft model, and milliseconds of one of its tokens for one text.

    Raises:
        ConfigError: it reads the target's hidden states, which are not recorded.
        ModelError: it cannot draft for this target.
    """
    drafter = read_drafter(path)
    if drafter.reads_states:
        raise ConfigError(
            f"{path.name} drafts from the target's hidden states, which are not recorded; "
            "headstart bench measures it"
        )
    longest = max(len(text.prompt) + len(text.answer) for text in texts)
    engine = replace(config.engine, context=WIDTH * (longest + 64), exact=False)
    scheduler = replace(config.scheduler, parallel=WIDTH)
    part = drafter_part(replace(config, engine=engine, scheduler=scheduler), drafter, engine)
    draft = LlamaEngine(Model(path, part.config), part.config, part.limits)
    parts = speculator_parts(config, target, {"engine": draft})
    speculator = make_speculator(DRAFT_MODEL, config.speculation.options, parts)
    replayed = replay(speculator, texts, partial(_sampler, target), WIDTH)
    # the median counts: single ones may be far too slow, or too fast
    timed = [speculator.time_decodes(time.perf_counter) for _ in range(16)]
    return replayed, median(one[0] for one in timed if one is not None)


def _sampler(target: Model, text: RecordedText) -> Sampler:
    """The sampler that chose the text's tokens."""
    vocab, context = target.vocab, target.facts.train_context
    filters = SimpleNamespace(
        vocab_size=vocab.size, make_filters=lambda params: LlamaFilters(vocab, context, params)
    )
    return Sampler(text.sampling, cast("Engine", filters), vocab.eog_ids)


def check_tokens(config: Config, target: Model, draft: Path) -> None:
    """Check that a draft model has the target's own tokens.

    Raises:
        ModelError: it has others, so recorded tokens are meaningless to it.
    """
    if make_translator(config, target, Model(draft)) is not None:
        raise ModelError(
            f"{draft} has other tokens than {target.path.name} and cannot learn from its "
            "texts; name a draft model of the same family"
        )


def draft_files(named: Sequence[str], draft: Path | None) -> list[Path]:
    """The draft models to compare, each once; the report calls them by their files' names.

    Raises:
        ConfigError: a file is missing, or its name means something else in the report.
    """
    found: dict[str, Path] = {}
    for path in [*([] if draft is None else [draft]), *map(Path, named)]:
        if not path.is_file():
            raise ConfigError(f"--drafts names {path}, which is no file")
        if path.stem in (OFF, SUFFIX) or ", " in path.stem:
            raise ConfigError(
                f"{path}: in the report {OFF} is no draft, {SUFFIX} are copies and a comma is "
                "between two drafters; rename the file"
            )
        if not path.samefile(other := found.setdefault(path.stem, path)):
            raise ConfigError(f"{path} and {other} have one name in the report; rename one")
    return list(found.values())
