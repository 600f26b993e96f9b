"""`headstart corpus add`: fill a corpus file, so that answers may be guessed from these texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path

from headstart.cli.flags import read_flags
from headstart.cli.settings import all_settings, settings_of
from headstart.config import option
from headstart.errors import ConfigError

ABOUT = (
    "headstart corpus add PATH... --spec-corpus FILE: add text files, and those in folders, to the corpus of the "
    "suffix speculator (headstart serve --spec-corpus FILE). All users may be served guesses from these texts."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusOptions:
    """Where to add."""

    spec_corpus: str | None = option(None, "corpus file, made if absent", "--spec-suffix-file")
    spec_suffix_corpus_tokens: int = option(2_000_000, "most tokens kept; the oldest texts go first")


def run(argv: Sequence[str]) -> int:
    """Add the files and say what happened to them; return the exit code."""
    words = list(takewhile(lambda word: not word.startswith("-"), argv))
    settings = [*settings_of(CorpusOptions), *all_settings(("model",))]
    resolved, print_config = read_flags("corpus", ABOUT, settings, argv[len(words) :])
    if print_config:
        print(resolved.describe())
        return 0
    own = {setting.name: resolved.values[setting.name] for setting in resolved.settings if not setting.part}
    options = CorpusOptions(**own)  # type: ignore[arg-type]  # `Setting.parse` made them fit
    if words[:1] != ["add"] or len(words) < 2 or not options.spec_corpus:
        raise ConfigError("say what to add and where: headstart corpus add PATH... --spec-corpus FILE [-m MODEL]")

    from headstart import assemble
    from headstart.structures.corpus import SuffixCorpus
    from headstart.structures.corpus_files import add_files
    from headstart.structures.token_log import VocabularyId

    config = resolved.config()
    vocab = assemble.load_served_model(config, assemble.find_models(config)).vocab
    corpus = SuffixCorpus.open(Path(options.spec_corpus), VocabularyId.of(vocab), options.spec_suffix_corpus_tokens)
    try:
        tokenize = partial(vocab.tokenize, add_special=False, parse_special=False)
        report = add_files(corpus, tokenize, map(Path, words[1:]))
        print(
            f"added {report.num_added} files with {report.num_tokens} tokens to {options.spec_corpus}, which now holds "
            f"{corpus.num_texts} texts with {len(corpus)} tokens; skipped: {report.num_known} known, "
            f"{report.num_binary} binary, {report.num_huge} huge, {report.num_unreadable} unreadable"
        )
    finally:
        corpus.close()
    return 0
