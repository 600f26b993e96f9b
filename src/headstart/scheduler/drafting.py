"""Who drafts for which slot, and how many of the tokens are verified.

Text speculators are asked first: a guess costs microseconds. Control then says whether a model
should run, for whom and how far, which draft each slot verifies, and how many of its tokens. Lengths
set by hand ("fixed") take the same path: the first speculator with a draft wins and all of it is
verified.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headstart.config import SpeculationConfig
from headstart.control.controller import Controller
from headstart.control.values import NO_ALLOWANCE, DraftRun, Step
from headstart.errors import InvalidParameterError
from headstart.scheduler.batching import Room
from headstart.scheduler.desk import BELOW_BREAK_EVEN, Desk, Policy, model_requests
from headstart.scheduler.proposal import NO_PROPOSAL, Proposal, Shadows
from headstart.scheduler.request import SpeculativeParams
from headstart.scheduler.seat import FAILED, Seat
from headstart.scheduler.slot import Run, Slot
from headstart.scheduler.tally import Tally
from headstart.types import Decoded, Draft, SequenceMode

log = logging.getLogger(__name__)


class Drafting:
    """All speculators of a worker, and control over them."""

    def __init__(
        self,
        seats: Sequence[Seat],
        config: SpeculationConfig,
        controller: Controller,
        unusable: str = "",
        state: Path | None = None,
    ) -> None:
        """Take the speculators in order of preference.

        Args:
            unusable: why no draft can be verified, if so.
            state: file that keeps what control learned.
        """
        self.seats = {seat.name: seat for seat in seats}
        self.controller = controller
        self.config = config
        self.unusable = unusable
        self._state = state
        self.observes = any(seat.wants_logits for seat in seats)
        self.reasons: Counter[str] = Counter()
        for seat in seats:
            if seat.speculator.scores_are_probabilities:
                controller.declare_model(seat.name)

    def time_models(self, clock: Callable[[], float]) -> None:
        """Measure what draft models cost, before the first request."""
        for seat in self.seats.values():
            if seat.is_model and (prices := seat.time_decodes(clock)) is not None:
                self.controller.learn_draft_costs(seat.name, *prices)

    def check(self, params: SpeculativeParams) -> None:
        """Raises InvalidParameterError if a request asks for drafts that this server cannot make.

        A bare `n_max` is no such wish: clients of llama-server always send it.
        """
        if not self.seats:
            self._check_off(params)
        for name in params.types or ():
            if name not in self.seats:
                loaded = ", ".join(self.seats) or "none"
                raise InvalidParameterError(
                    f"speculative.types names {name!r} but this server loaded {loaded}; leave it out or start with "
                    "--spec-type"
                )

    def _check_off(self, params: SpeculativeParams) -> None:
        wish = f"speculative.types names {params.types[0]!r}" if params.types else ""
        if params.mode is not None and params.mode is not SequenceMode.OFF:
            wish = f"speculative.mode is {params.mode.value}"
        if not wish:
            return
        started, remedy = "--spec off", "with --spec auto"
        if self.config.mode is not SequenceMode.OFF:
            started, remedy = "--spec-type none", "without it"
        raise InvalidParameterError(
            f"{wish} but this server was started with {started}; start it {remedy}, or leave the field out"
        )

    def policy(self, params: SpeculativeParams) -> Policy:
        """Merge a request's wishes with the server's settings."""
        mode = params.mode or self.config.mode
        if params.mode is None and params.n_max and mode is SequenceMode.OFF:
            mode = SequenceMode.AUTO  # the server drafts only on request, and this is one
        limit = self.config.longest_draft(SequenceMode.AUTO)  # the batch and the cache are made for no more
        n_max = min(limit, self.config.longest_draft(mode) if params.n_max is None else params.n_max)
        types = tuple(self.seats) if params.types is None else params.types
        loaded = tuple(dict.fromkeys(name for name in types if name in self.seats))
        reason = self.unusable or ("" if self.seats else "no speculator is loaded")
        if not reason and (mode is SequenceMode.OFF or n_max == 0 or not loaded):
            reason = "off" if params == SpeculativeParams() or not limit else "disabled by request"
        return Policy(
            mode,
            loaded,
            n_max,
            self.config.draft_min if params.n_min is None else params.n_min,
            self.config.draft_p_min if params.p_min is None else params.p_min,
            reason,
        )

    def propose(
        self, slots: Sequence[Slot], rooms: Sequence[Room], num_prompt_rows: int, limits: tuple[int, int]
    ) -> None:
        """Set `run.proposal` of every generating slot.

        Args:
            slots: those that generate.
            rooms: what each may verify.
            num_prompt_rows: prompt rows that will share the batch.
            limits: most rows and most outputs of the batch.
        """
        desks = [self._desk(slot, room) for slot, room in zip(slots, rooms, strict=True)]
        drafting = [d for d in desks if d.room > 0]
        if drafting:
            context = sum(len(d.run.tokens) for d in desks) // len(desks)
            step = Step(len(desks), len(desks) + num_prompt_rows, context, *limits)
            self._ask_text(drafting)
            for desk in drafting:
                self._choose_text(desk, step)
            sunk_ms = self._ask_models(drafting, step)
            lengths = self.controller.plan([d.offer() for d in desks], step, sunk_ms)
            for desk, length in zip(desks, lengths, strict=True):
                desk.settle_on(length)
        self._note_reasons(desks)

    def drop(self, slots: Sequence[Slot]) -> None:
        """The cache has no cells for drafts: verify none in this step."""
        for slot in slots:
            run = slot.run
            if run is not None and run.proposal.head.tokens:
                for draft in (run.proposal.head, run.proposal.tail):
                    if draft.tokens:
                        self._note_miss(run, draft.speculator, "context full")
                self._note_reason(run, "context full")
                run.proposal = NO_PROPOSAL

    def observe(self, decoded: Decoded) -> None:
        """Show the verified rows to the speculators that asked for them."""
        for seat in self.seats.values():
            seat.observe(decoded)

    def settle(self, slot: Slot, emitted: Sequence[int], num_accepted: int) -> None:
        """The target emitted these tokens: book the draft, teach control and the speculators."""
        run = slot.run
        assert run is not None
        if run.policy is None or run.policy.reason:
            return
        if run.proposal.head.tokens:
            run.count_draft(num_accepted)
            self._book(run, num_accepted)
        for outcome in run.shadows.follow(slot.slot_id, emitted):
            self.controller.record(outcome)
        for seat in self.seats.values():
            seat.accept(slot.slot_id, emitted, num_accepted)

    def end(self, slot: Slot) -> None:
        """The request leaves its slot."""
        run = slot.run
        if run is None or run.policy is None:
            return
        if not run.policy.reason:
            for seat in self.seats.values():
                seat.end(slot.slot_id)
            self.controller.end(slot.slot_id, run.num_emitted)
        run.shadows, run.policy = Shadows(), None

    def describe(self) -> dict[str, Any]:
        """For /props: what is on, and why not."""
        return {
            "mode": self.config.mode.value,
            "types": list(self.seats),
            "n_max": self.config.longest_draft(self.config.mode),
            "n_min": self.config.draft_min,
            "p_min": self.config.draft_p_min,
            "unusable": self.unusable,
            "speculators": {name: seat.describe() for name, seat in self.seats.items()},
        }

    def close(self) -> None:
        """Write what is durable."""
        self.save()
        for seat in self.seats.values():
            seat.close()

    def save(self) -> None:
        """Keep what control learned; a failure costs only that."""
        if self._state is None:
            return
        try:
            self.controller.save(self._state)
        except OSError as error:
            log.warning("what control learned is not kept: %s", error)

    def _desk(self, slot: Slot, room: Room) -> Desk:
        run = slot.run
        assert run is not None
        if run.policy is None:
            run.policy = self.policy(run.request.speculative)
            if not run.policy.reason:
                self.controller.begin(slot.slot_id, run.request.namespace)
                for name in run.policy.types:
                    run.tallies.setdefault(name, Tally())  # of before, if it was put back into the queue
                for seat in self.seats.values():
                    seat.begin(slot.slot_id, run.tokens, run.request.namespace)
        run.proposal = NO_PROPOSAL
        desk = Desk(slot.slot_id, run, run.policy, min(room.tokens, run.policy.n_max))
        if run.policy.reason:
            desk.room, desk.reason = 0, run.policy.reason
        elif desk.room <= 0:
            desk.reason = room.reason
        return desk

    def _ask_text(self, desks: Sequence[Desk]) -> None:
        for name, seat in self.seats.items():
            if seat.is_model:
                continue
            asked = [d for d in desks if d.wants(seat)]
            if not asked:
                continue
            for desk, draft in zip(asked, seat.propose([d.request() for d in asked]), strict=True):
                if self._book_answer(desk, seat, draft):
                    desk.drafts[name] = draft

    def _choose_text(self, desk: Desk, step: Step) -> None:
        """Fixed lengths take the first draft; auto takes the one that is worth most."""
        drafts = [desk.drafts[name] for name in desk.policy.types if name in desk.drafts]
        if not drafts:
            return
        lines = [[desk.run.tokens[-1], *draft.tokens] for draft in drafts]
        for draft, tokens in zip(drafts, lines, strict=True):
            desk.run.shadows.watch(draft, tokens)
        if desk.is_fixed:
            desk.take(Proposal(drafts[0]), [1.0] * len(drafts[0].tokens))
            return
        survivals = [
            self.controller.survival(draft.speculator, draft.confidence, desk.seq_id, tokens)
            for draft, tokens in zip(drafts, lines, strict=True)
        ]
        best = self.controller.best(survivals, step)
        if best is not None:
            desk.take(Proposal(drafts[best]), survivals[best])

    def _ask_models(self, desks: Sequence[Desk], step: Step) -> float:
        """Let model speculators draft where control expects it to pay; returns the milliseconds spent."""
        spent = 0.0
        for seat in self.seats.values():
            candidates = [d for d in desks if d.wants(seat)] if seat.is_model else []
            if not candidates:
                continue
            allowances = self.controller.plan_model(seat.name, [d.model_slot(seat) for d in candidates], step)
            for desk, allowance in zip(candidates, allowances, strict=True):
                has_failed = not seat.can_draft(desk.seq_id)  # to say its backlog
                desk.grant = NO_ALLOWANCE if has_failed else allowance
                if not desk.grant.max_tokens:
                    desk.miss(seat, FAILED if has_failed else BELOW_BREAK_EVEN)
            if granted := [d for d in candidates if d.grant.max_tokens]:
                spent += self._run_model(seat, granted, step)
        return spent

    def _run_model(self, seat: Seat, desks: Sequence[Desk], step: Step) -> float:
        num_read = sum(desk.backlog(seat) for desk in desks)
        with model_requests(desks) as requests:
            drafts = seat.propose(requests)
        milliseconds = 1000.0 * seat.last_seconds
        seq_ids, grants, scores = [], [], []
        for desk, draft in zip(desks, drafts, strict=True):
            if draft.is_ready:
                seq_ids.append(desk.seq_id)
                grants.append(desk.grant)
                scores.append(draft.confidence)
                num_read += len(desk.proposal.head.tokens) if desk.continues else 0
            else:
                num_read -= desk.backlog(seat)  # what it left for later
        if drafts[0].reason != FAILED:  # then for all, and nothing is known of what it read
            run = DraftRun(seat.name, seq_ids, grants, scores, max(0, num_read), milliseconds)
            self.controller.observe_draft(run, step)
        for desk, draft in zip(desks, drafts, strict=True):
            if self._book_answer(desk, seat, draft):
                self._choose_model(desk, seat, draft)
        return milliseconds

    def _choose_model(self, desk: Desk, seat: Seat, draft: Draft) -> None:
        """Append the model's draft to the text's, or take it instead if it is worth more."""
        head = desk.proposal.head if desk.continues else Draft()
        tokens = [head.tokens[-1] if head.tokens else desk.run.tokens[-1], *draft.tokens]
        desk.run.shadows.watch(draft, tokens, head.tokens)
        if desk.is_fixed:
            desk.take(Proposal(draft), [1.0] * len(draft.tokens))
            return
        survival = self.controller.survival(seat.name, draft.confidence, desk.seq_id, tokens)
        if head.tokens:
            reached = desk.survival[-1]
            desk.take(Proposal(head, draft), [*desk.survival, *(reached * s for s in survival)])
        elif sum(survival) > sum(desk.survival):
            desk.take(Proposal(draft), survival)

    def _book_answer(self, desk: Desk, seat: Seat, draft: Draft) -> bool:
        """Count what a speculator answered; returns whether there is a draft."""
        has_draft = len(draft.tokens) > 0
        desk.run.tallies[seat.name].ask(has_draft)
        seat.tally.ask(has_draft)
        if not has_draft:
            desk.miss(seat, draft.reason or "no match")
        return has_draft

    def _book(self, run: Run, num_accepted: int) -> None:
        """Count the draft that was verified for those who made it."""
        start = 0
        for draft in (run.proposal.head, run.proposal.tail):
            if num_drafted := len(draft.tokens):
                outcome = (start, num_drafted, max(0, min(num_drafted, num_accepted - start)))
                run.tallies[draft.speculator].verify(outcome)
                self.seats[draft.speculator].tally.verify(outcome)
                start += num_drafted

    def _note_reasons(self, desks: Sequence[Desk]) -> None:
        """Say of every slot and speculator why nothing of it is verified in this step."""
        for desk in desks:
            run, proposal, seats = desk.run, desk.run.proposal, [self.seats[name] for name in desk.policy.types]
            if not proposal.head.tokens:
                self._note_reason(run, desk.reason or desk.why_not(seats[0]))
            if not desk.policy.reason:
                for seat in seats:
                    if seat.name not in (proposal.head.speculator, proposal.tail.speculator):
                        self._note_miss(run, seat.name, desk.why_not(seat))

    def _note_miss(self, run: Run, speculator: str, reason: str) -> None:
        run.tallies[speculator].miss(reason)
        self.seats[speculator].tally.miss(reason)

    def _note_reason(self, run: Run, reason: str) -> None:
        run.reasons[reason] += 1
        self.reasons[reason] += 1
