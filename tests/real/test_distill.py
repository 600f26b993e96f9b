"""`headstart distill` on the demo models: what is replayed is what happens live."""

from __future__ import annotations

import json
import math
import shutil
import weakref
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from benchmarks.lib.curves import CostCurve
from benchmarks.lib.workloads import make_prompts
from gguf import GGUFReader
from tests import architectures
from tests.architectures import Settings
from tests.harness import play
from tests.heads import aligned, continuation
from tests.real.answers import Setting, open_config, open_setting
from tests.real.pairs import prompt_of
from tests.real.support import decode, engine_of

from headstart.app.assemble import Models, build_scheduler
from headstart.app.cli.main import main
from headstart.app.demo import DRAFT, TARGET, path
from headstart.config import (
    Config,
    EngineConfig,
    RecordingConfig,
    SchedulerConfig,
    SpeculationConfig,
)
from headstart.engine.model import Model
from headstart.extras.distill import command, trial
from headstart.extras.distill.acceptance import DraftRule, walk
from headstart.extras.distill.candidates import draft_files, draft_model
from headstart.extras.distill.edit import CARD, begin, cut, finish
from headstart.extras.distill.proof import Interval
from headstart.extras.distill.recorder import TextRecorder
from headstart.extras.distill.texts import TRAINING, RecordedText, purge, read_texts
from headstart.speculators.draft_model import DraftModelSpeculator
from headstart.structures.model_id import ModelId
from headstart.types.errors import ConfigError, EngineError, ModelError
from headstart.types.request import ErrorEvent, Request
from headstart.types.sampling_params import SamplingParams

