"""Names of arms and workloads, answering requests with one, and the table of what differed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from benchmarks.lib.arms import OFF, Arm, ArmTotals, Machine, Run, answer, parse_arm
from benchmarks.lib.quantized import texts_table
from benchmarks.lib.workloads import parse_cells

from headstart.speculators import Speculator
from headstart.testing import ByteVocab, FakeEngine
from headstart.types import Draft, DraftRequest
from headstart.types.errors import ConfigError, HeadstartError
from headstart.types.request import Request, RequestStats
from headstart.types.sampling_params import SamplingParams
from headstart.types.speculation_stats import SpeculationStats


@pytest.mark.parametrize(
    ("name", "types", "mode", "length"),
    [
        ("suffix@4", ("suffix",), "fixed", 4),
        ("suffix,draft-model@16", ("suffix", "draft-model"), "fixed", 16),
        ("auto:suffix", ("suffix",), "auto", None),
        ("auto:suffix,draft-model", ("suffix", "draft-model"), "auto", None),
    ],
)
def test_an_arm_is_read_from_its_name(name, types, mode, length) -> None:
    arm = parse_arm(name)
    assert arm == Arm(name, types, mode, length)
    assert arm.config().spec == mode
    assert arm.config().spec_type == ",".join(types)


def test_off_is_an_arm_without_speculators() -> None:
    assert parse_arm("off") is OFF
    assert OFF.config().spec == "off"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "auto",
        "auto:",
        "suffix",
        "suffix@-1",
        "@4",
        "suffix,@4",
        "auto:suffix@4",
        "auto:auto:suffix",
        "nonesuch@4",
        "auto:suffix,nonesuch",
    ],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"--settings names|there are"):
        parse_arm(name)


def test_a_given_answer_is_measured_at_one_temperature() -> None:
    assert parse_cells("edit,rename", "0,1") == [("edit", 0.0), ("edit", 1.0), ("rename", 0.0)]


def test_an_unknown_workload_is_refused() -> None:
    with pytest.raises(ConfigError, match="no workload 'edits'"):
        parse_cells("edits", "0")


class Broken(Speculator):
    name = "broken"

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        raise RuntimeError("cannot guess")


def requests(num: int, num_tokens: int) -> list[Request]:
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    return [
        Request(request_id="same", prompt=[i + 1, 2, 3], sampling=sampling, max_tokens=num_tokens)
        for i in range(num)
    ]


def machine(num_users: int = 2) -> Machine:
    return Machine(engine=FakeEngine(ByteVocab.size), vocab=ByteVocab(), num_users=num_users)


def test_answers_come_in_the_order_of_the_requests() -> None:
    scheduler = machine().scheduler(OFF)
    both = answer(scheduler, requests(2, 8))
    assert [answer(scheduler, [one]).texts[0] for one in requests(2, 8)] == list(both.texts)
    assert both.texts[0] != both.texts[1]
    assert both.num_tokens == 16
    assert [one.num_emitted for one in both.stats] == [8, 8]
    assert sum(len(one.emitted) for step in both.steps for one in step.results) == 16


def test_a_speculator_that_fails_fails_the_measurement(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = machine().scheduler(Arm("fixed", ("suffix",)), lambda _: [Broken()])
    with pytest.raises(HeadstartError, match="broken in propose: RuntimeError: cannot guess"):
        answer(scheduler, requests(1, 8))
    assert "cannot guess" in caplog.text


def test_totals_sum_up_its_runs() -> None:
    stats = [
        RequestStats(num_steps=5, drafts=SpeculationStats(verified=Counter({(0, 8, 6): 1}))),
        RequestStats(num_steps=5, drafts=SpeculationStats(verified=Counter({(0, 2, 0): 1}))),
    ]
    runs = [
        Run(2.0, ((1, 2), (3,)), (stats[0],), ()),
        Run(4.0, ((4, 5, 6), (7, 8, 9)), (stats[1],), ()),
    ]
    totals = ArmTotals(runs)
    assert (totals.seconds, totals.num_tokens, totals.rate) == (6.0, 9, 1.5)
    assert (totals.num_drafted, totals.num_accepted, totals.num_wasted) == (10, 6, 4)
    assert (totals.acceptance_length, totals.acceptance_rate) == (0.9, 0.6)


WAY = "suffix 16, 8 slots, cached prompts"
REPORT = {
    "ways": {"off, 8 slots, cached prompts": 4, WAY: 6},
    "differences": [{"way": WAY, "kind": "near tie"}, {"way": WAY, "kind": "different"}],
}


def test_a_text_counts_for_its_model_its_format_its_prompts_and_its_speculator() -> None:
    table = texts_table({"heads-window-Q8_0": REPORT, "demo-F16": REPORT})
    assert table.splitlines()[2:] == [
        "| all | 20 | 2 | 2 |",
        "| Q8_0 | 10 | 1 | 1 |",
        "| heads-window | 10 | 1 | 1 |",
        "| cached prompts | 20 | 2 | 2 |",
        "| off, 8 slots | 8 | 0 | 0 |",
        "| suffix | 12 | 2 | 2 |",
        "| F16 | 10 | 1 | 1 |",
        "| demo | 10 | 1 | 1 |",
    ]
