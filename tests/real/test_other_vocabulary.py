"""Draft models of other vocabularies: how they are taken, named and refused, and that no text
changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from gguf import TokenType
from tests import models
from tests.harness import play
from tests.models import MERGES, OTHER_MERGES, SMALLER, Merges, Writer, tiny_llama
from tests.real.answers import Setting, at_each_temperature, compare, make_requests, open_setting
from tests.unit.text.vocabulary import real

from headstart.app import demo
from headstart.app.assemble import Models, build_scheduler
from headstart.app.cli.serve import COMMAND
from headstart.config import Config
from headstart.scheduler.scheduler import Scheduler
from headstart.speculators.draft_model import DraftModelSpeculator
from headstart.types.errors import ModelError
from headstart.types.report import WorkerInfo

OTHER = Models(demo.path(demo.TARGET), demo.path(demo.DRAFT_OTHER), is_demo=True)
SETTINGS = (
    Setting("draft-model", 1, 1),
    Setting("draft-model", 5, 4),
    Setting("suffix,draft-model", 8, 2),
    Setting("auto", 16, 3),
)
GEMMA = ("<eos>", "<start_of_turn>", "<end_of_turn>")
GEMMA_CHAT = "<start_of_turn>user\n{{ messages }}<end_of_turn>"


def test_output_is_identical_with_and_without_drafts_from_another_vocabulary() -> None:
    requests = at_each_temperature(partial(make_requests, 6, max_tokens=24))
    compared = list(compare(requests, SETTINGS, OTHER))
    assert {c.setting: c.different for c in compared} == dict.fromkeys(SETTINGS, ())
    assert all(c.num_accepted for c in compared if "auto" not in c.setting.types)


def test_the_second_turn_of_a_chat_is_drafted_from_what_is_cached() -> None:
    (request,) = make_requests(1, 0.0, max_tokens=24)
    scheduler = open_setting(Setting("draft-model", 5, 1), OTHER)
    speculator = drafter_of(scheduler)
    first = play(scheduler, [request])["0"]
    before = speculator.num_decoded
    prompt = (*request.prompt, *first.tokens, *request.prompt[:8])
    play(scheduler, [replace(request, request_id="1", prompt=prompt, max_tokens=8)])
    assert 0 < speculator.num_decoded - before < len(request.prompt) / 2 + 40


def config_of(*argv: str) -> Config:
    common = ("--threads", "1", "--context", "512", "--parallel", "1", "--spec-state", "none")
    return COMMAND.read([*common, *argv]).config()


def start(config: Config, target: Path, draft: Path) -> tuple[Scheduler, WorkerInfo]:
    return build_scheduler(config, Models(target, draft, is_demo=False))


def drafter_of(scheduler: Scheduler) -> DraftModelSpeculator:
    speculator = scheduler.drafting.speculators["draft-model"].speculator
    assert isinstance(speculator, DraftModelSpeculator)
    return speculator


def heard(scheduler: Scheduler, text: str) -> bytes:
    """What the draft model reads for a text of the target, with its markers spelled."""
    translator = drafter_of(scheduler)._translator
    assert translator is not None
    sequence = real.sequence(translator)
    sequence.extend(scheduler.vocab.tokenize(text, add_special=False, parse_special=True))
    return b"".join(map(translator.draft.spelling, sequence.draft_history)) + sequence.pending


@pytest.fixture
def make_tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes a tiny model, with control tokens and a chat template of its own if wanted."""

    def make(
        name: str,
        controls: tuple[str, ...] = models.CONTROL_TOKENS,
        template: str = "",
        **values: Any,
    ) -> Path:
        with monkeypatch.context() as patch:
            patch.setattr(models, "CONTROL_TOKENS", controls)
            patch.setattr(models, "CHAT_TEMPLATE", template or models.CHAT_TEMPLATE)
            return tiny_llama(tmp_path / f"{name}.gguf", **values)

    return make


