"""What asking the speculators takes, told to control, which says who is asked at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headstart.control.controller import Controller
from headstart.control.values import BatchPlan, Step
from headstart.scheduler.deferred import DeferredCalls
from headstart.scheduler.draft_plan import DraftPlan
from headstart.scheduler.guarded_speculator import GuardedSpeculator
from headstart.scheduler.slot import ActiveRequest
from headstart.types import DraftMode


def no_clock() -> float:
    """Asking takes no time: everybody is asked in every step, so that tests are exact."""
    return 0.0


class AskTimer:
    """Of one step at a time. What draft models compute is not in it: that is priced by itself."""

    def __init__(
        self,
        controller: Controller,
        clock: Callable[[], float],
        texts: Sequence[str],
        models: Sequence[str],
        deferred: DeferredCalls,
    ) -> None:
        self._controller, self._clock, self._deferred = controller, clock, deferred
        self._texts, self._models = texts, models
        self._asked: list[tuple[str, DraftPlan]] = []
        self._own_ms: dict[str, float] = {}  # of each speculator for a slot, if there are several
        self._started = self._spent = 0.0

    def sleeps(self, generating: Sequence[ActiveRequest]) -> bool:
        """Whether nobody is asked in this step: nobody earned it for some time."""
        if not self._controller.may_sleep(self._texts):
            return False
        for active in generating:
            policy = active.policy
            if policy is None or policy.reason or policy.mode is not DraftMode.AUTO:
                return False
            if active.legality is not None:  # it says tokens itself
                return False
        seq_ids = [active.slot_id for active in generating]
        return self._controller.sleeps(self._texts, self._models, seq_ids)

    def start(self) -> None:
        """Texts are asked, or their drafts planned."""
        self._started = self._clock()

    def stop(self) -> None:
        self._spent += self._clock() - self._started

    def choose(self, name: str, plans: Sequence[DraftPlan]) -> list[DraftPlan]:
        """Those for which a text speculator is asked; what users set by hand is always done."""
        wants = self._controller.wants_text
        chosen = [plan for plan in plans if plan.is_fixed or wants(name, plan.seq_id)]
        self._asked += [(name, plan) for plan in chosen]
        return chosen

    def note(self, speculator: GuardedSpeculator, num_slots: int) -> None:
        """It was asked for so many slots."""
        if len(self._texts) > 1:
            self._own_ms[speculator.name] = 1000.0 * speculator.last_seconds / num_slots

    def finish(self, plans: Sequence[DraftPlan], batch: BatchPlan, step: Step) -> None:
        """The step is planned."""
        self.stop()
        asked, milliseconds = self._asked, 1000.0 * self._spent
        own_ms = self._own_ms
        self._asked, self._spent, self._own_ms = [], 0.0, {}
        if not asked or milliseconds <= 0.0:
            return

        def observe() -> None:
            saved = batch.saved_ms or [0.0] * len(plans)
            by_seq = {plan.seq_id: ms for plan, ms in zip(plans, saved, strict=True)}
            earned = [
                (name, plan.seq_id, by_seq[plan.seq_id] * (name in plan.proposal.speculators))
                for name, plan in asked
            ]
            self._controller.observe_asking(earned, milliseconds, step, own_ms)

        self._deferred.add(observe)

    def time_models(self, names: Sequence[str], step: Step, started: float) -> None:
        """Whether and how far these draft models may draft was decided since `started`."""
        milliseconds = 1000.0 * (self._clock() - started) / len(names)
        for name in names if milliseconds > 0.0 else ():
            self._controller.observe_model_planning(name, milliseconds, step)

    def now(self) -> float:
        return self._clock()
