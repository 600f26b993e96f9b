"""Nothing changes but the speed, on the embedded models, also under constraints; `headstart verify
--exact` does more.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import jsonschema
import pytest
from tests.architectures import tiny_hybrid, write_model
from tests.harness import play
from tests.models import tiny_llama
from tests.real import answers
from tests.real.answers import (
    CONTEXT,
    Setting,
    at_each_temperature,
    compare,
    different,
    make_requests,
    open_setting,
)
from tests.real.support import decode, engine_of

from headstart.app import demo, loading
from headstart.app.assemble import Models, build_scheduler
from headstart.app.loading import fit_models, load_target
from headstart.engine.context import LlamaEngine
from headstart.engine.fit import Fitted
from headstart.engine.footprint import HOST, REPACKED, Use, can_measure
from headstart.engine.groups import runs_of
from headstart.engine.model import Model
from headstart.engine.parameters import Limits
from headstart.scheduler.widths import WidthComparison
from headstart.types import FINAL_STATE, LAST_STATE, Batch
from headstart.types.constraint import Constraint, ConstraintKind, ThoughtMarks
from headstart.types.errors import ConfigError
from headstart.types.request import Request
from headstart.types.widths import WidthClasses, Widths

needs_measuring = pytest.mark.skipif(not can_measure(), reason="libllama tells on Linux x86-64")
SAMPLE = (
    Setting("off", 0, 4),
    Setting("draft-model", 4, 1),
    Setting("draft-model", 16, 4),
    Setting("ngram-simple", 1, 4),
    Setting("ngram-simple,draft-model", 4, 4),
    Setting("auto", 16, 4),
)


def test_output_is_identical_with_and_without_drafts() -> None:
    """Their log probabilities too, before the filters and after them."""
    requests = [
        replace(r, num_logprobs=3, post_sampling_probs=i % 3 == 2)
        for i, r in enumerate(at_each_temperature(partial(make_requests, 8, max_tokens=24)))
    ]
    compared = list(compare(requests, SAMPLE))
    assert {c.setting: c.different for c in compared} == dict.fromkeys(SAMPLE, ())
    assert all(
        c.num_drafted and c.num_accepted for c in compared if "draft-model" in c.setting.types
    )


def test_without_exact_mode_greedy_text_hardly_differs() -> None:
    """Near ties may flip there; most texts are still the same, and none fails."""
    requests = make_requests(8, 0.0, max_tokens=24)
    plain = play(open_setting(Setting("off", 0, 4, 1024, exact=False)), requests)
    drafted = play(open_setting(Setting("draft-model", 8, 4, 1024, exact=False)), requests)
    assert not any(r.error for r in drafted.values())
    assert len(different(plain, drafted)) <= 2


def test_a_conversation_from_main_memory_goes_on_as_one_that_is_read_anew() -> None:
    """One slot: each conversation drives the other out, with the draft model's cache."""
    requests = make_requests(2, 0.8, max_tokens=24)
    expected, results = {}, {}
    scheduler, plain = open_setting(Setting("auto", 16, 1)), open_setting(Setting())
    for turn in range(3):
        for first in requests:
            name = f"{first.request_id}.{turn}"
            request = replace(
                first, request_id=name, prompt=(*first.prompt, *first.prompt[: 8 * turn])
            )
            expected |= play(plain, [replace(request, cache_prompt=False)])
            results |= play(scheduler, [request])
    assert different(expected, results) == ()
    assert scheduler.counters.prompts_restored >= 3


def test_requests_that_share_a_prompt_that_is_being_read_answer_as_if_alone() -> None:
    first, *others = make_requests(4, 0.8, max_tokens=24)
    burst = [first] + [
        replace(other, prompt=(*tuple(first.prompt) * 4, *other.prompt)) for other in others
    ]
    expected = play(open_setting(Setting()), [replace(r, cache_prompt=False) for r in burst])
    for setting in (Setting("off", 0, 4), Setting("auto", 16, 4)):
        scheduler = open_setting(setting)
        assert different(expected, play(scheduler, burst)) == ()
        assert scheduler.counters.prompt_tokens_cached > 2 * len(first.prompt)


