"""`headstart distill`: tune a draft model on recorded texts, where that pays."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstart.app.cli.command import Command
from headstart.app.cli.resolve import Resolved
from headstart.config import Config, option
from headstart.config.fields import listed
from headstart.structures.tenants import namespaces_of
from headstart.types.errors import ConfigError

if TYPE_CHECKING:
    from headstart.extras.distill.candidates import Candidates
    from headstart.extras.distill.measure import Findings
    from headstart.extras.distill.prices import StepPrices
    from headstart.extras.distill.texts import RecordedText

USAGE = "[measure|train|purge] --texts DIR [flags]"
STEPS = ("train", "measure", "purge")  # without a word the first


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillOptions:
    """Options of `headstart distill`."""

    texts: str | None = option(None, "folder of headstart serve --record-texts")
    tenants: str | None = option(
        None, "API keys or tenants whose texts to take, separated by commas; default: all",
        is_secret=True,
    )  # fmt: skip
    older_than_days: float = option(0.0, "purge only texts recorded before that", least=0.0)
    drafts: str | None = option(
        None, "GGUF files of further draft models to compare, separated by commas"
    )
    output: str = option("distilled.gguf", "the tuned draft model", "-o")
    seconds: float = option(1200.0, "of training, if it is not over before", least=1.0)
    loss: str = option(
        "kl",
        "kl, tv: learn the target's probabilities; ce: the recorded tokens",
        choices=("kl", "tv", "ce"),
    )
    weights: str = option("Q8_0", "type of the tuned model's matrices", choices=("F16", "Q8_0"))
    json: bool = option(False, "print everything as JSON")


def run(resolved: Resolved, words: list[str]) -> int:
    """Do one step, or all; return the exit code: 1 where nothing was promoted."""
    options = resolved.own(DistillOptions)
    step = words[0] if words else STEPS[0]
    if len(words) > 1 or step not in STEPS or options.texts is None:
        raise ConfigError(f"say what to do with which texts: headstart distill {USAGE}")
    folder = Path(options.texts)
    tenants = None if options.tenants is None else namespaces_of(listed(options.tenants))
    if step == "purge":
        return _purge(folder, tenants, options.older_than_days)
    if step == "train":
        try:
            import gguf  # noqa: F401
            import torch  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f"training needs {error.name}: pip install 'headstart[train]'; headstart distill "
                "measure works without"
            ) from None
    work = _Work(resolved.config(), folder, tenants, options)
    found = work.measure()
    work.tell(found.report(), measured=found.describe())
    code = 0
    if step == "train":
        code = 1 if found.refusal else work.train(found)
    if options.json:
        print(json.dumps(work.facts))
    return code


def _purge(folder: Path, tenants: frozenset[str] | None, days: float) -> int:
    from headstart.extras.distill.texts import purge

    if not folder.is_dir():
        raise ConfigError(f"--texts {folder} is no folder")
    num_deleted, made = purge(folder, tenants, time.time() - 86_400.0 * days)
    print(f"deleted {num_deleted} texts from {folder}")
    for drafter in made:
        print(f"learned from some of them, so delete it or train it again: {drafter['path']}")
    return 0


class _Work:
    """The texts, split into parts, and their candidate drafters."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        tenants: frozenset[str] | None,
        options: DistillOptions,
    ) -> None:
        from headstart.app.model_files import find_models
        from headstart.extras.distill.candidates import Candidates, draft_files
        from headstart.extras.distill.prices import of_machine
        from headstart.extras.distill.texts import read_texts, split
        from headstart.structures.model_id import ModelId

        models = find_models(config)
        self.config, self.folder, self.options = config, folder, options
        self.target, self.base = models.target, models.draft
        self.drafts = list(draft_files(config, listed(options.drafts), models.draft))
        texts = read_texts(folder, ModelId.of(models.target).digest, tenants)
        self.earlier, self.later = split(texts)
        self.candidates: Candidates = Candidates.of(config, models.target)
        self.prices: StepPrices = of_machine(config, models)
        self.facts: dict[str, Any] = {}

    def tell(self, lines: Iterable[str], **facts: Any) -> None:
        """Print lines, or keep their data for the JSON output."""
        self.facts |= facts
        if not self.options.json:
            print("\n".join(lines), flush=True)

    def measure(self) -> Findings:
        from headstart.extras.distill.measure import measure

        return measure(self.candidates, self.later, self.earlier, self.drafts, self.prices)

    def train(self, found: Findings) -> int:
        """Tune, prove, and write the file under its name if it is promoted."""
        from headstart.extras.distill.proof import prove
        from headstart.extras.distill.texts import counts, note_drafter, without_duplicates

        if self.base is None:
            raise ConfigError("name the draft model to be tuned: --draft-model FILE")
        self.candidates.check_tokens(self.base)
        output = Path(self.options.output)
        texts = without_duplicates(self.earlier, self.later)
        if not texts:
            raise ConfigError("the earlier texts are those of the later conversations; record more")
        card: dict[str, Any] = {
            "base": self.base.name,
            "target": self.target.name,
            "learned_from": dict(counts(texts)),
            "held_out": dict(counts(self.later)),
        }
        candidate = output.with_suffix(".candidate.gguf")
        note_drafter(self.folder, candidate, texts)
        write = self._tune(texts, card)
        write(candidate, card)
        model, _ = self.candidates.draft_model(candidate, self.later)
        # as large as its base: the difference between two timings would be chance
        found = found.with_model(candidate.stem, model, found.models[self.base.stem][1])
        verdict = prove(found, self.base.stem, candidate.stem)
        lines = ["", *found.report(), "", *verdict.report()]
        self.tell(lines, proof=verdict.describe(), after=found.describe())
        if verdict.refusal:
            self.tell([f"{candidate} is kept to be looked at"], file=str(candidate))
            return 1
        write(output, card | {"proof": asdict(verdict)})
        candidate.unlink()
        note_drafter(self.folder, output, texts)
        self.tell([f"use it: headstart serve -m {self.target} -md {output}"], file=str(output))
        return 0

    def _tune(
        self, texts: list[RecordedText], card: dict[str, Any]
    ) -> Callable[[Path, dict[str, Any]], None]:
        """Train; returns a function that writes the weights and a card to a file."""
        from gguf import GGUFReader

        from headstart.extras.distill import teacher
        from headstart.extras.distill.gguf_file import read_model, write_model
        from headstart.extras.distill.train import CONTEXT, Trainer, TrainingPlan

        plan = TrainingPlan(self.options.loss, self.options.seconds)
        reader = GGUFReader(self.base)
        model = read_model(reader, CONTEXT)  # refuses before the target is loaded
        # they hold what the texts say, so they stay in the texts' folder until it is done
        rows, state = (self.folder / f"training.{name}" for name in ("npz", "state"))
        taught = texts if plan.loss != "ce" else []
        tell = partial(print, file=sys.stderr, flush=True)
        known = teacher.compute(self.config, self.target, taught, rows, tell)
        trained = Trainer(model, texts, known, plan, state).run(tell)
        card |= {"plan": asdict(plan), "training": trained.describe()}
        for file in (rows, state):
            file.unlink(missing_ok=True)

        def write(path: Path, card: dict[str, Any]) -> None:
            write_model(reader, trained.weights, path, self.options.weights, card)

        return write


COMMAND = Command(
    name="distill",
    about=(
        "Learn from the texts that headstart serve --record-texts kept. measure says what copies "
        "and draft models give on the later conversations at this machine's prices, and the most "
        "that any draft model could give. train does that too and, where it may pay, tunes the "
        "draft model of --draft-model on the earlier conversations; it is written if it proves "
        "better on the later ones. purge deletes texts, and names the draft models that learned "
        "from them."
    ),
    options=DistillOptions,
    parts=None,
    usage=USAGE,
    run=run,
)
