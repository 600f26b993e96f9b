"""Failures stay where they happen."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.harness import (
    AUTO,
    Clock,
    Model,
    Oracle,
    check,
    collect,
    make_requests,
    make_scheduler,
    make_speculators,
    renamed,
    run,
    run_checked,
    submit_all,
)
from tests.planted import fail_at
from tests.unit.scheduler.conversations import ask, conversation, long, tiled

from headstart.control.calibration import Calibration
from headstart.control.controller import Controller
from headstart.control.cost import CostTable
from headstart.control.state import StateFile
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.prompt_store import StoredBlock
from headstart.scheduler.scheduler import Scheduler
from headstart.scheduler.warm_up import WarmUp
from headstart.speculators import Speculator
from headstart.structures.prefix import packed
from headstart.types import Batch, CacheKind, Draft, DraftRequest
from headstart.types.errors import EngineError, RequestError
from headstart.types.request import ErrorEvent, ReplyEvent, Request, SlotAction
from headstart.worker.loop import make_report


def test_a_failed_decode_fails_its_requests_only() -> None:
    engine, requests = Model(), make_requests(12)
    fail_at(engine, [9])
    scheduler = make_scheduler(engine, make_speculators(["suffix"]))
    answers = run(scheduler, requests)
    failed = [r.request_id for r in requests if answers[r.request_id].error]
    assert 1 <= len(failed) <= 4
    assert {answers[name].reason for name in failed} == {"EngineError"}
    assert scheduler.counters.requests_failed == len(failed)
    check(engine, [r for r in requests if r.request_id not in failed], answers)


def test_after_a_failed_decode_nothing_of_it_is_reused() -> None:
    """What the cache holds after a failure is unknown, so the slots start anew."""
    requests = make_requests(2)
    engine = Model()
    scheduler = make_scheduler(engine, [Oracle(engine, requests)])
    submit_all(scheduler, requests)
    scheduler.step()

    def fail(batch: Batch) -> None:
        engine.cache[0].append(7)  # half a decode
        raise EngineError("x")

    engine.fail = fail
    scheduler.step()
    engine.fail = None
    scheduler.take_events()
    run_checked(scheduler, requests)


@pytest.mark.parametrize("num_failing", [1, 2])
def test_a_hybrids_idle_states_outlive_a_failed_decode_of_one_sequence_and_not_of_several(
    num_failing: int,
) -> None:
    scheduler = make_scheduler(engine := Model(cache_kind=CacheKind.ROLLBACK), parallel=3)
    ask(scheduler, conversation(1))
    fail_at(engine, [0])
    submit_all(scheduler, make_requests(2)[:num_failing])
    scheduler.step()
    assert scheduler.num_failed_decodes == 1
    assert any(cells.length for cells in scheduler.cells) == (num_failing == 1)


class Overflowing(Model):
    """Cells of a text of 333 tokens spoil all logits until the memory is overwritten."""

    is_spoiled = False

    def logits_after(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        self.is_spoiled |= len(tokens) == 333
        logits = super().logits_after(tokens)
        return np.full_like(logits, np.nan) if self.is_spoiled else logits

    def wipe(self) -> None:
        super().wipe()
        self.is_spoiled = False


def test_logits_that_are_not_numbers_fail_one_request_and_no_later_one() -> None:
    scheduler = make_scheduler(engine := Overflowing())
    ask(scheduler, conversation(1))
    scheduler.cache.offloading.begin_step(inf)
    assert any(map(scheduler.cache.offloading.keep, scheduler.cells))
    requests = make_requests(3)
    submit_all(scheduler, requests, 3)
    answers = run(scheduler, [Request(request_id="bad", prompt=[3] * 333, max_tokens=4)])
    assert answers["bad"].reason == "EngineError"
    assert len(scheduler.cache.offloading.store) == 0
    check(Model(), requests, answers)
    assert not engine.is_spoiled


def test_a_prompt_that_always_spoils_the_cells_fails_after_two_others_at_most() -> None:
    class Spoiled(Overflowing):
        def launch(self, batch: Batch) -> None:
            self.is_spoiled |= int((batch.tokens[: batch.num_rows] == 3).sum()) >= 8
            super().launch(batch)

    scheduler = make_scheduler(Spoiled(context_size=4096), parallel=2)
    submit_all(scheduler, [Request(request_id="bad", prompt=[3] * 4000, max_tokens=4)], 1)
    others = [Request(request_id=f"{i}", prompt=[5, 7], max_tokens=2) for i in range(20)]
    answers = run(scheduler, others)
    assert answers["bad"].reason == "EngineError"
    assert sum(bool(answers[f"{i}"].error) for i in range(20)) <= 2


def test_unknown_and_finished_requests_can_be_cancelled() -> None:
    requests = make_requests(2)
    engine = Model()
    scheduler = make_scheduler(engine)
    answers = run(scheduler, requests)
    for name in ("nobody", requests[0].request_id):
        scheduler.cancel(name)
    collect(scheduler, answers)  # which accepts no second end
    check(engine, requests, answers)
    assert not scheduler.step().results  # nothing to do is no error


ERROR = "ValueError: math domain error"
METHODS = [
    *((Controller, name) for name in ("begin", "assign_rows", "read", "end")),
    *((Calibration, name) for name in ("survival", "record")),
]


def break_control(
    monkeypatch: pytest.MonkeyPatch, name: str, owner: type = Controller, *, at: int | None = None
) -> None:
    """Let this method fail: always, or at a call of this number."""
    method, calls = getattr(owner, name), itertools.count()

    def failing(*arguments: object, **named: object) -> object:
        if at in (None, next(calls)):
            raise ValueError("math domain error")
        return method(*arguments, **named)

    monkeypatch.setattr(owner, name, failing)


@pytest.mark.parametrize(("owner", "name"), METHODS)
def test_control_that_fails_ends_drafts_and_no_request(owner: type, name: str, monkeypatch) -> None:
    break_control(monkeypatch, name, owner, at=5)
    engine, requests = Model(2), make_requests(12)
    scheduler = make_scheduler(engine, [Oracle(engine, requests)], AUTO, Controller())
    run_checked(scheduler, requests)
    assert scheduler.drafting.describe_control()["failure"] == ERROR
    later = [renamed(request, f"later {request.request_id}") for request in requests]
    answers = run_checked(scheduler, later)
    for request in later:
        drafts = answers[request.request_id].stats.drafts
        assert drafts.num_drafts == 0
        assert set(drafts.reasons) <= {"control failed"}


@pytest.mark.parametrize("method", ["describe", "save"])
def test_control_that_cannot_say_what_it_knows_ends_drafts_and_not_the_engine(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, requests = Model(2), make_requests(4)
    scheduler = make_scheduler(engine, [Oracle(engine, requests)], AUTO, Controller())
    state = StateFile(tmp_path / "state", {})
    drafting = Drafting([], AUTO, scheduler.drafting.controller, state=state)
    break_control(monkeypatch, method)
    drafting.save()
    drafting.close()
    assert drafting.describe_control() == {"failure": ERROR}
    make_report(scheduler)
    run_checked(scheduler, requests)


def test_control_that_fails_on_what_the_warm_up_timed_ends_drafts_and_not_the_engine(monkeypatch):
    break_control(monkeypatch, "calibrate", CostTable)
    engine, requests = Model(2), make_requests(4)
    scheduler = make_scheduler(engine, [Oracle(engine, requests)], AUTO)
    WarmUp(engine, scheduler.drafting, scheduler.cells, Clock(), 1.0).go_on()
    assert scheduler.drafting.failure == ERROR
    run_checked(scheduler, requests)


class Listener(Speculator):
    """Is told of no sequence without having been told that it begins."""

    name = "listener"

    def __init__(self) -> None:
        self.known = set[int]()

    def begin(self, seq_id: int, text: Sequence[int], namespace: str = "") -> None:
        self.known.add(seq_id)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft(reason="no match")] * len(requests)

    def accept(self, seq_id: int, tokens: Sequence[int], num_accepted: int) -> None:
        assert seq_id in self.known

    def end(self, seq_id: int) -> None:
        assert seq_id in self.known


def test_speculators_are_not_told_of_a_sequence_that_control_failed_to_begin(monkeypatch) -> None:
    break_control(monkeypatch, "begin")
    run_checked(make_scheduler(Model(2), [Listener()], AUTO), make_requests(2))


def with_one_moved_out(**fields: object) -> tuple[Scheduler, int]:
    """Two prompts were answered; that of this slot is in main memory."""
    scheduler = tiled()
    ask(scheduler, *(replace(long(i), **fields) for i in (1, 2)))
    (slot_id,) = {0, 1} - {slot.seq_id for slot in scheduler.cells if slot.length}
    return scheduler, slot_id


def act(scheduler: Scheduler, action: str, slot_id: int, path: Path | str = "", **who) -> int:
    """Tokens that were saved, restored or erased."""
    scheduler.act_on_slot(SlotAction("s", action, slot_id, path=str(path), **who))
    while scheduler.slot_actions.waiting:
        scheduler.step()
    (event,) = scheduler.take_events()
    if isinstance(event, ErrorEvent):
        raise event.error
    assert isinstance(event, ReplyEvent)
    num_tokens: int = event.value[0]
    return num_tokens


@pytest.mark.parametrize("action", ["save", "erase"])
def test_a_slot_whose_prompt_is_in_main_memory_can_be_saved_and_erased(action, tmp_path) -> None:
    scheduler, slot_id = with_one_moved_out()
    assert act(scheduler, action, slot_id, tmp_path / "slot") == 307
    assert act(scheduler, "erase", slot_id) == 307 * (action == "save")
    assert len(scheduler.cache.offloading.store) == 0


@pytest.mark.parametrize("action", ["save", "erase"])
def test_a_slot_whose_prompt_is_the_beginning_of_a_stored_one_is_saved_and_erased_alone(
    action: str, tmp_path: Path
) -> None:
    scheduler, slot_id = with_one_moved_out()
    (stored,) = scheduler.cache.offloading.store
    tokens = packed((*stored.tokens, 1, 2, 3, 4, 5))
    end = StoredBlock(307, 312, np.array([307, 1, 2, 3, 4, 5], np.int32).tobytes())
    longer = replace(stored, tokens=tokens, blocks=(*stored.blocks, end))
    scheduler.cache.offloading.store.put(longer)
    assert act(scheduler, action, slot_id, tmp_path / "slot") == 307
    assert list(scheduler.cache.offloading.store) == [longer]
    if action == "save":
        act(scheduler, "erase", slot_id)
        assert act(scheduler, "restore", slot_id, tmp_path / "slot") == 307
        assert scheduler.cells[slot_id].tokens == list(stored.tokens)
        assert ask(scheduler, long(1, 1)) == [20]


def test_an_erased_prompt_is_gone_from_main_memory_also_where_the_slot_still_has_it() -> None:
    scheduler = make_scheduler(Model(), parallel=1)
    ask(scheduler, conversation(1))
    scheduler.cache.offloading.begin_step(inf)
    assert scheduler.cache.offloading.keep(scheduler.cells[0])
    assert act(scheduler, "erase", 0) == 107
    assert len(scheduler.cache.offloading.store) == 0


def test_erasing_a_slot_takes_no_cells(tmp_path: Path) -> None:
    scheduler, slot_id = with_one_moved_out()
    scheduler.engine.num_cells = 310
    assert act(scheduler, "erase", slot_id) == 307
    assert scheduler.counters.prompts_restored == 0


@pytest.mark.parametrize("action", ["save", "restore"])
def test_a_prompt_comes_back_by_hand_also_where_others_are_idle_in_its_cells(action, tmp_path):
    scheduler, slot_id = with_one_moved_out()
    if action == "restore":
        act(scheduler, "save", slot_id, tmp_path / "slot")
        act(scheduler, "erase", slot_id)
    scheduler.engine.num_cells = 400
    assert act(scheduler, action, slot_id, tmp_path / "slot") == 307
    assert ask(scheduler, long(1, 1), long(2, 1)) == [20, 20]


def test_a_prompt_that_came_from_a_file_counts_as_used_last(tmp_path: Path) -> None:
    scheduler = make_scheduler(Model(), parallel=2)
    ask(scheduler, conversation(1))
    (slot_id,) = (slot.seq_id for slot in scheduler.cells if slot.length)
    act(scheduler, "save", slot_id, tmp_path / "slot")
    ask(scheduler, conversation(2))
    act(scheduler, "restore", slot_id, tmp_path / "slot")
    scheduler.cache.offloading.evict()
    assert [slot.seq_id for slot in scheduler.cells if slot.length] == [slot_id]


def test_what_a_file_is_read_over_goes_to_main_memory(tmp_path: Path) -> None:
    scheduler = make_scheduler(Model(), parallel=1)
    ask(scheduler, conversation(1))
    act(scheduler, "save", 0, tmp_path / "slot")
    ask(scheduler, conversation(2))
    act(scheduler, "restore", 0, tmp_path / "slot")
    assert ask(scheduler, conversation(1, 1), conversation(2, 1)) == [20, 20]


def test_nobody_learns_of_the_prompt_of_another_key_in_main_memory(tmp_path: Path) -> None:
    scheduler, slot_id = with_one_moved_out(namespace="a")
    scheduler.engine.num_cells = 310
    with pytest.raises(RequestError, match="no prompt of yours"):
        act(scheduler, "save", slot_id, tmp_path / "slot", namespace="b")
    assert act(scheduler, "erase", slot_id, namespace="b") == 0
    assert len(scheduler.cache.offloading.store) == 1


def test_with_shared_prompts_every_key_may_save_and_restore(tmp_path: Path) -> None:
    scheduler = make_scheduler(Model(), parallel=1, share_prompts=True)
    ask(scheduler, conversation(1, namespace="a", adapters=(0.5,)))
    with pytest.raises(RequestError, match="no prompt of yours"):
        act(scheduler, "save", 0, tmp_path / "slot", namespace="b")
    key = {"namespace": "b", "adapters": (0.5,)}
    assert act(scheduler, "save", 0, tmp_path / "slot", **key) == 107
    assert act(scheduler, "erase", 0, **key) == 107
    assert act(scheduler, "restore", 0, tmp_path / "slot", **key) == 107
    assert ask(scheduler, conversation(1, 1, namespace="c", adapters=(0.5,))) == [20]


def test_moved_cells_are_used_from_a_file_only_by_those_who_ask_for_them(tmp_path: Path) -> None:
    scheduler = make_scheduler(Model(context_size=64), parallel=1, context_shift=True)
    request = replace(conversation(1), prompt=[*range(30)] + [3] * 20, max_tokens=20, num_keep=10)
    run(scheduler, [request])
    (slot,) = scheduler.cells
    assert slot.num_exact < slot.length
    act(scheduler, "save", 0, tmp_path / "slot")
    kept, num_exact = slot.tokens, slot.num_exact
    act(scheduler, "erase", 0)
    act(scheduler, "restore", 0, tmp_path / "slot")
    assert (slot.tokens, slot.num_exact) == (kept, num_exact)
    again = Request(request_id="again", prompt=[*kept, 1], max_tokens=4)
    stats = run(scheduler, [again])["again"].stats
    assert stats.num_cached == num_exact


def test_a_prompt_that_main_memory_dropped_is_held_by_nobody(tmp_path: Path) -> None:
    scheduler, slot_id = with_one_moved_out()
    scheduler.cache.offloading.store.take(*scheduler.cache.offloading.store)
    assert act(scheduler, "save", slot_id, tmp_path / "slot") == 0


def test_a_slot_that_a_file_was_read_into_stands_for_that_file(tmp_path: Path) -> None:
    scheduler, slot_id = with_one_moved_out()
    for action, at in [("save", 1 - slot_id), ("restore", slot_id), ("erase", slot_id)]:
        act(scheduler, action, at, tmp_path / "slot")
    assert act(scheduler, "erase", slot_id) == 0
