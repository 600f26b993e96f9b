"""Chooses who drafts for each answer, and how many of the draft tokens are verified.

Text speculators are asked first: a draft costs microseconds. Control then decides whether a draft
model runs, for which answers and how far, which draft each answer verifies, and how many of its
tokens. Lengths set by hand ("fixed") take the same path: the first speculator with a draft wins and
all of it is verified.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Any

from headstart.config import SpeculationConfig
from headstart.control.controller import Controller
from headstart.control.state import StateFile
from headstart.control.values import AskedAnswer, DraftCall, Step
from headstart.scheduler.guarded_speculator import GuardedSpeculator
from headstart.scheduler.model_drafting import ask_models
from headstart.scheduler.offers import GRAMMAR, Candidate, askable, candidate, consider
from headstart.scheduler.sequence import Sequence
from headstart.scheduler.step import BELOW_BREAK_EVEN, SequencePlan, StepPlan, StepRecord
from headstart.speculators import NOT_IMPORTED
from headstart.structures.checkpoints import Data
from headstart.types import NO_DRAFT, Draft, DraftRequest, Engine, Rows

log = logging.getLogger(__name__)


class Drafting:
    """All speculators of a worker, and the control over them."""

    def __init__(
        self,
        speculators: Iterable[GuardedSpeculator],
        config: SpeculationConfig,
        controller: Controller,
        unusable: str = "",
        state: StateFile | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`speculators` are in order of preference.

        Args:
            unusable: reason if no draft can be verified.
            state: file for the state of control.
            clock: times the speculators, so that control stops asking those that do not pay.
        """
        self.speculators = {speculator.name: speculator for speculator in speculators}
        self.controller = controller
        self.config = config
        self.unusable = unusable
        self.failure = ""  # of control, if it raised
        self._state = state
        self._clock = clock
        everyone = self.speculators.values()
        self._texts = [one for one in everyone if not one.is_model]
        self._models = [one for one in everyone if one.is_model]
        self._reading_ms = 0.0  # control's time for the last record with drafts
        self._begun: dict[int, Sequence] = {}  # by number, those that speculators have begun
        for speculator in everyone:
            if speculator.speculator.scores_are_probabilities:
                controller.trust_scores(speculator.name)

    def draft(self, plan: StepPlan, engine: Engine) -> None:
        """Write the drafts of all answers into the plan, and padding rows if they save time."""
        self.run_guarded(self._draft, plan, engine)
        if self.failure:
            plan.drop_drafts("control failed")

    def _draft(self, plan: StepPlan, engine: Engine) -> None:
        for answer in plan.answers:
            sequence = answer.sequence
            if not sequence.policy.reason and sequence.number not in self._begun:
                self._begin(sequence)
        answers = limit_drafts(plan, engine)
        # padding may help: a wider step can take less time
        can_pad = engine.padding_sequence is not None and not plan.prompts
        may_ask, resting, control = set[str](), dict[str, str](), self.controller
        if answers:
            may_ask = {s.name for s in self._texts if control.begin_text_step(s.name, len(answers))}
            resting = {s.name: control.begin_model_step(s.name) for s in self._models}
        # of fixed lengths, or forced
        always = (one.sequence.policy.is_fixed or one.sequence.legality for one in answers)
        if not may_ask and all(resting.values()) and not any(always):
            for answer in answers:
                answer.reasons |= resting
            if can_pad and len(plan.answers) > 1:
                self._describe_step(plan, engine, can_pad=can_pad)
                control.assign_rows(plan)
            return
        self._describe_step(plan, engine, can_pad=can_pad)
        started = self._clock()
        self._ask_texts(plan, answers, may_ask)
        asked = self._clock()
        if self._models:
            ask_models(self._models, resting, control, plan, answers)
        resumed = self._clock()
        control.assign_rows(plan)
        for answer in plan.answers:
            if answer.num_verified < len(answer.draft):
                _note_reasons(answer)
        asking = asked - started + self._clock() - resumed
        plan.asking_ms = self._reading_ms + 1000.0 * asking

    def read(self, record: StepRecord) -> None:
        """Update control from a step; the time of that is charged to asking."""
        started = self._clock()
        self.run_guarded(self.controller.read, record)
        if record.plan.calls:
            self._reading_ms = 1000.0 * (self._clock() - started)

    def run_guarded(self, work: Callable[..., Any], *what: Any) -> Any:
        """Do work that uses control, unless it has failed; an error disables it, and no request."""
        if not self.failure:
            try:
                return work(*what)
            except Exception as error:
                self.fail(error)
        return None

    def fail(self, error: Exception) -> None:
        """Disable drafting after control raised. Called while the exception is handled."""
        log.exception("control failed: nothing is drafted from now on")
        self.failure = f"{type(error).__name__}: {error}"

    def _describe_step(self, plan: StepPlan, engine: Engine, *, can_pad: bool) -> None:
        """Describe the step to control's cost model."""
        num = len(plan.answers)
        reading = [one.sequence for one in plan.prompts if one.sequence.leader is None]
        unread = sum([sequence.num_pending for sequence in reading])
        context = sum([len(answer.sequence.tokens) for answer in plan.answers]) // num
        again = [one.sequence.num_again for one in plan.answers if plan.rows is Rows.EQUAL]
        num_rows = num + sum(again) + min(unread, plan.max_prompt_rows)
        max_rows, tile = engine.max_batch_tokens, engine.attention_tile
        if (
            num_rows < tile
            and num > 1
            and not any(answer.sequence.policy.is_fixed for answer in plan.answers)
        ):
            max_rows = tile - 1  # in a tile, each row computes the cells of all answers
        plan.step = Step(
            num,
            num_rows,
            context,
            max_rows,
            engine.max_outputs,
            can_pad=can_pad,
            rows=plan.rows,
            again=again,
            num_reading=plan.num_running - num,
            num_first=len(reading) if unread <= plan.max_prompt_rows else 0,
        )

    def _ask_texts(
        self, plan: StepPlan, answers: list[SequencePlan], may_ask: Collection[str]
    ) -> None:
        """Ask each text speculator once for all answers; each answer takes the best draft."""
        # by answer, then speculator
        found: defaultdict[SequencePlan, dict[str, Draft]] = defaultdict(dict)
        for speculator in self._texts:
            name, asked, requests = speculator.name, [], []
            for answer in askable(answers, speculator, found):
                sequence = answer.sequence
                cells, namespace = sequence.cells, sequence.request.namespace
                assert cells is not None
                # lengths set by hand are always honoured
                if name in may_ask or sequence.policy.is_fixed:
                    limit, tokens = answer.limit, sequence.text_tokens
                    asked.append(AskedAnswer(answer, limit, NO_DRAFT))
                    requests.append(DraftRequest(cells.seq_id, tokens, limit, namespace=namespace))
            if not asked:
                continue
            drafts = speculator.propose(requests)
            plan.calls.append(DraftCall(name, asked, 1000.0 * speculator.last_seconds))
            for one, draft in zip(asked, drafts, strict=True):
                one.draft = draft
                if draft.tokens:
                    found[one.answer][name] = draft
                else:
                    one.answer.miss(name, draft.reason)
        for answer in answers:
            sampler = answer.sequence.sampler
            if found[answer] or sampler.legality or sampler.thoughts:
                self._choose_text(plan, answer, found[answer])

    def _choose_text(self, plan: StepPlan, answer: SequencePlan, drafts: dict[str, Draft]) -> None:
        """Take the first draft with fixed lengths, the most valuable one with auto."""
        sequence, control = answer.sequence, self.controller
        sampler = sequence.sampler
        if sampler.thoughts and (closing := sampler.closing()[: answer.limit]):
            forced = Draft(list(closing), [1.0] * len(closing), GRAMMAR)
            answer.take(*candidate(answer, (forced,), control))
            return
        candidates: list[Candidate] = []
        for name in sequence.policy.types:
            if name in drafts and (found := consider(answer, drafts[name], control)):
                candidates.append(found)
        if not candidates and (forced_only := consider(answer, NO_DRAFT, control)):
            candidates.append(forced_only)
        best: int | None = 0 if candidates else None
        if len(candidates) > 1 and not sequence.policy.is_fixed:
            assert plan.step is not None
            best = control.best([survival for *_, survival in candidates], plan.step)
        if best is not None:
            answer.take(*candidates[best])

    def _begin(self, sequence: Sequence) -> None:
        request = sequence.request
        self.controller.begin(sequence.number, request.namespace)  # may raise: notify none
        self._begun[sequence.number] = sequence
        for speculator in self.speculators.values():
            tokens, namespace = sequence.text_tokens, request.namespace
            if speculator.is_model:  # whose cache is shared like the target's
                tokens, namespace = sequence.model_tokens, sequence.prompt_namespace
            speculator.begin(sequence.seq_id, tokens, namespace)

    def end(self, sequence: Sequence) -> None:
        """Make speculators forget a sequence that leaves its cells or lost a part of its text."""
        is_begun = self._begun.pop(sequence.number, None) is not None
        name = "end_private" if sequence.request.store is False else "end"
        for speculator in self.speculators.values():
            if is_begun:
                speculator.call(name, sequence.seq_id)
            speculator.failed.discard(sequence.seq_id)  # the next request's prompt is shown to it

    def accept(self, results: list[SequencePlan]) -> None:
        told = []
        for result in results:
            if result.sequence.number in self._begun:
                told.append((result.seq_id, result.emitted, result.num_accepted))
        for speculator in self.speculators.values():
            speculator.accept(told)

    def save_sequences(self, seq_id: int, namespace: str) -> dict[str, Data]:
        """Cached state of each speculator for an idle sequence, by name."""
        saved = {
            name: one.call("save_sequence", seq_id, namespace, about=())  # no request has it
            for name, one in self.speculators.items()
        }
        return {name: data for name, data in saved.items() if data is not None}

    def restore_sequences(self, seq_id: int, data: dict[str, Data], namespace: str) -> None:
        """Restore the saved state of speculators; the others recompute theirs when needed."""
        for name, saved in data.items():
            self.speculators[name].call("restore_sequence", seq_id, saved, namespace)

    def time_models(self, clock: Callable[[], float]) -> None:
        """Measure what draft models cost, before the first request."""
        for speculator in self.speculators.values():
            if speculator.is_model and (prices := speculator.time_decodes(clock)) is not None:
                self.run_guarded(self.controller.learn_draft_costs, speculator.name, *prices)

    def describe(self) -> dict[str, Any]:
        return {
            "mode": self.config.mode.value,
            "types": list(self.speculators),
            "n_max": self.config.longest_draft(self.config.mode),
            "n_min": self.config.draft_min,
            "p_min": self.config.draft_p_min,
            "unusable": self.unusable,
            "not_imported": dict(NOT_IMPORTED),
            "state": "" if self._state is None else str(self._state.path),
            "speculators": {
                name: speculator.describe() for name, speculator in self.speculators.items()
            },
        }

    def describe_control(self) -> dict[str, Any]:
        """The estimates of control, JSON-ready; `failure` says why it is off."""
        described = self.run_guarded(self.controller.describe) or {}
        return {"failure": self.failure, **described}

    def close(self) -> None:
        """Let speculators write their persistent data, with what may be kept of running answers."""
        for sequence in list(self._begun.values()):
            self.end(sequence)
        for speculator in self.speculators.values():
            speculator.close()

    def save(self) -> None:
        """Save the state of control; failures are logged only."""
        if self._state is None or self.failure:
            return
        try:
            self.controller.save(self._state)
        except OSError as error:
            log.warning("what control learned is not kept: %s", error)
        except Exception as error:
            self.fail(error)


