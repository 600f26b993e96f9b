"""Requests come, leave, fail and lose their cells at any step: texts, caches, counts and what
control learns stay right, and nothing is kept of those that have left.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
from tests.harness import (
    AUTO,
    EOS,
    Answer,
    Model,
    RandomController,
    answer,
    make_scheduler,
    make_speculators,
    step_until,
)
from tests.pictures import FakeChunk, Pictures, with_pictures

from headstart.scheduler.batching import mixes_states
from headstart.scheduler.scheduler import Scheduler
from headstart.types import Batch, CacheKind, Logits
from headstart.types.errors import EngineError
from headstart.types.media import MediaChunk, chunk_begin
from headstart.types.request import Request
from headstart.types.sampling_params import SamplingParams
from headstart.worker.loop import make_report

NUM_REQUESTS, CONTEXT = 16, 100


@dataclass(frozen=True, slots=True)
class Traffic:
    """What happens beside requests."""

    is_asynchronous: bool = False
    is_wavering: bool = False  # whether it is asynchronous changes now and then
    shifts_context: bool = False
    failures: float = 0.0  # of decodes
    has_padding: bool = False
    has_images: bool = False


TRAFFIC = {
    "plain": Traffic(),
    "device": Traffic(is_asynchronous=True, has_padding=True),
    "wavering": Traffic(is_asynchronous=True, is_wavering=True, shifts_context=True),
    "failing": Traffic(is_asynchronous=True, failures=0.02),
    "images": Traffic(is_asynchronous=True, is_wavering=True, has_images=True, failures=0.01),
    "shifting": Traffic(shifts_context=True, has_padding=True, failures=0.01),
}


class Machine(Model):
    """Fails now and then, and changes its mind on whether it is asynchronous."""

    def __init__(self, traffic: Traffic, chance: random.Random, cache_kind: CacheKind) -> None:
        cells = CONTEXT + 60
        order = None if traffic.has_images else 2
        super().__init__(order, context_size=CONTEXT, num_cells=cells, cache_kind=cache_kind)
        self.traffic, self.chance = traffic, chance
        self.is_asynchronous, self.max_batch_tokens = traffic.is_asynchronous, 24
        if not traffic.has_padding or cache_kind is not CacheKind.CUT:
            self.padding_sequence = None

    def launch(self, batch: Batch) -> None:
        self._may_fail(batch)
        if batch.media is not None:
            chunk, offset = batch.media
            assert isinstance(chunk, FakeChunk)
            assert chunk.num_polls < 0, "it is not encoded"
            assert batch.num_rows == chunk.num_cells or not chunk.is_whole
            cells = chunk.tokens[offset : offset + batch.num_rows]
            assert batch.tokens[: batch.num_rows].tolist() == cells
        super().launch(batch)
        self.launched = batch

    def wait(self) -> Logits:
        if self.traffic.is_wavering and self.chance.random() < 0.2:
            self.is_asynchronous = not self.is_asynchronous
        self._may_fail(self.launched)
        return super().wait()

    def _may_fail(self, batch: Batch) -> None:
        if self.chance.random() >= self.traffic.failures:
            return
        if mixes_states(batch, self):
            for tokens in self.cache.values():  # states that were to be moved
                tokens.reverse()
        raise EngineError("broken")


Piece = tuple[int, list[int], int, bool]
"""What control was told of a draft: the request's number, the token before the piece and its own,
how many agree with the text, and whether the next does not.
"""


class Remembering(RandomController):
    """Keeps what it was told, and which requests it knows."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.pieces, self.known = list[Piece](), set[int]()
        self._record = self._calibration.record
        self._calibration.record = self._noted  # type: ignore[method-assign]

    def begin(self, seq_id: int, namespace: str) -> None:
        self.known.add(seq_id)
        super().begin(seq_id, namespace)

    def _noted(self, number: int, name: str, scores: Any, matched: int, tokens: Any = ()) -> None:
        assert number in self.known
        self.pieces.append((number, list(tokens), matched, len(scores) > matched))
        self._record(number, name, scores, matched, tokens)

    def end(self, seq_id: int, num_answered: int) -> None:
        self.known.remove(seq_id)
        super().end(seq_id, num_answered)


