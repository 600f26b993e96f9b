"""What authors of speculators are told: each broken promise is found, with its reason."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.rules.source import ROOT

from headstart.app.verify import TEMPERATURES
from headstart.speculators import Speculator
from headstart.speculators.ngram_simple import NgramSimpleSpeculator
from headstart.testing import CONTRACT, LetterVocab, assert_lossless, check_speculator
from headstart.types import Draft, DraftRequest, Vocab


class Good(Speculator):
    """Repeats the text from seven tokens before."""

    name = "good"

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self.draft(request) for request in requests]

    def draft(self, request: DraftRequest) -> Any:
        return Draft(list(request.tokens[-7:])[: request.max_tokens])


def drafting(draft: Callable[[Any], object]) -> type[Speculator]:
    """One that drafts this."""
    fields = {"__doc__": "Wrong.", "draft": lambda self, request: draft(request)}
    return type("Drafting", (Good,), fields)


class Unnamed(Good):
    """Its name is no flag."""

    name = "Two Words"


class Undescribed(Good):
    """Describes itself with a list."""

    def describe(self) -> Any:
        return ["a"]


class OldBegin(Good):
    """Does not take the namespace."""

    def begin(self, seq_id: int, text: Sequence[int]) -> None:  # type: ignore[override]
        """Nothing."""


class Certain(Good):
    """Scores its drafts with match lengths, and calls these probabilities."""

    scores_are_probabilities = True

    def draft(self, request: DraftRequest) -> Draft:
        return Draft([1], [12.0])


class Unordered(Good):
    """Answers in the order of sequence ids."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return super().propose(sorted(requests, key=lambda r: r.seq_id))


class Keeping(Good):
    """Keeps the prompt that it was lent."""

    def begin(self, seq_id: int, text: Sequence[int], namespace: str = "") -> None:
        self.prompt = text

    def draft(self, request: DraftRequest) -> Draft:
        return Draft(list(self.prompt[-7:])[: request.max_tokens])


class Telling(Good):
    """Drafts what any tenant wrote."""

    def __init__(self) -> None:
        self.after: dict[int, int] = {}

    def draft(self, request: DraftRequest) -> Draft:
        self.after.update(zip(request.tokens, request.tokens[1:], strict=False))
        draft = [request.tokens[-1]]
        while len(draft) <= request.max_tokens and draft[-1] in self.after:
            draft.append(self.after[draft[-1]])
        return Draft(draft[1:])


class Forgetful(Good):
    """Knows only sequences that began, and ends them once."""

    def __init__(self) -> None:
        self.known: dict[int, int] = {}

    def begin(self, seq_id: int, text: Sequence[int], namespace: str = "") -> None:
        self.known[seq_id] = 1

    def end(self, seq_id: int) -> None:
        del self.known[seq_id]


class NeedsPrompt(Good):
    """Looks at the last two tokens of the prompt."""

    def begin(self, seq_id: int, text: Sequence[int], namespace: str = "") -> None:
        self.last = text[-2]


class NeedsGrowth(Good):
    """Believes that the texts of a slot only grow."""

    length = 0

    def begin(self, seq_id: int, text: Sequence[int], namespace: str = "") -> None:
        assert len(text) >= self.length, "shorter than before"
        self.length = len(text)


REPEATS = "it_drafts_where_the_text_repeats"
WELL_FORMED = "its_drafts_are_well_formed_and_repeatable"


@pytest.mark.parametrize(
    ("kind", "promise", "says"),
    [
        (Unnamed, "it_describes_itself", "small letters"),
        (Undescribed, "it_describes_itself", "must return a dict"),
        (OldBegin, "its_calls_take_what_they_are_given", "seq_id, text, namespace"),
        (drafting(lambda one: Draft(list(one.tokens[-7:]))), WELL_FORMED, "max_tokens is 1"),
        (drafting(lambda _: Draft([1], [0.5, 0.5])), WELL_FORMED, "2 scores for 1 tokens"),
        (drafting(lambda _: Draft([1], [float("nan")])), WELL_FORMED, "finite"),
        (Certain, WELL_FORMED, "a score is 12 but must be a probability"),
        (drafting(lambda _: Draft([40_000])), WELL_FORMED, "not in the vocabulary"),
        (drafting(lambda _: Draft([random.randrange(30)])), WELL_FORMED, "seed what is random"),
        (drafting(lambda _: Draft(reason="no match")), REPEATS, "drafted nothing"),
        (Unordered, "it_answers_in_the_order_of_the_requests", "one by one"),
        (drafting(lambda one: one.tokens.sort() or Draft([1])), REPEATS, "list(tokens)"),
        (Keeping, "it_keeps_nothing_it_was_lent", "list(tokens)"),
        (Telling, "it_keeps_namespaces_apart", "another namespace"),
        (Forgetful, "it_takes_requests_that_were_cut_off", "5"),
        (NeedsPrompt, "it_takes_short_prompts", "index out of range"),
        (NeedsGrowth, "it_takes_histories_that_shrink", "shorter than before"),
    ],
)
def test_a_broken_promise_is_found(kind: type[Speculator], promise: str, says: str) -> None:
    check = next(one for one in CONTRACT if one.__name__ == promise)
    with pytest.raises(Exception, match=re.escape(says)):  # perhaps what it raised itself
        check(kind)


class Spelling(Good):
    """Asks for the vocabulary."""

    def __init__(self, vocab: Vocab) -> None:
        assert vocab.token_bytes(30) == b"\n"


