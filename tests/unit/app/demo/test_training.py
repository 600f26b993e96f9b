"""The recipe of an EAGLE-3 head runs, where torch is installed, and its file drafts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headstart.app import demo
from headstart.app.assemble import Models, build_scheduler
from headstart.config import Config, EngineConfig, SpeculationConfig

ROOT = Path(__file__).parents[4]


def test_a_head_of_a_few_batches_is_loaded_and_drafts(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="training needs the extra train")
    pytest.importorskip("tokenizers")
    source = Path(__file__).read_text(encoding="utf-8")
    (tmp_path / "texts.json").write_text(json.dumps([source] * 40))
    chat = f"<|im_start|>user\nRepeat.<|im_end|>\n<|im_start|>assistant\n{source[:100]}<|im_end|>\n"
    (tmp_path / "tasks.json").write_text(json.dumps([chat] * 40))
    head = tmp_path / "head.gguf"
    target = demo.path(demo.TARGET)
    command = [sys.executable, "-m", "training.eagle3", "--work", str(tmp_path)]
    command += ["--target", str(target), "-o", str(head), "--rows", "64", "--ids", "256"]
    command += ["--context", "128", "--batch-size", "2", "--steps", "4", "--threads", "1"]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    command += ["--start", str(head), "--corpus-share", "1"]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    config = Config(
        engine=EngineConfig(context=256, threads=1, gpu_layers=0),
        speculation=SpeculationConfig(spec_state="none"),
    )
    scheduler = build_scheduler(config, Models(target, head, is_demo=False))[0]
    assert "eagle3" in scheduler.drafting.speculators
