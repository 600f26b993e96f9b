"""`headstart corpus add`: fill a corpus file that drafts are copied from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headstart.app.cli.command import Command
from headstart.app.cli.resolve import Resolved
from headstart.config import option
from headstart.types.errors import ConfigError

USAGE = "add PATH... --spec-corpus FILE [flags]"


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusOptions:
    """Where to add."""

    spec_suffix_file: str | None = option(None, "corpus file, made if absent", "--spec-corpus")
    spec_suffix_corpus_tokens: int = option(
        2_000_000, "maximum tokens kept; the oldest texts go first", least=1
    )

    def __post_init__(self) -> None:
        if self.spec_suffix_corpus_tokens < 1:
            raise ConfigError(
                f"--spec-suffix-corpus-tokens is {self.spec_suffix_corpus_tokens} but must be at "
                "least 1: "
                "texts could not be kept"
            )


def run(resolved: Resolved, words: list[str]) -> int:
    """Add the files and say what happened to them; return the exit code."""
    options = resolved.own(CorpusOptions)
    if words[:1] != ["add"] or len(words) < 2 or not options.spec_suffix_file:
        raise ConfigError(f"say what to add and where: headstart corpus {USAGE}")

    from headstart.app import assemble
    from headstart.structures.corpus import SuffixCorpus
    from headstart.structures.corpus_files import MAX_FILE_BYTES, add_files
    from headstart.structures.vocabulary_id import VocabularyId

    config = resolved.config()
    vocab = assemble.load_served_model(config, assemble.find_models(config)).vocab
    path = Path(options.spec_suffix_file)
    corpus = SuffixCorpus.open(path, VocabularyId.of(vocab), options.spec_suffix_corpus_tokens)
    try:
        tokenize = partial(vocab.tokenize, add_special=False, parse_special=False)
        report = add_files(corpus, tokenize, map(Path, words[1:]))
        print(
            f"added {report.num_added} files with {report.num_tokens} tokens to {path}, which now "
            f"holds {corpus.num_texts} texts with {len(corpus)} tokens; skipped: "
            f"{report.num_known} known, {report.num_empty} empty, {report.num_binary} not UTF-8 "
            f"text, {report.num_huge} of more than {MAX_FILE_BYTES >> 20} MiB, "
            f"{report.num_unreadable} unreadable"
        )
        shown = report.unread[:5]
        for file in shown:
            print(f"not read: {file}")
        if len(report.unread) > len(shown):
            print(f"and {len(report.unread) - len(shown)} more")
    finally:
        corpus.close()
    return 0


COMMAND = Command(
    name="corpus",
    about=(
        "Add text files, and those in folders, to the corpus of the suffix speculator (headstart "
        "serve --spec-corpus FILE). Drafts for all users may be copied from these texts. Skipped "
        "are files that are not UTF-8 text, files of more than 1 MiB, hidden files and folders, "
        "and folders named __pycache__, node_modules, target or venv. A running server holds its "
        "corpus: add files before it starts."
    ),
    options=CorpusOptions,
    parts=("model",),
    usage=USAGE,
    run=run,
)
