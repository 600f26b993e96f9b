"""What speculators keep of past texts, for those who ask which texts are known here."""

from __future__ import annotations

from collections.abc import Iterable

from headstart.scheduler.guarded_speculator import GuardedSpeculator
from headstart.types.request import CorpusEvent, CorpusQuestion


def read_corpus(speculators: Iterable[GuardedSpeculator], question: CorpusQuestion) -> CorpusEvent:
    """The texts of the first speculator that keeps any; nothing where none does."""
    for speculator in speculators:
        found = speculator.kept_texts(question.namespace, question.places, question.max_tokens)
        if found is not None:
            return CorpusEvent(question.request_id, found.tokens, found.places, found.is_complete)
    return CorpusEvent(question.request_id, b"", (), is_complete=True)
