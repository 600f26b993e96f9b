"""Cost of translating between vocabularies: microseconds a token, the time to compare two.

    python -m benchmarks.translation TARGET.gguf DRAFT.gguf

Only the vocabularies of the two files are read. The text is Headstart's own source.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import headstart
from headstart.config import EngineConfig
from headstart.engine.model import Model
from headstart.text.vocabulary import TranslatedSequence, VocabularyTranslator
from headstart.types import Vocab

STEPS = (1, 3, 8)  # target tokens accepted in a step
DRAFT_LENGTH = 8
CONTEXTS = (1_000, 32_000)  # tokens of history before the measured steps
NUM_TOKENS = 6_000  # measured

T = TypeVar("T")


def main() -> None:
    """Measure one pair of vocabularies."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    options = parser.parse_args()
    target, draft = (
        Model(path, EngineConfig(), vocab_only=True).vocab
        for path in (options.target, options.draft)
    )
    translator = measure_load(target, draft)
    text = "\n".join(
        path.read_text() for path in sorted(Path(headstart.__file__).parent.rglob("*.py"))
    )
    tokens = target.tokenize(text * 8, add_special=False, parse_special=False)
    print(f"\n{'context':>8} {'step':>5} {'extend us/token':>16} {'translate us/draft token':>25}")
    for context in CONTEXTS:
        for step in STEPS:
            measure_steps(translator, draft, tokens[: context + NUM_TOKENS], context, step)
    measure_healing(translator, random.Random(1))


def measure_load(target: Vocab, draft: Vocab) -> VocabularyTranslator:
    """Print the time to read and compare the pair, twice: libllama keeps its tokens at hand."""
    for label in ("first", "again"):
        seconds, translator = timed(partial(VocabularyTranslator, target, draft))
        print(f"{label:8} {seconds:6.2f} s")
    print(translator.comparison.describe())
    return translator


def measure_steps(
    translator: VocabularyTranslator, draft: Vocab, tokens: Sequence[int], context: int, step: int
) -> None:
    """Print the cost of steps that accept `step` tokens and draft `DRAFT_LENGTH`, behind a long
    history.
    """
    sequence = translator.open()
    sequence.extend(tokens[:context])
    extend_seconds = translate_seconds = 0.0
    num_tokens = num_drafted = 0
    for start in range(context, len(tokens) - 64, step):
        new = tokens[start : start + step]
        extend_seconds += timed(partial(sequence.extend, new))[0]
        num_tokens += step
        guess = draft_of(
            translator, sequence, draft, tokens[start + step : start + step + DRAFT_LENGTH]
        )
        translate_seconds += timed(partial(sequence.translate, guess))[0]
        num_drafted += len(guess)
    per_token, per_draft = (
        extend_seconds / num_tokens * 1e6,
        translate_seconds / max(num_drafted, 1) * 1e6,
    )
    print(f"{context:8} {step:5} {per_token:16.1f} {per_draft:25.1f}")


def draft_of(
    translator: VocabularyTranslator,
    sequence: TranslatedSequence,
    draft: Vocab,
    following: Sequence[int],
) -> list[int]:
    """What a perfect draft model would say: the text that follows, in its own tokens."""
    text = sequence.pending + translator.target.join(following)
    return draft.tokenize(text, add_special=False, parse_special=False)[:DRAFT_LENGTH]


def measure_healing(translator: VocabularyTranslator, rng: random.Random) -> None:
    """Print the cost of finding the tokens that agree with pending bytes, new ones every time."""
    pieces = [piece for piece in translator.draft.pieces if piece]
    prefixes = list(
        {
            piece[: rng.randrange(1, len(piece) + 1)]
            for piece in rng.sample(pieces, min(500, len(pieces)))
        }
    )
    seconds, _ = timed(lambda: [translator.allowed(prefix) for prefix in prefixes])
    print(
        f"\nhealing: {seconds / len(prefixes) * 1e6:.1f} us for the allowed tokens of new pending "
        "bytes"
    )


def timed(function: Callable[[], T]) -> tuple[float, T]:
    """Run a function; return its seconds of processor time (others may share the machine) and its
    result.
    """
    start = time.thread_time()
    result = function()
    return time.thread_time() - start, result


if __name__ == "__main__":
    main()
