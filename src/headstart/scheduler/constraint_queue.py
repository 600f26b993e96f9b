"""Requests whose constraint is being compiled; they wait here before they wait for a slot."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from headstart.scheduler.slot import ActiveRequest
from headstart.types.errors import HeadstartError, InvalidParameterError, NotSupportedError

if TYPE_CHECKING:
    from headstart.sampling.grammar.compiler import Compiled, GrammarCompiler

COMPILE_SECONDS = 10.0  # before a request is refused; waiting for other constraints included
_POLL_SECONDS = 0.005  # a step that has nothing else to do waits so long


class ConstraintQueue:
    """Compiles off the step loop; owned by the scheduler."""

    def __init__(self, compiler: GrammarCompiler | None, clock: Callable[[], float]) -> None:
        self._compiler = compiler
        self._clock = clock
        self._compiling: list[tuple[ActiveRequest, Future[Compiled]]] = []

    def __len__(self) -> int:
        return len(self._compiling)

    def prepare(self) -> None:
        """Begin to read the vocabulary, which the first constraint would else wait for."""
        if self._compiler is not None:
            self._compiler.prepare()

    def add(self, active: ActiveRequest) -> None:
        """Begin to compile the constraint of a request.

        Raises:
            NotSupportedError: nothing here can compile.
        """
        assert active.request.constraint is not None
        if self._compiler is None:
            raise NotSupportedError(
                "constraints are not supported here: no grammar engine is loaded"
            )
        self._compiling.append((active, self._compiler.compile(active.request.constraint)))

    def remove(self, request_id: str) -> list[ActiveRequest]:
        """Forget the requests of this name; returns them."""
        gone = [entry for entry in self._compiling if entry[0].request.request_id == request_id]
        self._compiling = [entry for entry in self._compiling if entry not in gone]
        self._abandon(gone)
        return [active for active, _ in gone]

    def take_ready(self) -> list[tuple[ActiveRequest, HeadstartError | None]]:
        """Requests that are ready to run, or the reason why they never will be, in order."""
        ready: list[tuple[ActiveRequest, HeadstartError | None]] = []
        left, late = [], []
        for active, compiling in self._compiling:
            if compiling.done():
                ready.append((active, self._settle(active, compiling)))
            elif self._clock() - active.submitted > COMPILE_SECONDS:
                reason = f"the constraint took longer than {COMPILE_SECONDS:g} s to compile"
                ready.append((active, InvalidParameterError(f"{reason}; make it simpler")))
                late.append((active, compiling))
            else:
                left.append((active, compiling))
        self._compiling = left
        self._abandon(late)
        return ready

    def _abandon(self, gone: list[tuple[ActiveRequest, Future[Compiled]]]) -> None:
        """Do not compile what only these waited for."""
        wanted = [compiling for _, compiling in self._compiling]
        for active, compiling in gone:
            if self._compiler is not None and active.request.constraint and compiling not in wanted:
                self._compiler.abandon(active.request.constraint, compiling)

    def wait(self) -> None:
        """Wait a little for the next one: there is nothing else to do."""
        assert self._compiler is not None
        self._compiler.wait([compiling for _, compiling in self._compiling], _POLL_SECONDS)

    def _settle(self, active: ActiveRequest, compiling: Future[Compiled]) -> HeadstartError | None:
        error = compiling.exception()
        if error is None:
            active.compiled = compiling.result()
            return None
        if isinstance(error, HeadstartError):
            return error
        return HeadstartError(f"the constraint could not be compiled: {error}")
