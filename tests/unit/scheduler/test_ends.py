"""How requests end, and what is refused at the door."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.harness import (
    ENDLESS,
    EOS,
    SIZE,
    Model,
    Oracle,
    answer,
    check,
    endless,
    fixed,
    make_requests,
    make_scheduler,
    run,
    run_checked,
    steps,
    submit_all,
)

from headstart.speculators.suffix import SuffixSpeculator
from headstart.structures.text_store import TextStore
from headstart.testing import LetterVocab
from headstart.types.errors import CapacityError, ContextLengthError, RequestError
from headstart.types.request import ProgressEvent, Request, SpeculativeParams
from headstart.types.sampling_params import LogitBias, SamplingParams


def oracle_scheduler(engine: Model, requests: list[Request], **limits: int):
    """Whole drafts that are always right: everything ends inside a draft."""
    return make_scheduler(engine, [Oracle(engine, requests, wrong=0.0)], fixed(16), **limits)


def ends_with_eos(engine: Model) -> Request:
    """A request whose turn ends after some tokens."""
    found = (
        endless([1], 80, sampling=SamplingParams(temperature=1.5, seed=seed)) for seed in range(200)
    )
    return next(
        r for r in found if len(tokens := answer(engine, r).tokens) > 5 and tokens[-1] == EOS
    )


def test_the_context_limit_ends_one_request_and_leaves_the_others_alone() -> None:
    engine = Model(context_size=64)
    long = endless([1] * 40, name="long")
    others = make_requests(3)
    answers = run_checked(oracle_scheduler(engine, [long, *others]), [long, *others])
    assert answers["long"].finish.truncated
    assert (answers["long"].reason, len(answers["long"].tokens)) == ("length", 64 - 40)
    assert not any(answers[r.request_id].finish.truncated for r in others)


def test_a_prompt_may_fill_the_context_but_for_one_token() -> None:
    engine = Model(context_size=64)
    full = endless([1] * 63, name="full")
    answers = run(make_scheduler(engine), [full])
    assert (len(answers["full"].tokens), answers["full"].reason) == (1, "length")
    with pytest.raises(
        ContextLengthError, match=r"64 tokens\) exceeds .* \(64 tokens\).*--context"
    ):
        make_scheduler(engine).submit(replace(full, prompt=[1] * 64))


def test_a_limit_of_no_tokens_only_fills_the_cache() -> None:
    engine = Model()
    scheduler = make_scheduler(engine, parallel=1)
    first = Request(request_id="first", prompt=[1, 2, 3, 4], max_tokens=0)
    answers = run(scheduler, [first, replace(first, request_id="next", max_tokens=2)])
    first_one = answers["first"]
    assert (first_one.tokens, first_one.text, first_one.reason) == ([], b"", "length")
    assert answers["next"].stats.num_cached == 3
    assert answers["next"].tokens == answer(engine, replace(first, max_tokens=2)).tokens


@pytest.mark.parametrize("limit", [1, 2, 5, 17])
def test_a_token_limit_inside_a_draft_is_kept_exactly(limit: int) -> None:
    engine = Model()
    request = endless([1, 2], limit)
    longer = replace(request, max_tokens=limit + 20)  # so that the drafts go on
    answers = run(oracle_scheduler(engine, [longer]), [request])
    assert answers["r"].tokens == answer(engine, request).tokens
    assert engine.cache[0] == [1, 2, *answers["r"].tokens][:-1]


def test_the_end_of_the_turn_inside_a_draft_ends_the_text() -> None:
    engine = Model()
    request = ends_with_eos(engine)
    longer = replace(request, sampling=replace(request.sampling, ignore_eos=True))
    oracle = Oracle(engine, [request], wrong=0.0)
    # drafts past the end
    oracle.futures = [[*request.prompt, *answer(engine, request).tokens, 1, 2, 3]]
    answers = run(make_scheduler(engine, [oracle], fixed(16)), [request])
    assert (answers["r"].tokens, answers["r"].reason) == (answer(engine, request).tokens, "eos")
    assert answers["r"].sources[-1] == "oracle"
    answers = run(oracle_scheduler(Model(), [longer]), [longer])
    assert (len(answers["r"].tokens), answers["r"].reason) == (80, "length")
    assert EOS not in answers["r"].tokens


@pytest.mark.parametrize("length", [0, 1, 4, 16])
def test_a_stop_string_ends_the_text_before_it_wherever_drafts_begin(length: int) -> None:
    engine = Model()
    request = endless([1, 2], 40)
    whole = answer(engine, request)
    for start in (0, 7, 20):
        stop = whole.text[start : start + 3]
        engine = Model()
        scheduler = make_scheduler(engine, [Oracle(engine, [request], wrong=0.1)], fixed(length))
        answers = run(scheduler, [replace(request, stop=(stop, b"never"))])
        found = whole.text.index(stop)
        assert (answers["r"].text, answers["r"].reason) == (whole.text[:found], "word")
        assert answers["r"].tokens == whole.tokens[: found + 3]
        assert answers["r"].finish.stopping_word.encode() == stop
        assert scheduler.cells[0].tokens == engine.cache[0] == [1, 2, *answers["r"].tokens][:-1]


def test_text_held_back_for_a_stop_string_comes_with_the_end() -> None:
    engine = Model()
    request = endless([1, 2], 9)
    whole = answer(engine, request)
    answers = run(make_scheduler(engine), [replace(request, stop=(whole.text[-2:] + b"!",))])
    assert (answers["r"].text, answers["r"].reason) == (whole.text, "length")


class Lines(LetterVocab):
    """Tokens 5 to 9 end a line."""

    def token_bytes(self, token: int) -> bytes:
        return b";\n" if 5 <= token <= 9 else super().token_bytes(token)


@pytest.mark.parametrize("length", [0, 1, 16])
def test_when_time_is_up_the_text_ends_with_its_line_wherever_drafts_begin(length: int) -> None:
    engine = Model()
    request = endless([1], 400)
    whole = answer(engine, request).tokens
    lengths = []
    for milliseconds in (0, 100, 200):  # the clock ticks in ms, some of them a step
        engine = Model()
        oracle = Oracle(engine, [request], wrong=0.1)
        scheduler = make_scheduler(engine, [oracle], fixed(length), vocab=Lines())
        got = run(scheduler, [replace(request, max_seconds=milliseconds / 1000)])["r"]
        assert got.tokens == whole[: len(got.tokens)]
        assert got.text.endswith(b"\n")
        assert got.reason == "length"
        assert not got.finish.truncated
        assert got.stats.generation_seconds > milliseconds / 1000
        lengths.append(len(got.tokens))
        assert scheduler.cells[0].tokens == engine.cache[0] == [1, *got.tokens][:-1]
    assert lengths[0] == next(i for i, token in enumerate(whole) if 5 <= token <= 9) + 1
    assert lengths == sorted(lengths)
    assert lengths[-1] > lengths[0]


def test_when_time_is_up_a_text_without_lines_goes_on() -> None:
    no_line = replace(ENDLESS, logit_bias=LogitBias({30: float("-inf")}))
    request = endless([1], 60, sampling=no_line, max_seconds=0.001)
    answers = run(make_scheduler(Model()), [request])
    assert len(answers["r"].tokens) == 60


def test_a_full_queue_refuses_and_takes_again_when_a_place_is_free() -> None:
    engine = Model()
    requests = make_requests(6)
    scheduler = make_scheduler(engine, parallel=2, max_queue=2)
    submit_all(scheduler, requests[:4])
    with pytest.raises(CapacityError, match=r"--max-queue is 2"):
        scheduler.submit(requests[4])
    scheduler.cancel(requests[3].request_id)
    scheduler.submit(requests[4])
    answers = run(scheduler)
    check(engine, [*requests[:3], requests[4]], answers)
    assert answers[requests[3].request_id].reason == "cancelled"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"prompt": []}, "no tokens"),
        ({"prompt": [1, SIZE]}, rf"token id {SIZE} is not in the vocabulary \(0 to {SIZE - 1}\)"),
        ({"prompt": [-1]}, "token id -1"),
        ({"sampling": SamplingParams(logit_bias=LogitBias({SIZE: 1.0}))}, "logit_bias"),
        ({"slot_id": 4}, "id_slot is 4 but the slots are 0 to 3"),
        ({"speculative": SpeculativeParams(types=("magic",))}, r"names 'magic'.*oracle"),
    ],
)
def test_what_can_never_run_is_refused_with_the_value_and_the_limit(change, says) -> None:
    engine = Model()
    scheduler = oracle_scheduler(engine, [])
    with pytest.raises(RequestError, match=says):
        scheduler.submit(replace(Request(request_id="r", prompt=[1]), **change))
    assert not scheduler.has_work


@pytest.mark.parametrize(
    ("is_beside", "processed"),
    [(True, [0, 8, 16, 24, 30]), (False, [0, 30])],
    ids=["parts", "at once"],
)
def test_progress_tells_how_much_of_the_prompt_is_read(is_beside, processed) -> None:
    scheduler = make_scheduler(Model(), prefill_chunk=8)
    if is_beside:  # else the prompt is read at once
        submit_all(scheduler, [endless([1], 40, "busy")], 1)
    scheduler.submit(Request(request_id="r", prompt=[2] * 30, max_tokens=1, wants_progress=True))
    told = [e for _ in steps(scheduler) for e in scheduler.take_events()]
    assert [
        (e.num_prompt, e.num_cached, e.num_processed) for e in told if isinstance(e, ProgressEvent)
    ] == [(30, 0, num) for num in processed]


@pytest.mark.parametrize("store", [None, False])
def test_a_stop_keeps_what_running_answers_taught_and_nothing_of_private_ones(store, tmp_path):
    path, vocab = tmp_path / "corpus", LetterVocab()
    speculator = SuffixSpeculator(SuffixSpeculator.Options(file=str(path)), vocab)
    scheduler = make_scheduler(Model(), [speculator])
    submit_all(scheduler, [endless([1] * 9, store=store)], num_steps=9)
    scheduler.drafting.close()
    texts = TextStore(path, vocab)
    texts.close()
    assert len(texts.texts) == (store is None)
