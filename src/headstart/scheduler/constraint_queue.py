"""Requests whose constraint is being compiled; they wait here before they queue for a slot."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING

from headstart.scheduler.sequence import Sequence
from headstart.types import Vocab
from headstart.types.errors import (
    CapacityError,
    HeadstartError,
    LexerLimitError,
    QuotaError,
    RequestError,
)

if TYPE_CHECKING:
    from headstart.sampling.grammar.compiled import Compiled
    from headstart.sampling.grammar.compiler import GrammarCompiler

QUEUE_SECONDS = 30.0  # after which a request is refused if its constraint is still queued
SHARE_SECONDS = 600.0  # window in which a tenant has its share of compile time
MAX_RENEWED = 4  # answers with private lexers, each of which may take 100 MB
# after which an interrupted answer fails: those with private lexers have thousands of tokens, which
# take minutes, and clients give up after ten
RENEW_SECONDS = 300.0


class ConstraintQueue:
    """Compiles outside the step loop: one constraint per tenant at a time, few in all, tenants in
    turn.

    Args:
        share: seconds of compile time per tenant in SHARE_SECONDS while other tenants compete.
    """

    def __init__(self, vocab: Vocab, share: float, clock: Callable[[], float]) -> None:
        self._vocab = vocab
        self._share = share
        self._clock = clock
        # by tenant, when its whole share is available again. Source: the virtual scheduling
        # algorithm of ITU-T I.371, https://www.itu.int/rec/T-REC-I.371
        self._whole: dict[str, float] = {}
        # tenant, start and end of compilations not charged yet
        self._times: deque[tuple[str, float, float]] = deque()
        self.waiting: dict[str, list[Sequence]] = {}  # by tenant; the next one first
        self.futures: dict[str, Future[Compiled]] = {}  # compilations in progress, by tenant
        self._renewed: set[Sequence] = set()  # answers with private lexers, or soon

    @cached_property  # it imports llguidance, and starts nothing yet
    def compiler(self) -> GrammarCompiler:
        from headstart.sampling.grammar.compiler import GrammarCompiler

        return GrammarCompiler(self._vocab)

    def __len__(self) -> int:
        return sum(map(len, self.waiting.values()))

    def __iter__(self) -> Iterator[Sequence]:
        return chain.from_iterable(self.waiting.values())

    def add(self, sequence: Sequence) -> None:
        """Queue a request until its constraint is compiled."""
        if (legality := sequence.legality) is not None:  # it continues in a private lexer
            sequence.request = replace(sequence.request, constraint=legality.interrupt())
        sequence.constraint_queued = self._clock()
        queue = self.waiting.setdefault(sequence.tenant, [])
        queue.insert(len(queue) if sequence.admitted is None else 0, sequence)
        self._compile_next()

    def renew(self, sequence: Sequence, error: HeadstartError) -> bool:
        """Whether a failed answer may be added again, to continue in a private lexer; an answer
        that begins shares the lexer of new ones.
        """
        legality, constraint = sequence.legality, sequence.request.constraint
        if legality is None or constraint is None or not isinstance(error, LexerLimitError):
            return False
        if self.compiler.cached(constraint) is sequence.compiled:
            self.compiler.forget(constraint)
        self.release(sequence)
        sequence.compiled = None
        return legality.can_renew

    def release(self, sequence: Sequence) -> None:
        """Give the place of its private lexer, if it has one, to another answer."""
        self._renewed.discard(sequence)

    def remove(self, request_id: str) -> list[Sequence]:
        """Remove and return the requests with this id."""
        return self._take(lambda sequence: sequence.request.request_id == request_id)

    def take_ready(self) -> list[tuple[Sequence, HeadstartError | None]]:
        """Requests whose constraint is ready, and those refused, with the error."""
        ready = [(sequence, self._outcome(sequence)) for sequence in self._take(self._is_settled)]
        self._compile_next()
        return ready

    def _take(self, belongs: Callable[[Sequence], bool]) -> list[Sequence]:
        taken = [
            sequence for queue in self.waiting.values() for sequence in queue if belongs(sequence)
        ]
        for sequence in taken:
            queue = self.waiting[sequence.tenant]
            queue.remove(sequence)
            if not queue:
                del self.waiting[sequence.tenant]
        return taken

    def _compile_next(self) -> None:
        self._count()
        for tenant in [one for one, future in self.futures.items() if future.done()]:
            del self.futures[tenant]
        for tenant, queue in list(self.waiting.items()):
            if len(self.futures) >= self.compiler.num_threads:
                return
            new = next((one for one in queue if self._may_begin(one)), None)
            if new is None or tenant in self.futures:
                continue
            if new.admitted is not None or not self._wait(tenant):
                constraint, legality = new.request.constraint, new.legality
                assert constraint is not None
                new.compiled = self.futures[tenant] = self.compiler.compile(constraint)
                if legality is not None and constraint.read:
                    self._renewed.add(new)
                    self.compiler.forget(constraint)  # of use to no other answer
                self.futures[tenant].add_done_callback(partial(self._note, tenant, self._clock()))
                self.waiting[tenant] = self.waiting.pop(tenant)  # move it to the end of the queue

    def _note(self, tenant: str, begun: float, _: object) -> None:
        """Record the time of a compilation. Called in the thread that compiled."""
        self._times.append((tenant, begun, self._clock()))

    def _count(self) -> None:
        """Charge finished compilations to their tenants' shares."""
        while self._times:
            tenant, begun, now = self._times.popleft()
            self._whole = whole = {one: at for one, at in self._whole.items() if at > now}
            cost = (now - begun) * SHARE_SECONDS / self._share
            longest = now + 2 * SHARE_SECONDS  # caps the debt from compiling without competitors
            whole[tenant] = min(longest, max(now, whole.get(tenant, 0.0)) + cost)

    def _wait(self, tenant: str) -> float:
        """Seconds until the tenant may compile again; 0 if it may now."""
        now = self._clock()
        wait = self._whole.get(tenant, 0.0) - now - SHARE_SECONDS
        if wait <= 0.0:  # usual case, even with very many tenants
            return 0.0
        others = (at for one, at in self._whole.items() if one != tenant)
        return wait if self.waiting.keys() - {tenant} or any(at > now for at in others) else 0.0

    def _compiled(self, sequence: Sequence) -> Future[Compiled] | None:
        """The compiled constraint, kept once found: comparing constraints of a megabyte is slow."""
        assert sequence.request.constraint is not None
        if sequence.compiled is None:
            sequence.compiled = self.compiler.cached(sequence.request.constraint)
        return sequence.compiled

    def _may_begin(self, sequence: Sequence) -> bool:
        """Whether to compile its constraint now; recompilations for single answers are limited."""
        assert sequence.request.constraint is not None
        if sequence.request.constraint.read:
            held = [one.tenant for one in self._renewed]
            # the last place is for another tenant, if there may be one
            if len(held) + bool(sequence.tenant and sequence.tenant in held) >= MAX_RENEWED:
                return False
        return self._compiled(sequence) is None

    def _is_settled(self, sequence: Sequence) -> bool:
        compiling = self._compiled(sequence)
        if compiling is not None:
            return compiling.done()
        waited = self._clock() - sequence.constraint_queued
        if sequence.admitted is not None:  # already started
            return waited > RENEW_SECONDS
        return waited > QUEUE_SECONDS or self._wait(sequence.tenant) > 0.0

    def _outcome(self, sequence: Sequence) -> HeadstartError | None:
        compiling, constraint = self._compiled(sequence), sequence.request.constraint
        assert constraint is not None
        if compiling is None:
            if sequence.admitted is not None:
                is_next = self._may_begin(sequence)
                cause = "others are compiled before it" if is_next else "others have such lexers"
                return CapacityError(
                    "the answer cannot continue: its constraint has used up the lexer states, and "
                    f"was not compiled for it alone within {RENEW_SECONDS:g} s, because {cause}; "
                    "try again later"
                )
            if wait := math.ceil(self._wait(sequence.tenant)):
                return QuotaError(
                    "constraints",
                    f"your constraints took more than {self._share:g} s to compile in the last "
                    f"{SHARE_SECONDS:g} s, and other tenants have some too; try again in {wait} s, "
                    "or send one that was compiled",
                    wait,
                )
            return CapacityError(
                f"compiling the constraint did not start within {QUEUE_SECONDS:g} s, because "
                "others are compiled before it; try again later"
            )
        error, legality = compiling.exception(), sequence.legality
        if not (error is None or isinstance(error, RequestError)):  # it may work next time
            self.compiler.forget(constraint)
        if error is None:
            if legality is not None:
                legality.renew(compiling.result().make)
            return None
        if isinstance(error, HeadstartError):
            return error
        return HeadstartError(f"the constraint could not be compiled: {error}")
