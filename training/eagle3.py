"""Train an EAGLE-3 head for a demo model, on texts that the model writes itself.

    python -m training.eagle3 --work DIR --target demo-target.gguf --steps 800 -o first.gguf
    python -m training.eagle3 --work DIR --target demo-target.gguf --steps 900 \
        --start first.gguf --corpus-share 0.7 -o head.gguf

The head learns the target's probabilities several tokens ahead: from the second on it goes on with
its own states, as it does when it drafts. It knows the tokens that the target predicts most often;
the rest are never drafted. The second run goes on from the first, mostly with texts that the model
did not write: copying is learned from many different texts.

Source: Li et al. 2025, https://arxiv.org/abs/2503.01840, section 3
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader
from numpy.typing import NDArray
from torch import Tensor, nn

from headstart.extras.distill.gguf_file import read_model
from headstart.extras.distill.model import LanguageModel
from training.batches import Rows, load
from training.eagle3_export import CONTEXT, export, load_head, load_tokenizer
from training.eagle3_head import LAYERS, Caches, Head, HeadShape
from training.muon import Muon
from training.own_text import write_rows
from training.train import TASK_ROOM, Budget, choose_device

MATRIX_RATE = 0.012  # Muon, on the matrices
OTHER_RATE = 1e-3  # AdamW, on norms and output
WARMUP_STEPS = 30
COOLDOWN = 0.6  # last share of the run, in which the rates fall to 2 %
STEP_WEIGHT = 0.85  # of each token ahead, compared with the one before it
EXCERPT_WEIGHT = 0.3  # of what the model did not write itself
RESUMED_RATE = 0.5  # of the rates, for a head that was trained before
REPEAT_SHARE = 0.3  # of the corpus's rows are spans that repeat
COUNTED_ROWS = 256  # that say which tokens the target predicts most often


@dataclass(frozen=True, slots=True)
class Texts:
    """Rows that the target wrote, and how long the excerpt is that each begins with."""

    tokens: NDArray[np.int32]
    excerpts: NDArray[np.int32]

    @classmethod
    def of(cls, target: LanguageModel, args: argparse.Namespace) -> Texts:
        """Read what an earlier call wrote, or write it."""
        path = args.work / "own_text.npz"
        if not path.exists():
            rows = corpus_rows(args, args.seed)
            started = time.monotonic()
            written = write_rows(target, rows, args.rows, args.write_seconds, args.seed)
            seconds = time.monotonic() - started
            print(f"{len(written[0])} texts in {seconds:.0f} s", flush=True)
            np.savez(path, tokens=written[0], excerpts=written[1])
        with np.load(path) as saved:
            return cls(saved["tokens"], saved["excerpts"])


def corpus_rows(args: argparse.Namespace, seed: int) -> Rows:
    """Rows of texts that the target did not write, in its tokens."""
    text = load_tokenizer(GGUFReader(args.target))
    corpus = load(args.work, text, args.context - TASK_ROOM)
    return Rows(corpus, args.context + args.ahead, seed)


class Trainer:
    """A head, its target and its rows."""

    def __init__(self, target: LanguageModel, texts: Texts, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        self.target, self.texts = target, texts
        self.num_steps, self.batch_size = args.ahead, args.batch_size
        self.device = choose_device(args.device)
        target.to(self.device)
        self.random, self._order = np.random.default_rng(args.seed), np.zeros(0, np.int64)
        self.corpus_share, self.is_start = args.corpus_share, args.start is None
        self.corpus = corpus_rows(args, args.seed + 1) if self.corpus_share else None
        if args.start is None:
            self.ids, known = self._most_frequent(args.ids)
            print(f"{args.ids} tokens have {known:.4f} of what the target predicts", flush=True)
            shape = HeadShape(target.shape, args.ids, args.ff_width)
            self.head = Head(shape, target, self.ids.cpu()).to(self.device)
        else:
            self.head, ids = load_head(GGUFReader(args.start), target)
            self.head, self.ids = self.head.to(self.device), ids.to(self.device)
        self.rate = 1.0 if self.is_start else RESUMED_RATE
        named = dict(self.head.named_parameters())
        matrices = [p for n, p in named.items() if p.dim() == 2 and n != "output.weight"]
        kept = {id(p) for p in matrices}
        self.muon = Muon(matrices, MATRIX_RATE)
        self.adam = torch.optim.AdamW(
            [p for p in named.values() if id(p) not in kept],
            lr=OTHER_RATE,
            betas=(0.9, 0.95),
            weight_decay=0.0,
        )

    def _most_frequent(self, num_ids: int) -> tuple[Tensor, float]:
        """Ids that the target predicts most often, by number; and their share of predictions."""
        counts = torch.zeros(self.target.shape.vocab_size, device=self.device)
        for start in range(0, min(COUNTED_ROWS, len(self.texts.tokens)), 8):
            tokens = torch.from_numpy(self.texts.tokens[start : start + 8]).long().to(self.device)
            counts += self._look(tokens)[1].softmax(-1).sum((0, 1))
        best = counts.topk(num_ids)
        return best.indices.sort().values, (best.values.sum() / counts.sum()).item()

    def _next_rows(self) -> tuple[Tensor, Tensor]:
        """Tokens, and the weight of each as something to predict; every row once, then again."""
        if self.corpus is not None and self.random.random() < self.corpus_share:
            ids, weight = self.corpus.batch(self.batch_size, REPEAT_SHARE)
            return (
                torch.from_numpy(ids).long().to(self.device),
                torch.from_numpy(weight).to(self.device),
            )
        if len(self._order) < self.batch_size:
            self._order = self.random.permutation(len(self.texts.tokens))
        chosen, self._order = np.split(self._order, [self.batch_size])
        tokens = self.texts.tokens[chosen]
        is_own = np.arange(tokens.shape[1]) >= self.texts.excerpts[chosen, None]
        weights = np.where(is_own, 1.0, EXCERPT_WEIGHT).astype(np.float32)
        return (
            torch.from_numpy(tokens).long().to(self.device),
            torch.from_numpy(weights).to(self.device),
        )

    @torch.no_grad()
    def _look(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """What enters the target's layers, side by side, and its logits."""
        x, entered = self.target.token_embd(tokens), []
        cos, sin = (table[: tokens.shape[1]] for table in (self.target.cos, self.target.sin))
        for index, block in enumerate(self.target.blocks):
            if index in LAYERS:
                entered.append(x)
            x = block(x, cos, sin)
        return torch.cat(entered, -1), self.target.output(self.target.output_norm(x))

    def step(self, number: int, progress: float) -> list[float]:
        """Train on one batch; return the shares of tokens that were right, by step ahead.

        At first one step ahead is learned, then one more at a time.
        """
        tokens, weights = self._next_rows()
        features, logits = self._look(tokens)
        wanted, best = logits.softmax(-1)[..., self.ids], logits.argmax(-1)
        embedded = self.target.token_embd(tokens)
        num_steps = self.num_steps
        if self.is_start:
            num_steps = 1 + min(self.num_steps - 1, int(progress * self.num_steps))
        rows = tokens.shape[1] - num_steps
        caches = Caches(rows, self.head.shape, self.device)
        state = self.head.fc(features[:, :rows])
        loss, right = torch.zeros((), device=self.device), []
        for ahead in range(1, num_steps + 1):
            here = slice(ahead, ahead + rows)
            out, state = self.head(embedded[:, here], state, caches)
            weight = weights[:, here] / weights[:, here].sum()
            losses = -(wanted[:, here] * out.log_softmax(-1)).sum(-1)
            loss = loss + STEP_WEIGHT ** (ahead - 1) * (losses * weight).sum()
            found = self.ids[out.argmax(-1)] == best[:, here]
            right.append((found * weight).sum().item())
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no types
        nn.utils.clip_grad_norm_(self.head.output.parameters(), 1.0)
        self._update(
            self.rate
            * min(1.0, (number + 1) / WARMUP_STEPS)
            * max(0.02, min(1.0, (1 - progress) / COOLDOWN))
        )
        return right + [0.0] * (self.num_steps - num_steps)

    def _update(self, scale: float) -> None:
        for group in self.adam.param_groups:
            group["lr"] = OTHER_RATE * scale
        self.adam.step()
        self.adam.zero_grad()
        self.muon.step(scale)


