"""Train one of the demo models.

    python -m training.train target --work DIR --seconds 2100

writes DIR/target.pt. With --steps instead of --seconds the same seed gives the same weights on the
same machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import inf, sqrt
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from headstart.extras.distill.model import LanguageModel, Shape
from headstart.types.errors import ModelError
from training import tokenizer
from training.batches import Rows, load
from training.induction import SHAPES, add_induction

MATRIX_RATE = 0.012  # Muon, on the matrices of the blocks
OTHER_RATE = 3e-3  # AdamW, on embeddings, output and norms
WARMUP_STEPS = 50
COOLDOWN = 0.6  # last share of the run, in which the rates fall to 2 %
SAVE_SECONDS = 300.0
TASK_ROOM = 48  # tokens of a row that stay free of its first task


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that decides the weights."""

    shape: Shape
    context: int
    batch_size: int
    steps: float  # when to stop: what comes first
    seconds: float
    seed: int
    device: torch.device
    is_compiled: bool


def initialize(model: LanguageModel) -> None:
    """Normal weights; those that write to the residual stream are smaller with more layers."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            writes = name.endswith(("attn_output.weight", "ffn_down.weight"))
            nn.init.normal_(
                parameter, 0, 0.02 / (sqrt(2 * model.shape.num_layers) if writes else 1)
            )


class Trainer:
    """A model, its optimizers and its rows."""

    def __init__(self, run: Run, work: Path) -> None:
        torch.manual_seed(run.seed)
        self.run = run
        model = LanguageModel(run.shape, run.context)
        initialize(model)
        add_induction(model)
        self.model = model.to(run.device)
        self.forward: Callable[[Tensor], Tensor] = (
            torch.compile(self.model) if run.is_compiled else self.model
        )
        text = Tokenizer.from_file(str(tokenizer.path_of(work, run.shape.vocab_size)))
        self.rows = Rows(load(work, text, run.context - TASK_ROOM), run.context, run.seed)
        matrices = [p for p in self.model.blocks.parameters() if p.dim() == 2]
        self.muon = torch.optim.Muon(matrices, weight_decay=0.05, ns_steps=4)
        kept = set(map(id, matrices))
        others = [p for p in self.model.parameters() if id(p) not in kept]
        self.adam = torch.optim.AdamW(others, lr=OTHER_RATE, betas=(0.9, 0.95), weight_decay=0.0)

    def step(self, number: int, progress: float) -> float:
        """Train on one batch; return its loss in nats per token."""
        loss = self._loss(repeat_share=0.2 if progress < 0.2 else 0.08)
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no types
        scale = min(1.0, (number + 1) / WARMUP_STEPS) * max(
            0.02, min(1.0, (1 - progress) / COOLDOWN)
        )
        for optimizer, rate in ((self.muon, MATRIX_RATE), (self.adam, OTHER_RATE)):
            for group in optimizer.param_groups:
                group["lr"] = rate * scale
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    def _loss(self, repeat_share: float) -> Tensor:
        ids, weights = self.rows.batch(self.run.batch_size, repeat_share)
        tokens = torch.from_numpy(ids).long().to(self.run.device)
        weight = torch.from_numpy(weights).to(self.run.device)[:, 1:].flatten()
        with torch.autocast(
            self.run.device.type, torch.bfloat16, enabled=self.run.device.type == "cuda"
        ):
            logits = self.forward(tokens[:, :-1])
        losses = F.cross_entropy(
            logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none"
        )
        return (losses * weight).sum() / weight.sum()

    def save(self, path: Path) -> None:
        """Write shape and weights; `training.export` reads them."""
        torch.save({"shape": asdict(self.run.shape), "weights": self.model.state_dict()}, path)


def train(run: Run, work: Path, output: Path) -> None:
    """Train until the budget is spent; print the loss and save as it goes."""
    trainer = Trainer(run, work)
    num_parameters = sum(p.numel() for p in trainer.model.parameters())
    num_tokens = len(trainer.rows.tokens.code) + len(trainer.rows.tokens.tasks)
    print(
        f"{num_parameters / 1e6:.1f} M parameters, {num_tokens / 1e6:.1f} M tokens of text",
        flush=True,
    )
    start = last_save = time.monotonic()
    step, average = 0, 0.0
    while (progress := max(step / run.steps, (time.monotonic() - start) / run.seconds)) < 1:
        loss = trainer.step(step, progress)
        average = loss if step == 0 else 0.98 * average + 0.02 * loss
        step += 1
        now = time.monotonic()
        if step % 100 == 0:
            speed = step * run.batch_size * run.context / (now - start)
            print(
                f"step {step}, {now - start:.0f} s, loss {average:.3f}, {speed:.0f} tokens/s",
                flush=True,
            )
        if now - last_save > SAVE_SECONDS:
            trainer.save(output)
            last_save = now
    trainer.save(output)
    print(f"{output}: {step} steps, loss {average:.3f}", flush=True)


def choose_device(name: str) -> torch.device:
    """Return the device called `name`; auto takes CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def parse_arguments() -> argparse.Namespace:
    """Return the command line, with the model's `shape` made of preset and overrides."""
    parser = argparse.ArgumentParser(description="Train a demo model.")
    parser.add_argument("model", choices=SHAPES)
    parser.add_argument(
        "--work", type=Path, required=True, help="folder with corpus and tokenizers"
    )
    parser.add_argument("--seconds", type=float, default=inf, help="stop after this time")
    parser.add_argument("--steps", type=int, default=inf, help="stop after this many batches")
    parser.add_argument("--context", type=int, default=448, help="tokens in a row")
    parser.add_argument("--batch-size", type=int, default=6, help="rows in a batch")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument(
        "--compile", action="store_true", help="compile the model first: pays after some minutes"
    )
    parser.add_argument("--seed", type=int, default=0)
    for field in Shape.__dataclass_fields__:
        parser.add_argument(
            f"--{field.replace('_', '-')}", type=int, help="instead of the model's own"
        )
    args = parser.parse_args()
    if args.seconds == args.steps == inf:
        parser.error("say how long to train: --seconds or --steps")
    given = {field: getattr(args, field) for field in Shape.__dataclass_fields__}
    try:
        args.shape = replace(
            SHAPES[args.model],
            **{name: value for name, value in given.items() if value is not None},
        )
    except ModelError as error:
        parser.error(str(error))
    return args


def main() -> None:
    """Parse the command line and train."""
    args = parse_arguments()
    run = Run(
        shape=args.shape,
        context=args.context,
        batch_size=args.batch_size,
        steps=args.steps,
        seconds=args.seconds,
        seed=args.seed,
        device=choose_device(args.device),
        is_compiled=args.compile,
    )
    train(run, args.work, args.work / f"{args.model}.pt")


if __name__ == "__main__":
    main()
