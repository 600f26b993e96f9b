"""Images through libllama and libmtmd: nothing changes but the speed, and nothing is read twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.architectures import write_model
from tests.images import Kind, picture, projector
from tests.real.answers import Result, Setting, generate, open_setting

from headstart.app.assemble import Models
from headstart.sampling import SamplingParams
from headstart.scheduler.scheduler import Scheduler
from headstart.types.media import MediaChunk, MediaEvent, MediaQuestion
from headstart.types.request import Request

# a text model for each kind of projector, and hybrids, whose states cannot be cut
TARGETS: dict[str, tuple[str, Kind]] = {
    "causal": ("llama", "janus_pro"),
    "non-causal": ("gemma3", "gemma3"),
    "positions": ("qwen2vl", "qwen2vl_merger"),
    "hybrid": ("qwen35", "janus_pro"),
}
BYTES = [(7 * i * i + 3) % 250 for i in range(40)]


def models(folder: Path, architecture: str, kind: Kind, draft: Path | None = None) -> Models:
    changes: dict[str, Any] = {"embedding_length": 64}
    if architecture == "qwen35":
        changes |= {"block_count": 4}
    target = write_model(folder / "target.gguf", architecture, changes=changes)
    return Models(target, draft, is_demo=False, projector=projector(folder / "mm.gguf", kind, 64))


def parts_of(scheduler: Scheduler, *images: bytes) -> list[list[tuple[int, ...] | MediaChunk]]:
    """What images become in a prompt."""
    assert scheduler.media is not None
    scheduler.media.ask(MediaQuestion("images", images))
    while scheduler.media.has_work:
        for event in scheduler.media.answers(1.0):
            assert isinstance(event, MediaEvent), event
            return [list(parts) for parts in event.parts]
    raise AssertionError("no answer")


def ask(scheduler: Scheduler, name: str, *parts: Sequence[int] | bytes, **fields: Any) -> Request:
    """A request whose prompt has texts and images."""
    prompt, media = list[int](), []
    for part in parts:
        pieces = parts_of(scheduler, part)[0] if isinstance(part, bytes) else [tuple(part)]
        for piece in pieces:
            if isinstance(piece, MediaChunk):
                media.append((len(prompt), piece))
                prompt += piece.ids()
            else:
                prompt += piece
    fields = {"max_tokens": 16} | fields
    return Request(request_id=name, prompt=prompt, media=tuple(media), **fields)


def sampling(temperature: float, seed: int = 0) -> SamplingParams:
    penalty = 1.1 if seed % 2 else 1.0
    return SamplingParams(
        temperature=temperature, seed=seed, ignore_eos=True, repeat_penalty=penalty
    )


def conversation(scheduler: Scheduler, temperature: float) -> list[Request]:
    """Texts before and behind images, two that begin alike, and one with two images."""
    one, two = picture(1), picture(2, 56, 40)
    prompts: list[tuple[Sequence[int] | bytes, ...]] = [
        (BYTES[:9], one, BYTES * 2),
        (BYTES[:9], one, BYTES[::-1]),
        (BYTES[:9], two, BYTES * 2),
        (one, BYTES[:5], two, BYTES + BYTES[:20]),
        (BYTES * 3,),
    ]
    return [
        ask(scheduler, f"{i}", *parts, sampling=sampling(temperature, i))
        for i, parts in enumerate(prompts)
    ]


def texts(results: dict[str, Result]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(result.tokens) for name, result in sorted(results.items())}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
def test_output_behind_images_is_the_same_with_drafts_beside_others_and_from_the_cache(
    target: str, temperature: float, tmp_path: Path
) -> None:
    found = models(tmp_path, *TARGETS[target])
    exact = target != "hybrid"
    off = open_setting(Setting("off", 0, 1, exact=exact), found)
    alone = {
        request.request_id: generate(off, [replace(request, cache_prompt=False)])[
            request.request_id
        ]
        for request in conversation(off, temperature)
    }
    drafting = open_setting(Setting("ngram-simple,suffix", 4, 4, exact=exact), found)
    together = generate(drafting, conversation(drafting, temperature))
    assert texts(together) == texts(alone)
    again = generate(drafting, conversation(drafting, temperature))
    assert texts(again) == texts(alone)