def requests_of(chance: random.Random, *, has_images: bool) -> list[Request]:
    """Prompts that begin alike, of any length, for answers of any length."""
    bases = [[chance.randrange(EOS) for _ in range(90)] for _ in range(2)]
    media: tuple[tuple[int, MediaChunk], ...] = ()
    if has_images:
        images = [(at, chance.randrange(5)) for at in (0, 22, 43)]
        bases[0], media = with_pictures(bases[0][:50], *images)
    requests = []
    for index in range(NUM_REQUESTS):
        own = [chance.randrange(EOS) for _ in range(chance.randrange(1, 9))]
        sampling = SamplingParams(
            temperature=chance.choice((0.0, 0.8, 1.5)), seed=index, ignore_eos=index % 3 > 0
        )
        base, length = chance.choice(bases), chance.choice((0, 40, 60, 91))
        length = chunk_begin(base, length)
        request = Request(
            request_id=f"r{index}",
            prompt=base[:length] + own,
            media=tuple(one for one in media if base is bases[0] and one[0] < length),
            sampling=sampling,
            max_tokens=chance.choice((0, 1, 8, 40)),
            cache_prompt=chance.random() < 0.9,
            slot_id=chance.choice((None, None, None, 0)),
        )
        requests.append(request)
    return requests


def check_caches(scheduler: Scheduler, engine: Model) -> None:
    """The cache holds what the slots say, and reports count no more than there is."""
    for slot in scheduler.cells:
        assert engine.cache.get(slot.seq_id, []) == slot.tokens[: slot.length]
    for report in make_report(scheduler).slots:
        assert report.num_cached <= report.num_processed <= report.num_prompt


def check_answer(engine: Model, request: Request, told: Answer, traffic: Traffic) -> None:
    """It was told its end, its tokens are those of the rule, and each was counted once."""
    assert told.reason
    expected, num = answer(engine, request).tokens, len(told.tokens)
    if not traffic.shifts_context or len(request.prompt) + num < CONTEXT:
        is_cut = told.reason == "cancelled" or told.error is not None
        assert told.tokens == expected[: num if is_cut else None]
    stats = told.error.stats if told.error else told.stats
    if stats is not None:
        assert stats.num_emitted == num
        assert stats.drafts.num_drafts + stats.drafts.reasons.total() <= stats.num_steps
        assert stats.drafts.num_accepted == sum(map(bool, told.sources))


def is_true(piece: Piece, text: list[int], num_prompt: int) -> bool:
    """Whether the text agrees with what control was told of a draft."""
    _, line, num_matched, is_over = piece
    for start in range(num_prompt - 1, len(text)):
        end = start + num_matched + 1
        if text[start:end] == line[: num_matched + 1] and not (
            is_over and text[end : end + 1] in ([], [line[num_matched + 1]])
        ):
            return True
    return False


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", TRAFFIC)
@pytest.mark.parametrize("cache_kind", list(CacheKind))
def test_random_traffic_leaves_everything_right(cache_kind, kind, seed) -> None:
    chance, traffic = random.Random(seed), TRAFFIC[kind]
    engine, controller = Machine(traffic, chance, cache_kind), Remembering(seed)
    scheduler = make_scheduler(
        engine,
        make_speculators(("suffix", "draft-model")),
        AUTO,
        controller,
        prefill_chunk=8,
        parallel=4,
        context_shift=traffic.shifts_context,
    )
    images = traffic.has_images
    requests = [r for r in requests_of(chance, has_images=images) if len(r.prompt) < CONTEXT]
    scheduler.media = Pictures()
    waiting, numbers = list(requests), dict[int, Request]()

    def is_over(_: object) -> bool:
        check_caches(scheduler, engine)
        if not waiting and not scheduler.has_work:
            return True
        while waiting and chance.random() < 0.3:
            numbers[len(numbers)] = waiting[0]
            scheduler.submit(waiting.pop(0))
        active = [*scheduler.waiting, *scheduler.running]
        if active and chance.random() < 0.03:
            scheduler.cancel(chance.choice(active).request.request_id)
        return False

    answers = step_until(scheduler, is_over)
    for request in requests:
        check_answer(engine, request, answers[request.request_id], traffic)
    ends = [told.end for told in answers.values() if told.end is not None]
    assert scheduler.counters.tokens_predicted == sum(end.stats.num_emitted for end in ends)
    assert scheduler.counters.preemptions > 0 or traffic.failures
    for piece in controller.pieces:
        request = numbers[piece[0]]
        text = [*request.prompt, *answers[request.request_id].tokens]
        assert is_true(piece, text, len(request.prompt))
    check_nothing_is_kept(scheduler, controller)


def check_nothing_is_kept(scheduler: Scheduler, controller: Remembering) -> None:
    """All requests have left: whatever was kept under their numbers has gone."""
    assert not scheduler.drafting.failure
    assert not controller._calibration._followed
    assert not controller._calibration.namespaces
    assert not controller._calibration._requests
    assert not scheduler.outcomes._requests
    assert not scheduler.drafting._begun
    assert not controller.known
    for model in controller._model_planner.drafters.values():
        assert not {**model.history.requests, **model.history._tokens}
    assert all(cells.user is None for cells in scheduler.cells)
