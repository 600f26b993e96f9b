"""Images and sounds through libllama and libmtmd: the same text, and nothing is read twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.architectures import write_model
from tests.harness import Answer, play
from tests.heads import WIDTH, continuation
from tests.images import Kind, picture, projector, wav
from tests.real.answers import TEMPERATURES, Setting, open_setting
from tests.real.image_prompts import BYTES, TARGETS, ask, conversation, models, sampling, texts
from tests.real.pairs import RIGHT, prompt_of

from headstart.app import demo
from headstart.app.assemble import Models, build_scheduler
from headstart.config import EmbeddingConfig
from headstart.engine.model import Model
from headstart.scheduler.admission import find_media
from headstart.scheduler.copy_prices import CopyPrices
from headstart.scheduler.scheduler import Scheduler
from headstart.types.errors import ModelError
from headstart.types.media import MediaQuestion
from headstart.types.request import (
    EmbeddingEvent,
    EmbeddingRequest,
    ErrorEvent,
    ReplyEvent,
    Request,
    SlotAction,
)
from headstart.types.sampling_params import SamplingParams


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("types", ["ngram-simple,suffix", "draft-model"])
def test_output_behind_images_is_the_same_with_drafts_beside_others_and_from_the_cache(
    target: str, types: str, tmp_path: Path
) -> None:
    found = models(tmp_path, *TARGETS[target])
    if types == "draft-model":  # which sees placeholders
        found = replace(found, draft=found.target)
    exact = target != "hybrid"
    drafting = open_setting(Setting(types, 4, 4, exact=exact), found)
    off = open_setting(Setting("off", 0, 1, exact=exact), found)
    for temperature in TEMPERATURES:
        alone = dict[str, Answer]()
        for request in conversation(off, temperature):
            alone |= play(off, [replace(request, cache_prompt=False)])
        for _ in range(2):
            together = play(drafting, conversation(drafting, temperature))
            assert texts(together) == texts(alone)


DRAFTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "draft-model": ("draft-model", {"draft": demo.path(demo.DRAFT)}),
    "another vocabulary": ("draft-model", {"draft": demo.path(demo.DRAFT_OTHER)}),
    "auto": ("auto", {"draft": demo.path(demo.DRAFT)}),
}


@pytest.mark.parametrize("kind", ["janus_pro", "gemma3"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_draft_models_draft_behind_images_and_change_nothing(kind, drafter, tmp_path) -> None:
    mmproj, (types, files) = projector(tmp_path / "mm.gguf", kind, 256), DRAFTERS[drafter]
    found = Models(demo.path(demo.TARGET), files["draft"], is_demo=True, projector=mmproj)

    def requests(scheduler: Scheduler) -> list[Request]:
        return [
            ask(scheduler, f"{seed}", code("<|im_start|>user\n"), picture(seed),
                code(REPEATED), sampling=SamplingParams(temperature=0.8 * (seed % 2), seed=seed),
                max_tokens=40)
            for seed in range(4)
        ]  # fmt: skip

    on, off = open_setting(Setting(types, 4, 2), found), open_setting(Setting(), found)
    assert texts(play(on, requests(on))) == texts(play(off, requests(off)))
    # what pays is a matter of the machine's load
    assert drafter == "auto" or on.outcomes.total.drafts.num_accepted > 20


REPEATED = """Repeat this code.
```python
def area(width, height):
    return width * height


def volume(width, height, depth):
    return area(width, height) * depth
```<|im_end|>
<|im_start|>assistant
"""


def code(text: str) -> list[int]:
    vocab = Model(demo.path(demo.TARGET)).vocab
    return vocab.tokenize(text, add_special=False, parse_special=True)


HEADS: dict[str, tuple[Kind, ...]] = {
    "eagle3": ("janus_pro", "gemma3"),
    "dflash": ("janus_pro", "gemma3"),
    "dspark": ("janus_pro",),
    "assistant": ("janus_pro", "gemma3"),
    "heads of step35": ("janus_pro", "gemma3"),
    "heads of a hybrid": ("janus_pro", "qwen2vl_merger"),
}


@pytest.mark.parametrize(
    ("drafter", "kind"), [(name, kind) for name, kinds in HEADS.items() for kind in kinds]
)
def test_heads_follow_the_states_of_image_rows(drafter: str, kind: Kind, tmp_path: Path) -> None:
    mmproj, pair = projector(tmp_path / "mm.gguf", kind, WIDTH), RIGHT[drafter]
    setting = Setting(pair.name, 4, 2, exact=False)
    scheduler = open_setting(setting, replace(pair.models(tmp_path), projector=mmproj))
    asked = [
        ask(scheduler, f"{i}", BYTES[:9], picture(i), prompt_of(i, 20), sampling=sampling(heat))
        for i, heat in enumerate((0.0, 0.8, 1.5))
    ]
    results = play(scheduler, asked)
    for request in asked:
        tokens = list(results[request.request_id].tokens)
        assert tokens == continuation(request.prompt[-1], len(tokens))
    guarded = scheduler.drafting.speculators[setting.types]
    assert not guarded.failure
    stats = scheduler.outcomes.total.by_speculator[setting.types]
    assert stats.num_accepted == stats.num_drafted > 0
    assert guarded.describe().get("missing_states", 0) == 0


@pytest.mark.parametrize("target", TARGETS)
def test_a_follow_up_question_reads_only_its_new_text_and_encodes_nothing(target, tmp_path) -> None:
    scheduler = open_setting(Setting("off", 0, 2, exact=False), models(tmp_path, *TARGETS[target]))
    image = picture(4)
    first = ask(scheduler, "a", BYTES[:9], image, BYTES, sampling=sampling(0.0))
    answer = play(scheduler, [first])["a"].tokens
    media: Any = scheduler.media
    media._chunks.clear()
    more = [*answer, *BYTES[:12]]
    second = ask(scheduler, "b", BYTES[:9], image, [*BYTES, *more], sampling=sampling(0.0))
    ((_, chunk),) = second.media
    stats = play(scheduler, [second])["b"].stats
    assert stats.num_cached >= len(first.prompt) - 4  # a hybrid's last checkpoint
    assert media.find(chunk)._embeddings is None


@pytest.mark.parametrize("target", TARGETS)
def test_prompts_with_images_come_back_from_main_memory(target: str, tmp_path: Path) -> None:
    """One slot and three conversations in turn: each finds its own prompt again."""
    found = models(tmp_path, *TARGETS[target])
    fresh, scheduler = (open_setting(Setting("off", 0, 1, exact=False), found) for _ in range(2))

    def asked(of: Scheduler) -> list[Request]:
        return [
            ask(of, f"{i}", BYTES[i:], picture(i, 40, 28), BYTES * 3, sampling=sampling(heat, i))
            for i, heat in enumerate((0.0, 0.8, 1.5))
        ]

    expected = play(fresh, [replace(request, cache_prompt=False) for request in asked(fresh)])
    for number in range(3):
        for request in asked(scheduler):
            result = play(scheduler, [request])[request.request_id]
            assert result.tokens == expected[request.request_id].tokens
            assert number == 0 or result.stats.num_cached > len(request.prompt) // 2
    assert scheduler.counters.prompts_restored >= 4


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("place", "heat"), [("disk", 0.8), ("slot file", 1.5)])
def test_prompts_with_images_come_back_after_a_restart_and_encode_nothing(
    place: str, heat: float, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CopyPrices, "saves_time", lambda *given: True)
    found, config = models(tmp_path, *TARGETS[target]), Setting(exact=False).config()
    limits = replace(config.scheduler, cache_disk=100 * (place == "disk"))
    limits = replace(limits, cache_disk_path=str(tmp_path / "prompts"))

    def started() -> Scheduler:
        return build_scheduler(replace(config, scheduler=limits), found)[0]

    def act(scheduler: Scheduler, action: str) -> None:
        scheduler.act_on_slot(SlotAction("s", action, 0, str(tmp_path / "slot.bin")))
        while scheduler.slot_actions.waiting:
            for event in scheduler.slot_actions.go_on():
                assert isinstance(event, ReplyEvent), event

    scheduler, other = started(), build_scheduler(config, found)[0]
    prompt = (BYTES[:9], picture(1, 40, 28), BYTES * 3)
    asked = ask(scheduler, "a", *prompt, sampling=sampling(heat))
    answer = play(scheduler, [asked])["a"].tokens
    turn = (*prompt[:2], [*BYTES * 3, *answer, *BYTES[:8]])
    expected = play(other, [ask(other, "b", *turn, sampling=sampling(heat))])["b"].tokens
    if place == "slot file":
        act(scheduler, "save")
    scheduler.cache.offloading.finish()  # its slot still holds the prompt
    scheduler = started()
    if place == "slot file":
        act(scheduler, "restore")
    elif disk := scheduler.cache.offloading.disk:
        disk._writer.submit(int).result()
    result = play(scheduler, [ask(scheduler, "b", *turn, sampling=sampling(heat))])["b"]
    assert result.tokens == expected
    assert result.stats.num_cached >= len(asked.prompt) - 4
    media: Any = scheduler.media
    assert all(chunk._embeddings is None for chunk in media._chunks.values())


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_that_was_read_in_part_is_read_again(target: str, tmp_path: Path) -> None:
    found = models(tmp_path, *TARGETS[target])
    scheduler = open_setting(Setting("off", 0, 2, exact=False), found)
    scheduler.config = replace(scheduler.config, prefill_chunk=5, prefill_ms=0.0)
    scheduler.engine.attention_tile = 1  # or the rest of a tile is read with it
    answering = ask(scheduler, "a", BYTES, sampling=sampling(0.0), max_tokens=120)
    asked = ask(scheduler, "b", BYTES[:9], picture(1), BYTES, sampling=sampling(0.0))
    expected = play(scheduler, [replace(asked, request_id="x", cache_prompt=False)])["x"].tokens
    for cells in scheduler.cells:
        scheduler.cache.offloading.empty(cells)
    scheduler.submit(answering)
    while not (scheduler.running and scheduler.running[0].is_generating):
        scheduler.step()
    scheduler.submit(asked)
    cells = None
    while cells is None or not any(
        9 < cells.length < 9 + chunk.num_cells for _, chunk in asked.media
    ):
        scheduler.step()
        users = [s for s in scheduler.running if s.request is asked]
        cells = users[0].cells if users else cells
        if users and users[0].is_generating:
            assert target == "non-causal"  # whose images are decoded at once
            break
    scheduler.cancel("b")
    again = play(scheduler, [replace(asked, request_id="c")])
    assert again["c"].tokens == expected


@pytest.mark.parametrize("target", TARGETS)
def test_a_text_with_images_has_the_mean_of_its_vectors(target: str, tmp_path: Path) -> None:
    files, vectors = models(tmp_path, *TARGETS[target]), {}
    for pooling in ("none", "mean", "last"):
        wanted = EmbeddingConfig(embeddings=True, pooling=pooling)
        config = replace(Setting(exact=False).config(), embedding=wanted)
        scheduler = build_scheduler(config, files)[0]
        asked = [
            ask(scheduler, "a", BYTES[:9], picture(1), BYTES[:5], picture(2, 56, 40), BYTES),
            ask(scheduler, "b", BYTES[:9], picture(3), BYTES[:5], picture(2, 56, 40), BYTES),
        ]
        chunks = tuple((r.prompt[at], chunk) for r in asked for at, chunk in r.media)
        request = EmbeddingRequest(
            "e", tuple(r.prompt for r in asked[:1] * 2 + asked), media=chunks
        )
        queue: Any = scheduler.embeddings
        queue.submit(request, dict(find_media(chunks, scheduler.media)))
        while queue.has_work:
            events = queue.step(is_alone=True)
        (event,) = events
        assert isinstance(event, EmbeddingEvent), event
        rows = np.concatenate(event.vectors)
        lengths = [len(text) if pooling == "none" else 1 for text in request.texts]
        vectors[pooling] = found = np.split(rows, np.cumsum(lengths)[:-1])
        np.testing.assert_allclose(found[0], found[2], rtol=1e-6)
        assert not np.allclose(found[0], found[3])
    assert [len(rows) for rows in vectors["none"]] == [len(asked[0].prompt)] * 4
    for rows, mean, last in zip(*vectors.values(), strict=True):
        np.testing.assert_allclose(rows.mean(axis=0), mean[0], atol=1e-5)
        np.testing.assert_allclose(rows[-1], last[0], atol=1e-5)


def test_requests_with_images_that_lose_their_cells_go_on_later(tmp_path: Path) -> None:
    found = models(tmp_path, *TARGETS["positions"])
    scheduler = open_setting(Setting("off", 0, 4, context=256, exact=False), found)
    asked = [
        ask(scheduler, f"{i}", BYTES[i:][:9], picture(i % 3), wav(i), BYTES * 2,
            sampling=sampling(0.0), max_tokens=80)
        for i in range(8)
    ]  # fmt: skip
    results = play(scheduler, asked)
    assert scheduler.counters.preemptions > 0
    assert [(one.error, len(one.tokens)) for one in results.values()] == [(None, 80)] * 8


def test_a_projector_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    target = write_model(tmp_path / "t.gguf", "llama", changes={"embedding_length": 64})
    (tmp_path / "cut.gguf").write_bytes(
        projector(tmp_path / "mm.gguf", "gemma3", 64).read_bytes()[:900]
    )
    other = projector(tmp_path / "other.gguf", "janus_pro", 128)
    # a tile of idefics3 stands between tokens that this vocabulary lacks; libllama would abort
    tiles = projector(tmp_path / "tiles.gguf", "idefics3", 64)
    numbered: Any = "hunyuanvl"
    for path, says in (
        (target, "is no projector but a model of llama"),
        (projector(tmp_path / "h.gguf", numbered, 64), "numbers the images.*--no-mmproj"),
        (tmp_path / "cut.gguf", "cut.gguf"),
        (other, "mismatch between text model"),
        (tiles, "the projector of another model"),
    ):
        with pytest.raises(ModelError, match=says):
            open_setting(Setting(), Models(target, None, is_demo=False, projector=path))


def test_an_image_that_must_be_decoded_at_once_has_to_fit(tmp_path: Path) -> None:
    config = replace(Setting(exact=True).config())
    engine = replace(config.engine, ubatch=32, batch=32)
    found = models(tmp_path, "qwen2vl", "qwen2vl_merger")
    scheduler, _ = build_scheduler(replace(config, engine=engine), found)
    assert scheduler.media is not None
    scheduler.media.ask(MediaQuestion("q", (picture(1, 60, 60),)))
    (event,) = scheduler.media.answers(10.0)
    assert isinstance(event, ErrorEvent)
    assert "--ubatch-size" in str(event.error)
