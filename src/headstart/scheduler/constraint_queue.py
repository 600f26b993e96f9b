"""Requests whose constraint is being compiled; they wait here before they wait for a slot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from itertools import chain
from typing import TYPE_CHECKING

from headstart.scheduler.sequence import Sequence
from headstart.types.errors import (
    CapacityError,
    HeadstartError,
    InvalidParameterError,
    NotSupportedError,
)

if TYPE_CHECKING:
    from headstart.sampling.grammar.compiled import Compiled
    from headstart.sampling.grammar.compiler import GrammarCompiler

QUEUE_SECONDS = 30.0  # before a request is refused whose constraint was not begun


class ConstraintQueue:
    """Compiles off the step loop, one constraint of a tenant at a time and few in all, the tenants
    in turn.
    """

    def __init__(self, compiler: GrammarCompiler | None, clock: Callable[[], float]) -> None:
        self._compiler = compiler
        self._clock = clock
        self._waiting: dict[str, list[Sequence]] = {}  # by tenant, whose turn is next first
        self._compiling: dict[str, Future[Compiled]] = {}  # by tenant

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __iter__(self) -> Iterator[Sequence]:
        return chain.from_iterable(self._waiting.values())

    def prepare(self) -> None:
        """Begin to read the vocabulary, which the first constraint would else wait for."""
        if self._compiler is not None:
            self._compiler.prepare()

    def add(self, sequence: Sequence) -> None:
        """Queue a request until its constraint is compiled.

        Raises:
            NotSupportedError: nothing here can compile.
        """
        if self._compiler is None:
            raise NotSupportedError(
                "constraints are not supported here: no grammar engine is loaded"
            )
        self._waiting.setdefault(sequence.tenant, []).append(sequence)
        self._compile_next()

    def remove(self, request_id: str) -> list[Sequence]:
        """Forget the requests of this name; returns them."""
        return self._take(lambda sequence: sequence.request.request_id == request_id)

    def take_ready(self) -> list[tuple[Sequence, HeadstartError | None]]:
        """Requests that are ready to run, or the reason why they never will be."""
        ready = [(sequence, self._outcome(sequence)) for sequence in self._take(self._is_settled)]
        self._compile_next()
        return ready

    @property
    def futures(self) -> Collection[Future[Compiled]]:
        """What is being compiled."""
        return self._compiling.values()

    def _take(self, belongs: Callable[[Sequence], bool]) -> list[Sequence]:
        taken = [
            sequence for queue in self._waiting.values() for sequence in queue if belongs(sequence)
        ]
        for sequence in taken:
            queue = self._waiting[sequence.tenant]
            queue.remove(sequence)
            if not queue:
                del self._waiting[sequence.tenant]
        return taken

    def _compile_next(self) -> None:
        assert self._compiler is not None
        for tenant in [one for one, future in self._compiling.items() if future.done()]:
            del self._compiling[tenant]
        for tenant, queue in list(self._waiting.items()):
            if len(self._compiling) >= self._compiler.num_threads:
                return
            new = next((one for one in queue if self._cached(one) is None), None)
            if new is not None and tenant not in self._compiling:
                assert new.request.constraint is not None
                self._compiling[tenant] = self._compiler.compile(new.request.constraint)
                self._waiting[tenant] = self._waiting.pop(tenant)  # the others are next

    def _cached(self, sequence: Sequence) -> Future[Compiled] | None:
        assert self._compiler is not None
        assert sequence.request.constraint is not None
        return self._compiler.cached(sequence.request.constraint)

    def _is_settled(self, sequence: Sequence) -> bool:
        compiling = self._cached(sequence)
        if compiling is None:
            return self._clock() - sequence.submitted > QUEUE_SECONDS
        return compiling.done()

    def _outcome(self, sequence: Sequence) -> HeadstartError | None:
        assert self._compiler is not None
        assert sequence.request.constraint is not None
        compiling = self._cached(sequence)
        if compiling is None:
            return CapacityError(
                f"the constraint was not begun within {QUEUE_SECONDS:g} s, because others are "
                "compiled before it; try again later"
            )
        error = compiling.exception()
        if error is None:
            sequence.compiled = compiling.result()
            return None
        if not isinstance(error, InvalidParameterError):  # it may be compiled another time
            self._compiler.forget(sequence.request.constraint)
        if isinstance(error, HeadstartError):
            return error
        return HeadstartError(f"the constraint could not be compiled: {error}")
