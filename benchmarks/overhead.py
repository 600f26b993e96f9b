"""What Headstart adds to libllama.

    python -m benchmarks.overhead
        time per step with a model that costs nothing
    python -m benchmarks.overhead --model models/0.5b-q8.gguf
        and serving: against bare llama_decode calls, what streams cost the web process, and a
        token beside busy programs, also from the server of --against
    python -m benchmarks.overhead --masks ggml-vocab-qwen2.gguf ggml-vocab-gemma-4.gguf
        and what a constraint costs with these vocabularies

Steps: the real scheduler, samplers and speculators; only `decode` is a stub that hands out prepared
logits, whose time is taken off. `mtp` drafts three tokens a step with heads that are stubs as well.
Numbers are milliseconds per step, median and 95th percentile: first all of Python's time, then what
is on the critical path, from the logits of one step to the batch of the next. The rest is done
while a device computes; the processor's own backend does not compute by itself, so there all of it
is on the critical path. Calls are those of Python functions, the stub's left out: unlike the times
they are the same on a busy machine.
libllama's sampler chain is called for real and counted. The stub pretends that a step takes 50 ms
and a further row 1 ms, so that `auto` drafts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from benchmarks.lib.arms import OFF, Arm, Machine
from benchmarks.lib.engines import SilentEngine
from benchmarks.lib.masks import print_masks
from benchmarks.lib.serving import print_busy, print_serving, print_streams

from headstart.app.speculation import AUTO_TYPES
from headstart.engine.filters import LlamaFilters
from headstart.extras.bench.report import table_head, table_row
from headstart.scheduler.scheduler import Scheduler
from headstart.testing import ByteVocab
from headstart.types import LAST_STATE, Batch, Logits
from headstart.types.engine import Blocks
from headstart.types.request import Request
from headstart.types.sampling_params import SamplingParams

LIMITS_MS = {(1, 32_000, "greedy"): 0.2, (1, 32_000, "sampled"): 0.5}  # off, one slot
VOCABULARIES = (4096, 32_000, 151_936)
STEP_MS, ROW_MS = 50.0, 1.0
AUTO = Arm("auto", AUTO_TYPES, "auto")
MTP = Arm("mtp", ("mtp",), "fixed", 3)
STATE_WIDTH = 1024


class StubVocab(ByteVocab):
    """A vocabulary of which only the size is real."""

    eog_ids = frozenset[int]()
    bos_id: int | None = None
    eos_id: int | None = None

    def __init__(self, size: int) -> None:
        self.size = size

    def token_bytes(self, token: int) -> bytes:
        return b"word"


class StubEngine(SilentEngine):
    """Logits from a pool: 12 positions of 16 follow from the token before, the others are new.

    It pretends to be a device that computes by itself.
    """

    def __init__(self, vocab: StubVocab) -> None:
        # No LlamaVocab, which needs a GGUF: the default samplers read only the size of a
        # vocabulary.
        make: Any = LlamaFilters
        super().__init__(vocab.size, 264, lambda params: make(vocab, 4096, params))
        self.is_asynchronous = True
        self.seconds = 0.0  # spent here
        self.pretended = 0.0  # more, as the clock is told
        self.aside = 0.0  # what the caller did between `launch` and `wait`
        random = np.random.default_rng(0)
        self._pool = random.normal(0.0, 2.5, (48, vocab.size)).astype(np.float32)
        for number, row in enumerate(self._pool):
            rivals = 1 + 4 * (number % 2)  # candidates that the default samplers leave: one or five
            row[random.integers(vocab.size, size=rivals)] = (
                row.max() + 4.0 - 0.5 * np.arange(rivals)
            )

    def publish_states(self, layers: Collection[int]) -> None:
        self._hidden = np.zeros((self.max_batch_tokens, STATE_WIDTH), np.float32)

    def hidden_states(self) -> Mapping[int, Logits]:
        return {LAST_STATE: self._hidden[: self._num_rows]}

    def launch(self, batch: Batch) -> None:
        self._batch, self._num_rows = batch, batch.num_rows
        self._launched = time.perf_counter()

    def wait(self) -> Logits:
        batch, started = self._batch, time.perf_counter()
        self.aside += started - self._launched
        outputs = batch.wants_logits[: batch.num_rows].nonzero()[0]
        positions = batch.positions[outputs].astype(np.int64)
        follows, keys = positions % 16 < 12, positions * 2654435761 >> 9
        keys[follows] = batch.tokens[outputs][follows]
        keys %= len(self._pool)
        logits = self._logits[: len(keys)]
        self._pool.take(keys, axis=0, out=logits)  # methods: functions of numpy would be counted
        spent = time.perf_counter() - started
        self.seconds += spent
        self.pretended += max(0.0, (STEP_MS + ROW_MS * batch.num_rows) / 1000.0 - spent)
        return logits

    def clock(self) -> float:
        """Seconds as the scheduler is told: pretended ones included."""
        return time.perf_counter() + self.pretended


class StubHeads(StubEngine):
    """Heads that guess exactly what the target says, 12 of 16 times."""

    num_heads, state_width, feature_width = 1, STATE_WIDTH, 0
    shares_target = False
    blocks: Blocks | None = None

    def __init__(self, vocab: StubVocab, target: StubEngine) -> None:
        super().__init__(vocab)
        self._pool, self._target = target._pool, target

    def wait(self) -> Logits:
        started = time.perf_counter()
        logits = super().wait()
        self._rows = np.zeros((len(logits), STATE_WIDTH), np.float32)
        self._target.seconds += time.perf_counter() - started
        return logits

    def outputs(self) -> Logits:
        return self._rows

    def encode(self, features: Logits) -> Logits:
        return features


@dataclass(frozen=True, slots=True)
class StepCost:
    """Milliseconds of Python a step, and tokens a step and slot."""

    median: float
    high: float  # 95th percentile
    critical: float  # median of the part that a device waits for
    tokens: float
    calls: float  # of Python functions


def stub_scheduler(
    vocab_size: int, num_slots: int, arm: Arm, temperature: float
) -> tuple[Scheduler, StubEngine]:
    """A scheduler that is busy for a long time."""
    vocab = StubVocab(vocab_size)
    engine = StubEngine(vocab)
    machine = Machine(
        engine=engine,
        vocab=vocab,
        num_users=num_slots,
        heads=StubHeads(vocab, engine),
        clock=engine.clock,
    )
    scheduler = machine.scheduler(arm)
    for slot in range(num_slots):
        prompt = [
            int(token) for token in np.random.default_rng(slot).integers(vocab_size, size=200)
        ]
        sampling = SamplingParams(temperature=temperature, seed=slot)
        scheduler.submit(
            Request(request_id=f"{slot}", prompt=prompt, sampling=sampling, max_tokens=2**20)
        )
    return scheduler, engine


def step_cost(
    vocab_size: int, num_slots: int, arm: Arm, temperature: float, num_steps: int
) -> StepCost:
    """Time of `step` and `take_events` less the stub's own."""
    scheduler, engine = stub_scheduler(vocab_size, num_slots, arm, temperature)
    scheduler.deliver = scheduler.take_events
    while any(one.user is None or one.user.num_pending > 1 for one in scheduler.cells):
        scheduler.step()
    for _ in range(60):
        scheduler.step()
    calls = _count_calls(scheduler, 60)
    costs, critical, tokens = [], [], 0
    for _ in range(num_steps):
        inside, aside, started = engine.seconds, engine.aside, time.perf_counter()
        record = scheduler.step()
        costs.append(1000.0 * (time.perf_counter() - started - engine.seconds + inside))
        critical.append(costs[-1] - 1000.0 * (engine.aside - aside))
        tokens += sum(len(one.emitted) for one in record.results)
    return StepCost(
        statistics.median(costs),
        float(np.quantile(costs, 0.95)),
        statistics.median(critical),
        tokens / num_steps / num_slots,
        calls,
    )


