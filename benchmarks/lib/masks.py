"""What a constraint costs a step, by vocabulary: the test of a token, and the mask where it fails.

Texts of several constraints are read token by token, as a model would write them; the logits are
random, so the unconstrained choice is mostly illegal, which is the dear case. For each token:
whether it is legal, the mask over the vocabulary, the choice among the legal tokens with the
default samplers, and reading the token.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headstart.engine.filters import LlamaFilters
from headstart.engine.model import Model
from headstart.extras.bench.report import table_head, table_row
from headstart.sampling.grammar.compiled import Compiled
from headstart.sampling.grammar.state import GrammarState
from headstart.sampling.grammar.triggers import GrammarTokens
from headstart.sampling.sampler import Sampler
from headstart.testing import FakeEngine
from headstart.types.constraint import Constraint, ConstraintKind
from headstart.types.sampling_params import SamplingParams

LIMIT_MS = 0.1
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "email": {"type": "string", "format": "email"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["new", "paid", "late"]}},
        "notes": {"type": ["string", "null"], "maxLength": 200},
    },
    "required": ["name", "email", "age", "tags"],
    "additionalProperties": False,
}
PEOPLE = [
    {
        "name": f"Ada Lovelace {number}",
        "email": f"ada.{number}@example.org",
        "age": 36 + number,
        "tags": ["new", "paid"],
        "notes": "Wrote the first program, for a machine that was never built. " * 2,
    }
    for number in range(4)
]
TEXTS: Sequence[tuple[Constraint, str]] = (
    (
        Constraint(
            kind=ConstraintKind.JSON_SCHEMA, text=json.dumps({"type": "array", "items": PERSON})
        ),
        json.dumps(PEOPLE),
    ),
    (Constraint(kind=ConstraintKind.JSON_OBJECT), json.dumps({"people": PEOPLE}, indent=2)),
    (
        Constraint(kind=ConstraintKind.REGEX, text=r"(- [A-Z][a-z ]+: [0-9]+\.[0-9]{2}\n)+"),
        "".join(f"- Large potatoes and carrots: {n}.99\n" for n in range(20)),
    ),
)


def print_masks(vocabularies: Sequence[Path]) -> None:
    """The table, with the limit for the mask."""
    print(f"\n{table_head('vocabulary', 'part', 'ms a token', '95 %', 'limit')}")
    for path in vocabularies:
        model = Model(path)
        tokens = GrammarTokens.read(model.vocab)
        engine = FakeEngine(tokens.size)
        make = partial(LlamaFilters, model.vocab, 4096)
        # no model, but libllama's own filters: their time counts
        engine.make_filters = make  # type: ignore[method-assign]
        times: dict[str, list[float]] = {}
        for constraint, text in TEXTS:
            _replay(Compiled(constraint, tokens), engine, text, times)
        for part, costs in times.items():
            median, high = statistics.median(costs), float(np.quantile(costs, 0.95))
            verdict = f"{LIMIT_MS} {'ok' if median <= LIMIT_MS else 'MISSED'}" * (part == "mask")
            costs_ms = (f"{median:.3f}", f"{high:.3f}")
            print(table_row(tokens.size, part, *costs_ms, verdict), flush=True)


def _replay(
    compiled: Compiled, engine: FakeEngine, text: str, times: dict[str, list[float]]
) -> None:
    """Read the text twice: the first time builds what the engine keeps."""
    sampler = Sampler(SamplingParams(temperature=0.8), engine, compiled.tokens.eog_ids)
    random = np.random.default_rng(0)
    rows = random.normal(0.0, 2.5, (16, compiled.tokens.size)).astype(np.float32)
    for is_warm in (False, True):
        state, left, at = compiled.begin(), text.encode(), 0
        while left:
            token = (state.forced() or compiled.tokens(left))[0]
            for part, cost in _costs(state, sampler, rows[at % len(rows)], at, token).items():
                if is_warm:
                    times.setdefault(part, []).append(cost)
            left, at = left[len(compiled.tokens.table.pieces[token]) :], at + 1


def _costs(
    state: GrammarState, sampler: Sampler, row: NDArray[np.float32], position: int, token: int
) -> dict[str, float]:
    """Milliseconds of each part; the state reads the token."""
    is_legal = _milliseconds(lambda: state.allows(token))
    mask = _milliseconds(state.legal_mask)
    legal = state.legal_mask()

    def read() -> None:
        state.read(token)
        state.forced()

    return {
        "is it legal": is_legal,
        "mask": mask,
        "choice among the legal": _milliseconds(lambda: sampler.sample(row, position, legal)),
        "read it, find what is forced": _milliseconds(read),
    }


def _milliseconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return 1000.0 * (time.perf_counter() - started)
