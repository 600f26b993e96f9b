"""Decides how many tokens to draft, for which slots, by which speculator; used by the scheduler.

Pure arithmetic: no clock, no model, no randomness; the caller measures, control decides. Three
parts, in milliseconds and tokens:

- acceptance (`calibration`): the probability that a draft token is accepted;
- cost (`cost`): the time of a target step by its rows, and of a draft model's calls;
- planner: `budget` assigns rows to draft tokens, `model_planner` decides how far draft models draft
  (`forecast` predicts their drafts), and `trials` whether those that do not pay are asked.

One step:

    controller.begin_text_step(...), begin_model_step(...)   which speculators are asked
    controller.survival(...), best(...)                      the value of a draft
    controller.grant(asked, step)                            how far draft models draft
    controller.assign_rows(plan)                             how many tokens of each are verified
    controller.read(record)                                  costs of the step, and labels
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from headstart.control.budget import Budget
from headstart.control.calibration import Calibration
from headstart.control.cost import CostTable
from headstart.control.model_planner import ModelDraftPlanner
from headstart.control.state import StateFile, encode, restore
from headstart.control.trials import AskingBudget
from headstart.control.values import DraftCall, Step

if TYPE_CHECKING:
    from headstart.scheduler.step import StepPlan, StepRecord


class Controller:
    """Calibration, costs and the budget of one worker. One thread at a time."""

    SAVED: ClassVar = ("cost", "_calibration", "_budget", "_model_planner")

    def __init__(self) -> None:
        self._calibration = Calibration()
        self.cost = CostTable()
        self._budget = Budget(self.cost)
        self._model_planner = ModelDraftPlanner(self.cost, self._budget, self._calibration)
        self._asking: dict[str, AskingBudget] = {}  # by text speculator
        # methods of one part
        self.survival = self._calibration.survival
        self.trust_scores = self._calibration.trust_scores
        self.best = self._budget.best
        self.learn_copy = self._budget.observe_copy
        self.learn_draft_costs = self._model_planner.calibrate
        self.begin_model_step = self._model_planner.begin_step
        self.grant = self._model_planner.grant

    def begin_text_step(self, speculator: str, num_slots: int) -> bool:
        """Whether to ask a text speculator for `num_slots` answers; call it once per step."""
        asking = self._asking.get(speculator)
        return asking is None or asking.begin_step(num_slots)

    def assign_rows(self, plan: StepPlan) -> None:
        """Write into the plan how many draft tokens each answer verifies (all 0: none in this
        step), what each saves, and padding rows if a wider step takes less time.
        """
        self._budget.assign_rows(plan)

    def read(self, record: StepRecord) -> None:
        """Update all estimates from a step: costs, and the fate of all offers so far."""
        plan = record.plan
        if plan.step is not None and plan.calls:
            models = [call for call in plan.calls if call.is_model]
            texts = [call for call in plan.calls if not call.is_model]
            if models:
                self._read_models(record, models, plan.step)
            if texts and plan.asking_ms > 0.0:
                self._read_texts(plan.asking_ms, texts, plan.step)
        for milliseconds in plan.copies_ms:
            self.learn_copy(milliseconds)
        if plan.num_rows:
            self._read_decode(record)
            self._budget.observe_arrivals(plan.num_new, record.cost_ms)
        self._calibration.read(record)
        for end in record.ended:
            if end.sequence.number in self._calibration.namespaces:
                self.end(end.sequence.number, end.stats.num_emitted)

    def _read_models(self, record: StepRecord, calls: Sequence[DraftCall], step: Step) -> None:
        """Compute from timings what each draft model cost or saved compared with a plain step."""
        plan = record.plan
        base, passes = step.num_base_rows, record.passes
        curve = self.cost.curve(max([base, *passes]), step.context, can_fill=step.can_pad)
        plain_ms, expected = curve[step.num_slots], sum(curve[rows] for rows in passes)
        num_verified = 0
        for answer in plan.answers:
            num_verified += answer.num_verified
        row_ms = max(0.0, expected - step.milliseconds((), curve)) / max(1, num_verified)
        more_ms = 0.0  # excess of the step over its expected time
        if record.is_timing_reliable:
            more_ms = max(-0.5 * expected, min(0.5 * expected, record.cost_ms - expected))
        token_ms = plain_ms / step.num_slots / self._budget.speedup
        for call in calls:
            name = call.speculator
            texts = {one.number: one.to_beat for one in call.asked}
            saved_ms = -more_ms / len(calls)
            for answer in record.results:
                sources = answer.sources
                num_rows = sources[: answer.num_verified].count(name)
                if not num_rows:
                    continue
                num_right = sources[: len(answer.emitted) - 1].count(name)
                to_beat = texts.get(answer.sequence.number, 0.0)
                # the text draft would have had as many rows
                saved_ms += num_right * token_ms - num_rows * row_ms
                saved_ms -= max(0.0, to_beat * token_ms - num_rows * row_ms)
            self._model_planner.observe(call, plain_ms, saved_ms)

    def _read_texts(self, shared_ms: float, calls: Sequence[DraftCall], step: Step) -> None:
        """Time of text speculators (`shared_ms` together), and expected savings of asking them."""
        # charge each speculator its own time: a slow one disables only itself
        num_asked = 0
        for call in calls:
            num_asked += len(call.asked)
            shared_ms -= call.milliseconds
        shared_ms = max(0.0, shared_ms) / num_asked
        slot_ms = self._budget.plain_ms(step) / step.num_slots
        for call in calls:
            name, saved = call.speculator, []
            asking = self._asking.setdefault(name, AskingBudget())
            asking.took(shared_ms + call.milliseconds / len(call.asked))
            for answer in [one.answer for one in call.asked]:
                if answer.sequence.policy.is_fixed:
                    continue  # asked in any case; its savings are not computed
                is_verified = name in answer.sources[: answer.num_verified]
                saved.append(answer.saved_ms if is_verified else 0.0)
            if saved:
                asking.earned(saved, slot_ms)

    def _read_decode(self, record: StepRecord) -> None:
        passes, context = record.passes, record.context
        is_timing_reliable = record.is_timing_reliable or self.cost.is_empty
        if is_timing_reliable and len(passes) == 1:
            self.cost.observe(passes[0], context, record.cost_ms)
            return
        each = [self.cost.milliseconds(rows, context) for rows in passes]
        ratio = record.cost_ms / sum(each)
        if not is_timing_reliable and ratio >= 1.0:
            return
        for rows, expected in zip(passes, each, strict=True):
            self.cost.observe(rows, context, ratio * expected)

    def begin(self, number: int, namespace: str) -> None:
        """Register a request; what is learned from its tokens is used in this namespace only."""
        self._calibration.begin(number, namespace)

    def end(self, number: int, num_answered: int) -> None:
        """Forget a request that ended or was preempted after `num_answered` tokens."""
        self._model_planner.end(number, num_answered)
        self._calibration.end(number)

    def describe(self) -> dict[str, Any]:
        """The estimates of control, JSON-ready."""
        return {
            "cost_ms": self.cost.describe(),
            "acceptance": self._calibration.describe(),
            "speedup": self._budget.speedup,
            "draft_models": self._model_planner.describe(),
        }

    def save(self, file: StateFile) -> None:
        """Save the learned state, atomically.

        Raises:
            OSError: the file cannot be written.
        """
        file.write(encode(self))

    def load(self, file: StateFile) -> str:
        """Load the saved state, if any, before anything is learned; returns the reason if not (then
        nothing changed).
        """
        if not file.state:
            return file.why_not
        try:
            for one in (Controller(), self):  # another form fails with the first
                restore(one, file.state)
                for table in one._calibration.tables.values():
                    table.loosen()
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            return f"it is of another version of Headstart ({error!r}); control starts over"
        return ""
