"""Byte-level BPE tokenizers in the form that libllama calls `gpt-2`.

    python -m training.tokenizer --work DIR --vocab-size 4096 2048

writes tokenizer-4096.json and tokenizer-2048.json (format of Hugging Face's `tokenizers`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

# token ids of the control tokens
END_OF_TEXT, IM_START, IM_END, FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE = range(6)
CONTROL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
)
USER_TOKENS = ("<tool_call>", "</tool_call>")  # one token each, but shown as text
NUM_TASKS = 3000  # enough to learn the chat format; the library's text decides the rest


def path_of(work: Path, vocab_size: int) -> Path:
    """Return where the tokenizer of this size is kept."""
    return work / f"tokenizer-{vocab_size}.json"


def train(texts: Sequence[str], vocab_size: int) -> Tokenizer:
    """Train a tokenizer; control tokens get the ids 0 to 5, in the order above."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*CONTROL_TOKENS, *USER_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def main() -> None:
    """Parse the command line and train the tokenizers."""
    parser = argparse.ArgumentParser(description="Train byte-level BPE tokenizers on the corpus.")
    parser.add_argument("--work", type=Path, required=True, help="folder with the corpus")
    parser.add_argument("--vocab-size", type=int, nargs="+", default=[4096, 2048])
    args = parser.parse_args()
    texts = json.loads((args.work / "texts.json").read_text())
    tasks = json.loads((args.work / "tasks.json").read_text())
    for vocab_size in args.vocab_size:
        path = path_of(args.work, vocab_size)
        train(texts + tasks[:NUM_TASKS], vocab_size).save(str(path))
        print(path)


if __name__ == "__main__":
    main()