def _note_reasons(answer: SequencePlan) -> None:
    """Record why some tokens of the draft are not verified."""
    sources, length = answer.sources, answer.num_verified
    if length:
        left_out = set(sources[length:]).difference(sources[:length])
        answer.reasons |= dict.fromkeys(left_out, BELOW_BREAK_EVEN)
    else:
        is_short = len(sources) < answer.sequence.policy.n_min
        answer.reason = "shorter than n_min" if is_short else BELOW_BREAK_EVEN


def limit_drafts(plan: StepPlan, engine: Engine) -> list[SequencePlan]:
    """Bound each answer's draft; returns the answers that may draft. The others note the reason.

    Bounded by what it may still emit (the step adds one token of its own), by its context, by
    what the cache can roll back, by a fair share of the batch's rows and outputs, and by what the
    user wants.
    """
    may_draft = []
    num = len(plan.answers)
    reserved = len(plan.prompts)  # those that end in this step need one output each
    outputs = (engine.max_outputs - reserved) // num - 1
    again = sum([answer.sequence.num_again for answer in plan.answers])
    rows = (engine.max_batch_tokens - reserved - again) // num - 1
    share, bound = min(outputs, rows), "batch full"
    if engine.max_rollback < share:
        share, bound = engine.max_rollback, "memory takes nothing back"
    for answer in plan.answers:
        sequence, policy = answer.sequence, answer.sequence.policy
        limit, reason = 0, policy.reason
        if not reason:
            limit, reason = share, bound
            if (room := engine.context_size - len(sequence.tokens) - 1) < limit:
                limit, reason = room, "context full"
            if (left := sequence.num_left - 1) < limit:
                limit, reason = left, "max_tokens reached"
            if sequence.num_again and policy.is_fixed:  # else rejections could add up
                limit, reason = 0, "accepted tokens are decoded again"
        if limit > 0:
            limit = min(limit, policy.n_max)
            if (thoughts := sequence.sampler.thoughts) is not None:
                limit = min(limit, thoughts.num_free)
        answer.limit = limit
        if limit > 0:
            may_draft.append(answer)
        else:
            answer.reason = reason
    return may_draft
