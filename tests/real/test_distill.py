"""`headstart distill` on the demo models: what is replayed is what happens live."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from benchmarks.lib.workloads import make_prompts
from gguf import GGUFReader

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
from headstart.extras.distill.acceptance import DraftRule, walk
from headstart.extras.distill.candidates import Candidates
from headstart.extras.distill.prices import StepPrices
from headstart.extras.distill.recorder import TextRecorder
from headstart.extras.distill.texts import RecordedText, read_texts
from headstart.structures.model_id import ModelId
from headstart.types.request import FinishEvent, Request
from headstart.types.sampling_params import SamplingParams

LENGTH = 6  # draft tokens
CONFIG = Config(
    engine=EngineConfig(context=2048, threads=1),
    scheduler=SchedulerConfig(parallel=1),
    speculation=SpeculationConfig(
        spec="fixed", spec_type="draft-model", draft_max=LENGTH, spec_state="none",
        options={"draft-model": {"sampling": "coupled"}},
    ),
)  # fmt: skip
PRICES = StepPrices.of({1: 10.0, 2: 11.0, 4: 13.0, 8: 20.0, 17: 40.0})


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
        scheduler.submit(
            Request(request_id=f"{number}", prompt=tokens, sampling=sampling, max_tokens=160)
        )
        while scheduler.has_work:
            scheduler.step()
        (end,) = [e for e in scheduler.take_events() if isinstance(e, FinishEvent)]
        drafts = end.stats.drafts
        live.append((drafts.num_drafted, drafts.num_accepted))
    recorder.close()
    (folder / "live.json").write_text(json.dumps(live))
    return folder


def recorded(folder: Path) -> list[RecordedText]:
    return read_texts(folder, ModelId.of(path(TARGET)).digest)


def test_replayed_acceptance_is_live_acceptance_within_its_error(folder: Path) -> None:
    texts = recorded(folder)
    live = json.loads((folder / "live.json").read_text())
    replayed, _ = Candidates.of(CONFIG, path(TARGET)).draft_model(path(DRAFT), texts)
    num_drafted, num_accepted, live_drafted, live_accepted = 0, 0, 0, 0
    for text, outcomes in zip(texts, replayed.outcomes, strict=True):
        found = walk(text, [outcomes], DraftRule(LENGTH), PRICES.step)
        num_drafted, num_accepted = (
            num_drafted + found.num_drafted,
            num_accepted + found.num_accepted,
        )
        drafted, accepted = live[text.sampling.seed]
        live_drafted, live_accepted = live_drafted + drafted, live_accepted + accepted
    live_rate = live_accepted / live_drafted
    error = math.sqrt(live_rate * (1 - live_rate) / live_drafted)
    assert live_drafted > 500
    assert abs(num_accepted / num_drafted - live_rate) < 2 * error


def test_measure_compares_copies_and_draft_models_without_training_libraries(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state.json"
    arguments = ["distill", "measure", "--texts", str(folder), "--json", "--threads", "1"]
    arguments += ["--context", "2048", "--spec-state", str(state), "--drafts", str(path(DRAFT))]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    arms = found["measured"]["arms"]
    assert set(arms) == {"off", "suffix", "demo-draft", "suffix, demo-draft"}
    assert arms["off"]["acceptance_length"] == 1.0
    assert arms["demo-draft"]["acceptance_length"] > 1.5
    at = arms["demo-draft"]["accepted_at"]
    assert 1.0 > at["1"] > at["2"] > at["4"] > at["8"] > 0.0
    assert state.exists()  # the warm-up is not needed again


def test_an_interrupted_training_goes_on(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="training needs the extra train")
    from headstart.extras.distill.gguf_file import read_model
    from headstart.extras.distill.train import CONTEXT, Trainer, TrainingPlan

    def trainer(plan: TrainingPlan) -> Trainer:
        model = read_model(GGUFReader(path(DRAFT)), CONTEXT)
        return Trainer(model, recorded(folder)[:3], {}, plan, tmp_path / "state")

    plan = TrainingPlan(seconds=1.0)
    first = trainer(plan).run()
    again = trainer(plan).run()
    assert again.num_steps == first.num_steps > 0
    assert again.right_before == first.right_before
    assert trainer(TrainingPlan(seconds=0.5)).run().seconds < 1.0


def test_a_trained_model_is_a_draft_model_but_few_texts_prove_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="training needs the extra train")
    arguments = ["distill", "train", "--texts", str(folder), "--threads", "1", "--context", "2048"]
    arguments += ["--draft-model", str(path(DRAFT)), "--seconds", "2", "--spec-state"]
    arguments += [str(tmp_path / "state.json"), "--output", str(tmp_path / "own.gguf")]
    assert main(arguments) == 1
    assert "are the least to judge by" in capsys.readouterr().out
    candidate = tmp_path / "own.candidate.gguf"
    assert not (tmp_path / "own.gguf").exists()
    assert not list(folder.glob("training.*"))
    from headstart.extras.distill.gguf_file import CARD

    card = json.loads(GGUFReader(candidate).fields[CARD].contents())
    assert card["base"] == path(DRAFT).name
    assert card["training"]["steps"] > 0
    scheduler, _ = build_scheduler(CONFIG, Models(path(TARGET), candidate, is_demo=False))
    assert "draft-model" in scheduler.drafting.speculators
    assert main(["distill", "purge", "--texts", str(folder), "--older-than-days", "-0"]) == 0
    assert str(candidate) in capsys.readouterr().out
