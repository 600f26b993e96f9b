"""What text speculators cost: python -m benchmarks.text_speculators [--tokens 32768] [--steps 1500]

For each: microseconds a slot a step of propose + accept at a history of that many
tokens, all and split in steps with and without a draft; begin per 1000 tokens of prompt; memory of
that history. A step's time is the least of several identical replays, which takes out what other
programs on the machine do to it. `suffix+corpus` has a corpus of as many tokens beside its history.
The text imitates code being edited: lines drawn from a pool by Zipf's law, copied with changes.
`recycling` is fed a logits row per emitted token; its observe is stated apart, for --vocab entries.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headstart.speculators import SPECULATORS, Speculator
from headstart.types import Decoded, DraftRequest

NAMES = (
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
    "suffix",
    "suffix+corpus",
    "recycling",
)
MAX_DRAFT = 16


def make_text(size: int, seed: int = 0) -> list[int]:
    """Tokens of lines that repeat, one in eight with an edit."""
    rng = np.random.default_rng(seed)
    pool = [rng.zipf(1.3, rng.integers(4, 24)).clip(1, 30_000).tolist() for _ in range(2000)]
    text: list[int] = []
    while len(text) < size:
        line = list(pool[min(int(rng.zipf(1.2)), len(pool)) - 1])
        if rng.random() < 0.125:
            line[int(rng.integers(len(line)))] = int(rng.integers(30_000))
        text += line
    return text[:size]


@dataclass(slots=True)
class Replay:
    """Times of one replay: microseconds."""

    begin: float = 0.0
    steps: list[float] = field(default_factory=list)
    has_draft: list[bool] = field(default_factory=list)
    observed: list[float] = field(default_factory=list)  # per row


def measure(
    name: str, text: list[int], continuation: list[int], vocab_size: int, num_replays: int
) -> str:
    """One row of the table."""
    replays = [replay(make(name, text), text, continuation, vocab_size) for _ in range(num_replays)]
    steps = np.min([one.steps for one in replays], axis=0)
    has_draft = np.array(replays[0].has_draft)
    observed = np.min([one.observed for one in replays], axis=0)
    columns = (
        f"{steps.mean():7.1f} {np.median(steps):7.1f} {np.quantile(steps, 0.99):7.1f}",
        f"{mean(steps[has_draft]):7.1f} {mean(steps[~has_draft]):7.1f}",
        f"{len(continuation) / len(steps):8.2f} "
        f"{min(one.begin for one in replays) * 1000 / len(text):10.0f}",
        f"{memory(name, text) / 2**20:8.2f} {mean(observed):9.1f}",
    )
    return f"{name:<14} " + " ".join(columns)


def make(name: str, text: list[int]) -> Speculator:
    """A speculator with default options."""
    speculator = SPECULATORS[name.removesuffix("+corpus")]()
    if name.endswith("+corpus"):
        speculator.begin(1, make_text(len(text), seed=1))
        speculator.end(1)
    return speculator


def memory(name: str, text: list[int]) -> int:
    """Bytes that a history takes, what is shared not counted."""
    speculator = make(name, text)
    tracemalloc.start()
    speculator.begin(0, text)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size


def replay(
    speculator: Speculator, text: list[int], continuation: list[int], vocab_size: int
) -> Replay:
    """Generate the continuation."""
    noise = np.random.default_rng(1).standard_normal((MAX_DRAFT + 1, vocab_size)).astype(np.float32)
    result = Replay()
    start = time.perf_counter()
    speculator.begin(0, text)
    result.begin = (time.perf_counter() - start) * 1e6
    history = list(text)
    position = 0
    while position < len(continuation):
        start = time.perf_counter()
        draft = speculator.propose([DraftRequest(0, history, MAX_DRAFT)])[0]
        proposed = time.perf_counter()
        num_accepted = 0
        for token, real in zip(draft.tokens, continuation[position:], strict=False):
            if token != real:
                break
            num_accepted += 1
        emitted = continuation[position : position + num_accepted + 1]
        if speculator.needs:
            result.observed.append(observe(speculator, [history[-1], *draft.tokens], noise))
        accepting = time.perf_counter()
        speculator.accept(0, emitted, num_accepted)
        result.steps.append((time.perf_counter() - accepting + proposed - start) * 1e6)
        result.has_draft.append(bool(draft.tokens))
        history += emitted
        position += len(emitted)
    return result


def observe(speculator: Speculator, tokens: list[int], logits: np.ndarray) -> float:
    """Microseconds per row."""
    size = len(tokens)
    decoded = Decoded(
        np.zeros(size, np.int32),
        np.arange(size, dtype=np.int32),
        np.array(tokens, np.int32),
        logits[:size],
    )
    start = time.perf_counter()
    speculator.observe(decoded)
    return (time.perf_counter() - start) * 1e6 / size


def mean(values: NDArray[np.float64]) -> float:
    """Arithmetic mean; nan of nothing."""
    return float(values.mean()) if len(values) else float("nan")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--steps", type=int, default=1500, help="tokens generated")
    parser.add_argument("--vocab", type=int, default=151_936, help="logits in a row, for recycling")
    parser.add_argument("--replays", type=int, default=5)
    parser.add_argument("names", nargs="*", default=list(NAMES))
    arguments = parser.parse_args()
    text = make_text(arguments.tokens + arguments.steps)
    print(
        "                  us a step                             tokens   begin us   memory   "
        "observe"
    )
    print(
        "speculator        mean  median     p99    hit    miss   a step  per 1k       MiB    us/row"
    )
    for name in arguments.names:
        prompt, continuation = text[: arguments.tokens], text[arguments.tokens :]
        print(measure(name, prompt, continuation, arguments.vocab, arguments.replays), flush=True)


if __name__ == "__main__":
    main()
