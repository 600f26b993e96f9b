"""Slots that are saved, restored and erased by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.harness import Model, make_scheduler, run
from tests.unit.scheduler.conversations import ask, conversation, long, tiled

from headstart.scheduler.host_prompts import TARGET
from headstart.scheduler.scheduler import Scheduler
from headstart.structures.checkpoints import pack
from headstart.types.errors import InvalidParameterError
from headstart.types.request import Request, SlotAction


def moved_out(scheduler: Scheduler) -> int:
    """The one of the first two slots whose prompt is in main memory."""
    (slot_id,) = {0, 1} - {slot.seq_id for slot in scheduler.cells if slot.tokens}
    return slot_id


def act(scheduler: Scheduler, action: str, slot_id: int, path: Path | str = "", **who) -> int:
    """Tokens that were saved, restored or erased."""
    command = SlotAction("s", action, slot_id, path=str(path), **who)
    return scheduler.act_on_slot(command).num_tokens


@pytest.mark.parametrize("action", ["save", "erase"])
def test_a_slot_whose_prompt_is_in_main_memory_can_be_saved_and_erased(
    action: str, tmp_path: Path
) -> None:
    scheduler = tiled()
    ask(scheduler, long(1), long(2))
    assert act(scheduler, action, moved_out(scheduler), tmp_path / "slot") == 307
    assert len(scheduler.cache.host.store) == 0


@pytest.mark.parametrize("action", ["save", "erase"])
def test_a_slot_whose_prompt_is_the_beginning_of_a_stored_one_is_saved_and_erased_alone(
    action: str, tmp_path: Path
) -> None:
    scheduler = tiled()
    ask(scheduler, long(1), long(2))
    slot_id = moved_out(scheduler)
    (stored,) = scheduler.cache.host.store.latest(1)
    tokens = [*stored.tokens, 1, 2, 3, 4, 5]
    data = {TARGET: pack(np.array(tokens, np.int32).tobytes(), [])}
    longer = replace(stored, tokens=tokens, data=data)
    scheduler.cache.host.store.put(longer)
    assert act(scheduler, action, slot_id, tmp_path / "slot") == 307
    assert scheduler.cache.host.store.latest(2) == [longer]
    if action == "save":
        act(scheduler, "erase", slot_id)
        assert act(scheduler, "restore", slot_id, tmp_path / "slot") == 307
        assert scheduler.cells[slot_id].tokens == stored.tokens
        assert ask(scheduler, long(1, 1)) == [20]


def test_erasing_a_slot_takes_no_cells(tmp_path: Path) -> None:
    scheduler = tiled()
    ask(scheduler, long(1), long(2))
    scheduler.engine.num_cells = 310
    assert act(scheduler, "erase", moved_out(scheduler)) == 307
    assert scheduler.counters.prompts_restored == 0


@pytest.mark.parametrize("action", ["save", "restore"])
def test_a_prompt_comes_back_by_hand_also_where_others_are_idle_in_its_cells(
    action: str, tmp_path: Path
) -> None:
    scheduler = tiled()
    ask(scheduler, long(1), long(2))
    slot_id = moved_out(scheduler)
    if action == "restore":
        act(scheduler, "save", slot_id, tmp_path / "slot")
        act(scheduler, "erase", slot_id)
    scheduler.engine.num_cells = 400
    assert act(scheduler, action, slot_id, tmp_path / "slot") == 307
    assert ask(scheduler, long(1, 1), long(2, 1)) == [20, 20]


def test_what_a_file_is_read_over_goes_to_main_memory(tmp_path: Path) -> None:
    scheduler = make_scheduler(Model(), parallel=1)
    ask(scheduler, conversation(1))
    act(scheduler, "save", 0, tmp_path / "slot")
    ask(scheduler, conversation(2))
    act(scheduler, "restore", 0, tmp_path / "slot")
    assert ask(scheduler, conversation(1, 1), conversation(2, 1)) == [20, 20]


def test_nobody_learns_of_the_prompt_of_another_key_in_main_memory(tmp_path: Path) -> None:
    scheduler = tiled()
    ask(scheduler, *(replace(long(i), namespace="a") for i in (1, 2)))
    slot_id, scheduler.engine.num_cells = moved_out(scheduler), 310
    with pytest.raises(InvalidParameterError, match="no prompt of yours"):
        act(scheduler, "save", slot_id, tmp_path / "slot", namespace="b")
    assert act(scheduler, "erase", slot_id, namespace="b") == 0
    assert len(scheduler.cache.host.store) == 1


def test_with_shared_prompts_every_key_may_save_and_restore(tmp_path: Path) -> None:
    scheduler = make_scheduler(Model(), parallel=1, share_prompts=True)
    ask(scheduler, conversation(1, namespace="a", adapters=(0.5,)))
    with pytest.raises(InvalidParameterError, match="no prompt of yours"):
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
    stats = run(scheduler, [again])["again"].finish.stats
    assert stats.num_cached == num_exact


def test_a_prompt_that_main_memory_dropped_is_held_by_nobody(tmp_path: Path) -> None:
    scheduler = tiled()
    ask(scheduler, long(1), long(2))
    scheduler.cache.host.store.take(*scheduler.cache.host.store.latest(1))
    assert act(scheduler, "save", moved_out(scheduler), tmp_path / "slot") == 0


def test_a_slot_that_a_file_was_read_into_stands_for_that_file(tmp_path: Path) -> None:
    scheduler = tiled()
    ask(scheduler, long(1), long(2))
    (held,) = (slot.seq_id for slot in scheduler.cells if slot.tokens)
    for action, slot_id in [("save", held), ("restore", 1 - held), ("erase", 1 - held)]:
        act(scheduler, action, slot_id, tmp_path / "slot")
    assert act(scheduler, "erase", 1 - held) == 0
