"""How many tokens to draft, for which slots, by which speculator: what the scheduler calls.

Pure arithmetic: no clock, no model, no randomness; the caller measures, control decides. Three
instruments, in milliseconds and tokens:

- acceptance (`calibration`, with `token_odds`): the probability that a draft token is accepted;
- cost (`cost`, with `cost_samples` and `draft_cost`): what a step of the target takes by its rows,
  and what a draft model takes;
- planner: `budget` gives rows to draft tokens (`rollback` says what a draft costs that cannot just
  be cut off), `model_planner` decides how far draft models draft before they do (`forecast` says
  what to expect of them, `catch_up` what they read first, `probes` when to look again at one that
  is off), and `asking` who is asked at all.

One step:

    controller.wants_text(speculator, seq_id)                 before a text speculator is asked
    controller.survival(speculator, confidence, ...)          of each draft of a text
    controller.plan_models({speculator: slots}, step)         before draft models run
    controller.plan(slot_drafts, step)                        before the target runs
    controller.observe_asking(earned, milliseconds, step)     when the step is planned
    controller.observe_step(rows, context, milliseconds)      after the target ran
    controller.record(outcome)                                when a draft's fate is known

`record` is told of every draft once, also of one that was not verified: when the text disagrees
with it, or has reached its end. So drafts that cost nothing keep control up to date while
speculation is off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headstart.control.asking import Asking
from headstart.control.budget import Budget, SpeedupAverage
from headstart.control.calibration import SAVED_TABLES, Calibration
from headstart.control.codec import encode, number, saved, table
from headstart.control.cost import CostTable
from headstart.control.cost_samples import Sample
from headstart.control.model_planner import ModelDraftPlanner
from headstart.control.model_state import ModelState
from headstart.control.rollback import RollbackPrice
from headstart.control.state import read_state, write_state
from headstart.control.values import (
    Allowance,
    BatchPlan,
    ModelDraftCall,
    ModelSlot,
    Outcome,
    SlotDraft,
    Step,
)


class Controller:
    """Calibration, costs and the budget of one worker. One thread at a time."""

    def __init__(self) -> None:
        self._trusted: set[str] = set()
        self._calibration = Calibration()
        self._cost = CostTable()
        self._budget = Budget(self._cost)
        self._model_planner = ModelDraftPlanner(self._cost, self._budget, self._calibration)
        self._rollback = RollbackPrice(self._cost, self._budget)
        self._asking: dict[str, Asking] = {}  # by text speculator

    def trust_scores(self, speculator: str) -> None:
        """This speculator's scores are probabilities, as a draft model's are: believe them until
        counts say otherwise.
        """
        self._trusted.add(speculator)
        self._calibration.trust_scores(speculator)

    def survival(
        self, speculator: str, confidence: Sequence[float], seq_id: int, tokens: Sequence[int] = ()
    ) -> list[float]:
        """Probability that draft tokens 0..i are all accepted, for each i.

        tokens: the one before the draft and the draft's; empty: not known.
        """
        return self._calibration.survival(speculator, confidence, seq_id, tokens)

    def best(self, survivals: Sequence[Sequence[float]], step: Step) -> int | None:
        """Index of the draft worth most to a slot; None if no draft has a token."""
        return self._budget.best(survivals, step)

    def plan(self, slots: Sequence[SlotDraft], step: Step, sunk_ms: float = 0.0) -> BatchPlan:
        """Draft tokens to verify per slot (one entry per generating slot); all 0: off for this
        step. And rows that are added because a wider step takes less time.
        """
        return self._budget.plan(self._rollback.discounted(slots, step), step, sunk_ms)

    def observe_copy(self, milliseconds: float) -> None:
        """The state of a sequence was copied so that its draft can be taken back."""
        self._rollback.observe(milliseconds)

    def wants_text(self, speculator: str, seq_id: int) -> bool:
        """Whether a text speculator should be asked for this slot; call it once a step."""
        asking = self._asking.get(speculator)
        return asking is None or asking.wants(seq_id)

    def may_sleep(self, texts: Sequence[str]) -> bool:
        """Whether `sleeps` may say so: each of these speculators waits for some slot."""
        return all(name in self._asking and self._asking[name].waits for name in texts)

    def sleeps(self, texts: Sequence[str], models: Sequence[str], seq_ids: Sequence[int]) -> bool:
        """Whether no speculator is to be asked for any of these slots; then this step counts as
        one of their wait.
        """
        if not all(
            (asking := self._asking.get(name)) is not None and asking.sleeps(seq_ids)
            for name in texts
        ) or not all(self._model_planner.sleeps(name) for name in models):
            return False
        for name in texts:
            for seq_id in seq_ids:
                self._asking[name].wants(seq_id)
        for name in models:
            self._model_planner.wants(name)
        return True

    def observe_asking(
        self,
        earned: Sequence[tuple[str, int, float]],
        milliseconds: float,
        step: Step,
        own_ms: Mapping[str, float] | None = None,
    ) -> None:
        """Learn what asking text speculators takes, planning included, and what it earned.

        Args:
            earned: (speculator, seq_id, milliseconds that its draft is expected to save).
            milliseconds: of all of it.
            step: the step.
            own_ms: by speculator, what it took itself for each slot; the rest is shared evenly. So
                a slow one silences itself only.
        """
        own_ms, slot_ms = own_ms or {}, self._budget.slot_ms(step)
        if own_ms:
            milliseconds -= sum([own_ms.get(name, 0.0) for name, _, _ in earned])
        each = max(0.0, milliseconds) / len(earned)
        for speculator in dict.fromkeys([name for name, _, _ in earned]):
            if speculator not in self._asking:
                self._asking[speculator] = Asking()
            self._asking[speculator].took(each + own_ms.get(speculator, 0.0))
        for speculator, seq_id, saved_ms in earned:
            self._asking[speculator].earned(seq_id, saved_ms, slot_ms)

    def wants_model(self, speculator: str) -> bool:
        """Whether to plan for a draft model in this step; call it once a step."""
        return self._model_planner.wants(speculator)

    def observe_model_planning(self, speculator: str, milliseconds: float, step: Step) -> None:
        """Learn what planning for a draft model takes."""
        self._model_planner.planned(speculator, milliseconds, step)

    def plan_model(
        self, speculator: str, slots: Sequence[ModelSlot], step: Step
    ) -> list[Allowance]:
        """How far a draft model may draft for each slot."""
        return self.plan_models({speculator: slots}, step)[speculator]

    def plan_models(
        self, asked: Mapping[str, Sequence[ModelSlot]], step: Step
    ) -> dict[str, list[Allowance]]:
        """How far each of several models may draft; at most one of them drafts for a slot."""
        if handicap := self._rollback.tokens(step):
            asked = {
                name: [replace(slot, rival=slot.rival + handicap) for slot in slots]
                for name, slots in asked.items()
            }
        return self._model_planner.plan_together(asked, step)

    def prompt_rows(self, least: int, most: int, step: Step, milliseconds: float) -> int:
        """Prompt rows that a step may have beside its base rows: as many as the time allows.

        At least `least` whatever they take, then twice as many as long as the step is expected to
        take no more than `milliseconds`, up to `most`.
        """
        rows = min(least, most)
        while rows < most:
            more = min(2 * rows, most)
            expected = self._cost.milliseconds(step.num_base_rows + more, step.context)
            if expected is None or expected > milliseconds:
                break
            rows = more
        return rows

    def observe_step(
        self, rows: int, context: int, milliseconds: float, *, is_exact: bool = True
    ) -> None:
        """The target decoded `rows` rows in this time; `context` in tokens per row.

        is_exact: it may not have taken less.
        """
        graphs = self._budget.graphs
        if graphs.decoded(rows):
            milliseconds = _without(milliseconds, graphs.change_ms)
        expected = None if is_exact else self._cost.milliseconds(rows, context)
        if expected is None or milliseconds < expected:
            self._cost.observe(rows, context, milliseconds)

    def learn_costs(self, warm_up: Sequence[Sample], change_ms: float = 0.0) -> None:
        """Some decodes of the target before its first request; at least one.

        Each had another shape than the one before, and took `change_ms` longer for that.
        """
        self._budget.graphs.change_ms = change_ms
        if change_ms:
            warm_up = [
                sample._replace(
                    milliseconds=_without(sample.milliseconds, change_ms),
                    reference_ms=_without(sample.reference_ms, change_ms),
                )
                for sample in warm_up
            ]
        self._cost.calibrate(warm_up)

    @property
    def holds_width(self) -> bool:
        """Whether a step may be padded to the width of the last one."""
        return self._budget.graphs.change_ms > 0.0

    def knows_costs(self, num_rows: int) -> bool:
        """Whether decodes of up to `num_rows` rows were measured."""
        return self._cost.is_known(num_rows)

    def is_probe(self, speculator: str) -> bool:
        """Whether what this draft model may draft now is only a probe, whose time is saved for."""
        return self._model_planner.is_probe(speculator)

    def observe_draft(self, run: ModelDraftCall, step: Step) -> None:
        """A draft model ran; called before models are planned again."""
        self._model_planner.observe(run, step)

    def learn_draft_costs(self, speculator: str, round_ms: float, token_ms: float) -> None:
        """What a draft model's rounds and reading a token take, before its first request."""
        self._model_planner.calibrate(speculator, round_ms, token_ms)

    def record(self, outcome: Outcome) -> None:
        """A draft's fate is known, verified or not."""
        self._calibration.record(outcome)
        self._model_planner.record(outcome)

    def begin(self, seq_id: int, namespace: str) -> None:
        """A request begins; what its tokens teach is used in this namespace only."""
        self._calibration.begin(seq_id, namespace)
        self._model_planner.begin()

    def end(self, seq_id: int, num_answered: int) -> None:
        """The request is over, or waits again, after `num_answered` tokens."""
        self._calibration.end(seq_id)
        for asking in self._asking.values():
            asking.end(seq_id)
        self._model_planner.end(seq_id, num_answered)

    def describe(self) -> dict[str, Any]:
        """What control believes, JSON-ready."""
        return {
            "cost_ms": self._cost.describe(),
            "acceptance": self._calibration.describe(),
            "speedup": self._budget.describe(),
            "draft_models": self._model_planner.describe(),
            "change_ms": round(self._budget.graphs.change_ms, 4),
        }

    def save(self, path: Path) -> None:
        """Write what was learned, atomically.

        Raises:
            OSError: it cannot be written.
        """
        state = {
            "cost": self._cost,
            "acceptance": self._calibration.tables,
            "speedup": self._budget.averages,
            "draft_models": self._model_planner.drafters,
            "change_ms": self._budget.graphs.change_ms,
        }
        write_state(path, encode(state))

    def load(self, path: Path) -> str | None:
        """Take over what was saved; None if it worked, else why not (and nothing was changed)."""
        fresh = Controller()
        try:
            state = read_state(path)
            fresh._calibration.tables = SAVED_TABLES(state["acceptance"])
            fresh._cost = saved(CostTable)(state["cost"])
            averages = table(int, saved(SpeedupAverage))(state["speedup"])
            models = table(str, saved(ModelState))(state["draft_models"])
            fresh._budget = Budget(fresh._cost, averages)
            fresh._budget.graphs.change_ms = number(0.0)(state["change_ms"])
            fresh._rollback = RollbackPrice(fresh._cost, fresh._budget)
            fresh._model_planner = ModelDraftPlanner(
                fresh._cost, fresh._budget, fresh._calibration, models
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return f"{type(error).__name__}: {error}"
        for speculator in self._trusted:
            fresh.trust_scores(speculator)
        self.__dict__.update(fresh.__dict__)
        return None


def _without(milliseconds: float, change_ms: float) -> float:
    """What a step takes whose graph was not sent: never less than a tenth."""
    return max(0.1 * milliseconds, milliseconds - change_ms)
