"""What outlives the server: prompts, and what control learned, which belongs to its models."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from tests.architectures import tiny_hybrid, tiny_recurrent, write_model
from tests.harness import play
from tests.models import SMALLER, tiny_llama
from tests.real.answers import Setting, different, open_config
from tests.real.support import (
    byte_requests,
    disk_of,
    serving_demo,
    with_prompts_on_disk,
    without_draft,
)

from headstart.app import loading
from headstart.app.assemble import Models, build_scheduler
from headstart.app.cli.main import main
from headstart.app.exact import make_exact
from headstart.app.loading import fit_models
from headstart.config import Config, EngineConfig, SchedulerConfig, SpeculationConfig
from headstart.control.state import VERSION
from headstart.engine.context import LlamaEngine
from headstart.engine.fit import Fitted
from headstart.scheduler.copy_prices import CopyPrices
from headstart.scheduler.scheduler import Scheduler
from headstart.types import CacheKind
from headstart.types.errors import ConfigError, ModelError
from headstart.types.report import WorkerInfo
from headstart.types.widths import WidthClasses, Widths

PROMPT = "def add(first, second):\n    return first + second\n\n\ndef multiply(first, second):\n"
BODY = {"prompt": PROMPT * 3, "n_predict": 8, "temperature": 0}


@contextmanager
def server(folder: Path, **engine) -> Iterator[httpx2.Client]:
    scheduler = SchedulerConfig(parallel=2, cache_disk=100, cache_disk_path=str(folder))
    with serving_demo(scheduler, **engine) as client:
        yield client


def ask(client: httpx2.Client) -> int:
    """Tokens of the prompt that were read."""
    return client.post("/completion", json=BODY).json()["timings"]["prompt_n"]


def test_a_prompt_is_not_read_again_after_a_restart(tmp_path: Path, capsys) -> None:
    flag = f"--cache-disk-path={tmp_path}"
    with server(tmp_path) as client:
        assert ask(client) > 1
    with server(tmp_path, rope_freq_base=20000.0) as client:  # a state of other settings
        assert ask(client) > 1
    with server(tmp_path) as client:
        assert ask(client) == 1
        props = client.get("/props").json()["prompts_on_disk"]
        metrics = client.get("/metrics").text
    assert (props["num_prompts"], props["num_restored"]) == (1, 1)
    assert "\nheadstart_prompts_loaded_total 1\n" in metrics
    assert main(["cache", "list", flag]) == 0
    assert capsys.readouterr().out.count("1 prompts") == 2
    assert main(["cache", "clear", flag]) == 0
    assert not list(tmp_path.iterdir())


OTHER_ORIGINAL = "phi3.rope.scaling.original_context_length=int:700"


def gemma(path: Path) -> Path:
    return write_model(path, "gemma3")


# By name: the model, with --exact or not (recurrent layers have no exact mode on a processor; the
# weights leave no near ties here), who drafts, and what can be taken back then.
KINDS: dict[str, tuple[Callable[[Path], Path], bool, str, CacheKind]] = {
    "attention, as a whole": (tiny_llama, True, "off", CacheKind.CUT),
    "attention, in blocks": (tiny_llama, False, "off", CacheKind.CUT),
    "windows, all kept": (gemma, True, "off", CacheKind.CUT),
    "windows": (gemma, False, "off", CacheKind.WINDOW),
    "hybrid": (tiny_hybrid, False, "off", CacheKind.CHECKPOINT),
    "hybrid with snapshots": (tiny_hybrid, False, "ngram-cache", CacheKind.ROLLBACK),
    "recurrent": (tiny_recurrent, False, "off", CacheKind.CHECKPOINT),
}


def test_a_prompt_is_found_with_another_context_unless_that_rotates_its_keys_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CopyPrices, "saves_time", lambda *given: True)
    path = write_model(
        tmp_path / "tiny.gguf",
        "phi3",
        changes={
            "context_length": 8192,
            "rope.scaling.original_context_length": 1024,
            "attention.sliding_window": 0,
        },
        values=lambda name, shape: np.full(shape, 8.0) if "factors_long" in name else None,
    )
    request = replace(byte_requests(1)[0], prompt=tuple(range(200)))
    num_restored = []
    for context, override in (
        *((size, None) for size in (512, 1024, 1280, 2048, 768)),
        *((size, OTHER_ORIGINAL) for size in (512, 1024, 768)),
    ):
        config = with_prompts_on_disk(Setting(exact=False, context=context), tmp_path / "prompts")
        config = replace(config, engine=replace(config.engine, override_kv=override))
        scheduler = build_scheduler(config, without_draft(path))[0]
        disk = disk_of(scheduler)
        play(scheduler, [request])
        num_restored.append(disk.report().num_restored)
        scheduler.cache.offloading.finish()
    assert num_restored == [0, 1, 0, 1, 1, 0, 0, 1]


def test_an_exact_prompt_is_found_only_where_it_would_be_computed_by_the_same_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same settings may be loaded unpacked, or with fewer layers on a card, another time, and
    another version may choose other widths.
    """
    monkeypatch.setattr(CopyPrices, "saves_time", lambda *given: True)
    path, request = tiny_llama(tmp_path / "tiny.gguf"), byte_requests(1)[0]
    config = with_prompts_on_disk(Setting(), tmp_path / "prompts")

    def num_restored(*, repack: bool = True, widths: Widths | None = None) -> int:
        def fit(*given: Any) -> Fitted:
            fitted = fit_models(*given)
            return replace(fitted, config=replace(fitted.config, repack=repack))

        def make(engine: LlamaEngine, **given: bool) -> WidthClasses | None:
            classes = make_exact(engine, **given)
            engine.prompt_widths = widths or engine.prompt_widths
            return classes

        monkeypatch.setattr(loading, "fit_models", fit)
        monkeypatch.setattr(loading, "make_exact", make)
        scheduler = open_config(config, without_draft(path))
        disk = disk_of(scheduler)
        play(scheduler, [replace(request, prompt=tuple(range(200)))])
        scheduler.cache.offloading.finish()
        return disk.report().num_restored

    assert num_restored() == num_restored(repack=False) == 0
    assert num_restored(widths=Widths((8, 12, 16))) == 0
    assert num_restored() == 1