@pytest.mark.parametrize(
    ("apart", "uses"),
    [
        (((1, 2, 3), (4, 5, 6, 7, 8)), {REPACKED: Use()}),
        (((1,), (8, 12, 16)), {REPACKED: Use()}),
        (((1,), (8, 12, 16)), {"CUDA0": Use(), HOST: Use()}),  # where nothing is repacked
    ],
)
def test_weights_are_unpacked_where_kernels_for_repacked_ones_compute_one_row_otherwise(
    apart: tuple[tuple[int, ...], ...], uses: dict[str, Use], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padded to eight rows, one takes several times as long as unpacked."""
    repacked, unpacked = WidthClasses(apart, (), 0.1), WidthClasses(((1, 2, 8),), (), 0.0)
    is_repacked = REPACKED in uses
    # with reference kernels, then with the usual ones, which are not tried with repacked weights
    found = [repacked, unpacked, unpacked] if is_repacked else [repacked, repacked]
    monkeypatch.setattr(WidthComparison, "run", lambda *_: found.pop(0))
    monkeypatch.setattr(loading, "uses_of", lambda _: uses)
    target = load_target(Setting().config(), Models(demo.path(demo.TARGET), None, is_demo=True))
    chosen = unpacked if is_repacked else repacked
    assert target.classes == replace(chosen, is_exact=True)
    assert (target.fitted.config.repack, found) == (not is_repacked, [])


@needs_measuring
def test_a_hybrid_that_cannot_be_exact_is_told_what_makes_it_so_with_its_slots(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It has no snapshots then, and cannot take padding back."""
    found = WidthClasses(((1,), tuple(range(2, 17))), (), 0.1)
    monkeypatch.setattr(WidthComparison, "run", lambda *_: found)
    models = Models(tiny_hybrid(tmp_path / "hybrid.gguf"), None, is_demo=False)
    assert open_setting(Setting("auto", 4, 1), models).engine.max_rollback
    with pytest.raises(ConfigError, match="drop the flag, or leave out --spec off") as error:
        open_setting(Setting("off", 4, 1), models)
    assert "--parallel" not in str(error.value)
    with pytest.raises(ConfigError, match="drop the flag, or try --parallel 1, or on a"):
        open_setting(Setting("auto", 4, 2), models)  # drafts are not why
    experts = Models(write_model(tmp_path / "experts.gguf", "qwen3next"), None, is_demo=False)
    with pytest.raises(ConfigError, match=r"0 rows; drop the flag, or on a processor.*=OFF$"):
        open_setting(Setting("auto", 4, 1), experts)  # libllama takes back no drafts either


@pytest.mark.parametrize(
    "settings",
    [{}, {"flash_attn": "off"}, {"cache_type_k": "bf16", "cache_type_v": "bf16"}],
    ids=str,
)
def test_on_a_processor_no_price_of_exactness_is_named_which_has_kernels_of_its_own(
    settings: dict[str, str], tmp_path: Path
) -> None:
    engine = engine_of(tiny_llama(tmp_path / "tiny.gguf"), **settings)
    classes = WidthComparison(engine, [0], perf_counter).run()
    assert classes is not None
    assert classes.exact_cost(engine.cache_kind) is None


def test_a_hybrid_writes_the_same_with_one_slot_as_with_several(monkeypatch, tmp_path) -> None:
    """One slot could pad a single row, several need kernels that compute it as they compute two."""
    models = Models(tiny_hybrid(tmp_path / "hybrid.gguf"), None, is_demo=False)
    apart, alike = ((1,), tuple(range(2, 17))), (tuple(range(1, 17)),)
    found, widths = list[WidthClasses](), list[Widths]()
    monkeypatch.setattr(WidthComparison, "run", lambda *_: found.pop(0))
    for reference, usual in ((apart, alike), (alike, apart)):
        for num_slots in (1, 2):
            found[:] = [WidthClasses(classes, (), 0.1) for classes in (reference, usual)]
            engine = load_target(Setting("auto", 4, num_slots).config(), models).engine
            assert isinstance(engine, LlamaEngine)
            widths.append(engine.widths)
    whole = Widths(*alike)
    assert widths == [whole] * 2 + [whole._replace(is_reference=True)] * 2


def test_widths_are_the_same_with_one_slot_as_with_several(monkeypatch, tmp_path: Path) -> None:
    """So other tests compare those of a model once."""
    monkeypatch.setattr(answers, "_known", {})
    path = tiny_llama(tmp_path / "tiny.gguf")
    one, four = (engine_of(path, Limits(num, 16, 8), exact=True) for num in (1, 4))
    assert (one.widths, one.prompt_widths) == (four.widths, four.prompt_widths)


@pytest.mark.parametrize("has_mixed", [False, True])
def test_prompts_have_the_usual_kernels_where_these_agree_in_wide_decodes(
    monkeypatch: pytest.MonkeyPatch, *, has_mixed: bool
) -> None:
    """Those of experts in K-quants depend on how many rows an expert gets, unless these are few."""
    wide = tuple(range(8, 64))
    usual = WidthClasses(((1,), tuple(range(2, 8)), *(() if has_mixed else (wide,))), (), 0.1)
    found = [WidthClasses(((1,), tuple(range(2, 65))), (), 0.1), usual]

    def run(comparison: WidthComparison, *_: object) -> WidthClasses:
        comparison.rows = {width: [bytes([len(found)])] for width in range(65)}
        return found.pop(0)

    monkeypatch.setattr(WidthComparison, "run", run)
    target = load_target(Setting().config(), Models(demo.path(demo.TARGET), None, is_demo=True))
    assert isinstance(target.engine, LlamaEngine)
    answers = Widths(tuple(range(2, 65)), is_reference=True)
    expected = answers, answers if has_mixed else Widths(wide)
    assert (target.engine.widths, target.engine.prompt_widths) == expected


def test_prompts_are_decoded_in_wide_decodes_and_answers_in_narrow_ones(monkeypatch) -> None:
    """However they are cached, interrupted or shifted, if no class has both."""
    classes = WidthClasses((tuple(range(1, 17)), tuple(range(17, 64)), (64,)), (), 0.1)
    monkeypatch.setattr(WidthComparison, "run", lambda *_: classes)
    setting = Setting("ngram-simple", 5, 3)
    config = setting.config()
    config = replace(config, scheduler=replace(config.scheduler, context_shift=True))
    scheduler = build_scheduler(config, Models(demo.path(demo.TARGET), None, is_demo=True))[0]
    engine = scheduler.engine
    assert isinstance(engine, LlamaEngine)
    seen, launch = Counter[str](), engine._launch

    def check(batch: Batch) -> None:
        for start, _, _ in runs_of(batch):
            user = scheduler.cells[int(batch.seq_ids[start])].user
            assert user is not None
            is_wide = bool(batch.positions[start] < user.num_as_prompt)
            assert (17 if is_wide else 1) <= batch.num_rows <= (63 if is_wide else 16)
            seen["prompt" if is_wide else "answer"] += 1
            seen["resumed" if not is_wide and not user.is_generating else ""] += 1
        launch(batch)

    def check_rows(batch: Batch) -> None:
        for start, end, _ in runs_of(batch):
            user = scheduler.cells[int(batch.seq_ids[start])].user
            assert user is not None
            assert len({*(batch.positions[start:end] < user.num_as_prompt).tolist()}) == 1
        launch_all(batch)

    launch_all = engine.launch
    monkeypatch.setattr(engine, "launch", check_rows)
    monkeypatch.setattr(engine, "_launch", check)
    requests = make_requests(6, 0.0, max_tokens=60)
    answers = play(scheduler, requests)
    first = requests[0]
    text = (*first.prompt, *answers[first.request_id].tokens)
    (again,) = play(scheduler, [replace(first, request_id="a", prompt=(*text, 5, 6))]).values()
    assert again.stats is not None
    assert len(first.prompt) - 1 <= again.stats.num_cached <= len(first.prompt)

    prompt = requests[1].prompt[::-1]  # which no slot knows
    long = replace(requests[1], prompt=prompt, max_tokens=CONTEXT, request_id="long")
    scheduler.submit(replace(long, sampling=replace(long.sampling, ignore_eos=True)))
    for number in range(CONTEXT):
        scheduler.step()
        if number % 40 == 20 and scheduler.running:
            lacks_cells = number % 80 == 20
            scheduler._interrupt(scheduler.running[0], "a test", lacks_cells=lacks_cells)
        scheduler.take_events()
    assert seen["prompt"] > 10
    assert seen["answer"] > 10
    assert seen["resumed"] > 3


def test_weights_are_freed_before_they_are_loaded_unpacked(monkeypatch) -> None:
    """What fits is found out with the memory that the first ones took."""
    loaded, held = list[Model](), list[list[bool]]()

    def second_only(engine: LlamaEngine, **_: bool) -> WidthClasses | None:
        loaded.append(engine.model)
        return WidthClasses(((1, 2, 8),), (), 0.0) if len(loaded) > 1 else None

    def fit(*arguments: Any) -> Fitted:
        held.append([model.close.alive for model in loaded])
        return fit_models(*arguments)

    monkeypatch.setattr(loading, "make_exact", second_only)
    monkeypatch.setattr(loading, "fit_models", fit)
    load_target(Setting().config(), Models(demo.path(demo.TARGET), None, is_demo=True))
    assert held == [[], [False]]


@pytest.mark.parametrize("architecture", ["glm4moe", "gpt-oss"])
def test_exact_rows_have_the_same_states_whatever_the_width(architecture: str, tmp_path) -> None:
    """Their gate has other kernels for one row, which rounding to 8 bits mostly hides in logits."""
    path = write_model(tmp_path / "tiny.gguf", architecture, is_quantized=True)
    engine = engine_of(path, exact=True)
    engine.publish_states([LAST_STATE])
    tokens, found = [i * 37 % engine.vocab_size for i in range(32)], set[bytes]()
    for width in (1, 2, 8, 32):
        engine.clear(0)
        for start in range(0, len(tokens), width):
            decode(engine, tokens[start : start + width], start)
            found.add(engine.hidden_states()[LAST_STATE][-1].tobytes())
    assert len(found) == 32


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen35", "deepseek4", "lfm2"])
def test_showing_final_states_changes_no_logits(architecture: str, tmp_path: Path) -> None:
    """Kernels are compared with them and used without."""
    engine = engine_of(write_model(tmp_path / "tiny.gguf", architecture))
    for tokens in ([3], [3, 1, 4]):
        found = []
        for is_on in (False, True, False):
            engine.clear(0)
            engine.show_final_states(is_on=is_on)
            found.append(decode(engine, tokens, 0, len(tokens)).tobytes())
            is_shown = is_on and architecture not in ("deepseek4", "lfm2")
            assert list(engine.hidden_states()) == [FINAL_STATE] * is_shown
        assert len(set(found)) == 1


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["child", "grown-up", "animal"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "kind", "age"],
    "additionalProperties": False,
}
PEOPLE = {"type": "array", "items": PERSON, "minItems": 1, "maxItems": 2}
CONSTRAINTS = (
    Constraint(kind=ConstraintKind.JSON_SCHEMA, text=json.dumps(PERSON)),
    Constraint(kind=ConstraintKind.JSON_SCHEMA, text=json.dumps(PEOPLE)),
    Constraint(kind=ConstraintKind.REGEX, text="([A-Z][a-z]{2,8} ){3}[0-9]{2}"),
    Constraint(kind=ConstraintKind.GBNF, text='root ::= ("- " [a-z ]+ "\\n"){2}'),
    Constraint(kind=ConstraintKind.JSON_OBJECT),
    Constraint(
        kind=ConstraintKind.JSON_SCHEMA,
        text=json.dumps(PERSON),
        thoughts=ThoughtMarks(b"", b"\n", is_open=True),
    ),
    Constraint(kind=ConstraintKind.LARK, text='start: "It is " NUM " o\'clock."\nNUM: /1?[0-9]/'),
    Constraint(kind=ConstraintKind.REGEX, text="[0-9]{3};", triggers=(b" the",)),
)
CONSTRAINED = (
    Setting("off", 0, 4),
    Setting("draft-model", 4, 1),
    Setting("ngram-simple,draft-model", 8, 4),
    Setting("auto", 16, 4),
)


