"""The target's best log probabilities after each token of recorded answers, computed once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.app.loading import load_target
from headstart.app.model_files import Models
from headstart.config import Config, SpeculationConfig
from headstart.extras.distill.texts import RecordedText
from headstart.structures.atomic import replacement
from headstart.structures.topk import top_k
from headstart.types import Batch, Engine

ROWS = 64  # with logits, in one decode

Best = tuple[Tensor, Tensor]
"""Ids and logits, shape (tokens of the answer, 32)."""


def compute(
    config: Config,
    target: Path,
    texts: Iterable[RecordedText],
    file: Path,
    tell: Callable[[str], None],
) -> Mapping[str, Best]:
    """Compute the rows of these texts by `key_of`; rows already in the file are reused.

    Raises:
        ConfigError, ModelError: the target cannot be loaded.
    """
    known: dict[str, Best] = torch.load(file, weights_only=True) if file.exists() else {}
    missing = [text for text in texts if key_of(text) not in known]
    if missing:
        tell(f"the target reads {len(missing)} texts for its probabilities")
        longest = max(len(text.prompt) + len(text.answer) for text in missing)
        spec = SpeculationConfig(
            spec="fixed", spec_type="suffix", draft_max=ROWS - 1, spec_state="none"
        )
        settings = replace(
            config,
            engine=replace(config.engine, context=longest + ROWS),
            scheduler=replace(config.scheduler, parallel=1),
            speculation=spec,
        )
        engine = load_target(settings, Models(target)).engine
        for text in missing:
            known[key_of(text)] = _read(engine, text)
        with replacement(file) as temporary:
            torch.save(known, temporary)
    return known


def _read(engine: Engine, text: RecordedText) -> Best:
    """Evaluate one text, in batches whose rows all have logits once the answer begins."""
    tokens, first = [*text.prompt, *text.answer], len(text.prompt) - 1
    batch, ids, scores = Batch(engine.max_batch_tokens), list[object](), list[object]()
    engine.clear(0)
    for start in range(0, first, batch.capacity):
        _decode(engine, batch, start, tokens[start : min(first, start + batch.capacity)], 1)
    for start in range(first, len(tokens) - 1, ROWS):
        part = tokens[start : min(len(tokens) - 1, start + ROWS)]
        for row in _decode(engine, batch, start, part, len(part)):
            best, values = top_k(row, 32)
            ids.append(best.astype(np.int32))
            scores.append(values.copy())
    engine.clear(0)
    return torch.tensor(np.array(ids, np.int32)), torch.tensor(np.array(scores, np.float32))


def _decode(
    engine: Engine, batch: Batch, start: int, tokens: Sequence[int], num_outputs: int
) -> NDArray[np.float32]:
    batch.clear()
    batch.add(0, start, tokens, num_outputs)
    return np.asarray(engine.decode(batch))


def key_of(text: RecordedText) -> str:
    """The key of its rows in the file."""
    both = np.array([len(text.prompt), *text.prompt, *text.answer], np.int32)
    return hashlib.sha256(both.tobytes()).hexdigest()[:16]
