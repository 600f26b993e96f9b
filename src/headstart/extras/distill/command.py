"""`headstart distill`: tunes a draft model on recorded texts, if that pays."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from headstart.app.cli.command import Command
from headstart.app.cli.devices import ENGINE_PARTS
from headstart.app.cli.resolve import Resolved
from headstart.app.model_files import find_models
from headstart.config import Config, option
from headstart.config.fields import listed
from headstart.engine.model import Model
from headstart.extras.distill.candidates import check_tokens, draft_files, draft_model, suffix
from headstart.extras.distill.measure import Findings
from headstart.extras.distill.prices import of_machine
from headstart.extras.distill.proof import Proof, prove
from headstart.extras.distill.texts import (
    counts,
    note_drafter,
    purge,
    read_texts,
    split,
    training_folder,
    without_duplicates,
)
from headstart.extras.distill.trial import run_trial
from headstart.structures.model_id import ModelId
from headstart.structures.tenants import namespaces_of
from headstart.types.errors import ConfigError

USAGE = "[measure|train|cut|purge] --texts DIR [flags], or graft --base FILE"
# the target's probabilities; both; the recorded tokens
LOSSES = ("kl", "tv", "hybrid", "ce")
STEPS = ("train", "measure", "cut", "purge", "graft")  # without a word the first


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
    base: str | None = option(None, "model whose multi-token heads graft takes")
    output: str = option("distilled.gguf", "the draft model that is made", "-o")
    seconds: float = option(1200.0, "of training, if it is not over before", least=1.0)
    loss: str = option(
        "auto",
        "kl, tv, hybrid: learn the target's probabilities; ce: the recorded tokens; auto: try "
        "each for its share of the time, and take what gets most drafts accepted",
        choices=("auto", *LOSSES),
    )
    weights: str = option("Q8_0", "type of the tuned model's matrices", choices=("F16", "Q8_0"))
    json: bool = option(False, "print everything as JSON")


def run(resolved: Resolved) -> int:
    """Run one step, or all; returns the exit code: 1 if nothing was promoted."""
    options = resolved.own(DistillOptions)
    step, *more = resolved.words or STEPS[:1]
    source = options.base if step == "graft" else options.texts
    if more or step not in STEPS or source is None:
        raise ConfigError(f"say what to do with which texts: headstart distill {USAGE}")
    packages = {"train": ("gguf", "torch"), "cut": ("gguf",), "graft": ("gguf",)}
    for package in packages.get(step, ()):
        if find_spec(package) is None:
            raise ConfigError(
                f"{step} needs {package}: pip install 'headstart[train]'; headstart distill "
                "measure works without"
            )
    if step == "graft":
        return _graft(resolved.config(), Path(source), Path(options.output))
    folder = Path(source)
    tenants = None if options.tenants is None else namespaces_of(listed(options.tenants))
    if step == "purge":
        return _purge(folder, tenants, options.older_than_days)
    work = _Work(resolved.config(), folder, tenants, options)
    written = {"train": (work.output, work.candidate), "cut": (work.output,)}.get(step, ())
    _keep(written, (work.models.target, *work.drafts))
    if step == "train" and work.candidate.stem in [one.stem for one in work.drafts]:
        raise ConfigError(
            f"{work.candidate} would have the name of a draft model that it is compared with; "
            "name another --output"
        )
    found = work.measure()
    work.tell(found.report(), measured=found.describe())
    code = 0
    if step == "cut":
        work.cut(found)
    if step == "train":
        code = 1 if found.refusal else work.train(found)
    if options.json:
        print(json.dumps(work.facts))
    return code


def _purge(folder: Path, tenants: frozenset[str] | None, days: float) -> int:
    if not folder.is_dir():
        raise ConfigError(f"--texts {folder} is no folder")
    num_deleted, made = purge(folder, tenants, time.time() - 86_400.0 * days)
    print(f"deleted {num_deleted} texts from {folder}")
    for path in made:
        print(f"learned from some of them, so delete it or train it again: {path}")
    return 0


def _graft(config: Config, base: Path, output: Path) -> int:
    from headstart.extras.distill.edit import graft

    target = find_models(config).target
    _keep((output,), (base, target))
    graft(base, target, output)
    print(f"use its heads: headstart serve -m {target} -md {output}")
    return 0


def _keep(written: Iterable[Path], read: Iterable[Path]) -> None:
    """Check that nothing that is read is written.

    Raises:
        ConfigError: something is.
    """
    for one, other in product(written, read):
        if one.exists() and other.exists() and one.samefile(other):
            raise ConfigError(f"{one} would be written but is read too; name another --output")


class _Work:
    """The texts, split into parts, and their candidate drafters."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        tenants: frozenset[str] | None,
        options: DistillOptions,
    ) -> None:
        self.models = models = find_models(config)
        self.config, self.folder, self.options = config, folder, options
        self.output = Path(options.output)
        self.candidate = self.output.with_suffix(".candidate.gguf")
        self.drafts = draft_files(listed(options.drafts), models.draft)
        texts = read_texts(folder, ModelId.of(models.target).digest, tenants)
        self.earlier, self.later = split(texts)
        self.target = Model(models.target)
        self.facts: dict[str, Any] = {}

    def tell(self, lines: Iterable[str], **facts: Any) -> None:
        """Print lines, or keep their data for the JSON output."""
        self.facts |= facts
        if not self.options.json:
            print("\n".join(lines), flush=True)

    def measure(self) -> Findings:
        """Compare no drafts, copies, and draft models alone and after copies.

        Raises:
            ModelError: a draft model cannot draft for this target.
        """
        cost = of_machine(self.config, self.models)
        copies = suffix(self.config, self.target, self.later, self.earlier)
        not_used: dict[str, str] = {}
        found = Findings.of(self.later, copies, cost)
        for path in self.drafts:
            try:
                made = draft_model(self.config, self.target, path, self.later)
                found = found.with_model(path.stem, *made)
            except ConfigError as error:
                not_used[path.name] = str(error)
        return replace(found, not_used=not_used).bounded()

    def cut(self, found: Findings) -> None:
        """Leave out of the draft model what the earlier texts do not have, and measure that."""
        from headstart.extras.distill.edit import cut

        base, output = self._base("cut"), self.output
        used = {token for text in self.earlier for token in (*text.prompt, *text.answer)}
        answers = [token for one in self.later for token in one.answer]
        had, has = cut(base, used, output)
        note_drafter(self.folder, output, base, self.earlier)
        share = sum(token in used for token in answers) / max(1, len(answers))
        made = draft_model(self.config, self.target, output, self.later)
        found = found.with_model(output.stem, *made).bounded()
        words = f"{output} has {has} of {had} tokens, which make up {share:.1%} of later answers"
        self.tell(["", words, *found.report()], tokens=[had, has], share=share)
        self.facts["after"] = found.describe()

    def train(self, found: Findings) -> int:
        """Tune, prove, and write the file under its name if it is promoted."""
        from gguf import GGUFReader

        from headstart.extras.distill.gguf_file import write_model
        from headstart.extras.distill.train import tune

        base, output, candidate = self._base("tuned"), self.output, self.candidate
        texts = without_duplicates(self.earlier, self.later)
        if not texts:
            raise ConfigError("the earlier texts are those of the later conversations; record more")
        note_drafter(self.folder, candidate, base, texts)
        losses = LOSSES if self.options.loss == "auto" else (self.options.loss,)
        folder = training_folder(self.folder)
        tried = tune(self.config, self.models, texts, folder, losses, self.options.seconds)
        shutil.rmtree(folder)
        loss = max(tried, key=lambda one: tried[one][1]["accepted_after"])
        reader = GGUFReader(base)
        licence = reader.fields.get("general.license")
        card: dict[str, Any] = {
            "base": base.name,
            "target": self.models.target.name,
            "learned_from": counts(texts),
            "held_out": counts(self.later),
            "loss": loss,
            "training": {name: numbers for name, (_, numbers) in tried.items()},
            "licence_of_base": "not said" if licence is None else licence.contents(),
        }
        write = partial(write_model, reader, tried[loss][0], self.options.weights)
        write(candidate, card)
        model, _ = draft_model(self.config, self.target, candidate, self.later)
        # as large as its base: the difference between two timings would be chance
        found = found.with_model(candidate.stem, model, found.models[base.stem][1]).bounded()
        verdict = prove(found, base.stem, candidate.stem)
        lines = ["", *found.report(), "", *verdict.report]
        told = {**verdict.facts, "refusal": verdict.refusal}
        self.tell(lines, proof=told, after=found.describe())
        trial = None if verdict.refusal else self._trial(candidate, verdict)
        if trial is None or trial.refusal:
            self.tell([f"{candidate} is kept to be looked at"], file=str(candidate))
            return 1
        card["tokens_a_step"] = {name: arm.acceptance_length for name, arm in found.arms.items()}
        write(output, card | {"proof": verdict.facts, "trial": trial.facts})
        candidate.unlink()
        note_drafter(self.folder, output, base, texts)
        self.tell(
            [f"use it: headstart serve -m {self.models.target} -md {output}"], file=str(output)
        )
        return 0

    def _base(self, becomes: str) -> Path:
        """The draft model that the earlier texts change.

        Raises:
            ConfigError, ModelError: none is named, or it cannot learn from these texts.
        """
        if self.models.draft is None:
            raise ConfigError(f"name the draft model to be {becomes}: --draft-model FILE")
        if not self.earlier:
            raise ConfigError("there is no earlier conversation to learn from; record more")
        check_tokens(self.config, self.target, self.models.draft)
        return self.models.draft

    def _trial(self, candidate: Path, verdict: Proof) -> Proof:
        """Time the candidate against the best alternative."""
        files = {path.stem: path for path in self.drafts}
        best = verdict.facts["best"].split(", ")[-1]
        ways = (candidate, "auto"), (files.get(best), "off" if best == "off" else "auto")
        trial = run_trial(self.config, self.models.target, ways, self.earlier, self.later)
        self.tell(trial.report, trial={**trial.facts, "refusal": trial.refusal})
        return trial


COMMAND = Command(
    name="distill",
    about=(
        "Learn from the texts that headstart serve --record-texts kept. measure says what copies "
        "and draft models give on the later conversations at this machine's prices, and the most "
        "that any draft model could give. train does that too and, where it may pay, tunes the "
        "draft model of --draft-model on the earlier conversations; it is written if it proves "
        "better on the later ones. cut writes that draft model without the tokens that these "
        "texts do not have, and says what is lost; graft writes the multi-token heads of a model "
        "(--base) as a draft model for its fine-tune. purge deletes texts, and names the draft "
        "models that learned from them."
    ),
    options=DistillOptions,
    takes=ENGINE_PARTS,  # not what is recorded: answers of a trial are nobody's
    usage=USAGE,
    run=run,
)
