"""Rows to train on: plain code, fill-in-the-middle, chat tasks and plain repeats, each token with a
weight.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from training.tokenizer import END_OF_TEXT, FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX, IM_END, IM_START

PROMPT_WEIGHT = 0.2  # answers weigh 1
FIM_SHARE = 0.25  # of the code rows
SHUFFLED_SHARE = 0.3  # of the repeats: permuted tokens can only be copied, not predicted
# marker, first time, marker, second time
REPEAT_WEIGHTS = np.array([0.1, 0.3, 0.1, 1.0], np.float32)

Ids = NDArray[np.int32]
Weights = NDArray[np.float32]
Row = tuple[Ids, Weights]  # (context + 1,) each: inputs and targets overlap by all but one token


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokenized corpus; tasks are joined, `task_starts` says where each begins."""

    code: Ids
    tasks: Ids
    task_weights: Weights
    task_starts: NDArray[np.int64]


def load(work: Path, tokenizer: Tokenizer, max_task_tokens: int) -> Tokens:
    """Tokenize the corpus in `work`; longer tasks are left out, so that an answer always sees its
    question.
    """
    texts = tokenizer.encode_batch(json.loads((work / "texts.json").read_text()))
    code = np.concatenate([np.array([*text.ids, END_OF_TEXT], np.int32) for text in texts])
    header = len(tokenizer.encode("<|im_start|>assistant\n").ids)
    tasks, weights = [], []
    for task in tokenizer.encode_batch(json.loads((work / "tasks.json").read_text())):
        if len(task.ids) <= max_task_tokens:
            ids = np.array(task.ids, np.int32)
            weight = np.full(len(ids), PROMPT_WEIGHT, np.float32)
            weight[np.flatnonzero(ids == IM_START)[-1] + header :] = 1
            tasks.append(ids)
            weights.append(weight)
    lengths = np.array([len(task) for task in tasks])
    return Tokens(
        code, np.concatenate(tasks), np.concatenate(weights), np.cumsum(lengths) - lengths
    )


class Rows:
    """An endless, seeded stream of rows."""

    def __init__(self, tokens: Tokens, context: int, seed: int) -> None:
        self.tokens = tokens
        self.length = context + 1
        self.random = np.random.default_rng(seed)
        self.starts = tokens.task_starts[tokens.task_starts < len(tokens.tasks) - self.length]
        if len(tokens.code) <= self.length or not len(self.starts):
            raise ValueError(
                f"the corpus is too small for a context of {context} tokens; choose a shorter "
                "--context"
            )

    def batch(self, size: int, repeat_share: float) -> Row:
        """Return tokens and weights, shape (size, context + 1)."""
        rows = [self._row(repeat_share) for _ in range(size)]
        return np.stack([row[0] for row in rows]), np.stack([row[1] for row in rows])

    def _row(self, repeat_share: float) -> Row:
        if self.random.random() < repeat_share:
            return self._repeats()
        return self._code() if self.random.random() < 1 / 3 else self._tasks()

    def _tasks(self) -> Row:
        start = self.random.choice(self.starts)
        window = slice(start, start + self.length)
        return self.tokens.tasks[window], self.tokens.task_weights[window]

    def _code(self) -> Row:
        ids = self._excerpt(self.length)
        if self.random.random() < FIM_SHARE:
            ids = self._without_middle(ids)
        return ids, np.ones(self.length, np.float32)

    def _without_middle(self, ids: Ids) -> Ids:
        """Move a span to the end, behind markers; what no longer fits is cut."""
        first, last = np.sort(self.random.choice(np.arange(8, self.length - 8), 2, replace=False))
        parts = (
            [FIM_PREFIX],
            ids[:first],
            [FIM_SUFFIX],
            ids[last:],
            [FIM_MIDDLE],
            ids[first:last],
            [END_OF_TEXT],
        )
        return np.concatenate(parts)[: self.length].astype(np.int32)

    def _repeats(self) -> Row:
        """Spans of code, each twice; only the second time can be known, so only that weighs 1."""
        ids: list[Ids] = []
        weights: list[Weights] = []
        while sum(map(len, ids)) < self.length:
            span = self._excerpt(int(self.random.integers(12, 150)))
            if self.random.random() < SHUFFLED_SHARE:
                span = self.random.permutation(span)
            ids.append(np.concatenate(([IM_END], span, [IM_START], span)).astype(np.int32))
            weights.append(np.repeat(REPEAT_WEIGHTS, [1, len(span), 1, len(span)]))
        return np.concatenate(ids)[: self.length], np.concatenate(weights)[: self.length]

    def _excerpt(self, length: int) -> Ids:
        start = int(self.random.integers(len(self.tokens.code) - length))
        return self.tokens.code[start : start + length]