def parse_arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description="Train an EAGLE-3 head for a demo model.")
    parser.add_argument("--work", type=Path, required=True, help="folder with the corpus")
    parser.add_argument("--target", type=Path, required=True, metavar="GGUF")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="GGUF")
    parser.add_argument("--start", type=Path, metavar="GGUF", help="go on from this head")
    parser.add_argument(
        "--corpus-share", type=float, default=0.0, help="batches that the target did not write"
    )
    parser.add_argument("--rows", type=int, default=3840, help="texts that the target writes")
    parser.add_argument("--write-seconds", type=float, help="write fewer if it takes longer")
    parser.add_argument("--seconds", type=float, help="stop training after this time")
    parser.add_argument("--steps", type=int, help="stop training after this many batches")
    parser.add_argument("--context", type=int, default=256, help="tokens in a row")
    parser.add_argument("--batch-size", type=int, default=4, help="rows in a batch")
    parser.add_argument("--ahead", type=int, default=4, help="tokens ahead that it learns")
    parser.add_argument("--ids", type=int, default=2048, help="tokens that it can draft")
    parser.add_argument("--ff-width", type=int, default=256, help="of its feed-forward network")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--threads", type=int, help="of the CPU; default: torch's choice")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.seconds is None and args.steps is None:
        parser.error("say how long to train: --seconds or --steps")
    return args


def main() -> None:
    """Parse the command line, write texts, train on them and export."""
    args = parse_arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    reader = GGUFReader(args.target)
    target = read_model(reader, CONTEXT).requires_grad_(False)
    trainer = Trainer(target, Texts.of(target, args), args)
    budget = Budget(args.steps, args.seconds)
    start, step, average = time.monotonic(), 0, np.zeros(args.ahead)
    while (progress := budget.progress(step, time.monotonic() - start)) < 1:
        right = np.array(trainer.step(step, progress))
        average = right if step == 0 else 0.98 * average + 0.02 * right
        step += 1
        if step % 100 == 0:
            shares = " ".join(f"{share:.3f}" for share in average)
            print(f"step {step}, {time.monotonic() - start:.0f} s, right {shares}", flush=True)
    export(trainer.head, trainer.ids, reader, args.output)
    print(f"{args.output}: {step} steps, {args.output.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