@pytest.mark.parametrize("name", KINDS)
def test_a_text_behind_a_prompt_from_the_disk_is_the_text_behind_one_that_was_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # to read so small a model's prompt again may be faster
    monkeypatch.setattr(CopyPrices, "saves_time", lambda *given: True)
    write, is_exact, types, kind = KINDS[name]
    path = write(tmp_path / "tiny.gguf")
    config = with_prompts_on_disk(Setting(types, 4, exact=is_exact), tmp_path / "prompts")

    def started() -> Scheduler:
        return open_config(config, without_draft(path))

    first = [replace(one, prompt=(*range(70), *one.prompt, *range(90))) for one in byte_requests(3)]
    scheduler = started()
    assert scheduler.engine.cache_kind is kind
    answers = play(scheduler, first)
    scheduler.cache.offloading.finish()
    turns = [
        replace(one, prompt=(*one.prompt, *answers[one.request_id].tokens, *range(9, 20)))
        for one in first
    ]
    expected = play(scheduler, [replace(one, cache_prompt=False) for one in turns])
    scheduler = started()
    disk = disk_of(scheduler)
    assert different(expected, play(scheduler, turns)) == ()
    assert disk.report().num_restored == 3
    disk.finish(1.0)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "one": tiny_llama(folder / "one.gguf"),
        "other": tiny_llama(folder / "other.gguf", seed=1),
        "draft": tiny_llama(folder / "draft.gguf", shape=SMALLER),
    }


def start_and_stop(target: Path, state: Path | None, draft: Path | None = None) -> WorkerInfo:
    config = Config(
        engine=EngineConfig(context=256, batch=64, threads=1, gpu_layers=0),
        scheduler=SchedulerConfig(parallel=1),
        speculation=SpeculationConfig(spec_state=None if state is None else str(state)),
    )
    scheduler, info = build_scheduler(config, Models(target, draft, is_demo=False))
    scheduler.drafting.save()
    scheduler.drafting.close()
    return info


def test_a_state_file_serves_its_models_again_and_no_others(models: dict[str, Path], tmp_path):
    state = tmp_path / "deep" / "state.json"
    info = start_and_stop(models["one"], state)
    assert info.speculation["state"] == str(state)
    moved = shutil.copy(models["one"], tmp_path / "moved.gguf")
    assert start_and_stop(moved, state).speculation["state_not_used"] == ""
    start_and_stop(models["one"], state, models["draft"])
    says = r"state\.json was learned for the target .*\.gguf .*, not for other\.gguf"
    with pytest.raises(ConfigError, match=says):
        start_and_stop(models["other"], state)
    says = r"learned for the draft model draft\.gguf .*, not for other\.gguf"
    with pytest.raises(ConfigError, match=says):
        start_and_stop(models["one"], state, models["other"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f'{{"version":{VERSION},"state":{{}}}}', "checksum"),
        ('{"version":1,"cost":7}', f"reads version {VERSION}"),
    ],
)
def test_a_damaged_state_is_not_used_and_says_so(models, tmp_path, caplog, text, reason) -> None:
    state = tmp_path / "state.json"
    state.write_text(text)
    with caplog.at_level(logging.WARNING, "headstart"):
        info = start_and_stop(models["one"], state)
    assert reason in info.speculation["state_not_used"]
    assert any("what control learned is not used" in record.message for record in caplog.records)
    assert start_and_stop(models["one"], state).speculation["state_not_used"] == ""


def test_a_named_file_that_cannot_be_written_stops_the_start(models: dict[str, Path], tmp_path):
    (tmp_path / "file").touch()
    says = r"--spec-state .*state\.json cannot be written: .*; name another file, or none"
    with pytest.raises(ConfigError, match=says):
        start_and_stop(models["one"], tmp_path / "file" / "state.json")
    (tmp_path / "file").write_text("do not lose this")
    with pytest.raises(ConfigError, match="not what headstart writes and would be replaced"):
        start_and_stop(models["one"], tmp_path / "file")
    assert (tmp_path / "file").read_text() == "do not lose this"


def test_a_cache_folder_that_cannot_be_written_is_a_warning_at_the_start(
    models: dict[str, Path], tmp_path, monkeypatch, caplog
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADSTART_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "headstart"):
        start_and_stop(models["one"], None)
    assert "what control learns will not be kept" in caplog.records[0].message


def test_a_model_that_cannot_be_read_is_named_as_the_model(tmp_path: Path) -> None:
    (tmp_path / "novel.gguf").write_text("It was a dark and stormy night")
    with pytest.raises(ModelError, match=r"novel\.gguf is not a GGUF file"):
        start_and_stop(tmp_path / "novel.gguf", tmp_path / "state.json")
    assert not (tmp_path / "state.json").exists()