class Quoting(Spelling):
    """Drafts in strings only, as one for JSON does."""

    def __init__(self, vocab: Vocab) -> None:
        self.quote = vocab.tokenize('"', add_special=False, parse_special=False)[0]

    def draft(self, request: DraftRequest) -> Any:
        is_open = list(request.tokens).count(self.quote) % 2
        return super().draft(request) if is_open else Draft()


def test_one_that_drafts_in_json_alone_passes() -> None:
    check_speculator(Quoting)


def test_one_that_ignores_repetitions_passes_without_that_promise() -> None:
    silent = drafting(lambda _: Draft())
    with pytest.raises(AssertionError, match="pass repeats=False"):
        check_speculator(silent)
    assert check_speculator(silent, repeats=False) == (0, 0)
    with pytest.raises(AssertionError, match="max_tokens is 1"):  # all others are checked
        check_speculator(drafting(lambda _: Draft([1, 2])), repeats=False)


def test_a_good_one_passes_and_what_it_drafted_is_counted() -> None:
    drafted, accepted = check_speculator(Spelling)
    assert drafted > accepted > 0


def test_lossless_generation_meets_preemption_and_ids_that_are_used_again() -> None:
    begun: list[int] = []

    class Beginning(Good):
        def begin(self, seq_id: int, text: Sequence[int], namespace: str = "") -> None:
            begun.append(seq_id)

    assert_lossless(Beginning)
    ways = len(TEMPERATURES) * 7
    assert set(begun) == {0, 1, 2}
    assert len(begun) > 6 * ways  # more often than there are requests: some were preempted


def test_a_text_that_changes_is_told_with_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speculators cannot change one, so here sampling does."""
    from headstart.scheduler.commit import Committer

    verify = Committer._verify

    def biased(self, result, rows):
        verify(self, result, rows)
        if result.num_accepted > 1:
            *right, last = result.emitted
            result.emitted = (*right, (last + 1) % 31)

    monkeypatch.setattr(Committer, "_verify", biased)
    with pytest.raises(AssertionError, match=r"changed a text at temperature 0.0 \(alone, 4"):
        assert_lossless(lambda: NgramSimpleSpeculator(NgramSimpleSpeculator.Options(size_n=1)))


def test_the_vocabulary_has_a_text_for_each_token_but_the_last() -> None:
    vocab = LetterVocab()
    text = b"".join(vocab.token_bytes(token) for token in range(vocab.size))
    assert vocab.tokenize(text, add_special=False, parse_special=False) == list(range(31))
    assert [token for token in range(vocab.size) if vocab.is_control(token)] == [31]
    assert list(vocab.eog_ids) == [vocab.eos_id] == [31]


EXAMPLE = ROOT / "examples/speculator"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """What pip leaves behind, without pip."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text("utf-8"))["project"]
    for file in EXAMPLE.glob("*.py"):
        shutil.copy(file, tmp_path)
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    ((group, entries),) = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {module}" for name, module in entries.items())]
    info.joinpath("entry_points.txt").write_text("\n".join(lines))
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((f"{ROOT / 'src'}", f"{ROOT}", f"{folder}"))
    }
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, cwd=folder
    )


def test_its_options_are_flags_once_it_is_installed(installed: Path) -> None:
    flags = ["--spec-type", "frequent", "--spec-frequent-size", "3", "--print-config"]
    shown = run(installed, "-m", "headstart", "serve", *flags)
    assert 'spec_type = "frequent"' in shown.stdout, shown.stderr
    assert "spec_frequent_size = 3" in shown.stdout
    flags[3] = "0"
    assert (
        "--spec-frequent-size is 0 but must be at least 1"
        in run(installed, "-m", "headstart", "generate", "-p", "x", *flags[:4]).stderr
    )


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this"),
        ("raise SystemExit('no numpy')", "SystemExit: no numpy"),
    ],
)
def test_a_package_that_cannot_be_imported_stops_only_a_server_that_names_it(installed, code, says):
    (installed / "headstart_frequent.py").write_text(code)
    said = f"frequent.*headstart_frequent: {says}"
    answered = run(
        installed, "-m", "headstart", "generate", "-p", "x", "-n", "1", "--spec-type", "suffix"
    )
    assert answered.returncode == 0, answered.stderr
    assert re.search(said, answered.stderr)
    named = run(installed, "-m", "headstart", "generate", "-p", "x", "--spec-type", "frequent")
    assert named.returncode != 0
    assert re.search(said, named.stderr)
    if "SystemExit" in says:  # which alone could end whatever imports it
        made = "from tests.harness import Model, make_scheduler\n"
        code = made + "print(make_scheduler(Model(2)).drafting.describe()['not_imported'])"
        shown = run(installed, "-c", code)
        assert "headstart_frequent" in shown.stdout, shown.stderr


def test_verify_tries_every_speculator_that_needs_no_file(installed: Path) -> None:
    code = (
        "from headstart.app.cli.verify import _settings; from headstart.config import Config\n"
        "print(_settings(Config()).speculation.spec_type)"
    )
    names = run(installed, "-c", code).stdout.strip().split(",")
    assert {"frequent", "suffix", "ngram-cache", "draft-model"} <= {*names}
    assert not {"mtp", "eagle3"} & {*names}


def test_its_own_test_passes(installed: Path) -> None:
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-c", os.devnull)
    result = run(installed, "-m", "pytest", *options, str(installed))
    assert "2 passed" in result.stdout, result.stdout + result.stderr
