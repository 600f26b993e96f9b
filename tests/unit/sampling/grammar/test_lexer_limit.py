"""A lexer that answers share may be used up by one of them: the others go on in their own."""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import pytest
from llguidance import LLParserLimits
from tests.unit.sampling.grammar.test_state import EOS, TOKENS, begin, constraint, legal, read

from headstart.sampling.grammar import compiled
from headstart.sampling.grammar import state as states
from headstart.sampling.grammar.compiled import Compiled
from headstart.sampling.grammar.state import MIN_RENEWED, GrammarState
from headstart.types.constraint import ThoughtMarks
from headstart.types.errors import LexerLimitError, RequestError


def write(state: GrammarState, text: bytes) -> None:
    for token in text:
        state.legal_mask()
        state.read(token)


def exhausted(
    monkeypatch: pytest.MonkeyPatch, regex: str = "(a|b)*a(a|b){20}", **options: Any
) -> Compiled:
    """A constraint of which one answer has used up the lexer."""
    limits = LLParserLimits(max_lexer_states=100, verbose_errors=False)
    monkeypatch.setattr(compiled, "LIMITS", limits)
    made = Compiled(constraint("regex", regex, **options), TOKENS)
    first, text = made.begin(), bytes(random.Random(1).choices(b"ab", k=999))
    with pytest.raises(RequestError, match="too many states"):
        write(first, b"!" * ("triggers" in options) + text)
    assert first.can_renew
    return made


def renew(state: GrammarState) -> None:
    assert state.can_renew
    state.renew(Compiled(state.interrupt(), TOKENS).make)


def write_renewed(state: GrammarState, text: bytes, lengths: list[int]) -> None:
    """As `write`; `lengths` gets those at which another lexer was made."""
    for length, token in enumerate(text):
        try:
            state.legal_mask()
        except RequestError:
            renew(state)
            assert bytes(state._constraint.read) == text[:length]
            lengths.append(length)
        may_end = length > 20 and text[length - 21] == ord("a")
        assert legal(state) == {EOS, *b"ab"} - (set() if may_end else {EOS})
        state.read(token)


def test_an_answer_goes_on_in_lexers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Again and again, until what it has read takes all that one may hold."""
    monkeypatch.setattr(states, "MIN_RENEWED", 1)
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
    renew(state)
    read(state, b"!ab" if not state.is_active else b"ab")


def test_a_used_up_lexer_makes_no_trigger_illegal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a trigger that is part of the text, the lexer is asked before its last token is chosen."""
    trigger = b"?" + bytes(random.Random(5).choices(b"ab", k=30))
    triggers = {"triggers": (b"!", trigger), "includes_trigger": True}
    made = exhausted(monkeypatch, "[!?](a|b)*a(a|b){20}", **triggers)
    state = read(made.begin(), trigger[:-1])
    with pytest.raises(LexerLimitError):
        state.allows(trigger[-1])
    renew(state)
    read(state, trigger[-1:])
    assert state.is_active


def test_a_text_that_is_too_complex_has_used_up_no_lexer(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = LLParserLimits(max_items_in_row=20, verbose_errors=False)
    monkeypatch.setattr(compiled, "LIMITS", limits)
    with pytest.raises(RequestError, match=r"row has .* items") as refused:
        write(begin("lark", 'start: e\ne: e e | "a" | e "a" e'), b"a" * 50)
    assert not isinstance(refused.value, LexerLimitError)


def test_an_answer_that_may_open_with_thoughts_is_renewed_before_it_begins(monkeypatch) -> None:
    marks = ThoughtMarks(b"ab!", b"</>", is_open=False, opening=tuple(b"ab!"))
    made = exhausted(monkeypatch, thoughts=marks)
    for text in (b"aba", b"ab!free</>ab"):
        state = made.begin()
        with pytest.raises(LexerLimitError):
            state.legal_mask()
        renew(state)
        read(state, text)
        assert state.is_active


def test_a_used_up_lexer_does_not_make_a_text_a_thought(monkeypatch: pytest.MonkeyPatch) -> None:
    """What both may begin with is read without asking first whether it is legal."""
    marks = ThoughtMarks(b"ab!", b"</>", is_open=False, opening=tuple(b"ab!"))
    state = exhausted(monkeypatch, thoughts=marks).begin()
    with pytest.raises(LexerLimitError):
        state.read(ord("a"))
    renew(state)
    read(state, b"aba")


def test_drafts_do_not_use_up_the_lexer_that_an_answer_was_given(monkeypatch) -> None:
    drafts, made = random.Random(3), exhausted(monkeypatch)
    state = Compiled(made.constraint, TOKENS).begin()
    state.read(ord("b"))
    renew(state)
    for token in b"abbab":
        for _ in range(20):
            with state.lookahead() as ahead:
                ahead.read_legal(drafts.choices(b"ab", k=20))
        assert state.allows(token)
        state.read(token)


def test_drafts_are_made_again_where_the_answer_may_be_renewed_again() -> None:
    state = begin("regex", "[ab]*")
    state.read(ord("a"))
    renew(state)
    for token in b"a" * MIN_RENEWED:
        assert not state.can_renew
        with state.lookahead() as ahead:
            assert ahead.read_legal(b"ab") == 0
        state.read(token)
    assert state.can_renew
    with state.lookahead() as ahead:
        assert ahead.read_legal(b"ab") == 2


def test_one_that_shares_its_new_lexer_may_be_renewed_again_behind_a_token() -> None:
    state = begin("regex", "[ab]*")
    renew(state)
    assert not state.can_renew  # or it could be renewed for ever
    state.read(ord("a"))
    assert state.can_renew


def test_an_answer_that_waits_for_its_lexer_holds_no_other() -> None:
    made = Compiled(constraint("regex", "[ab]*"), TOKENS)
    state, old = made.begin(), weakref.ref(made)
    read(state, b"ab")
    del made
    wanted = state.interrupt()
    gc.collect()
    assert old() is None
    state.renew(Compiled(wanted, TOKENS).make)
    read(state, b"ab")
