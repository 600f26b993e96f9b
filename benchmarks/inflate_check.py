"""Check inflated models: do they say what the small model says? What their steps cost: see
step_costs.py.

    python -m benchmarks.inflate_check models/1b-q8.gguf

Every prompt is continued greedily by the small model; the inflated model is fed the same tokens,
one a step. Talks to libllama directly, so that a fault in the engine cannot hide here.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Sequence
from pathlib import Path

import llama_cpp.llama_cpp as llama
import numpy as np
from gguf import GGUFReader
from numpy.typing import NDArray

from headstart.app import demo

PROMPTS = (
    "def read(self, size=-1):\n    ",
    "import os\nimport sys\n\nclass Buffer:\n",
    "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nRename `size` to `limit`:\n```python\ndef read(self, size=-1):\n"
    "    return self.raw.read(size)\n```<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nDescribe this function as JSON:\n```python\ndef get(self, key, "
    "default=None):\n"
    "    return self._data.get(key, default)\n```<|im_end|>\n<|im_start|>assistant\n",
)
NUM_GREEDY_TOKENS = 64


class Model:
    """One sequence on libllama's low-level API."""

    def __init__(self, path: Path, num_threads: int) -> None:
        params = llama.llama_model_default_params()
        self.model = llama.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise SystemExit(f"{path} does not load")
        context = llama.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch, context.n_outputs_max = 1024, 512, 512, 64
        context.n_threads = context.n_threads_batch = num_threads
        self.context = llama.llama_init_from_model(self.model, context)
        self.vocab = llama.llama_model_get_vocab(self.model)
        self.vocab_size = llama.llama_vocab_n_tokens(self.vocab)
        self.batch = llama.llama_batch_init(512, 0, 1)
        self.length = 0

    def tokenize(self, text: str) -> list[int]:
        data, ids = text.encode(), (llama.llama_token * 512)()
        return list(ids[: llama.llama_tokenize(self.vocab, data, len(data), ids, 512, False, True)])

    def decode(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append tokens; logits of the last one."""
        for i, token in enumerate(tokens):
            self.batch.token[i], self.batch.pos[i] = token, self.length + i
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, 0
            self.batch.logits[i] = i == len(tokens) - 1
        self.batch.n_tokens = len(tokens)
        if llama.llama_decode(self.context, self.batch):
            raise SystemExit(f"decoding {len(tokens)} rows at {self.length} failed")
        self.length += len(tokens)
        pointer = llama.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(pointer, shape=(self.vocab_size,)).copy()

    def cut(self, length: int) -> None:
        llama.llama_memory_seq_rm(llama.llama_get_memory(self.context), 0, length, -1)
        self.length = length


def compare(small: Model, big: Model) -> None:
    """Print, per prompt, whether the argmax agrees along the small model's greedy text."""
    for prompt in PROMPTS:
        small.cut(0)
        big.cut(0)
        tokens = small.tokenize(prompt)
        ours, theirs = small.decode(tokens), big.decode(tokens)
        num_same, worst, closest = 0, 0.0, np.inf
        for _ in range(NUM_GREEDY_TOKENS):
            worst = max(worst, float(np.abs(ours - theirs).max()))
            second, first = np.partition(ours, -2)[-2:]
            closest = min(closest, float(first - second))
            num_same += int(ours.argmax() == theirs.argmax())
            token = int(ours.argmax())
            ours, theirs = small.decode([token]), big.decode([token])
        print(
            f"  {prompt[-30:]!r:36} same argmax {num_same}/{NUM_GREEDY_TOKENS}, largest logit "
            f"difference {worst:.4f}, "
            f"closest top two {closest:.3f}",
            flush=True,
        )


def source_of(path: Path) -> Path:
    """Return the demo model that an inflated file was made from."""
    name = str(GGUFReader(path).fields["general.name"].contents()).split(" inflated")[0]
    return demo.path(name)


def main() -> None:
    """Parse the command line and check the files it names."""
    parser = argparse.ArgumentParser(description="Compare inflated models with their source.")
    parser.add_argument("model", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    silent = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(silent, ctypes.c_void_p(0))
    for path in args.model:
        print(path.name, flush=True)
        compare(Model(source_of(path), args.threads), Model(path, args.threads))


if __name__ == "__main__":
    main()