@pytest.mark.parametrize(
    ("mode", "draft"),
    [("identical", {}), ("shared", {"merges": OTHER_MERGES}), ("text", {"merges": MERGES[:1]})],
)
def test_the_way_between_the_vocabularies_is_named_to_the_user_and_in_the_log(
    mode: str, draft: dict[str, Merges], make_tiny: Callable[..., Path], caplog
) -> None:
    caplog.set_level(logging.INFO)
    target = make_tiny(
        "target", merges=[*MERGES, *((a, b) for a in "xyz" for b in "abcdefghijklmno")]
    )
    target = target if mode == "text" else make_tiny("target2")
    scheduler, info = start(config_of(), target, make_tiny("draft", shape=SMALLER, **draft))
    details = info.speculation["speculators"]["draft-model"]
    assert details["mode"] == mode
    assert details["vocabulary"].startswith(mode)
    assert scheduler.drafting.speculators["draft-model"].describe()["mode"] == mode
    assert f"draft model draft.gguf: {mode} vocabularies" in caplog.text


def test_markers_of_known_chat_templates_are_rewritten_by_themselves(make_tiny) -> None:
    target, draft = make_tiny("target"), make_tiny("draft", GEMMA, GEMMA_CHAT, shape=SMALLER)
    scheduler, info = start(config_of(), target, draft)
    details = info.speculation["speculators"]["draft-model"]
    assert (details["mode"], "markers replaced" in details["vocabulary"]) == ("text", True)
    chat = "<|im_start|>user\nthe <start_of_turn><|im_end|>\n<|im_start|>assistant\nin"
    assert heard(scheduler, chat) == (
        b"<start_of_turn>user\nthe <start_of_turn><end_of_turn>\n<start_of_turn>model\nin"
    )
    translator = drafter_of(scheduler)._translator
    assert translator is not None
    # what a user spells stays text
    spelled = real.sequence(translator)
    spelled.extend(
        scheduler.vocab.tokenize("<start_of_turn>", add_special=False, parse_special=True)
    )
    assert len(spelled.draft_history) > 1
    assert not set(spelled.draft_history[1:]) & set(translator.draft.controls)


def test_pairs_given_by_hand_are_used_and_come_before_those_found(make_tiny: Callable[..., Path]):
    target, draft = make_tiny("target"), make_tiny("draft", GEMMA, GEMMA_CHAT, shape=SMALLER)
    replaced = ("--spec-replace", "<|im_start|>user\n", "<start_of_turn>human\\n")
    config = config_of(*replaced, "--spec-replace", "hat", "hood")
    pairs = "<|im_start|>user\\n => <start_of_turn>human\\n\nhat => hood"
    assert config.speculation.spec_replace == pairs
    scheduler, _ = start(config, target, draft)
    assert heard(scheduler, "<|im_start|>user\nthat in") == b"<start_of_turn>human\nthood in"


def test_pairs_for_a_model_with_the_same_tokens_are_not_used_and_that_is_said(make_tiny, caplog):
    config = config_of("--spec-replace", "a", "b")
    scheduler, _ = start(config, make_tiny("target"), make_tiny("draft", shape=SMALLER))
    assert drafter_of(scheduler)._translator is None
    assert "--spec-replace is not used" in caplog.text


def only_digits(writer: Writer, merges: Merges) -> int:
    tokens = [*"0123456789", "<|endoftext|>"]
    writer.gguf.add_tokenizer_model("gpt2")
    writer.gguf.add_tokenizer_pre("gpt-2")
    writer.gguf.add_token_list(tokens)
    writer.gguf.add_token_types([TokenType.NORMAL] * 10 + [TokenType.CONTROL])
    writer.gguf.add_token_merges(["0 0"])
    writer.gguf.add_eos_token_id(10)
    return len(tokens)


def no_tokens(writer: Writer, merges: Merges) -> int:
    writer.gguf.add_tokenizer_model("no_vocab")
    return 64


@pytest.mark.parametrize(
    ("add", "says"),
    [
        (only_digits, r"cannot draft for target\.gguf: it has tokens for only 10 of"),
        (no_tokens, "has no vocabulary"),
    ],
)
def test_a_draft_model_that_cannot_spell_the_targets_text_stops_the_start(
    add: Callable[[Writer, Merges], int], says: str, make_tiny: Callable[..., Path], monkeypatch
) -> None:
    target = make_tiny("target")
    monkeypatch.setattr(Writer, "_add_vocabulary", add)
    draft = make_tiny("draft", shape=SMALLER)
    with pytest.raises(ModelError, match=rf"draft\.gguf {says}"):
        start(config_of(), target, draft)
