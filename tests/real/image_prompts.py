"""Models with projectors, and requests with images and sounds for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.architectures import write_model
from tests.harness import Answer
from tests.images import Kind, picture, projector, wav

from headstart.app.assemble import Models
from headstart.scheduler.scheduler import Scheduler
from headstart.types.media import MediaChunk, MediaQuestion
from headstart.types.request import ReplyEvent, Request
from headstart.types.sampling_params import SamplingParams

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
    mmproj = projector(folder / "mm.gguf", kind, 64, hears=True)
    return Models(target, draft, is_demo=False, projector=mmproj)


def parts_of(scheduler: Scheduler, *images: bytes) -> list[list[tuple[int, ...] | MediaChunk]]:
    """What images become in a prompt."""
    assert scheduler.media is not None
    scheduler.media.ask(MediaQuestion("images", images))
    while scheduler.media.has_work:
        for event in scheduler.media.answers(1.0):
            assert isinstance(event, ReplyEvent), event
            return [list(parts) for parts in event.value]
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
    """Texts before and behind images, two that begin alike, one with two and one with a sound."""
    one, two = picture(1), picture(2, 56, 40)
    prompts: list[tuple[Sequence[int] | bytes, ...]] = [
        (BYTES[:9], one, BYTES * 2),
        (BYTES[:9], one, BYTES[::-1]),
        (BYTES[:9], two, BYTES * 2),
        (one, BYTES[:5], two, BYTES + BYTES[:20]),
        (BYTES[:9], wav(1), BYTES[:5], two, BYTES),
        (BYTES * 3,),
    ]
    return [
        ask(scheduler, f"{i}", *parts, sampling=sampling(temperature, i))
        for i, parts in enumerate(prompts)
    ]


def texts(results: dict[str, Answer]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(result.tokens) for name, result in sorted(results.items())}
