"""A process that compiles constraints before the engine does, within limits of time and memory.

llguidance can neither be interrupted nor send its compiled form to another process. So every
constraint is compiled here first, in a fork that the operating system kills at a limit. The engine
then compiles only constraints within the limits, from the text found here.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
import weakref
from functools import partial
from typing import Any, BinaryIO

from headstart.sampling.grammar.compiled import Compiled
from headstart.sampling.grammar.triggers import GrammarTokens
from headstart.structures.system import PATIENCE, peak_bytes, run_limited
from headstart.text.vocabulary.table import VocabTable, spell
from headstart.types.constraint import Constraint
from headstart.types.errors import CapacityError, RequestError


class Sandbox:
    """The engine's end of the sandbox process. Not thread-safe."""

    def __init__(
        self, table: VocabTable, seconds: float = 10.0, num_bytes: int = 256 << 20
    ) -> None:
        """Start the process, which takes 0.5 to 2 seconds for a large vocabulary.

        Args:
            seconds, num_bytes: limits for one constraint, in processor time and address space.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(seconds), str(num_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self.close = weakref.finalize(self, _end, self._process)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # `compile` notices that the process has ended
            pickle.dump(table, self._process.stdin)

    @property
    def is_alive(self) -> bool:
        return self.close.alive and self._process.poll() is None

    def compile(self, constraint: Constraint) -> dict[str, Any]:
        """Compile a constraint in a fork; returns the further arguments of `Compiled`.

        Raises:
            RequestError: it cannot be compiled within the limits.
            CapacityError: the processor is busy, or the process has ended.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            pickle.dump(constraint, stdin)
            stdin.flush()
            line = stdout.readline()
        except OSError:
            line = b""
        if not line:
            self.close()
            raise CapacityError("the process that compiles constraints ended; try again later")
        found: dict[str, Any] = json.loads(line)
        if "busy" in found:
            raise CapacityError(found["busy"])
        if "error" in found:
            raise RequestError(found["error"])
        return found


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def _serve(source: BinaryIO, sink: BinaryIO, seconds: float, num_bytes: int) -> None:
    """Read a vocabulary, then constraints; write a line of JSON for each."""
    table: VocabTable = pickle.load(source)
    tokens = GrammarTokens(table, partial(spell, table))
    # mypy sees BinaryIO; a program's standard input has a buffer
    while source.peek(1):  # type: ignore[attr-defined]
        constraint = pickle.load(source)
        work = partial(_try, constraint, tokens, sink)
        ended_by, title = run_limited(work, seconds, num_bytes), constraint.kind.title
        if ended_by == "wall":
            limit = f"{PATIENCE * seconds:g} s, because the processor is busy"
            _answer(sink, busy=f"the {title} was not compiled within {limit}; try again later")
        elif ended_by:
            is_late = ended_by == "time"
            taken = f"longer than {seconds:g} s" if is_late else f"over {num_bytes >> 20} MiB"
            _answer(sink, error=f"the {title} took {taken} to compile; make it simpler")


def _answer(sink: BinaryIO, **found: str | int) -> None:
    sink.write(json.dumps(found).encode() + b"\n")
    sink.flush()


def _try(constraint: Constraint, tokens: GrammarTokens, sink: BinaryIO) -> None:
    before = peak_bytes()
    try:
        compiled = Compiled(constraint, tokens)
    except RequestError as error:
        _answer(sink, error=str(error))
    else:
        _answer(sink, text=compiled.text, num_bytes=peak_bytes() - before)


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer, float(sys.argv[1]), int(sys.argv[2]))