LENGTH = 6  # draft tokens
CONFIG = Config(
    engine=EngineConfig(context=2048, threads=1),
    scheduler=SchedulerConfig(parallel=1),
    speculation=SpeculationConfig(
        spec="fixed", spec_type="draft-model", draft_max=LENGTH, spec_state="none",
    ),
)  # fmt: skip
COST = CostCurve.parse("1:10,2:11,4:13,8:20,17:40").table()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of the demo pair, recorded while it drafted; what it accepted is beside them."""
    folder = tmp_path_factory.mktemp("texts")
    scheduler, _ = build_scheduler(CONFIG, Models(path(TARGET), path(DRAFT), is_demo=False))
    recorder = TextRecorder(RecordingConfig(record_texts=str(folder)), path(TARGET))
    scheduler.readers.append(recorder.read)
    live = []
    prompts = [*make_prompts("edit", 6, 3), *make_prompts("continue", 6, 3)]
    for number, prompt in enumerate(prompts):
        tokens = scheduler.vocab.tokenize(prompt.text, add_special=False, parse_special=True)
        sampling = SamplingParams(temperature=number % 2 * 0.8, seed=number)
        asked = Request(request_id="a", prompt=tokens, sampling=sampling, max_tokens=160)
        drafts = play(scheduler, [asked])["a"].stats.drafts
        live.append((drafts.num_drafted, drafts.num_accepted))
    recorder.close()
    (folder / "live.json").write_text(json.dumps(live))
    return folder


def distill(step: str, *flags: str | Path) -> int:
    """The exit code of the command on this machine."""
    words = map(str, ("--threads", 1, "--context", 2048, *flags))
    return main(["distill", step, *words])


def recorded(folder: Path) -> list[RecordedText]:
    return read_texts(folder, ModelId.of(path(TARGET)).digest)


def test_replayed_acceptance_is_live_acceptance_within_its_error(folder: Path) -> None:
    texts = recorded(folder)
    live = json.loads((folder / "live.json").read_text())
    replayed, _ = draft_model(CONFIG, Model(path(TARGET)), path(DRAFT), texts)
    num_drafted, num_accepted, live_drafted, live_accepted = 0, 0, 0, 0
    for text, outcomes in zip(texts, replayed, strict=True):
        found = walk(text, [outcomes], DraftRule(LENGTH), COST)
        num_drafted += found.num_drafted
        num_accepted += found.num_accepted
        drafted, accepted = live[text.sampling.seed]
        live_drafted += drafted
        live_accepted += accepted
    live_rate = live_accepted / live_drafted
    error = math.sqrt(live_rate * (1 - live_rate) / live_drafted)
    assert live_drafted > 500
    assert abs(num_accepted / num_drafted - live_rate) < 2 * error


def test_measure_compares_copies_and_draft_models_without_training_libraries(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state.json"
    flags = ("--texts", folder, "--json", "--spec-state", state, "--drafts", path(DRAFT))
    assert distill("measure", *flags) == 0
    found = json.loads(capsys.readouterr().out)
    arms = found["measured"]["arms"]
    assert set(arms) == {"off", "suffix", "demo-draft", "suffix, demo-draft"}
    assert arms["off"]["acceptance_length"] == 1.0
    at = arms["demo-draft"]["accepted_at"]
    # not what is accepted in a step, which depends on what that costs here
    assert 1.0 > at["1"] > at["2"] > at["4"] > at["8"] > 0.0
    assert not arms["suffix, demo-draft"]["accepted_at"], "neither one's shares are of both"
    assert state.exists()  # the warm-up is not needed again


@pytest.mark.parametrize("first", [30.0, 0.01])
def test_one_decode_timed_too_slow_or_fast_does_not_price_a_model(folder, monkeypatch, first):
    times = iter([(first, 1.0), *[(1.0, 1.0)] * 99])
    monkeypatch.setattr(DraftModelSpeculator, "time_decodes", lambda *given: next(times))
    assert draft_model(CONFIG, Model(path(TARGET)), path(DRAFT), recorded(folder)[:1])[1] == 1.0


def test_two_draft_models_of_one_name_are_not_taken_for_one(folder: Path, tmp_path, capsys) -> None:
    file = tmp_path / path(DRAFT).name
    file.write_bytes(path(DRAFT).read_bytes())
    assert distill("measure", "--texts", folder, "--drafts", f"{path(DRAFT)},{file}") == 1
    assert "have one name" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["off", "suffix", "a, b"])
def test_a_draft_model_whose_name_has_another_meaning_is_refused(tmp_path, name: str) -> None:
    file = tmp_path / f"{name}.gguf"
    file.touch()
    with pytest.raises(ConfigError, match="rename the file"):
        draft_files([], file)


def test_heads_that_do_not_divide_are_an_error_of_the_model() -> None:
    pytest.importorskip("torch", reason="training needs the extra train")
    from headstart.extras.distill.model import Shape

    with pytest.raises(ModelError, match="num_kv_heads must divide num_heads"):
        Shape(16, 8, 1, num_heads=4, num_kv_heads=3, ff_width=8)


def test_an_interrupted_training_goes_on(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="training needs the extra train")
    from headstart.extras.distill.gguf_file import read_model
    from headstart.extras.distill.train import CONTEXT, Trainer

    def trainer(seconds: float) -> Trainer:
        model = read_model(GGUFReader(path(DRAFT)), CONTEXT)
        return Trainer(model, recorded(folder)[:3], {}, tmp_path / "state", seconds, "kl")

    first, again = trainer(1.0).run(print)[1], trainer(1.0).run(print)[1]
    assert again["steps"] == first["steps"] > 0
    assert again["accepted_before"] == first["accepted_before"]
    assert trainer(1e-9).run(print)[1]["steps"] == 1  # for another time it begins again


def test_a_trained_model_is_a_draft_model_but_few_texts_prove_nothing(folder, tmp_path, capsys):
    pytest.importorskip("torch", reason="training needs the extra train")
    folder = shutil.copytree(folder, tmp_path / "texts")  # it is purged
    flags = ("--draft-model", path(DRAFT), "--seconds", "4", "--output", tmp_path / "own.gguf")
    state = tmp_path / "state.json"
    assert distill("train", "--texts", folder, "--spec-state", state, *flags) == 1
    assert "are the least to judge by" in capsys.readouterr().out
    candidate = tmp_path / "own.candidate.gguf"
    assert not (tmp_path / "own.gguf").exists()
    assert not (folder / TRAINING).exists()
    card = json.loads(GGUFReader(candidate).fields[CARD].contents())
    assert card["base"] == path(DRAFT).name
    assert set(card["training"]) == {"kl", "tv", "hybrid", "ce"}
    after = {loss: one["accepted_after"] for loss, one in card["training"].items()}
    assert after[card["loss"]] == max(after.values())
    assert card["training"][card["loss"]]["steps"] > 0
    scheduler, _ = build_scheduler(CONFIG, Models(path(TARGET), candidate, is_demo=False))
    assert "draft-model" in scheduler.drafting.speculators
    assert main(["distill", "purge", "--texts", str(folder), "--older-than-days", "-0"]) == 0
    assert str(candidate) in capsys.readouterr().out


def test_a_draft_model_without_unused_tokens_loses_what_it_says(folder: Path, tmp_path, capsys):
    folder = shutil.copytree(folder, tmp_path / "texts")  # it is purged
    output = tmp_path / "cut.gguf"
    flags = ("--draft-model", path(DRAFT), "--output", output, "--json")
    state = tmp_path / "state.json"
    assert distill("cut", "--texts", folder, "--spec-state", state, *flags) == 0
    found = json.loads(capsys.readouterr().out)
    had, has = found["tokens"]
    assert has < had / 2
    assert output.stat().st_size < path(DRAFT).stat().st_size
    assert 0.4 < found["share"] < 1.0
    arms = found["after"]["arms"]
    assert 0.2 < arms["cut"]["accepted_at"]["1"] < arms["demo-draft"]["accepted_at"]["1"]
    scheduler, _ = build_scheduler(CONFIG, Models(path(TARGET), output, is_demo=False))
    assert "draft-model" in scheduler.drafting.speculators
    assert purge(folder, None, math.inf)[1] == [str(output)]


@pytest.mark.parametrize(
    ("step", "base", "output"),
    [
        ("cut", "own.gguf", "own.gguf"),
        ("cut", "own.gguf", "link.gguf"),
        ("train", "own.gguf", "own.gguf"),
        ("train", "own.candidate.gguf", "own.gguf"),
        ("train", "of another folder/own.candidate.gguf", "own.gguf"),
        ("graft", "own.gguf", "link.gguf"),
    ],
)
def test_a_model_that_is_read_is_never_written(
    step: str, base: str, output: str, folder: Path, tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: True)  # it is refused before training
    source = tmp_path / base
    source.parent.mkdir(exist_ok=True)
    source.write_bytes(path(DRAFT).read_bytes())
    (tmp_path / "link.gguf").symlink_to(source)
    named = "--base" if step == "graft" else "--draft-model"
    flags = (named, source, "--spec-state", "none", "--output", tmp_path / output)
    assert distill(step, "--texts", folder, *flags) == 1
    assert "name another --output" in capsys.readouterr().err
    assert source.read_bytes() == path(DRAFT).read_bytes()
    assert not list(tmp_path.glob("*.tmp"))


def test_a_draft_model_made_of_a_tuned_one_does_not_carry_its_proof(tmp_path: Path) -> None:
    tuned, output, reader = tmp_path / "a.gguf", tmp_path / "b.gguf", GGUFReader(path(DRAFT))
    writer = begin(reader, tuned, {CARD: "{}"})
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    finish(writer)
    assert CARD in GGUFReader(tuned).fields
    cut(tuned, range(300), output)
    assert CARD not in GGUFReader(output).fields


def test_heads_of_a_base_model_draft_for_its_fine_tune(tmp_path, capsys) -> None:
    base = aligned(tmp_path / "base.gguf", "step35", 1)
    tuned, output = aligned(tmp_path / "tuned.gguf", "step35"), tmp_path / "heads.gguf"
    assert distill("graft", "--base", base, "--output", output, "--model", tuned) == 0
    assert f"-md {output}" in capsys.readouterr().out
    assert output.stat().st_size < base.stat().st_size
    setting = Setting("mtp", 4, 1, exact=False)
    scheduler = open_setting(setting, Models(tuned, output, is_demo=False))
    asked = Request(request_id="a", prompt=prompt_of(1, 20), max_tokens=40)
    answer = play(scheduler, [asked])["a"].tokens
    assert list(answer) == continuation(asked.prompt[-1], 40)
    stats = scheduler.outcomes.total.by_speculator["mtp"]
    assert stats.num_accepted == stats.num_drafted > 20
    other, before = aligned(tmp_path / "other.gguf", "mimo2"), output.read_bytes()
    for source, target, says in (
        (base, other, "its architecture is step35"),
        (tuned, tuned, "no multi-token heads"),
    ):
        assert distill("graft", "--base", source, "--output", output, "--model", target) == 1
        assert says in capsys.readouterr().err
    assert output.read_bytes() == before


WAYS = ((path(DRAFT), "auto"), (None, "auto"))


def test_a_trial_answers_alike_with_both_and_times_each(folder: Path, monkeypatch) -> None:
    """However short the context is, and with as much memory for the second as for the first."""
    loaded, drafters = list[weakref.ref[object]](), list[set[str]]()

    def build(config: Config, models: Models) -> object:
        assert [one() for one in loaded] == [None] * len(loaded)
        scheduler = open_config(config, models)
        loaded.append(weakref.ref(scheduler.engine))
        drafters.append(set(scheduler.drafting.speculators))
        return scheduler, None

    monkeypatch.setattr(trial, "build_scheduler", build)
    config = replace(CONFIG, engine=replace(CONFIG.engine, exact=True, context=64))
    texts = recorded(folder)
    found = trial.run_trial(config, path(TARGET), WAYS, texts[:2], texts[2:6])
    assert (found.facts["num_texts"], found.facts["num_different"]) == (4 + 16, 0)
    for ratio in (found.facts["later"], found.facts["elsewhere"]):
        assert 0.0 < ratio["low"] <= ratio["value"] <= ratio["high"]
    assert drafters == [{"suffix", "draft-model"}, {"suffix"}]
    slow, fine = Interval(0.96, 0.9, 1.0), Interval(1.1, 1.0, 1.2)
    assert trial.refusal_of(fine, fine) == ""
    assert "on later texts" in trial.refusal_of(slow, fine)
    assert "on other questions" in trial.refusal_of(fine, slow)
    for value in (math.nan, math.inf):  # of no tokens
        none = Interval(value, 0.0, 2.0)
        assert trial.refusal_of(none, fine)
        assert trial.refusal_of(fine, none)


def test_a_trial_whose_texts_cannot_be_answered_is_none(folder: Path, monkeypatch) -> None:
    broken, texts = Mock(has_work=True), recorded(folder)
    broken.take_events.return_value = [ErrorEvent("later 0", EngineError("a decode failed"))]
    monkeypatch.setattr(trial, "build_scheduler", lambda *given: (broken, None))
    with pytest.raises(EngineError, match="a decode failed"):
        trial.run_trial(CONFIG, path(TARGET), WAYS, texts[:2], texts[2:6])


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_model_that_is_tuned_computes_what_libllama_does(architecture: str, tmp_path) -> None:
    torch = pytest.importorskip("torch", reason="training needs the extra train")
    from headstart.extras.distill.gguf_file import read_model, write_model

    changes: Settings = {"attention.head_count": 4, "attention.head_count_kv": 2}
    no_more = (
        "output.bias",
        "gate.bias",
        "up.bias",
        "down.bias",
        "scale",
        "freqs.weight",
        "cls.output.weight",
    )
    file = architectures.write_model(
        tmp_path / "a.gguf",
        architecture,
        changes=changes,
        keeps=lambda one: not one.endswith(no_more),
    )
    reader, tokens = GGUFReader(file), prompt_of(1, 40)
    model = read_model(reader, 64)
    with torch.no_grad():
        expected = model(torch.tensor([tokens]))[0, -1].numpy()
    logits = decode(engine_of(file, cache_type_k="f32", cache_type_v="f32"), tokens)[0]
    np.testing.assert_allclose(logits, expected, atol=2e-2)
    write_model(reader, model.state_dict(), "F16", tmp_path / "b.gguf", {"made": "here"})
    again = decode(engine_of(tmp_path / "b.gguf", cache_type_k="f32", cache_type_v="f32"), tokens)
    np.testing.assert_allclose(again[0], expected, atol=5e-2)