def _count_calls(scheduler: Scheduler, num_steps: int) -> float:
    """Python functions that a step calls, generators that go on included."""
    num_calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal num_calls
        file = frame.f_code.co_filename
        num_calls += event == "call" and not ("/benchmarks/" in file or "/testing/" in file)

    sys.setprofile(count)
    for _ in range(num_steps):
        scheduler.step()
    sys.setprofile(None)
    return num_calls / num_steps


def print_steps(num_steps: int, vocabularies: Sequence[int]) -> None:
    """The table of step times, with the limits."""
    case_columns = ("vocabulary", "slots", "sampling", "speculation", "ms a step", "95 %")
    columns = ("critical path", "calls a step", "tokens a step and slot", "limit")
    print(table_head(*case_columns, *columns))
    for vocab_size in vocabularies:
        for num_slots in (1, 4, 8):
            for name, temperature in (("greedy", 0.0), ("sampled", 0.8)):
                for arm in (OFF, AUTO, MTP):
                    cost = step_cost(vocab_size, num_slots, arm, temperature, num_steps)
                    limit = LIMITS_MS.get((num_slots, vocab_size, name)) if arm is OFF else None
                    verdict = (
                        f"{limit} {'ok' if cost.median <= limit else 'MISSED'}" if limit else ""
                    )
                    case = (vocab_size, num_slots, name, arm.name)
                    times = [f"{ms:.3f}" for ms in (cost.median, cost.high, cost.critical)]
                    row = (*case, *times, f"{cost.calls:.0f}", cost.tokens, verdict)
                    print(table_row(*row), flush=True)


def main() -> None:
    """Measure steps, then serving if a model is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--vocabularies", default=",".join(map(str, VOCABULARIES)))
    parser.add_argument("--skip-steps", action="store_true")
    parser.add_argument(
        "--model", type=Path, help="a GGUF file, for instance 0.5b-q8 of inflate.py"
    )
    parser.add_argument(
        "--masks", type=Path, nargs="+", default=[], help="GGUF files whose vocabularies to mask"
    )
    parser.add_argument("--against", default="", help="command of another server of this model")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if not args.skip_steps:
        print_steps(args.steps, [int(size) for size in args.vocabularies.split(",")])
    if args.masks:
        print_masks(args.masks)
    if args.model:
        print_serving(args.model, args.tokens, args.repeats, args.threads)
        print_streams(args.model, args.repeats, args.threads)
        print_busy(args.model, args.repeats, args.threads, args.against)


if __name__ == "__main__":
    main()