def constrained(temperature: float, *, max_tokens: int) -> list[Request]:
    requests = make_requests(len(CONSTRAINTS), temperature, max_tokens=max_tokens)
    return [
        replace(r, constraint=constraint, sampling=replace(r.sampling, ignore_eos=False))
        for r, constraint in zip(requests, CONSTRAINTS, strict=True)
    ]


def test_a_constrained_text_is_identical_with_and_without_drafts() -> None:
    requests = at_each_temperature(partial(constrained, max_tokens=32))
    compared = list(compare(requests, CONSTRAINED))
    assert {c.setting: c.different for c in compared} == dict.fromkeys(CONSTRAINED, ())
    assert all(c.num_accepted for c in compared if c.setting.types != "off")


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_finished_text_satisfies_its_constraint(temperature: float) -> None:
    requests = constrained(temperature, max_tokens=120)
    scheduler = open_setting(Setting("ngram-simple", 16, 4))
    results = play(scheduler, requests)
    assert not any(results[r.request_id].error for r in requests)

    def text_of(request: Request) -> str:
        tokens = results[request.request_id].tokens
        return b"".join(map(scheduler.vocab.token_bytes, tokens)).decode()

    texts = [text_of(request) for request in requests]
    jsonschema.validate(json.loads(texts[0]), PERSON)
    jsonschema.validate(json.loads(texts[1]), PEOPLE)
    assert re.fullmatch("([A-Z][a-z]{2,8} ){3}[0-9]{2}", texts[2])
    jsonschema.validate(json.loads(texts[5].partition("\n")[2]), PERSON)
    assert re.fullmatch("It is 1?[0-9] o'clock.", texts[6])
    stats = results[requests[0].request_id].stats
    assert stats.by_speculator["grammar"].num_accepted > 5
