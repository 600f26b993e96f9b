"""Conversations over fakes: longer with each turn, alike or behind one system prompt."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.harness import EOS, Model, make_scheduler, run_checked

from headstart.scheduler.prompt_store import StoredBlock, StoredPrompt
from headstart.scheduler.scheduler import Scheduler
from headstart.structures.prefix import packed
from headstart.types.request import Request
from headstart.types.sampling_params import SamplingParams


def conversation(number: int, turn: int = 0, **fields: object) -> Request:
    prompt = [(number * 5 + i * 3) % EOS for i in range(100 + 20 * turn)]
    sampling = SamplingParams(temperature=0.8, seed=number, ignore_eos=True)
    name = f"c{number}.{turn}"
    return Request(request_id=name, prompt=prompt, sampling=sampling, max_tokens=8, **fields)


def ask(scheduler: Scheduler, *requests: Request) -> list[int]:
    """Prompt tokens that were read for each, one after the other; the texts must be right."""
    read = []
    for request in requests:
        stats = run_checked(scheduler, [request])[request.request_id].stats
        read.append(stats.num_prompt - stats.num_cached)
    return read


def tiled(**fields: object) -> Scheduler:
    """A scheduler whose engine's attention looks at the cells of all sequences."""
    engine = Model(context_size=1024)
    engine.attention_tile = 64
    return make_scheduler(engine, parallel=4, **fields)


def long(number: int, turn: int = 0) -> Request:
    one = conversation(number, turn)
    return replace(one, prompt=[*one.prompt[:100], *one.prompt[:100], *one.prompt])


def with_system_prompt(number: int, turn: int = 0) -> Request:
    """A conversation behind 200 tokens that all begin with; each turn adds 60."""
    random = Random(number)
    system = [(i * i) % EOS for i in range(200)]
    prompt = system + [random.randrange(EOS) for _ in range(60 * (turn + 1))]
    return replace(conversation(number), request_id=f"s{number}.{turn}", prompt=prompt)


def stored_prompt(tokens: list[int], namespace: str = "", num_bytes: int = 10) -> StoredPrompt:
    block = StoredBlock(0, len(tokens), bytes(num_bytes))
    return StoredPrompt(namespace, packed(tokens), (block,))
