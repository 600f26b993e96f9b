"""Compiles the constraints of one vocabulary: within limits, in two threads, each once.

llguidance releases the GIL while it compiles, so low-priority threads suffice. There are two so
that slow constraints of one tenant do not delay another's.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from concurrent.futures import Future

from headstart.sampling.grammar.compiled import Compiled
from headstart.sampling.grammar.sandbox import Sandbox
from headstart.sampling.grammar.triggers import GrammarTokens
from headstart.structures.system import start_threads
from headstart.types import Vocab
from headstart.types.constraint import Constraint, ConstraintKind

MAX_CACHED = 64  # constraints
MAX_CACHED_BYTES = 256 << 20


class GrammarCompiler:
    """Not thread-safe apart from its own worker threads."""

    num_threads = 2

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._executor = start_threads("grammar", self.num_threads, low_priority=True)
        self._tokens: Future[GrammarTokens] | None = None
        self._idle: list[Sandbox] = []  # used by the worker threads only
        self._cached: OrderedDict[Constraint, Future[Compiled]] = OrderedDict()

    def prepare(self) -> None:
        """Start reading the vocabulary, which otherwise happens before the first constraint."""
        if self._tokens is None:
            self._tokens = self._executor.submit(GrammarTokens.read, self._vocab)

    def cached(self, constraint: Constraint) -> Future[Compiled] | None:
        """The future that `compile` returned, if it is cached."""
        return self._cached.get(constraint)

    def compile(self, constraint: Constraint) -> Future[Compiled]:
        """Compile in the background; the future's exception is a HeadstartError."""
        self.prepare()
        known = self._cached.get(constraint)
        if known is None:
            known = self._executor.submit(self._compile, constraint)
            self._cached[constraint] = known
        self._cached.move_to_end(constraint)
        while len(self._cached) > 1 and self._is_full():
            self._cached.popitem(last=False)
        return known

    def forget(self, constraint: Constraint) -> None:
        self._cached.pop(constraint, None)

    def _is_full(self) -> bool:
        num_bytes = sum(map(_num_bytes, self._cached.items()))
        return len(self._cached) > MAX_CACHED or num_bytes > MAX_CACHED_BYTES

    def _compile(self, constraint: Constraint) -> Compiled:
        assert self._tokens is not None
        tokens = self._tokens.result()
        if constraint.kind is ConstraintKind.JSON_OBJECT:  # a fixed, small grammar
            return Compiled(constraint, tokens)
        sandbox = self._take_sandbox(tokens)
        try:
            return Compiled(constraint, tokens, **sandbox.compile(constraint))
        finally:
            self._idle.append(sandbox)

    def _take_sandbox(self, tokens: GrammarTokens) -> Sandbox:
        with contextlib.suppress(IndexError):  # there is none
            while not (sandbox := self._idle.pop()).is_alive:
                pass
            return sandbox
        return Sandbox(tokens.table)


def _num_bytes(entry: tuple[Constraint, Future[Compiled]]) -> int:
    constraint, compiling = entry
    is_usable = compiling.done() and compiling.exception() is None
    return len(constraint.text) + (compiling.result().num_bytes if is_usable else 0)
