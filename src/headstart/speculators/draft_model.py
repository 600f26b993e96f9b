"""Drafts with a smaller model, for all sequences in one batch per token.

It may draft with the request's own random numbers ("coupled": when the two models nearly agree,
they draw the same token) or its most likely token ("argmax"); the one accepted more often is used.
A model with another vocabulary drafts through a `VocabularyTranslator`.

Recurrent layers cannot be truncated, so the state at the end of the history is kept before the
draft's own tokens are decoded. After a rejection it is restored, and the accepted tokens are
decoded.

Reading 4,000 tokens takes a small model as long as 40 plain steps of the target. So of a long text
it reads only the beginning and the last tokens, which hardly changes its drafts. A model with
another vocabulary, or a cache that cannot be truncated, reads all.

Source: Leviathan et al. 2023, https://arxiv.org/abs/2211.17192 (draft models);
Daliri et al. 2024, https://arxiv.org/abs/2408.07978 (coupling);
Timor et al. 2025, https://arxiv.org/abs/2502.05202 (other vocabularies).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.speculators.base import SAMPLE_ROWS, Speculator, register, times_of
from headstart.speculators.draft_model_progress import CachedSequence, closed_half
from headstart.structures.prefix import common_prefix_length
from headstart.text.vocabulary.draft_tokenizer import DraftTokenizer, Preference
from headstart.text.vocabulary.translated_sequence import TranslatedSequence
from headstart.text.vocabulary.vocabulary_translator import VocabularyTranslator
from headstart.types import Batch, CacheKind, ContextFullError, Draft, DraftRequest, Engine
from headstart.types.engine import SavedState

# For caches that cannot be truncated: up to _AGAIN settled tokens are decoded again rather than in
# a separate batch to keep the state after them; _LONG or more get a checkpoint _OPEN_END tokens
# before their end, because another request may differ there.
_AGAIN, _LONG, _OPEN_END = 16, 64, 4


@register
class DraftModelSpeculator(Speculator):
    """Drafts with a second model. Its cache catches up with the history without decoding twice."""

    name = "draft-model"
    scores_are_probabilities = True
    is_model = True
    continues_drafts = True
    drafts_with = "draft-model"

    def __init__(self, engine: Engine, translator: VocabularyTranslator | None = None) -> None:
        """Draft with `engine`; without a translator it must share the target's token ids."""
        self.engine = engine
        self.num_decoded = 0  # rows
        self.most_read = 256  # tokens of texts decoded per step, to limit its time
        self._translator = translator
        preference = Preference()

        def make_sequence() -> CachedSequence:
            if translator is None:
                return CachedSequence(DraftTokenizer(preference))
            return CachedSequence(TranslatedSequence(translator, preference))

        self._sequences = defaultdict[int, CachedSequence](make_sequence)
        self._keeps_states = engine.cache_kind is not CacheKind.CUT
        self._can_skip = translator is None and not self._keeps_states
        self._num_calls = 0
        self._batch = Batch(engine.max_batch_tokens)

    def begin(self, seq_id: int, text: Sequence[int], namespace: str = "") -> None:
        """Decode and translate nothing yet: the request may get no drafts."""
        sequence = self._sequences[seq_id]
        if sequence.namespace != namespace:
            self._forget([seq_id])
        sequence.namespace, sequence.is_open, sequence.is_new = namespace, True, True
        sequence.num_history, sequence.prompt = len(text), text
        sequence.num_caught_up = max(self._held(other, seq_id) for other in self._sequences)
        sequence.gap = range(0)

    def _held(self, source: int, seq_id: int) -> int:
        """How much of one sequence's prompt it can share from another, or already has."""
        other, sequence = self._sequences[source], self._sequences[seq_id]
        known = other.tokenizer.to_target_tokens(other.tokens)
        shared = min(other.num_caught_up, common_prefix_length(known, sequence.prompt))
        return self._reusable(source, seq_id, shared)

    def _reusable(self, source: int, seq_id: int, length: int) -> int:
        """How many of the first `length` tokens of one sequence another can share."""
        if self._sequences[source].namespace != self._sequences[seq_id].namespace:
            return 0
        return self.engine.reusable(source, length, by_copy=source != seq_id)

    def _share(self, seq_id: int, sequence: CachedSequence, history: Sequence[int]) -> None:
        """Share what another sequence already decoded of this history, if that is more."""
        sequence.is_new = False
        sequence.synced = common_prefix_length(sequence.tokens, history)
        for other_id, other in self._sequences.items():
            if other_id == seq_id:
                continue
            shared = common_prefix_length(other.tokens, history)
            shared = self._reusable(other_id, seq_id, shared)
            if shared > self._reusable(seq_id, seq_id, sequence.synced):
                is_here = self.engine.copy_prefix(other_id, seq_id, shared)
                sequence.tokens = other.tokens[:shared] if is_here else []
                sequence.synced = len(sequence.tokens)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft with one decode per token, for all requests together."""
        try:
            return self._propose(requests)
        except ContextFullError:
            for request in requests:
                self._sequences[request.seq_id].count_held()
            # drop closed sequences; if there are none, all, which then catch up again
            closed = closed_half(self._sequences, {request.seq_id for request in requests})
            self._forget(closed or list(self._sequences))
            return [Draft(reason="draft context full", is_ready=False)] * len(requests)

    def _propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self._num_calls += 1
        room = min(max(self.most_read, 2 * len(requests)), self._batch.capacity)
        drafts = [self._prepare(request, room) for request in requests]
        # requests with short texts first: a long prompt is decoded in parts
        for sequence in sorted(drafts, key=lambda s: s.num_catch_up):
            self._catch_up(sequence, room)
            room -= len(sequence.pending)
        if self._keeps_states:
            self._read_settled([s for s in drafts if s.is_active])
        while active := [s for s in drafts if s.is_active]:
            logits = self._decode(active)
            for sequence, row in zip([s for s in active if s.is_active], logits, strict=True):
                sequence.extend(row)
            if self._keeps_states:
                self._keep_settled(active)
        self._share_prompts(drafts)
        return [s.finish() for s in drafts]

    def _share_prompts(self, drafts: Sequence[CachedSequence]) -> None:
        """Share prompts just decoded with requests that have the same prefix."""
        readers = [s for s in drafts if s.prompt and not s.gap and not s.builder.reason]
        for reader in readers:
            reader.prompt = ()
        for reader in readers:
            for seq_id, sequence in self._sequences.items():
                if sequence.is_open and sequence.prompt:
                    held = self._held(reader.request.seq_id, seq_id)
                    if held > sequence.num_caught_up:  # shared with the next draft
                        sequence.num_caught_up, sequence.is_new = held, True

    def _prepare(self, request: DraftRequest, room: int) -> CachedSequence:
        """Truncate the cache to the prefix it shares with the history; of the rest, up to `room`
        tokens become pending.
        """
        sequence = self._sequences[request.seq_id]
        sequence.last_used = self._num_calls
        is_new = sequence.is_new
        history = sequence.tokenizer.to_draft_tokens(
            request.tokens, 0 if is_new else min(sequence.num_translated, len(request.tokens))
        )
        sequence.num_translated = sequence.num_history
        if is_new:
            self._share(request.seq_id, sequence, history)
        if self._can_skip:
            sequence.skip_middle(history, self.most_read)
        num_stable = sequence.tokenizer.num_stable - len(sequence.gap)
        history = sequence.without_gap(history)
        known = max(0, min(sequence.synced, num_stable, len(sequence.tokens)))
        shared = min(common_prefix_length(sequence.tokens, history, known), len(history) - 1)
        limit = min(
            sequence.tokenizer.num_draft_tokens(request.max_tokens),
            self.engine.context_size - len(history),
        )
        sequence.builder = builder = sequence.tokenizer.begin(request, limit)
        sequence.last, sequence.start = None, len(request.tokens)
        sequence.num_catch_up, sequence.pending = 0, []
        if shared < 0 or not sequence.tokenizer.can_draft:
            builder.reason = "draft model has no text to continue"
            return sequence
        if shared < len(sequence.tokens):
            shared = self.engine.rewind(request.seq_id, shared)
            del sequence.tokens[shared:]
            sequence.kept = min(sequence.kept, shared)
        sequence.synced = (
            shared if len(request.tokens) == sequence.num_history else min(sequence.synced, shared)
        )
        if limit <= 0:
            builder.reason = "draft context full"
            return sequence
        sequence.last = builder
        sequence.num_catch_up = len(history) - shared
        num_new = len(request.tokens) - sequence.num_history
        sequence.num_settled = sequence.tokenizer.num_settled(history, num_new)
        sequence.pending = list(history[shared : shared + room])
        sequence.num_caught_up = len(request.tokens)
        return sequence

    def _catch_up(self, sequence: CachedSequence, room: int) -> None:
        """If the pending tokens do not fit into this call, decode a part and draft later."""
        del sequence.pending[max(0, room) :]
        if sequence.num_catch_up <= len(sequence.pending):
            return
        sequence.builder.reason = "draft model is processing the prompt"
        if sequence.pending:
            self._decode([sequence])
            self.engine.checkpoint(sequence.request.seq_id)
        num_known = len(sequence.tokens)
        num_left = sequence.num_catch_up - len(sequence.pending)
        num_seen = sequence.num_caught_up - len(sequence.gap)
        sequence.num_caught_up += num_seen * num_known // (num_known + num_left) - num_seen

    def _read_settled(self, active: Sequence[CachedSequence]) -> None:
        """Keep the state before the end of a history that may still change, if the last one kept is
        too far back; with long histories also one where another request may branch off.
        """
        ahead: list[tuple[CachedSequence, list[int]]] = []
        for sequence in active:
            settled = sequence.num_settled - _OPEN_END * (sequence.num_catch_up >= _LONG)
            num_known = settled - len(sequence.tokens)
            if 0 < num_known < len(sequence.pending) and settled - sequence.kept > _AGAIN:
                ahead.append((sequence, sequence.pending[num_known:]))
                del sequence.pending[num_known:]
        if ahead:
            self._decode([sequence for sequence, _ in ahead])
        for sequence, pending in ahead:
            self._keep(sequence)
            if sequence.num_catch_up >= _LONG:
                self.engine.checkpoint(sequence.request.seq_id)
            sequence.pending = pending

    def _keep_settled(self, active: Sequence[CachedSequence]) -> None:
        """Keep the states of drafts that are at the end of their settled tokens and continue."""
        for sequence in active:
            is_there = len(sequence.tokens) == sequence.num_settled
            if is_there and sequence.is_active and not self._keep(sequence):
                sequence.pending = []

    def _keep(self, sequence: CachedSequence) -> bool:
        """Keep the current state; returns False if there is no memory for it."""
        if not self.engine.keep_for_draft(sequence.request.seq_id):
            return False
        sequence.kept, sequence.num_kept = len(sequence.tokens), sequence.num_history
        return True

    def _decode(self, active: Sequence[CachedSequence]) -> NDArray[np.float32]:
        """Decode the pending tokens; returns one row of logits per draft still growing."""
        batch = self._batch
        batch.clear()
        for sequence in active:
            position, pending = len(sequence.tokens), sequence.pending
            num_outputs = 0 if sequence.builder.reason or not pending else 1
            batch.add(sequence.request.seq_id, position, pending, num_outputs)
        logits = self.engine.decode(batch) if batch.num_rows else np.empty((0, 0), np.float32)
        self.num_decoded += batch.num_rows
        for sequence in active:
            sequence.tokens += sequence.pending
            is_history = len(sequence.request.tokens) == sequence.num_history
            if is_history and not sequence.builder.tokens:
                sequence.synced = len(sequence.tokens)
        return logits

    def num_catch_up(self, seq_id: int, history: Sequence[int]) -> int:
        num_unread = max(0, len(history) - 1 - self._sequences[seq_id].num_caught_up)
        skips = self._can_skip and num_unread >= 2 * self.most_read
        return self.most_read if skips else num_unread

    def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
        """Let the tokenizer learn which way of picking tokens is accepted."""
        takes_back = not self._keeps_states
        self._sequences[seq_id].accept(emitted, num_accepted, takes_back=takes_back)

    def save_sequence(self, seq_id: int, namespace: str) -> SavedState | None:
        """The draft model's cache, with its tokens. None if they belong to another request: one
        that ended at its first token had nothing decoded.
        """
        sequence = self._sequences[seq_id]
        if sequence.namespace != namespace or sequence.is_open or not sequence.tokens:
            return None
        text = np.array(sequence.tokens, np.int32).tobytes()
        return replace(self.engine.save_sequence(seq_id), text=text)

    def restore_sequence(self, seq_id: int, data: SavedState, namespace: str) -> None:
        sequence = self._sequences[seq_id]
        sequence.hold([])
        sequence.namespace = namespace
        while not (length := self.engine.restore_sequence(seq_id, data)):
            if not self._forget(closed_half(self._sequences, {seq_id})):
                return
        sequence.hold(np.frombuffer(data.text, np.int32)[:length].tolist())

    def end(self, seq_id: int) -> None:
        """Keep the cache: the next turn of a chat starts with it."""
        sequence = self._sequences[seq_id]
        sequence.is_open, sequence.last = False, None
        if hasattr(sequence, "builder"):
            del sequence.builder  # it has the request, with its sampler and images

    def _forget(self, seq_ids: list[int]) -> bool:
        """Free the cells of these sequences; returns False if there are none."""
        for seq_id in seq_ids:
            self.engine.clear(seq_id)
            self._sequences[seq_id].hold([])
        return bool(seq_ids)

    def time_decodes(self, clock: Callable[[], float]) -> tuple[float, float] | None:
        """Time decodes in sequence 0, whose contents are dropped."""
        size = min(SAMPLE_ROWS, self.engine.max_batch_tokens, self.engine.context_size)
        self._forget([0])
        one, many = partial(self._decode_rows, 1), partial(self._decode_rows, size)
        round_ms, reading_ms = times_of(clock, one, many)
        return round_ms, max(0.0, reading_ms - round_ms) / max(1, size - 1)

    def _decode_rows(self, num_rows: int) -> None:
        self._batch.clear()
        self._batch.add(0, 0, [0] * num_rows, 1)
        self.engine.decode(self._batch)
        self.engine.clear(0)

    def describe(self) -> dict[str, Any]:
        vocabulary = "identical" if self._translator is None else self._translator.describe()
        mode = "identical" if self._translator is None else self._translator.mode
        return {
            "rows_decoded": self.num_decoded,
            "mode": mode,
            "vocabulary": vocabulary,
        }
