"""`headstart verify` finds what it is for: faults planted into a server, each named where it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.harness import EOS, Model, Oracle, ReadingFilters, make_scheduler

from headstart.app.cli.verify import COMMAND, VerifyOptions, _summary
from headstart.app.speculation import without_file
from headstart.app.verify import TEMPERATURES, TextComparison, _ways, verify
from headstart.config import SchedulerConfig
from headstart.config.fields import option_of
from headstart.sampling.sampler import Sampler
from headstart.sampling.verify import emit
from headstart.scheduler import commit
from headstart.scheduler.scheduler import Scheduler
from headstart.scheduler.widths import change_by_order
from headstart.types import Batch, CacheKind, SavedState
from headstart.types.request import Request
from headstart.types.sampling_params import SamplingParams

PREFIX = [*range(20), *range(20)]
REQUESTS = [
    Request(
        request_id=str(i),
        prompt=(*PREFIX, *(i * k % 29 for k in range(1, 41))),  # each another conversation
        sampling=SamplingParams(seed=i, top_k=8, ignore_eos=True),
        max_tokens=12,
    )
    for i in range(5)
]


def run(make: Callable[[], Model] = Model, num: int = len(REQUESTS)) -> TextComparison:
    requests = REQUESTS[:num]

    def open_scheduler(slots: int) -> Scheduler:
        engine = make()
        oracle = Oracle(Model(), requests, wrong=0.4)
        return make_scheduler(engine, [oracle], parallel=slots)

    return verify(open_scheduler, requests, (1, 3), temperatures=(0.0, 0.8))


def ways(verdict: TextComparison) -> set[str]:
    assert verdict.num_different
    return {one.way for one in verdict.differences}


def test_the_help_says_how_many_texts_a_prompt_gives() -> None:
    """Of drafts of a fixed length, half of the texts are compared."""
    scheduler: Any = SimpleNamespace(
        drafting=SimpleNamespace(speculators=without_file().split(","))
    )
    slots = (1, SchedulerConfig().parallel)
    all_ways = [way.speculation for number in slots for way in _ways(scheduler, number)]
    shares = [1.0 if name in ("off", "auto") else 0.5 for name in all_ways]
    (limit,) = (one for one in fields(VerifyOptions) if one.name == "prompts_limit")
    assert f"about {sum(shares) * len(TEMPERATURES):.0f} texts" in option_of(limit).help


def test_all_texts_of_a_sound_server_are_the_same() -> None:
    verdict = run()
    assert verdict.differences == ()
    assert len(verdict.classes.classes) == 1
    assert verdict.num_accepted > 0
    assert verdict.num_texts == 10 * (5 + 6) + 5 * (3 + 3)
    assert verdict.num_tokens == 12 * verdict.num_texts
    assert verdict.num_restored > 0
    said = verdict.describe()
    assert said["different"] == 0
    assert said["ways"]["auto, 3 slots, arriving prompts"] == 10


def test_the_price_of_exactness_is_said_for_the_memory_that_the_model_has() -> None:
    verdict = run(partial(Model, cache_kind=CacheKind.CHECKPOINT), 1)
    assert "decodes several requests one by one" in _summary(verdict)


def test_an_error_has_no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "headstart.app.verify._answer", lambda _, requests, way: ["it broke"] * len(requests)
    )
    assert run().num_tokens == 0


def test_the_help_names_the_temperatures() -> None:
    assert "temperatures {:g}, {:g} and {:g}".format(*TEMPERATURES) in COMMAND.about


def test_a_draft_token_that_leaks_past_verification_is_found(monkeypatch) -> None:
    def leak(sampler: Sampler, logits: Any, draft: Sequence[int], *given: Any) -> list[int]:
        emitted = emit(sampler, logits, draft, *given)
        is_rejected = draft and emitted[-1] != draft[min(len(emitted), len(draft)) - 1]
        return (
            [*emitted[:-1], draft[len(emitted) - 1]]
            if is_rejected and len(emitted) <= len(draft)
            else emitted
        )

    monkeypatch.setattr(commit, "emit", leak)
    found = ways(run())
    assert found
    assert not any(way.startswith("off") for way in found)


def test_a_noise_counter_off_by_one_behind_drafts_is_found(monkeypatch) -> None:
    def miscount(sampler: Sampler, logits: Any, draft: Any, at: int, *given: Any) -> list[int]:
        return emit(sampler, logits, draft, at + bool(draft), *given)

    monkeypatch.setattr(commit, "emit", miscount)
    verdict = run()
    assert not any(way.startswith("off") for way in ways(verdict))
    assert {one.temperature for one in verdict.differences} == {0.8}


class Uncut(Model):
    """Attention goes on seeing the rows that were rejected last."""

    def __init__(self) -> None:
        super().__init__()
        self._left: list[int] = []

    def truncate(self, seq_id: int, length: int) -> bool:
        self._left = [*self.cache.get(seq_id, [])[length:]] or self._left
        return super().truncate(seq_id, length)

    def launch(self, batch: Batch) -> None:
        super().launch(batch)
        self._left = []

    def logits_after(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        return super().logits_after([*tokens, *self._left])


def test_a_cache_that_is_not_cut_is_found() -> None:
    found = ways(run(Uncut))
    assert any(way.startswith("oracle 16, 1 slot") for way in found)


class Mistaken(Model):
    """A prompt that is taken over begins with another token."""

    def copy_prefix(self, source: int, target: int, length: int) -> bool:
        is_copied = super().copy_prefix(source, target, length)
        if is_copied and self.cache[target]:
            self.cache[target][0] = EOS - 1
        return is_copied

    def restore_sequence(self, seq_id: int, data: SavedState) -> int:
        length = super().restore_sequence(seq_id, data)
        if length:
            self.cache[seq_id][0] = EOS - 1
        return length

    def restore_block(self, seq_id: int, data: bytes | bytearray | memoryview) -> bool:
        is_back = super().restore_block(seq_id, data)
        if is_back:
            self.cache[seq_id][0] = EOS - 1
        return is_back


def test_a_restored_prompt_of_another_text_is_found() -> None:
    found = ways(run(Mistaken))
    assert found
    assert all("cached prompts" in way for way in found)


class Fragmented(Model):
    """Sequences that others have ended beside use cells out of order, which changes logits."""

    def __init__(self) -> None:
        super().__init__()
        self._moved = set[int]()

    def clear(self, seq_id: int) -> None:
        if self.cache.get(seq_id) and seq_id != self.padding_sequence:
            self._moved |= {other for other, tokens in self.cache.items() if tokens}
        self._moved.discard(seq_id)
        super().clear(seq_id)

    def logits_after(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        logits = super().logits_after(tokens)
        if any(self.cache.get(seq_id) is tokens for seq_id in self._moved):
            noise = np.random.default_rng(tokens[-1]).normal(0.0, 0.3, len(logits))
            logits = logits + noise.astype(np.float32)
        return logits


def test_what_the_order_of_cells_changes_is_seen_at_the_start() -> None:
    assert change_by_order(Model(), 0, 1) == 0.0
    assert change_by_order(Fragmented(), 0, 1) > 0.3


def test_texts_that_part_by_the_order_of_cells_part_at_near_ties() -> None:
    verdict = run(Fragmented)
    assert verdict.num_near_ties > 0
    assert verdict.num_different == 0


class Half(ReadingFilters):
    """Which half of the tokens stays depends on the logit of one of them."""

    def apply(
        self, ids: NDArray[np.int32], logits: NDArray[np.float32], use_xtc: bool
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        kept = ids % 2 == np.floor(logits[ids == 0]) % 2
        return super().apply(ids[kept], logits[kept], use_xtc)


class Halved(Fragmented):
    """Requests choose from one half of the tokens."""

    def make_filters(self, params: object) -> Half:
        assert isinstance(params, SamplingParams)
        return Half(params)


def test_texts_that_part_by_what_a_filter_makes_of_a_third_token_part_at_near_ties() -> None:
    requests = [replace(r, max_tokens=40, sampling=replace(r.sampling, top_k=0)) for r in REQUESTS]
    verdict = verify(
        lambda slots: make_scheduler(Halved(), parallel=slots),
        requests,
        (1, 3),
        temperatures=(0.8, 1.5),
    )
    assert verdict.num_near_ties > 0
    assert verdict.num_different == 0


class Crowded(Model):
    """Rows of answers depend on a prompt that is read in the same decode."""

    def launch(self, batch: Batch) -> None:
        ids = batch.seq_ids[: batch.num_rows].tolist()
        rows = [ids.count(seq_id) for seq_id in {*ids}]
        self.is_crowded = min(rows) == 1 and max(rows) > 20
        super().launch(batch)

    is_crowded = False

    def logits_after(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        logits = super().logits_after(tokens)
        return -logits if self.is_crowded else logits


def test_what_a_prompt_changes_that_arrives_while_others_are_answered_is_found() -> None:
    found = ways(run(Crowded, num=3))  # as many as slots: all others are read together
    assert all("3 slots, arriving prompts" in way for way in found)
