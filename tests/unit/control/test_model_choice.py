"""Several models: at most one drafts for a slot, the one that is expected to gain more."""

from __future__ import annotations

import pytest
from benchmarks.lib.steps import allowed, decode, grant, model_call, model_slot, ran

from headstart.control import AskedAnswer, Controller, Step

STEP = Step(1, 1, 100)
SLOT = model_slot(1, 8)


def two_models(*, round_ms: dict[str, float], num_right: dict[str, int]) -> Controller:
    """A machine of 50 ms for one row and 10 ms for a further one; of each model's drafts of four
    tokens so many are right.
    """
    controller = Controller()
    for rows in list(range(1, 18)) * 6:
        decode(controller, rows, 100, 50.0 + 10.0 * (rows - 1))
    for name, milliseconds in round_ms.items():
        controller.trust_scores(name)
        right = num_right[name]
        for seq_id in range(60):
            call = model_call([allowed(4)], [[0.9] * 4], 4 * milliseconds, name=name)
            ran(controller, call, STEP, number=seq_id)
            controller._calibration.record(seq_id, name, [0.9] * min(4, right + 1), right)
            controller.end(seq_id, 100)
    return controller


def lengths(controller: Controller, slot: AskedAnswer, order: tuple[str, ...]) -> dict[str, int]:
    planned = grant(controller, {name: [slot] for name in order}, STEP)
    return {name: allowance.num_granted for name, (allowance,) in planned.items()}


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize(
    ("num_right", "round_ms"),
    [((4, 1), (3.0, 3.0)), ((4, 4), (2.0, 9.0)), ((4, 0), (3.0, 3.0))],
    ids=["more often right", "cheaper", "the only one that pays"],
)
def test_the_better_model_drafts_whichever_is_planned_first(num_right, round_ms, *, is_first):
    names = ("good", "bad")
    controller = two_models(
        round_ms=dict(zip(names, round_ms, strict=True)),
        num_right=dict(zip(names, num_right, strict=True)),
    )
    for _ in range(10):
        planned = lengths(controller, SLOT, names if is_first else names[::-1])
        assert planned["good"] > 0
        assert planned["bad"] == 0


def test_a_model_that_lost_is_probed_now_and_then_and_pays_for_what_that_costs() -> None:
    controller = two_models(round_ms={"good": 3.0, "bad": 3.0}, num_right={"good": 4, "bad": 1})
    num_probes = 0
    for _ in range(2000):
        planned = lengths(controller, SLOT, ("good", "bad"))
        assert bool(planned["good"]) != bool(planned["bad"])
        for name, length in planned.items():
            if length:
                grants = [allowed(length, is_probe=name == "bad")]
                ran(controller, model_call(grants, [[0.9] * length], 9.0, name=name), STEP)
        num_probes += planned["bad"] > 0
    assert num_probes >= 1
    assert num_probes * 9.0 / 50.0 <= 0.01 * 2000


def test_with_lengths_set_by_hand_the_first_one_drafts() -> None:
    right = {"bad": 0, "good": 4}
    controller = two_models(round_ms={"bad": 3.0, "good": 3.0}, num_right=right)
    slot = model_slot(1, 8, fixed_confidence=0.0)
    assert lengths(controller, slot, ("bad", "good")) == {"bad": 8, "good": 0}


def test_each_slot_has_one_model_at_most_and_models_may_share_the_slots() -> None:
    controller = two_models(round_ms={"a": 3.0, "b": 3.0}, num_right={"a": 4, "b": 4})
    slots = [model_slot(seq_id, 8) for seq_id in range(1, 4)]
    step = Step(3, 3, 100)
    # where one has a long text to read, the other may draft at once
    asked = {
        "a": [model_slot(1, 8, catch_up=4000), *slots[1:]],
        "b": slots[:2],
    }
    planned = grant(controller, asked, step)
    drafting = {
        name: {one.number for one in granted if one.num_granted}
        for name, granted in planned.items()
    }
    assert not drafting["a"] & drafting["b"]
    assert drafting["a"] | drafting["b"] == {1, 2, 3}
    assert 1 in drafting["b"]
