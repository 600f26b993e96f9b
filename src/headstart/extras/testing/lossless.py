"""Checks that a speculator changes no text: the real scheduler over a fake model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from headstart.app.verify import TEMPERATURES
from headstart.config import SchedulerConfig, SpeculationConfig
from headstart.control.controller import Controller
from headstart.control.values import AskedAnswer, Step
from headstart.extras.testing.fakes import FakeEngine, LetterVocab
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.guarded_speculator import GuardedSpeculator
from headstart.scheduler.scheduler import Scheduler
from headstart.scheduler.step import StepPlan
from headstart.speculators.base import Speculator
from headstart.speculators.suffix import SuffixSpeculator
from headstart.types.request import Request, RequestStats, TokenEvent
from headstart.types.sampling_params import SamplingParams


class RandomController(Controller):
    """Control that changes its mind at random: how far drafts are verified must not show in the
    text.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._random = np.random.default_rng(seed)
        self.grant = self._grant

    def assign_rows(self, plan: StepPlan) -> None:
        assert plan.step is not None
        left = plan.step.max_draft_rows
        for answer in plan.answers:
            answer.num_verified = int(self._random.integers(0, len(answer.draft) + 1))
            left -= answer.num_verified
        plan.num_padding = int(self._random.integers(0, 4)) if plan.step.can_pad else 0
        plan.num_padding = max(0, min(plan.num_padding, left))

    def _grant(self, asked: Mapping[str, Sequence[AskedAnswer]], step: Step) -> None:
        draw, chosen = self._random.integers, set[int]()
        for own in asked.values():
            for one in own:
                if one.number not in chosen and (length := int(draw(0, one.max_tokens + 1))):
                    chosen.add(one.number)
                    one.num_granted = length


def assert_lossless(make: Callable[[], Speculator]) -> tuple[int, int]:
    """Generate six texts on three slots with a speculator and without; they must be equal.

    At temperatures 0, 0.8 and 1.5; alone with drafts of 1, 4 and 16 tokens, with auto, with a
    control that decides at random, and with `suffix` before or after it; with a cache that is too
    small for all three. Token ids are 0 to 31, as in `LetterVocab`. Returns how many tokens it
    drafted and how many of these were accepted, all runs together.

    Raises:
        AssertionError: a text differs, or the speculator failed (the message names the call).
        Exception: what its `describe` or `close` raised.
    """
    drafted = accepted = 0
    for temperature in TEMPERATURES:
        off = Drafting([], SpeculationConfig(spec="off"), Controller())
        expected, _ = _generate(off, temperature)
        for way, speculators, config, control in _ways(make):
            chain = [GuardedSpeculator(one, LetterVocab.size) for one in speculators]
            drafting = Drafting(chain, config, control)
            texts, counts = _generate(drafting, temperature)
            speculator = next(one for one in chain if one.name != _Other.name)
            speculator.speculator.describe()
            speculator.speculator.close()
            if speculator.failure:
                raise AssertionError(f"{speculator.name} failed in {speculator.failure}")
            if texts != expected:
                raise AssertionError(
                    f"{speculator.name} changed a text at temperature {temperature} ({way})"
                )
            stats = counts.by_speculator[speculator.name]
            drafted += stats.num_drafted
            accepted += stats.num_accepted
    return drafted, accepted


class _Other(SuffixSpeculator):
    """Runs next to the speculator under test, which may be `suffix` itself."""

    name = "other"


def _ways(
    make: Callable[[], Speculator],
) -> Iterator[tuple[str, list[Speculator], SpeculationConfig, Controller]]:
    """Ways to draft with a speculator: description, speculators, settings, and controller."""
    for length in (1, 4, 16):
        config = SpeculationConfig(spec="fixed", draft_max=length)
        yield f"alone, {length} tokens", [make()], config, Controller()
    auto = SpeculationConfig(spec="auto")
    yield "alone, auto", [make()], auto, Controller()
    yield "alone, lengths at random", [make()], auto, RandomController()
    yield "before suffix, auto", [make(), _Other()], auto, Controller()
    yield "after suffix, lengths at random", [_Other(), make()], auto, RandomController()


def _generate(drafting: Drafting, temperature: float) -> tuple[dict[str, list[int]], RequestStats]:
    """Texts by request: short prompts that repeat themselves, some with the same beginning; and
    what was counted of all together.
    """
    config = SchedulerConfig(parallel=3)
    # texts repeat themselves; three of 48 tokens need more cells, so that one is preempted
    target = FakeEngine(LetterVocab.size, 1, num_cells=110)
    scheduler = Scheduler(target, LetterVocab(), drafting, config)
    for seed in range(6):  # more than slots: sequence ids are used again
        sampling = SamplingParams(temperature=temperature, seed=seed, ignore_eos=seed % 3 > 0)
        prompt = [*range(seed % 2, 8), 30] * (1 + seed % 2)
        scheduler.submit(
            Request(request_id=str(seed), prompt=prompt, sampling=sampling, max_tokens=32)
        )
    texts: dict[str, list[int]] = {}
    while scheduler.has_work:
        scheduler.step()
        for event in scheduler.take_events():
            if isinstance(event, TokenEvent):
                texts.setdefault(event.request_id, []).extend(event.tokens)
    return texts, scheduler.outcomes.total
