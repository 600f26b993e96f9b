"""`headstart bench steps`: what a step costs by its rows, and from which acceptance drafts pay."""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from headstart.app.loading import load_target
from headstart.app.model_files import Models, find_models
from headstart.config import Config
from headstart.engine.devices import list_devices
from headstart.engine.library import system_info, version
from headstart.extras.bench.report import table_head, table_row
from headstart.types import Batch, Engine
from headstart.types.errors import ConfigError

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32)
CONTEXTS = (256, 4096)
REPEATS = 9


def run(config: Config) -> int:
    """Time the target, and the draft model if there is one; print Markdown."""
    print(machine(), flush=True)
    models = find_models(config)
    longest = replace(
        config.speculation, spec="fixed", spec_type="ngram-simple", draft_max=max(ROWS) - 1
    )
    config = replace(config, speculation=longest)
    draft_ms = 0.0
    if models.draft is not None:
        draft = load_target(config, Models(models.draft)).engine
        steady, _ = time_steps(draft, [1], context=CONTEXTS[0], num_repeats=REPEATS)
        draft_ms = statistics.median(steady[1])
        print(f"\nA token of {models.draft.name} takes {draft_ms:.2f} ms.")
    engine = load_target(config, models).engine
    for context in CONTEXTS:
        if context + max(ROWS) <= engine.context_size:
            print(f"\n{models.target.name} behind {context} tokens, {REPEATS} repetitions\n")
            print(report(engine, context, draft_ms), flush=True)
    return 0


def machine() -> str:
    """Library and devices, a line each."""
    lines = [f"{version()}; {system_info()}", ""]
    for device in list_devices():
        memory = f", {device.total_bytes / 2**30:.1f} GiB" if device.total_bytes else ""
        lines.append(f"- {device.name}: {device.kind}, {device.description}{memory}")
    return "\n".join(lines)


def report(engine: Engine, context: int, draft_ms: float) -> str:
    """A line per number of rows, then the curve in the form that `benchmarks.replay` takes."""
    rows = [count for count in ROWS if count <= min(engine.max_outputs, engine.max_batch_tokens)]
    steady, changed = time_steps(engine, rows, context=context, num_repeats=REPEATS)
    single, _ = time_steps(engine, rows, context=context, num_repeats=REPEATS, num_outputs=1)
    median, new_shape, one_output = (
        {count: statistics.median(values) for count, values in times.items()}
        for times in (steady, changed, single)
    )
    columns = ("rows", "ms, least", "ms, median", "x first", "rows/s", "ms more, new shape")
    pays = ["acceptance that pays"] + ["with the draft model"] * (draft_ms > 0.0)
    lines = [table_head(*columns, "ms more, all logits read", *pays)]
    for count in rows:
        ms = median[count]
        drafting = [0.0, draft_ms * (count - 1)][: len(pays)]
        lines.append(
            table_row(
                count,
                min(steady[count]),
                ms,
                ms / median[1],
                f"{1000.0 * count / ms:.1f}",
                new_shape[count] - ms,
                ms - one_output[count],
                *[_shown(break_even(count - 1, (ms + more) / median[1])) for more in drafting],
            )
        )
    curve = ",".join(f"{count}:{float(f'{median[count]:.3g}'):g}" for count in rows)
    return "\n".join([*lines, "", f"--curve {curve}"])


def _shown(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0%}"


def break_even(num_draft: int, steps: float) -> float | None:
    """Acceptance rate of each token from which a draft of this length pays; None if none does.

    A draft pays if its expected tokens, 1 + a + a^2 + ..., exceed its cost in `steps` without a
    draft.
    """
    if steps >= num_draft + 1:
        return None
    parts = 10**9  # of the rate

    def num_tokens(part: int) -> float:
        return sum((part / parts) ** k for k in range(num_draft + 1))

    return bisect_left(range(parts), steps, key=num_tokens) / parts


StepTimes = dict[int, list[float]]
"""Milliseconds by rows, one for each repetition."""


def time_steps(
    engine: Engine,
    rows: Sequence[int],
    *,
    context: int,
    num_repeats: int,
    num_outputs: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[StepTimes, StepTimes]:
    """Time `num_repeats` decodes of each number of rows after `context` tokens.

    The numbers of rows take turns, so that a slow machine affects all equally; each is decoded a
    few times per turn, of which the first and the last count. All rows have logits, or the last
    `num_outputs`. Tokens are random, so a mixture of experts reads at least as many experts as for
    text. The cache is empty afterwards.

    Returns times of a shape that the decodes before had too, and of another one, for which libllama
    builds a new graph.

    Raises:
        ConfigError: they do not fit into the context.
    """
    if context + max(rows) > engine.context_size:
        raise ConfigError(
            f"{context} tokens and {max(rows)} rows do not fit into {engine.context_size} of "
            "context"
        )
    batch = Batch(engine.max_batch_tokens)
    tokens = np.random.default_rng(0).integers(engine.vocab_size, size=context + max(rows)).tolist()

    def decode(start: int, end: int, num_outputs: int) -> None:
        batch.clear()
        batch.add(0, start, tokens[start:end], num_outputs)
        engine.decode(batch)

    def read() -> None:
        engine.clear(0)
        for start in range(0, context, batch.capacity):
            decode(start, min(context, start + batch.capacity), 1)

    # four decodes until one of a new shape is fast: CUDA records its kernels during the second
    times = [StepTimes({num: [] for num in rows}) for _ in range(4)]
    read()
    for _ in range(num_repeats):
        for num_rows in rows:
            for kind in times:
                started = clock()
                decode(context, context + num_rows, min(num_rows, num_outputs or num_rows))
                kind[num_rows].append(1000.0 * (clock() - started))
                if not engine.truncate(0, context):
                    read()
    engine.clear(0)
    return times[-1], times[0]
