"""Counts the tokens that followed 1 to 4 tokens: in this text, past answers, or a corpus.

Three levels, tried in this order with llama.cpp's thresholds: the context (this request), the
dynamic level (what requests of the public namespace have generated; kept in a file on request) and
the static level (a file, never changed; only its bigrams count). Static counts also weigh the
tokens of the other two. The score of a token is c / (s + 1 / n): c of the s tokens that followed
its n-gram of n tokens.

Unlike llama.cpp: the context is reset with each request, single tokens are counted, the dynamic
file is written (atomically, and not over the changes of another process) and the static file is
loaded once. Other namespaces read the public dynamic level but do not add to it. A dynamic file
with more n-grams than the limit is refused: writing it would lose the others.

Writing 500,000 n-grams takes 0.6 s and blocks all slots, so it is postponed while requests run, up
to a limit.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.config import option
from headstart.speculators.base import register
from headstart.speculators.base_texts import MIN_SHARE, TextSpeculator
from headstart.speculators.ngram_cache_counts import (
    MAX_NGRAM,
    CountedHistory,
    NgramCounts,
    pack,
    shorter,
    slide,
)
from headstart.structures.vocabulary_id import VocabularyId
from headstart.types import Draft, DraftRequest
from headstart.types.errors import ConfigError

log = logging.getLogger(__name__)

SAVE_TOKENS = 50_000  # generated between two writes of the dynamic file


# n-grams, the longest first, with the samples and the percent of them that they need to be used
_LAX = ((4, 1, 50), (3, 1, 50), (2, 2, 50), (1, 2, 66))  # context
_STRICT = ((4, 2, 66), (3, 2, 66), (2, 3, 66), (1, 4, 75))  # dynamic
_STATIC = ((2, 2, 50),)


@register
class NgramCacheSpeculator(TextSpeculator[CountedHistory]):
    """Drafts the token that followed most often, if it is clear enough."""

    name = "ngram-cache"

    @dataclass(frozen=True, slots=True)
    class Options:
        """Files and limits of the counts."""

        lookup_cache_static: str | None = option(
            None, "lookup file made from a text collection; only read", "--lookup-cache-static"
        )
        lookup_cache_dynamic: str | None = option(
            None,
            "lookup file of past answers; read, and written as they come",
            "--lookup-cache-dynamic",
        )
        max_ngrams: int = option(500_000, "maximum n-grams kept of past answers", least=1)

    def __init__(
        self, options: Options | None = None, vocabulary_id: VocabularyId | None = None
    ) -> None:
        super().__init__(options)
        options = self.options
        self._static = NgramCounts()
        self._dynamic = NgramCounts(options.max_ngrams)
        self._dynamic_path = (
            Path(options.lookup_cache_dynamic) if options.lookup_cache_dynamic else None
        )
        self._vocabulary = vocabulary_id
        # identity of the dynamic file when last read or written
        self._seen: tuple[int, int, int] | None = None
        self._num_unsaved = 0
        self._num_learned = 0  # texts
        self._has_warned = False
        if options.lookup_cache_static or self._dynamic_path:
            if vocabulary_id is None:
                raise ConfigError(
                    "lookup cache files need to know the vocabulary: their tokens mean nothing "
                    "without"
                )
            self._load(vocabulary_id)

    def _load(self, vocabulary_id: VocabularyId) -> None:
        if self.options.lookup_cache_static:
            self._static = NgramCounts.load(Path(self.options.lookup_cache_static), vocabulary_id)
            if not len(self._static):
                raise ConfigError(
                    f"lookup cache {self.options.lookup_cache_static} is empty; leave it out"
                )
        path = self._dynamic_path
        if path is None:
            return
        if not path.resolve().parent.is_dir():
            raise ConfigError(
                f"the folder of lookup cache {path} does not exist; create it or name another file"
            )
        if not os.access(path.resolve().parent, os.W_OK):
            raise ConfigError(
                f"lookup cache {path} is in a folder that cannot be written; name another file, or "
                "read it only "
                "with --lookup-cache-static"
            )
        if path.exists():
            limit = self.options.max_ngrams
            self._dynamic = NgramCounts.load(path, vocabulary_id, limit)
            if (size := len(self._dynamic)) > limit:
                raise ConfigError(
                    f"lookup cache {path} holds {size} n-grams but {limit} are kept, and the "
                    "others would be lost when it is written; raise "
                    f"--spec-ngram-cache-max-ngrams ({2 * size} leaves room to learn), or only "
                    "read it, with --lookup-cache-static"
                )
        self._seen = _state_of(path)

    def history_of(self, text: Sequence[int], namespace: str) -> CountedHistory:
        return CountedHistory(text, namespace)

    def draft_for(self, history: CountedHistory, request: DraftRequest) -> Draft:
        window = history.tokens[-MAX_NGRAM:]
        key, size = pack(window), len(window)
        tokens: list[int] = []
        scores: list[float] = []
        survival = 1.0
        for _ in range(min(request.max_tokens, 8)):
            weights = (self._static.after(shorter(key, 2)) if size > 1 else None) or {}
            guess = (
                history.counts.clearest(key, size, _LAX, weights)
                or self._dynamic.clearest(key, size, _STRICT, weights)
                or self._static.clearest(key, size, _STATIC, {})
            )
            if guess is None:
                break
            survival *= guess[1]
            if survival < MIN_SHARE:
                break
            tokens.append(guess[0])
            scores.append(guess[1])
            key, size = slide(key, guess[0]), min(size + 1, MAX_NGRAM)
        return Draft(tokens, scores)

    def end(self, seq_id: int) -> None:
        history = self.histories.pop(seq_id, None)
        if history is None:
            return
        if not history.namespace:
            # not the prompt, which chats repeat every turn
            self._dynamic.learn(history.tokens, history.num_prompt)
            self._num_unsaved += len(history.tokens) - history.num_prompt
            self._num_learned += 1
        elif self._dynamic_path and not self._has_warned:
            self._has_warned = True
            log.warning(
                "lookup cache %s learns from requests without an API key only", self._dynamic_path
            )
        # while requests run, four times as much may be unsaved
        if self._num_unsaved >= SAVE_TOKENS * (4 if self.histories else 1):
            self._save()

    def end_private(self, seq_id: int) -> None:
        if self._dynamic_path is None:
            self.end(seq_id)
        else:  # all counts are saved
            super().end(seq_id)

    def _save(self) -> None:
        path = self._dynamic_path
        if path is None or self._vocabulary is None or not self._num_unsaved:
            return
        try:
            if _state_of(path) != self._seen:
                raise OSError("another process wrote it; give each server its own file")
            self._dynamic.save(path, self._vocabulary)
            self._seen, self._num_unsaved = _state_of(path), 0
        except OSError as error:
            log.error("lookup cache %s is not written any more: %s", path, error)
            self._dynamic_path = None

    def close(self) -> None:
        self._save()

    def describe(self) -> dict[str, Any]:
        return {
            "static_ngrams": len(self._static),
            "dynamic_ngrams": len(self._dynamic),
            "dynamic_learns": "requests without an API key only",
            "dynamic_texts_learned": self._num_learned,
            "dynamic_file": self.options.lookup_cache_dynamic,
            "dynamic_file_is_written": self._dynamic_path is not None and self._num_learned > 0,
        }


def _state_of(path: Path) -> tuple[int, int, int] | None:
    """Identity of the file's current content; None if there is no file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
