"""Tune a plain draft model on recorded texts.

A recorded token is one of several that could have come, so the target's own probabilities are
learned: the best 32 of each row, which libllama computes once. What is trained is judged by the
share of tokens that would be accepted in texts it did not learn from: at temperature 0 those that
its likeliest token is, above that as many as coupled picks of both models can make equal.

Source: Zhou et al. 2024, "DistillSpec", https://arxiv.org/abs/2310.08461 (own texts).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from gguf import GGUFReader
from torch import Tensor

from headstart.app.model_files import Models
from headstart.config import Config
from headstart.extras.distill import teacher
from headstart.extras.distill.gguf_file import read_model
from headstart.extras.distill.model import LanguageModel
from headstart.extras.distill.teacher import Best
from headstart.extras.distill.texts import RecordedText

CONTEXT = 1024  # tokens of a row; of longer texts the end
BATCH_TOKENS = 3072
Tuned = tuple[Mapping[str, Tensor], Mapping[str, float]]
"""Weights, and the numbers of their training, for the card."""


def tune(config: Config, models: Models, texts: Sequence[RecordedText], seconds: float) -> Tuned:
    """Tune the draft model; tells stderr how far it is.

    Raises:
        ConfigError, ModelError: the target cannot be loaded, or the draft model cannot be tuned.
    """
    assert models.draft is not None
    model = read_model(GGUFReader(models.draft), CONTEXT)  # refuses before the target is loaded
    _tell(f"the target reads {len(texts)} texts for its probabilities")
    best = teacher.compute(config, models.target, texts)
    return train(model, list(map(row_of, texts, best)), seconds)


@dataclass(frozen=True, slots=True)
class Row:
    """A text to learn from."""

    tokens: Tensor
    start: int  # of the answer
    heat: float
    teacher: Best | None  # None: the recorded tokens are learned

    @property
    def answer(self) -> Tensor:
        return self.tokens[self.start :]


def row_of(text: RecordedText, best: Best | None = None) -> Row:
    """The end of a text, as far as it fits."""
    tokens = torch.tensor([*text.prompt, *text.answer])
    cut = max(0, len(tokens) - CONTEXT)
    start = max(1, len(text.prompt) - cut)
    if best is not None:
        num_kept = len(tokens) - cut - start
        best = best[0][-num_kept:], best[1][-num_kept:]
    return Row(tokens[cut:], start, text.sampling.temperature, best)


def train(model: LanguageModel, rows: list[Row], seconds: float) -> Tuned:
    """Train until time or epochs are spent; the weights with most tokens accepted are kept."""
    num_checked = max(1, int(0.1 * len(rows)))  # of the last texts
    checked, rows = rows[-num_checked:], rows[:-num_checked] or rows
    # for two million parameters: with 3e-3 82 % are accepted after 44 batches, with 2e-4 68 %;
    # a model of 600 million takes 1e-5
    rate = 3e-3 * min(1.0, 2e6 / sum(p.numel() for p in model.parameters()))
    adam = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    num_steps = max(1, int(8 * sum(len(row.tokens) for row in rows) / BATCH_TOKENS))  # epochs
    random, step, num_checks, average = np.random.default_rng(0), 0, 0, 0.0
    before = best = _accepted(model, checked)
    weights = _copied(model)
    started = told = time.monotonic()
    progress = 0.0
    while progress < 1.0:
        scale = min(1.0, (step + 1) / 20) * max(0.05, 1.0 - progress)
        for group in adam.param_groups:
            group["lr"] = rate * scale
        loss = _loss(model, _batch(rows, random))
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        average = 0.95 * average + 0.05 * loss.item() if step else loss.item()
        step += 1
        now = time.monotonic()
        progress = max(step / num_steps, (now - started) / seconds)
        if 8 * progress >= num_checks + 1:
            num_checks += 1
            if (accepted := _accepted(model, checked)) > best:
                best, weights = accepted, _copied(model)
        if now - told > 20.0:
            told, left = now, max(0.0, (now - started) * (1.0 / progress - 1.0))
            known = f"loss {average:.3f}, {best:.1%} accepted at best"
            _tell(f"step {step}: {known}, {left:.0f} s left")
    return weights, {
        "steps": step,
        "seconds": round(time.monotonic() - started, 1),
        "accepted_before": round(before, 4),  # share of the checked tokens
        "accepted_after": round(best, 4),
    }


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _batch(rows: list[Row], random: np.random.Generator) -> list[Row]:
    """A batch of texts of similar length, to minimize padding."""
    first = rows[random.integers(len(rows))]
    size = max(1, BATCH_TOKENS // len(first.tokens))
    some = random.permutation(len(rows))[: 8 * size]
    by_length = sorted(some, key=lambda i: abs(len(rows[i].tokens) - len(first.tokens)))
    return [first, *(rows[i] for i in by_length[: size - 1])]


def _loss(model: LanguageModel, rows: Sequence[Row]) -> Tensor:
    """Mean over the answers' tokens."""
    logits = _logits(model, rows).split([len(row.answer) for row in rows])
    total = sum(map(_row_loss, logits, rows), torch.zeros(()))
    return total / sum(len(row.answer) for row in rows)


def _row_loss(logits: Tensor, row: Row) -> Tensor:
    """Cross-entropy, or the divergence from the target's probabilities."""
    if row.teacher is None:
        return F.cross_entropy(logits, row.answer, reduction="sum")
    p, log_q = _both(logits, row.teacher, row.heat or 1.0)
    return (p * (p.clamp_min(1e-9).log() - log_q)).sum()


def _logits(model: LanguageModel, rows: Sequence[Row]) -> Tensor:
    """The logits for each token of the answers, concatenated."""
    tokens = torch.zeros((len(rows), max(len(row.tokens) for row in rows) - 1), dtype=torch.long)
    for own, row in zip(tokens, rows, strict=True):
        own[: len(row.tokens) - 1] = row.tokens[:-1]
    states = model.states(tokens)
    parts = [own[r.start - 1 : len(r.tokens) - 1] for own, r in zip(states, rows, strict=True)]
    logits: Tensor = model.output(torch.cat(parts))
    return logits


@torch.no_grad()
def _accepted(model: LanguageModel, rows: Sequence[Row]) -> float:
    """Share of the answers' tokens that would be accepted as drafts."""
    num_accepted = 0.0
    for row in rows:
        logits = _logits(model, [row])
        if row.teacher is not None and row.heat:
            p, log_q = _both(logits, row.teacher, row.heat)
            num_accepted += float(torch.minimum(p, log_q.exp()).sum())
        else:
            num_accepted += int((logits.argmax(-1) == row.answer).sum())
    return num_accepted / max(1, sum(len(row.answer) for row in rows))


def _both(logits: Tensor, best: Best, heat: float) -> tuple[Tensor, Tensor]:
    """For the target's best tokens: its probabilities, and the model's log probabilities."""
    ids, scores = best
    return (scores / heat).softmax(-1), (logits / heat).log_softmax(-1).gather(-1, ids.long())


def _copied(model: LanguageModel) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
