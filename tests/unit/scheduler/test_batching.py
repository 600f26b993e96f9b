"""What a step's batch holds, how long drafts may be, and what is committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.harness import (
    AUTO,
    Model,
    Oracle,
    check,
    fixed,
    make_requests,
    make_scheduler,
    run,
    sequence_of,
    steps,
    submit_all,
)
from tests.planted import noted

from headstart.sampling.sampler import Sampler
from headstart.scheduler.batching import prompt_rows
from headstart.scheduler.drafting import limit_drafts
from headstart.scheduler.policy import make_policy
from headstart.scheduler.sequence import Cells
from headstart.scheduler.step import SequencePlan, StepPlan
from headstart.scheduler.widths import CERTAIN_ROWS, LENGTH, WIDE, WidthComparison
from headstart.testing import FakeEngine, LetterVocab
from headstart.types import Batch, CacheKind
from headstart.types.errors import EngineError
from headstart.types.request import Request, SpeculativeParams
from headstart.types.widths import WidthClasses, Widths


@given(st.integers(1, 300), st.integers(64, 2048))
def test_a_step_that_reads_prompts_is_whole_tiles_of_attention(others: int, wanted: int) -> None:
    rows = prompt_rows(others, wanted, 64)
    assert (others + rows) % 64 == 0
    assert rows >= 1
    assert abs(rows - wanted) <= 32


@given(st.integers(0, 300), st.integers(1, 2048))
def test_without_tiles_or_smaller_than_one_every_chunk_is_kept(others: int, wanted: int) -> None:
    assert prompt_rows(others, wanted, 1) == wanted
    assert prompt_rows(others, wanted % 64, 64) == wanted % 64


def limit(num_tokens: int, max_tokens: int, engine: FakeEngine, others: int = 0) -> tuple[int, str]:
    request = Request(request_id="a", prompt=[1] * num_tokens, max_tokens=max_tokens)
    policy = make_policy(SpeculativeParams(), AUTO, ["text"], "")
    sequence = sequence_of(request, cells=Cells(0), policy=policy)
    sequence.begin(engine, LetterVocab())
    answer = SequencePlan(sequence)
    prompts = [SequencePlan(sequence, is_prompt=True)] * others
    may_draft = limit_drafts(StepPlan(Batch(1), 0.0, answers=[answer], prompts=prompts), engine)
    assert may_draft == [answer] * (answer.limit > 0)
    return answer.limit, answer.reason


@pytest.mark.parametrize(
    ("num_tokens", "max_tokens", "others", "expected"),
    [
        (8, 5, 0, (4, "")),
        (8, 1, 0, (0, "max_tokens reached")),
        (60, 50, 0, (3, "")),
        (63, 50, 0, (0, "context full")),
        (8, 50, 127, (0, "batch full")),
    ],
)
def test_the_narrowest_bound_holds_and_is_named_where_it_allows_no_draft(
    num_tokens: int, max_tokens: int, others: int, expected: tuple[int, str]
) -> None:
    assert limit(num_tokens, max_tokens, FakeEngine(context_size=64), others) == expected


def test_a_cache_that_takes_nothing_back_allows_no_draft() -> None:
    engine = FakeEngine(cache_kind=CacheKind.CHECKPOINT)
    engine.max_rollback = 0
    assert limit(8, 50, engine) == (0, "memory takes nothing back")


def test_all_rows_of_a_step_are_read_before_speculators_are_told(monkeypatch) -> None:
    log = noted(monkeypatch, Sampler, "sample", note=lambda *_: "read")

    class Told(Oracle):
        def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
            log.append("told")

    engine, requests = Model(), make_requests(4)
    scheduler = make_scheduler(engine, [Told(engine, requests)], fixed(3), parallel=4)
    submit_all(scheduler, requests)
    most_told = 0
    for _ in steps(scheduler):
        assert log == sorted(log)  # "read" comes before "told"
        most_told = max(most_told, log.count("told"))
        log.clear()
    assert most_told == 4


def test_a_cache_that_cannot_be_cut_ends_its_own_request_only() -> None:
    class Stuck(Model):
        num_cuts = 0

        def rewind(self, seq_id: int, length: int) -> int:
            self.num_cuts += 1
            if self.num_cuts == 9:
                raise EngineError("the sequence cannot be cut")
            return super().rewind(seq_id, length)

    engine, requests = Stuck(), make_requests(6)
    wrong = Oracle(engine, requests, wrong=0.5)  # so that much is cut
    scheduler = make_scheduler(engine, [wrong], fixed(4), parallel=3)
    answers = run(scheduler, requests)
    failed = [r.request_id for r in requests if answers[r.request_id].error]
    assert len(failed) == scheduler.counters.requests_failed == 1
    assert answers[failed[0]].reason == "EngineError"
    check(engine, [r for r in requests if r.request_id not in failed], answers)


ALL = (*range(1, 17), *WIDE)  # the widths that are compared
Kernel = Callable[[Batch, int], int]
"""What kernel computes a row, given the batch and the row."""


class Kernels(FakeEngine):
    """A model whose logits depend a little on the kernel."""

    def __init__(self, kernel: Kernel, context_size: int = 1024) -> None:
        super().__init__(order=4, num_cells=4096, context_size=context_size)
        self._kernel, self._row = kernel, 0

    def launch(self, batch: Batch) -> None:
        self._launched, self._row = batch, -1
        super().launch(batch)

    def logits_after(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        self._row += 1
        while not self._launched.wants_logits[self._row]:
            self._row += 1
        kernel = self._kernel(self._launched, self._row)
        return super().logits_after(tokens) + np.float32(0.125 * kernel)


class Rounded(FakeEngine):
    """Several rows have other states than one, which its output matrix rounds away."""

    def launch(self, batch: Batch) -> None:
        self._is_several = batch.num_rows > 1
        super().launch(batch)

    def hidden_states(self) -> dict[int, NDArray[np.float32]]:
        return {layer: rows + self._is_several for layer, rows in super().hidden_states().items()}


def compare(kernel: Kernel, **settings: int) -> WidthClasses:
    ticks = iter(range(10**6))
    engine = Kernels(kernel)
    classes = WidthComparison(engine, range(3), lambda: float(next(ticks)), **settings).run()
    assert classes is not None
    return classes


@pytest.mark.parametrize(
    ("kernel", "names", "chosen"),
    [
        (lambda batch, row: 0, "1-64", Widths(ALL)),
        (lambda batch, row: batch.num_rows > 1, "1 | 2-64", Widths(ALL[1:])),
        (
            lambda batch, row: (batch.num_rows > 1) + (batch.num_rows > 8),
            "1 | 2-8 | 9-64",
            Widths(ALL[8:]),
        ),
        (  # threads share the attention of a single row in a long text
            lambda batch, row: batch.num_rows == 1 and batch.positions[row] >= 256,
            "1 | 2-64",
            Widths(ALL[1:]),
        ),
        (  # groups of four rows, and what is left with another kernel
            lambda batch, row: row >= batch.num_rows // 4 * 4,
            "1-3 | 4, 8, 12, 16-60, 64 | 5 | 6 | 7 | 9 | 10 | 11 | 13 | 14 | 15 | 63",
            Widths((4, 8, 12, *range(16, 64, 4), 64)),
        ),
    ],
    ids=["one", "single", "three", "long", "rows left over"],
)
def test_a_kernel_that_depends_on_the_width_is_found_and_named(kernel, names, chosen) -> None:
    classes = compare(kernel)
    assert (str(classes), classes.choose()) == (names, chosen)
    assert classes.change == pytest.approx(0.125 * (len(classes.classes) > 1), abs=0.13)
    assert not classes.is_alone


def test_kernels_whose_difference_the_output_matrix_rounds_away_are_told_apart() -> None:
    engine = Rounded(order=4, num_cells=4096, context_size=1024)
    classes = WidthComparison(engine, range(3), lambda: 0.0).run()
    assert (str(classes), engine.state_layers) == ("1 | 2-64", ())


@pytest.mark.parametrize("context_size", [40, 64, 65])
def test_in_a_short_context_no_width_is_compared_that_does_not_fit(context_size: int) -> None:
    """The engine ended whenever it had nothing to do."""
    engine = Kernels(lambda batch, row: 0, context_size)
    classes = WidthComparison(engine, range(3), lambda: 0.0).run()
    assert classes is not None
    assert max(classes.classes[0]) == max(n for n in ALL if n < context_size)


def test_a_request_waits_for_one_decode_of_a_comparison_at_most() -> None:
    """One of a large model on a processor may take seconds."""
    engine, looks, num = Kernels(lambda batch, row: 0), count(1), list[int]()
    comparison = WidthComparison(engine, range(3), lambda: 0.0)

    def is_interrupted() -> bool:
        num.append(engine.num_decodes)
        return next(looks) >= 9

    assert comparison.run(is_interrupted=is_interrupted) is None
    assert max(np.diff(num)) == 1
    assert engine.cells_used() == 0


def test_a_comparison_goes_on_where_it_was_interrupted() -> None:
    """Requests may never leave the time for all of it, nor to read the text before each width."""
    kernel: Kernel = lambda batch, row: (batch.num_rows > 1) + (batch.num_rows > 8)  # noqa: E731
    comparison, classes, num = WidthComparison(Kernels(kernel), [0], lambda: 0.0), None, 0
    while classes is None and num < 40:
        looks, num = count(1), num + 1
        comparison.sequences = [num % 3]
        classes = comparison.run(is_interrupted=lambda looks=looks: next(looks) > 20)
    assert 1 < num < 40
    assert str(classes) == "1 | 2-8 | 9-64"


def test_a_server_says_which_widths_its_texts_depend_on_and_what_exactness_costs() -> None:
    found = compare(lambda batch, row: (batch.num_rows > 1) + (batch.num_rows > 8))
    times = {n: 10.0 if n == 1 else 12.5 for n, _ in found.milliseconds}
    classes = replace(found, milliseconds=tuple(times.items()))
    for kind in (CacheKind.CUT, CacheKind.WINDOW):  # with --exact, windows are cut, too
        promise = classes.promise(kind)
        assert "(rows that agree: 1 | 2-8 | 9-64)" in promise
        assert promise.endswith("of one request without drafts take 25 % longer")
    apart = replace(classes, has_reference=True)  # whose price is another one
    assert "slower kernels" in apart.promise(CacheKind.CUT)
    exact = replace(classes, is_exact=True)
    assert "neither on drafts nor on other requests" in exact.promise(CacheKind.CUT)
    assert exact.exact_cost(CacheKind.CUT) is None, "it would be that of padding, not of kernels"


@pytest.mark.parametrize("kind", [CacheKind.ROLLBACK, CacheKind.CHECKPOINT])
def test_the_price_of_exactness_is_that_of_unpadded_rows_where_states_keep_padding(kind) -> None:
    """Padded to two rows, as attention is, one would take a quarter longer."""
    times = tuple((n, 10.0 if n == 1 else 12.5) for n in (*range(1, 17), 64))
    apart = WidthClasses(((1,), tuple(range(2, 17))), (), 0.1, times)
    assert "--exact needs slower kernels, where it is possible" in apart.promise(kind)
    alike = replace(apart, classes=(tuple(range(1, 17)),))
    promise = alike.promise(kind)
    assert promise.endswith("take 0 % longer, and decodes several requests one by one")


@pytest.mark.parametrize("num_experts", [2, 4, 10**6])
def test_a_kernel_that_depends_on_the_rows_beside_is_found(num_experts: int) -> None:
    """A mixture of experts whose kernel depends on how many rows an expert gets: of many rows, all
    that are compared may have the same.
    """

    def kernel(batch: Batch, row: int) -> int:
        experts = batch.tokens[: batch.num_rows] % num_experts
        return int((experts == experts[row]).sum() >= 8)

    classes = compare(kernel)
    assert str(classes) == "1-7 | mixed: 8-64"
    assert classes.choose() == Widths(ALL[:7])


def test_a_row_that_changes_beside_another_sequence_is_decoded_alone() -> None:
    assert compare(lambda batch, row: len(set(batch.seq_ids[: batch.num_rows])) > 1).is_alone


def test_padding_that_cannot_be_taken_back_leaves_out_wide_classes() -> None:
    classes = WidthClasses(((1,), (2, 3, 4, 5, 6, 7, 8)), (), 0.1)
    assert classes.choose(most_padding=1) == Widths(ALL[1:8])
    assert classes.choose(most_padding=0) is None


def test_only_widths_that_were_compared_are_decoded() -> None:
    """Of 16, 20 and 24 rows it is known that they agree; 17 may have a kernel of its own."""
    widths = compare(lambda batch, row: 0).choose()
    assert widths is not None
    assert [widths.fit(n) for n in (0, 1, 16, 17, 21, 61, 64)] == [1, 1, 16, 20, 24, 63, 64]
    assert [widths.fill(n) for n in (1, 16, 17, 23, 62)] == [1, 16, 16, 20, 60]


def test_kernels_that_seldom_differ_are_told_apart_by_more_rows() -> None:
    """The rows left over of six are other ones than four rows have, but mostly round alike."""

    def kernel(batch: Batch, row: int) -> int:
        is_left_over = row >= batch.num_rows // 4 * 4
        return int(is_left_over and (batch.positions[row] - LENGTH) % 23 == 6)

    few, many = (compare(kernel, num_rows=n).classes for n in (16, CERTAIN_ROWS))
    assert any({4, 6} <= {*members} for members in few)
    assert not any({4, 6} <= {*members} for members in many)
    assert any({4, 8, 12, 16, 20} <= {*members} for members in many)


def test_states_that_keep_padding_leave_out_widths_that_need_it() -> None:
    classes = WidthClasses(((1, 2, 3, 4, 5, 6, 8, 16, 20), (7, 9)), (), 0.1)
    assert classes.choose(most_padding=0) == Widths((1, 2, 3, 4, 5, 6))
    assert classes.choose(most_padding=1) == Widths((1, 2, 3, 4, 5, 6, 8))
    assert classes.choose() == Widths((1, 2, 3, 4, 5, 6, 8, 16, 20))
    assert WidthClasses(((1, 2, 3), (6,), (8, 12, 16)), (), 0.1).choose() == Widths((8, 12, 16))
    whole = WidthClasses((ALL,), (), 0.0)
    assert whole.choose(most_padding=0) == Widths(ALL)
