"""A lexer that answers share may be used up by one of them: the others go on in their own."""

from __future__ import annotations

import random
from typing import Any

import pytest
from llguidance import LLParserLimits
from tests.unit.sampling.grammar.test_state import EOS, TOKENS, constraint, legal, read

from headstart.sampling.grammar import compiled
from headstart.sampling.grammar.compiled import Compiled
from headstart.sampling.grammar.state import GrammarState
from headstart.types.errors import RequestError


def write(state: GrammarState, text: bytes) -> None:
    for token in text:
        state.legal_mask()
        state.read(token)


def exhausted(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Compiled:
    """A constraint of which one answer has used up the lexer."""
    limits = LLParserLimits(max_lexer_states=100, verbose_errors=False)
    monkeypatch.setattr(compiled, "LIMITS", limits)
    made = Compiled(constraint("regex", "(a|b)*a(a|b){20}", **options), TOKENS)
    first, text = made.begin(), bytes(random.Random(1).choices(b"ab", k=999))
    with pytest.raises(RequestError, match="too many states"):
        write(first, b"!" * ("triggers" in options) + text)
    assert first.can_renew
    return made


def write_renewed(state: GrammarState, text: bytes, lengths: list[int]) -> None:
    """As `write`; `lengths` gets those at which another lexer was made."""
    for length, token in enumerate(text):
        try:
            state.legal_mask()
        except RequestError:
            made = Compiled(state.renewed, TOKENS)
            assert bytes(made.constraint.read) == text[:length]
            state.renew(made.constraint, made.make)
            lengths.append(length)
        may_end = length > 20 and text[length - 21] == ord("a")
        assert legal(state) == {EOS, *b"ab"} - (set() if may_end else {EOS})
        state.read(token)


def test_an_answer_goes_on_in_lexers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Again and again, until what it has read takes all that one may hold."""
    text, lengths = bytes(random.Random(2).choices(b"ab", k=200)), list[int]()
    with pytest.raises(RequestError, match="too many states"):
        write_renewed(exhausted(monkeypatch).begin(), text, lengths)
    assert lengths[0] == 0
    assert len(lengths) > 1


def test_a_used_up_lexer_does_not_make_a_call_illegal(monkeypatch: pytest.MonkeyPatch) -> None:
    state = exhausted(monkeypatch, triggers=(b"!",)).begin()
    read(state, b"free")
    with pytest.raises(RequestError, match="too many states"):
        read(state, b"!ab")
    assert state.can_renew
    made = Compiled(state.renewed, TOKENS)
    state.renew(made.constraint, made.make)
    read(state, b"!ab" if not state.is_active else b"ab")
