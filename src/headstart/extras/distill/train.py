"""Tune a plain draft model on recorded texts.

A recorded token is one of several that could have come, so the target's own probabilities are
learned: the best 32 of each row, which libllama computes once. What is trained is judged by the
share of tokens that would be accepted in texts it did not learn from: at temperature 0 those that
its likeliest token is, above that as many as coupled picks of both models can make equal.

Source: Zhou et al. 2024, "DistillSpec", https://arxiv.org/abs/2310.08461 (own texts, losses).
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

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
from headstart.extras.distill.teacher import Best, key_of
from headstart.extras.distill.texts import RecordedText
from headstart.structures.atomic import replacement

CONTEXT = 1024  # tokens of a row; of longer texts the end
BATCH_TOKENS = 3072
Tuned = tuple[Mapping[str, Tensor], Mapping[str, float]]
"""Weights, and the numbers of their training, for the card."""


def tune(
    config: Config,
    models: Models,
    texts: Sequence[RecordedText],
    folder: Path,
    losses: Sequence[str],
    seconds: float,
) -> dict[str, Tuned]:
    """Tune the draft model with each loss for its share of the time; tells stderr how far it is.

    What is needed to go on after an interruption stays in the folder, and reveals the texts.

    Raises:
        ConfigError, ModelError: the target cannot be loaded, or the draft model cannot be tuned.
    """
    assert models.draft is not None
    reader, tell = GGUFReader(models.draft), partial(print, file=sys.stderr, flush=True)
    read_model(reader, CONTEXT)  # refuses before the target is loaded
    known = teacher.compute(config, models.target, texts, folder / "best.pt", tell)
    tried, seconds = dict[str, Tuned](), seconds / len(losses)
    for loss in losses:
        model, state = read_model(reader, CONTEXT), folder / loss
        tried[loss] = Trainer(model, texts, known, state, seconds, loss).run(tell)
    return tried


@dataclass(frozen=True, slots=True)
class _Row:
    """A text to learn from."""

    tokens: Tensor
    start: int  # of the answer
    heat: float
    teacher: Best | None

    @property
    def answer(self) -> Tensor:
        return self.tokens[self.start :]


class Trainer:
    """A model in training; resumes an interrupted training."""

    def __init__(
        self,
        model: LanguageModel,
        texts: Sequence[RecordedText],
        known: Mapping[str, Best],
        state: Path,
        seconds: float,
        loss: str,
    ) -> None:
        """Read the state file if it is of the same model, texts, time and loss."""
        rows = [_row(text, known) for text in texts]
        # of the last texts: the weights that get most of them right are kept
        num_checked = max(1, int(0.1 * len(rows)))
        self._rows, self._checked = rows[:-num_checked] or rows, rows[-num_checked:]
        self._model, self._state, self._loss_kind, self._seconds = model, state, loss, seconds
        self._random = np.random.default_rng(0)
        size = sum(p.numel() for p in model.parameters())
        # for two million parameters: with 3e-3 82 % are accepted after 44 batches, with 2e-4 68 %;
        # a model of 600 million takes 1e-5
        self._rate = 3e-3 * min(1.0, 2e6 / size)
        self._adam = torch.optim.AdamW(
            model.parameters(), lr=self._rate, betas=(0.9, 0.95), weight_decay=0.01
        )
        self._step, self._elapsed, self._num_checks = 0, 0.0, 0
        num_tokens = sum(len(row.tokens) for row in self._rows)
        self._num_steps = max(1, int(8 * num_tokens / BATCH_TOKENS))  # epochs
        key = hashlib.sha256(f"{loss} {seconds} {[key_of(text) for text in texts]}".encode())
        key.update(model.token_embd.weight.detach().numpy())
        self._key = key.hexdigest()
        self._before = self._best = self._accepted()
        self._weights = _copied(model)
        self._resume()

    def run(self, tell: Callable[[str], None]) -> Tuned:
        """Train until time or epochs are spent."""
        started = time.monotonic() - self._elapsed
        told = time.monotonic()
        average: float | None = None
        while (progress := self._progress()) < 1.0:
            loss = self._learn(progress)
            average = loss if average is None else 0.95 * average + 0.05 * loss
            self._step += 1
            now = time.monotonic()
            self._elapsed = now - started
            if 8 * self._progress() >= self._num_checks + 1:
                self._check()
            if now - told > 20.0:
                self._save()
                told, left = now, self._elapsed * (1.0 / self._progress() - 1.0)
                tell(
                    f"step {self._step}: loss {average:.3f}, {self._best:.1%} accepted at best, "
                    f"{max(0.0, left):.0f} s left"
                )
        self._check()
        self._save()
        return self._weights, {
            "steps": self._step,
            "seconds": round(self._elapsed, 1),
            "accepted_before": round(self._before, 4),  # share of the checked tokens
            "accepted_after": round(self._best, 4),
        }

    def _progress(self) -> float:
        return max(self._step / self._num_steps, self._elapsed / self._seconds)

    def _learn(self, progress: float) -> float:
        scale = min(1.0, (self._step + 1) / 20) * max(0.05, 1.0 - progress)
        for group in self._adam.param_groups:
            group["lr"] = self._rate * scale
        loss = self._loss(self._batch())
        self._adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._adam.step()
        return float(loss.item())

    def _batch(self) -> list[_Row]:
        """A batch of texts of similar length, to minimize padding."""
        first = self._rows[self._random.integers(len(self._rows))]
        size = max(1, BATCH_TOKENS // len(first.tokens))
        some = self._random.permutation(len(self._rows))[: 8 * size]
        by_length = sorted(some, key=lambda i: abs(len(self._rows[i].tokens) - len(first.tokens)))
        return [first, *(self._rows[i] for i in by_length[: size - 1])]

    def _loss(self, rows: Sequence[_Row]) -> Tensor:
        """Mean over the answers' tokens."""
        logits = self._logits(rows).split([len(row.answer) for row in rows])
        total = sum(map(self._row_loss, logits, rows), torch.zeros(()))
        return total / sum(len(row.answer) for row in rows)

    def _row_loss(self, logits: Tensor, row: _Row) -> Tensor:
        if row.teacher is None or self._loss_kind == "ce":
            return F.cross_entropy(logits, row.answer, reduction="sum")
        p, log_q = _both(logits, row.teacher, row.heat or 1.0)
        # the share of tokens that no coupling can make equal
        variation = (p - torch.minimum(p, log_q.exp())).sum()
        if self._loss_kind == "tv":
            return variation
        divergence = (p * (p.clamp_min(1e-9).log() - log_q)).sum()
        return divergence + variation if self._loss_kind == "hybrid" else divergence

    def _logits(self, rows: Sequence[_Row]) -> Tensor:
        """The logits for each token of the answers, concatenated."""
        tokens = torch.zeros(
            (len(rows), max(len(row.tokens) for row in rows) - 1), dtype=torch.long
        )
        for own, row in zip(tokens, rows, strict=True):
            own[: len(row.tokens) - 1] = row.tokens[:-1]
        states = self._model.states(tokens)
        parts = [own[r.start - 1 : len(r.tokens) - 1] for own, r in zip(states, rows, strict=True)]
        logits: Tensor = self._model.output(torch.cat(parts))
        return logits

    @torch.no_grad()
    def _accepted(self) -> float:
        """Share of the checked answers' tokens that would be accepted as drafts."""
        num_accepted = num = 0.0
        for row in self._checked:
            logits = self._logits([row])
            if row.teacher is not None and row.heat:
                p, log_q = _both(logits, row.teacher, row.heat)
                num_accepted += float(torch.minimum(p, log_q.exp()).sum())
            else:
                num_accepted += int((logits.argmax(-1) == row.answer).sum())
            num += len(row.answer)
        return num_accepted / max(1, num)

    def _check(self) -> None:
        self._num_checks += 1
        if (accepted := self._accepted()) > self._best:
            self._best, self._weights = accepted, _copied(self._model)

    def _save(self) -> None:
        state = {
            "key": self._key,
            "model": self._model.state_dict(),
            "adam": self._adam.state_dict(),
            "best": self._weights,
            "random": self._random.bit_generator.state,
            "numbers": (self._step, self._elapsed, self._num_checks, self._before, self._best),
        }
        with replacement(self._state) as temporary:
            torch.save(state, temporary)

    def _resume(self) -> None:
        if not self._state.exists():
            return
        state = torch.load(self._state, map_location="cpu", weights_only=True)
        if state["key"] != self._key:
            return
        self._model.load_state_dict(state["model"])
        self._adam.load_state_dict(state["adam"])
        self._weights, self._random.bit_generator.state = state["best"], state["random"]
        self._step, self._elapsed, self._num_checks, self._before, self._best = state["numbers"]


def _both(logits: Tensor, best: Best, heat: float) -> tuple[Tensor, Tensor]:
    """For the target's best tokens: its probabilities, and the model's log probabilities."""
    ids, scores = best
    return (scores / heat).softmax(-1), (logits / heat).log_softmax(-1).gather(-1, ids.long())


def _copied(model: LanguageModel) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _row(text: RecordedText, known: Mapping[str, Best]) -> _Row:
    tokens = torch.tensor([*text.prompt, *text.answer])
    cut = max(0, len(tokens) - CONTEXT)
    start = max(1, len(text.prompt) - cut)
    rows = known.get(key_of(text))
    if rows is not None:
        num_kept = len(tokens) - cut - start
        rows = rows[0][-num_kept:], rows[1][-num_kept:]
    return _Row(tokens[cut:], start, text.sampling.temperature, rows)
