"""Chooses which sequences take part in a step: all, or answers and prompts in turn, or those of one
set of adapters.

On a GPU prompts and answers share steps, because the weights are then read from memory once for
both. On a CPU that saves less than attention costs: it computes whole tiles of rows
(`Engine.attention_tile`) and skips only cells that no row of a tile sees, so in a tile with rows of
answers, 60 rows of a prompt compute the cells of all answers. There the two alternate: each answer
gets a token after every chunk, as in a shared step. Recurrent models also alternate: a step with
both takes several passes in any case, and other rows overwrite a draft's snapshots. Images always
take turns with the rest, because libllama reads either tokens or embeddings in one decode. Those of
several prompts take turns too, newest first, so that prompts that come meanwhile wait for the next
round.
"""

from __future__ import annotations

from collections.abc import Callable

from headstart.scheduler.sequence import Sequence
from headstart.types import Engine
from headstart.types.media import LoadedChunk

STEPS = 8  # of requests with the same adapters, while others wait
Scales = tuple[float, ...]


class Turns:
    """Chooses the sequences of each step."""

    def __init__(self, engine: Engine, prefill_chunk: int) -> None:
        """`prefill_chunk`: prompt rows per step beside answers."""
        attention_tile = engine.attention_tile
        # sets the adapters' scales from the next decode on, if requests may differ in them
        self.use_scales: Callable[[Scales], None] | None = None
        self._scales: Scales = ()  # in use; (): as loaded
        self._num_steps = 0  # with these
        self._tile = attention_tile if prefill_chunk >= attention_tile else 1
        self._has_states = engine.cache_kind.is_recurrent
        self._was_prompts = self._was_image = False  # what the last step was limited to
        self._last_image = 0  # number of the sequence that had one last
        self._awaited: list[LoadedChunk] = []  # images being encoded

    def choose(self, running: list[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
        """Split the running requests into the answers and the prompts of the next step."""
        answers: list[Sequence] = []
        prompts: list[Sequence] = []
        at_images: list[Sequence] = []
        for sequence in self._alike(running, use) if (use := self.use_scales) else running:
            cells, num_tokens = sequence.cells, len(sequence.tokens)
            # inlined `Sequence.is_generating`
            is_known = cells is not None and num_tokens - cells.length == 1 + sequence.num_again
            is_answer = is_known and num_tokens + sequence.num_dropped > sequence.num_prompt
            (answers if is_answer else prompts).append(sequence)
        self._awaited = []
        if prompts:
            prompts, at_images = self._apart(prompts)
        self._was_image = bool(at_images) and not (self._was_image and (answers or prompts))
        if self._was_image:
            chosen = max(at_images, key=lambda one: (one.number < self._last_image, one.number))
            self._last_image = chosen.number
            return [], [chosen]
        if not prompts or not self._are_apart(answers, prompts):
            self._was_prompts = False
            return answers, prompts
        self._was_prompts = not self._was_prompts
        return ([], prompts) if self._was_prompts else (answers, [])

    def wait(self, seconds: float) -> None:
        """Idle: wait briefly for an image to be encoded."""
        if self._awaited:
            self._awaited[0].wait(seconds)

    def _alike(self, running: list[Sequence], use: Callable[[Scales], None]) -> list[Sequence]:
        """Requests with the scales of the next step: current or least recently used ones.

        Sets of scales take turns of a few steps, because libllama plans its memory again whenever
        they change.
        """
        waiting = list(dict.fromkeys(sequence.request.adapters for sequence in running))
        self._num_steps += 1
        if waiting and (self._scales not in waiting or self._num_steps >= STEPS):
            at = waiting.index(self._scales) + 1 if self._scales in waiting else 0
            chosen = waiting[at % len(waiting)]
            self._num_steps = 0
            if chosen != self._scales:
                use(chosen)
                self._scales = chosen
        return [sequence for sequence in running if sequence.request.adapters == self._scales]

    def _apart(self, prompts: list[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
        """Prompts that continue with text, and those at an encoded image, which is decoded
        separately; prompts at other images wait.
        """
        texts, at_images = list[Sequence](), list[Sequence]()
        for sequence in prompts:
            pending = sequence.pending_media if sequence.leader is None else None
            if pending is None:
                texts.append(sequence)
            elif pending[0].prepare(sequence):
                at_images.append(sequence)
            else:
                self._awaited.append(pending[0])
        return texts, at_images

    def _are_apart(self, answers: list[Sequence], prompts: list[Sequence]) -> bool:
        """Whether answers and prompts need separate steps, to save time or to keep snapshots."""
        num_unread = sum(one.num_pending for one in prompts if one.leader is None)
        if self._has_states:
            return bool(answers and num_unread)
        if self._tile == 1 or not num_unread or len(answers) + num_unread < self._tile:
            return False
        # reading the weights twice would take longer than a tile that computes all these cells
        return sum(one.num_decoded for one in answers) >= 256
