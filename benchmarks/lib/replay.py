"""Texts that a model once wrote, generated again in simulated time.

The engine knows the texts and decodes nothing: it says the next token of the script and moves a
clock by what so many rows cost. Scheduler, speculators, control and draft models are the real ones,
so a way of drafting is measured on real texts in seconds, without noise, on any machine's cost
curve. Python's own time is not in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.lib.arms import Arm, ArmTotals, Machine, Run, answer
from benchmarks.lib.curves import CostCurve
from benchmarks.lib.engines import Clock, PricedEngine, SilentEngine
from benchmarks.lib.oracle import Guesses, Oracle, Recorder, most_rows

from headstart.scheduler.scheduler import Scheduler
from headstart.speculators import Speculator
from headstart.types import Engine, Vocab
from headstart.types.request import Request
from headstart.types.sampling_params import SamplingParams

WARM_UP_SECONDS = 30.0  # simulated, so every size is measured as often as it may be


@dataclass(frozen=True, slots=True)
class Text:
    """What a model answered: token ids, and the parameters, which a draft model may share."""

    workload: str
    temperature: float
    seed: int
    prompt: Sequence[int]
    answer: Sequence[int]

    def request(self, slot_id: int) -> Request:
        """For as many tokens as the answer has."""
        sampling = SamplingParams(temperature=self.temperature, seed=self.seed)
        prompt, length = list(self.prompt), len(self.answer)
        return Request(
            request_id="", prompt=prompt, sampling=sampling, max_tokens=length, slot_id=slot_id
        )


def save_texts(path: Path, texts: Sequence[Text]) -> None:
    """Write texts as JSON."""
    path.write_text(json.dumps([asdict(text) for text in texts]), encoding="utf-8")


def load_texts(path: Path) -> list[Text]:
    """Read what `save_texts` wrote."""
    return [Text(**fields) for fields in json.loads(path.read_text(encoding="utf-8"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One machine and number of users."""

    target: Engine  # of the model that wrote the texts: only its filters are used
    vocab: Vocab
    curve: CostCurve  # of a target step
    attention: float = 0.0  # further milliseconds of a target row per 1000 tokens of context
    num_users: int = 1
    # makes a draft model's engine; its curve
    draft: tuple[Callable[[], Engine], CostCurve] | None = None

    def run(self, arm: Arm, texts: Sequence[Text]) -> ArmTotals:
        """Answer all texts, as many at once as there are users; prompts are not timed.

        Raises:
            ConfigError: the arm's speculators cannot be used.
            HeadstartError: a request failed.
        """
        engine, machine = self._machine(Clock())
        scheduler = machine.scheduler(arm)
        return ArmTotals([self._answer(engine, scheduler, group) for group in self._groups(texts)])

    def hindsight(self, types: Sequence[str], texts: Sequence[Text]) -> float:
        """Tokens per second with lengths chosen by one who knows the texts, on the drafts of these
        speculators.

        Every text has the mean context. Raises as `run`.
        """
        clock = Clock()
        engine, machine = self._machine(clock)
        recorders: list[Recorder] = []

        def record(speculators: list[Speculator]) -> list[Speculator]:
            recorders.append(Recorder(speculators, clock))
            return list(recorders)

        scheduler = machine.scheduler(Arm("recorder", tuple(types)), record)
        guesses: list[list[Guesses]] = []
        for group in self._groups(texts):
            run = self._answer(engine, scheduler, group)
            guesses.append(recorders[0].guesses(run, [len(text.prompt) for text in group]))
        context = sum(len(text.prompt) + len(text.answer) // 2 for text in texts) / len(texts)
        row_ms = self.attention * context / 1000.0
        curve = [
            self.curve(rows) + row_ms * rows for rows in range(1, most_rows(self.num_users) + 1)
        ]
        return 1000.0 * Oracle([0.0, *curve], recorders[0].round_ms).best(guesses)

    def _machine(self, clock: Clock) -> tuple[SilentEngine, Machine]:
        engine = SilentEngine(self.vocab.size, most_rows(self.num_users), self.target.make_filters)
        machine = Machine(
            engine=PricedEngine(engine, self.curve, clock, self.attention),
            vocab=self.vocab,
            num_users=self.num_users,
            draft_engine=None if self.draft is None else lambda: self._draft_engine(clock),
            clock=clock,
            warm_up_seconds=WARM_UP_SECONDS,
        )
        return engine, machine

    def _draft_engine(self, clock: Clock) -> Engine:
        assert self.draft is not None
        make, curve = self.draft
        return PricedEngine(make(), curve, clock)

    def _groups(self, texts: Sequence[Text]) -> list[Sequence[Text]]:
        return [texts[i : i + self.num_users] for i in range(0, len(texts), self.num_users)]

    def _answer(self, engine: SilentEngine, scheduler: Scheduler, group: Sequence[Text]) -> Run:
        requests = [text.request(slot_id) for slot_id, text in enumerate(group)]
        engine.scripts = {
            slot_id: [*text.prompt, *text.answer] for slot_id, text in enumerate(group)
        }
        answer(scheduler, [replace(request, max_tokens=0) for request in requests])
        return answer(scheduler, requests)
