"""Multi-token heads, EAGLE-3, DFlash, DSpark and Gemma's assistants of tiny real models: the same
text, and where they predict exactly, every draft accepted.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from tests import drafters
from tests.architectures import write_model
from tests.drafters import ALIGNED
from tests.harness import play
from tests.heads import CYCLE, INDEXED_TOKENS, continuation
from tests.models import MERGES, OTHER_MERGES, Merges, tiny_llama
from tests.real import pairs
from tests.real.answers import Setting, different, open_config, open_setting
from tests.real.pairs import (
    PLAIN,
    RANDOM,
    RIGHT,
    Pair,
    ask,
    assert_all_right,
    prompt_of,
    text_after,
)
from tests.real.recorded_rows import NOT_DISCRETE, ROUNDING, RecordedRows
from tests.real.support import byte_requests

from headstart.app import saved_control
from headstart.app.assemble import Models, build_scheduler
from headstart.config import Config, EngineConfig, SpeculationConfig
from headstart.engine.context import LlamaEngine
from headstart.engine.model import Model
from headstart.engine.parameters import Limits
from headstart.scheduler.scheduler import Scheduler
from headstart.speculators.draft_model import DraftModelSpeculator
from headstart.testing import RandomController
from headstart.types import CacheKind, DraftRequest
from headstart.types.errors import ConfigError, ModelError
from headstart.types.request import Request
from headstart.types.sampling_params import SamplingParams


@pytest.mark.parametrize("kind", RIGHT)
def test_a_model_that_predicts_exactly_is_always_right(kind: str, tmp_path: Path) -> None:
    """After chunked prompts, shared prefixes, turns, prompts from main memory, a cancelled request:
    a row that was read with another row's state would be a wrong draft.
    """
    pair = RIGHT[kind]
    scheduler = pair.open(tmp_path, num_slots=2)
    scheduler.config = replace(scheduler.config, prefill_chunk=7, prefill_ms=0.0)
    ask(scheduler, *(text_after(f"{i}", prompt_of(i, 5 + 20 * i)) for i in range(4)))
    first = prompt_of(9, 90)
    ask(scheduler, text_after("first", first))
    branch = [*first[:50], *prompt_of(3, 2)]
    ask(scheduler, text_after("again", first), text_after("branch", branch))
    scheduler.submit(text_after("gone", [*first, *prompt_of(5, 1)]))
    for _ in range(5):
        scheduler.step()
    scheduler.cancel("gone")
    scheduler.step()
    scheduler.take_events()
    ask(scheduler, text_after("turn", [*first, *prompt_of(6, 4)]))
    for seed in (20, 21, 22, 9):
        ask(scheduler, text_after(f"back{seed}", prompt_of(seed, 90)))
    if "hybrid" not in kind:  # its prompts are shorter than a checkpoint's distance
        assert scheduler.counters.prompts_restored > 0
    assert_all_right(scheduler, pair.name)


@pytest.mark.parametrize("kind", RIGHT)
def test_it_is_right_after_a_preemption(kind: str, tmp_path: Path) -> None:
    pair = RIGHT[kind]
    scheduler = pair.open(tmp_path, context=256)
    ask(scheduler, *(text_after(f"{i}", prompt_of(i, 50), max_tokens=60) for i in range(4)))
    assert scheduler.counters.preemptions > 0
    assert_all_right(scheduler, pair.name)


def test_heads_beside_a_text_speculator_are_right_too(tmp_path: Path) -> None:
    scheduler = RIGHT["heads of mimo2"].open(tmp_path, types="suffix,mtp")
    prompts = [prompt_of(i, 30)[:-CYCLE] for i in range(6)]
    ask(scheduler, *(text_after(f"{i}", one, max_tokens=60) for i, one in enumerate(prompts)))
    assert scheduler.outcomes.total.by_speculator["suffix"].num_accepted > 0
    assert_all_right(scheduler, "mtp")


def test_a_reduced_vocabulary_is_right_about_its_own_tokens(tmp_path: Path) -> None:
    """Of a cycle that it knows every token is right; of others it has none."""
    known = [5, *continuation(5, CYCLE - 1)]
    sizes = replace(ALIGNED, draft_ids=tuple(sorted(known)))
    draft = partial(drafters.aligned_eagle3, sizes=sizes)
    pair = Pair("eagle3", draft, drafters.aligned_target)
    scheduler = pair.open(tmp_path)
    ask(scheduler, text_after("known", [9, 8, 7, *known]))
    assert_all_right(scheduler, "eagle3")
    other = next(t for t in range(200) if t not in known)
    accepted = scheduler.outcomes.total.by_speculator["eagle3"].num_accepted
    ask(scheduler, text_after("unknown", [9, 8, 7, other]))
    assert scheduler.outcomes.total.by_speculator["eagle3"].num_accepted == accepted


KINDS_IN_CHAINS = (
    *("eagle3", "eagle3 shared", "eagle3 reduced", "dflash", "dspark"),
    *("assistant", "heads of deepseek2"),
)
TEXTS = "ngram-simple,ngram-map-k"
OPTIONS = {"ngram-simple": {"size_n": 2, "size_m": 3}, "ngram-map-k": {"size_n": 2, "size_m": 2}}


def open_chain(name: str, models: Models, slots: int) -> Scheduler:
    """Behind others that draft little, with drafts of any length by any of them."""
    config: Config = pairs.Setting("auto", 6, slots).config()
    chain = replace(config.speculation, spec_type=f"{TEXTS},{name}", options=OPTIONS)
    with patch.object(saved_control, "Controller", RandomController):
        return open_config(replace(config, speculation=chain), models)


@pytest.mark.parametrize("kind", RANDOM)
def test_the_text_is_the_same_with_drafts(kind: str, tmp_path: Path) -> None:
    """Hybrids have no exact mode: there every token is the choice from a row that computed
    this very text, and the rows are the same but for rounding.
    """
    pair = RANDOM[kind]
    models = pair.models(tmp_path)
    setting = replace(PLAIN, exact=pair.can_be_exact)
    chain = replace(setting, types=f"suffix,{pair.name}", length=4, num_slots=4)
    drafting = [
        open_setting(one, models)  # most slots first: their comparison of widths serves the others
        for one in (chain, replace(chain, types=pair.name, num_slots=1))
    ]
    if kind in KINDS_IN_CHAINS:
        drafting += [open_chain(pair.name, models, slots) for slots in (4, 1)]
    plain = open_setting(setting, replace(models, draft=None))
    plain_rows, *recorded = (RecordedRows(s.engine) for s in (plain, *drafting))
    for requests in (byte_requests(5, 0.0), byte_requests(9, 0.8)[4:], byte_requests(13, 1.5)[8:]):
        expected = play(plain, requests)
        for scheduler, rows in zip(drafting, recorded, strict=True):
            results = play(scheduler, requests)
            if setting.exact:
                assert different(expected, results) == ()
                continue
            for request in requests:
                tokens = results[request.request_id].tokens
                assert tokens
                assert rows.unchosen(request, tokens) == []
    assert len(requests[-1].prompt) > INDEXED_TOKENS  # more than sparse attention looks at
    for rows in recorded:
        assert np.quantile(plain_rows.differences(rows), NOT_DISCRETE) < ROUNDING
    for scheduler in drafting:
        guarded = scheduler.drafting.speculators[pair.name]
        assert not guarded.failure
        assert scheduler.outcomes.total.by_speculator[pair.name].num_drafted > 0
        assert guarded.describe()["missing_states"] == 0


def test_a_confidence_head_is_the_score_and_ends_drafts(tmp_path: Path) -> None:
    pair = Pair("dspark", partial(drafters.aligned_dspark, confidence=0.7), drafters.aligned_target)
    models = pair.models(tmp_path)
    assert open_drafts(models, p_min=0.6) > 0
    assert open_drafts(models, p_min=0.8) == 0


def open_drafts(models: Models, p_min: float) -> int:
    """Draft tokens of a short text where tokens below a probability are not drafted."""
    scheduler = build(models, spec="fixed", draft_max=4, draft_p_min=p_min)
    ask(scheduler, text_after("a", prompt_of(1, 10)))
    return scheduler.outcomes.total.drafts.num_drafted


def build(models: Models, **speculation: object) -> Scheduler:
    engine = EngineConfig(context=256, threads=1, gpu_layers=0)
    spec = SpeculationConfig(spec_state="none", **speculation)
    return build_scheduler(Config(engine=engine, speculation=spec), models)[0]


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "dspark", "assistant"])
def test_naming_the_file_is_enough(kind: str, tmp_path: Path) -> None:
    pair = RANDOM[kind]
    assert list(build(pair.models(tmp_path)).drafting.speculators) == ["suffix", pair.name]


def test_a_file_for_another_speculator_is_named(tmp_path: Path) -> None:
    models = RANDOM["dflash"].models(tmp_path)
    with pytest.raises(ConfigError, match=r"eagle3 but .* is for dflash"):
        build(models, spec_type="eagle3")
    plain = replace(models, draft=tiny_llama(tmp_path / "plain.gguf"))
    with pytest.raises(ConfigError, match=r"dflash but .* is for draft-model"):
        build(plain, spec_type="draft-dflash")


def test_a_model_that_does_not_fit_is_refused_with_its_name(tmp_path: Path) -> None:
    pair = replace(RANDOM["eagle3"], target=drafters.aligned_target)
    with pytest.raises(ModelError, match=r"draft.gguf cannot draft for target.gguf: it reads"):
        build(pair.models(tmp_path))


ARCHITECTURES = ("mamba2", "rwkv7", "qwen35", "granitehybrid", "lfm2", "falcon-h1")
SETTINGS = (Setting("draft-model", 5, 1), Setting("draft-model", 3, 4), Setting("auto", 8, 3))
SIZE = 256  # ids that every model here has


def requests() -> list[Request]:
    random = np.random.default_rng(1)
    shared = random.integers(0, SIZE, 90).tolist()
    return [
        Request(
            request_id=str(i),
            prompt=(*shared[: 20 * (i % 4)], *random.integers(0, SIZE, 12).tolist()),
            sampling=SamplingParams(temperature=0.8 * (i % 2), seed=i, ignore_eos=True),
            max_tokens=24,
        )
        for i in range(6)
    ]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_after_rejections_it_drafts_what_it_would_have_drafted_had_it_read_the_text(
    architecture: str, tmp_path: Path
) -> None:
    config = EngineConfig(context=512, threads=1, gpu_layers=0, ctx_checkpoints=8)
    path = write_model(tmp_path / "draft.gguf", architecture)
    engine = LlamaEngine(Model(path, config), config, Limits(2, 2, 0))
    assert engine.cache_kind is CacheKind.CHECKPOINT
    drafter = DraftModelSpeculator(engine)
    random = np.random.default_rng(2)
    texts = {seq_id: random.integers(0, SIZE, 20 + 60 * seq_id).tolist() for seq_id in range(2)}
    for seq_id, text in texts.items():
        drafter.begin(seq_id, text)
    num_drafted = num_same = 0
    for _ in range(12):
        drafts = drafter.propose([DraftRequest(s, text, 5) for s, text in texts.items()])
        fresh = LlamaEngine(engine.model, config, Limits(1, 1, 0))
        for (seq_id, text), draft in zip(texts.items(), drafts, strict=True):
            alone = DraftModelSpeculator(fresh)
            alone.begin(0, text)
            fresh.clear(0)
            (expected,) = alone.propose([DraftRequest(0, text, 5)])
            num_drafted += len(draft.tokens)
            # rounding decides between two tokens that are equally likely
            num_same += sum(a == b for a, b in zip(draft.tokens, expected.tokens, strict=True))
            kept = int(random.integers(len(draft.tokens) + 1))
            emitted = [*draft.tokens[:kept], int(random.integers(SIZE))]
            drafter.accept(seq_id, emitted, kept)
            text += emitted
    assert num_drafted == 2 * 12 * 5
    assert num_same >= 0.95 * num_drafted


@pytest.mark.parametrize("merges", [MERGES, OTHER_MERGES], ids=["same", "universal"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_output_is_identical_with_and_without_drafts_of_a_recurrent_model(
    architecture: str, merges: Merges, tmp_path: Path
) -> None:
    target = tiny_llama(tmp_path / "target.gguf")
    draft = write_model(tmp_path / "draft.gguf", architecture, merges=merges)
    models = Models(target, draft, is_demo=False)
    expected = play(open_setting(Setting(), Models(target, None, is_demo=False)), requests())
    num_drafted = 0
    for setting in SETTINGS:
        scheduler = open_setting(setting, models)
        assert different(expected, play(scheduler, requests())) == ()
        assert not any(s.failure for s in scheduler.drafting.speculators.values())
        num_drafted += scheduler.outcomes.total.by_speculator["draft-model"].num_drafted
    assert num_drafted > 100


def test_a_hybrid_drafts_for_itself_and_is_mostly_right(tmp_path: Path) -> None:
    """Target and draft are the same file: only rounding and noise can part them."""
    model = write_model(tmp_path / "model.gguf", "granitehybrid")
    setting = Setting("draft-model", 4, 2, exact=False)
    scheduler = open_setting(setting, Models(model, model, is_demo=False))
    play(scheduler, requests())
    stats = scheduler.outcomes.total.drafts
    assert stats.num_accepted > 0.9 * stats.num_drafted > 40
