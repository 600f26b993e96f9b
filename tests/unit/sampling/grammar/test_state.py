"""What a constraint leaves: legal tokens, forced tokens, where it begins and where it ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from llguidance import LLParserLimits

from headstart.sampling.grammar import compiled
from headstart.sampling.grammar.compiled import Compiled
from headstart.sampling.grammar.state import GrammarState
from headstart.sampling.grammar.triggers import GrammarTokens
from headstart.testing import ByteVocab
from headstart.types.constraint import Constraint, ConstraintKind, ThoughtMarks
from headstart.types.errors import RequestError

EOS = 256
TOKENS = GrammarTokens.read(ByteVocab())
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def constraint(kind: str, text: Any = "", **options: Any) -> Constraint:
    return Constraint(
        kind=ConstraintKind(kind),
        text=text if isinstance(text, str) else json.dumps(text),
        **options,
    )


def begin(kind: str, text: Any = "", **options: Any) -> GrammarState:
    return Compiled(constraint(kind, text, **options), TOKENS).begin()


def legal(state: GrammarState) -> set[int]:
    """The legal tokens; both ways of asking have to agree, except on a marker of reasoning."""
    ids = state.legal_mask().nonzero()[0].tolist()
    allowed = {token for token in range(TOKENS.size) if state.allows(token)}
    assert {*ids, *state._opening[:1]} == allowed
    return allowed


def read(state: GrammarState, text: bytes) -> GrammarState:
    for token in text:
        assert state.allows(token), (chr(token), bytes(sorted(legal(state) - {EOS})))
        state.read(token)
    return state


def test_a_legal_text_can_be_read_and_the_end_is_known() -> None:
    state = begin("json_schema", SCHEMA)
    read(state, b'{"name": "Jo", "age": 12')
    assert not state.is_over
    read(state, b"}")
    assert state.is_over
    assert state.forced() == []


def test_forced_text_is_the_only_legal_one() -> None:
    state = begin("json_schema", SCHEMA)
    assert bytes(state.forced()) == b'{"name": "'
    assert legal(state) == {ord("{")}
    read(state, b'{"name": "')
    assert state.forced() == []
    read(state, b'Jo"')
    assert bytes(state.forced()) == b', "age": '
    read(state, b', "age"')
    assert bytes(state.forced()) == b": "


def test_the_end_of_the_turn_is_legal_where_the_text_is_complete() -> None:
    state = begin("regex", "[a-z]+")
    assert EOS not in legal(state)
    read(state, b"abc")
    assert legal(state) == {*b"abcdefghijklmnopqrstuvwxyz", EOS}
    state.read(EOS)
    assert state.is_over


@pytest.mark.parametrize(
    ("kind", "text", "good", "bad"),
    [
        ("json_object", "", b'{"a": [1, {"b": null}]}', b"[1]"),
        ("json_object", "", b'{\n  "a": 1\n}', b"{a"),
        ("gbnf", 'root ::= "yes" | "no"', b"no", b"maybe"),
        ("lark", 'start: "a"+ NUM\nNUM: /[0-9]+/', b"aa12", b"ab"),
        ("regex", "[0-9]{4}-[0-9]{2}", b"2026-11", b"26-11"),
        ("json_schema", {"enum": ["red", "green"]}, b'"green"', b'"blue"'),
    ],
)
def test_every_kind_of_constraint_holds(kind: str, text: Any, good: bytes, bad: bytes) -> None:
    read(begin(kind, text), good)
    state = begin(kind, text)
    with state.lookahead() as ahead:
        assert ahead.read_legal(bad) < len(bad)


def test_an_object_without_a_schema_cannot_be_filled_with_white_space() -> None:
    state = begin("json_object")
    read(state, b"{" + b" " * 20)
    assert not state.allows(ord(" "))


def test_a_schema_may_choose_its_own_layout() -> None:
    compact = SCHEMA | {"x-guidance": {"key_separator": ":", "item_separator": ","}}
    assert bytes(begin("json_schema", compact).forced()) == b'{"name":"'


@pytest.mark.parametrize(
    "token", ["<headstart-thoughts>", f"<[{TOKENS.size}]>", f"<[^0-{TOKENS.size - 1}]>"]
)
def test_a_token_that_the_vocabulary_does_not_have_is_never_legal(token: str) -> None:
    state = read(begin("lark", f'start: "a" {token} "b"'), b"a")
    assert state.forced() == []
    assert legal(state) == set()
    with state.lookahead() as ahead:
        assert ahead.forced() == []
        assert ahead.read_legal(b"b") == 0
    assert legal(begin("lark", f"start: {token}")) == set()


def test_a_look_ahead_leaves_no_trace() -> None:
    state = read(begin("json_schema", SCHEMA), b'{"name": "J')
    before = legal(state), state.forced()
    with state.lookahead() as ahead:
        assert ahead.read_legal(b'o", "age": 1x') == 12
        assert ahead.forced() == []
    assert (legal(state), state.forced()) == before
    read(state, b'o", "age": 7}')


def test_a_look_ahead_says_what_is_forced_behind_it() -> None:
    state = read(begin("json_schema", SCHEMA), b'{"name": "')
    with state.lookahead() as ahead:
        assert ahead.read_legal(b'Jo"') == 3
        assert bytes(ahead.forced()) == b', "age": '
    assert state.forced() == []


def test_a_look_ahead_ends_with_the_text() -> None:
    state = begin("regex", "ab")
    with state.lookahead() as ahead:
        assert ahead.read_legal([*b"ab", EOS, *b"ab"]) == 2
    state = begin("regex", "ab*")
    with state.lookahead() as ahead:
        assert ahead.read_legal([*b"abb", EOS, *b"ab"]) == 4
    read(state, b"abbb")


class TestTriggers:
    def test_before_a_trigger_all_is_legal(self) -> None:
        state = begin("regex", "[0-9]+", triggers=(b"</think>",))
        assert legal(state) == set(range(TOKENS.size))
        assert not state.is_active

    def test_what_follows_a_trigger_is_constrained(self) -> None:
        state = begin("regex", "[0-9]+", triggers=(b"</think>",))
        read(state, b"I <think>, </thin</think>")
        assert state.is_active
        assert legal(state) == set(b"0123456789")

    def test_the_trigger_can_belong_to_the_text(self) -> None:
        state = begin(
            "gbnf", 'root ::= "<tool>" [a-c]', triggers=(b"<tool>",), includes_trigger=True
        )
        read(state, b"so: <tool>")
        assert legal(state) == set(b"abc")

    def test_a_trigger_that_the_text_cannot_begin_with_is_refused(self) -> None:
        with pytest.raises(RequestError, match="<tool>"):
            begin("regex", "[0-9]+", triggers=(b"<tool>",), includes_trigger=True)

    @pytest.mark.parametrize(
        ("kind", "text", "value"),
        [
            ("json_object", "", b"{}"),
            ("json_schema", {"const": 1}, b"1"),
            ("regex", "ab", b"ab"),
            ("lark", 'start: "a" B\nB: "b"', b"ab"),
            ("gbnf", 'root ::= "a" b\nb ::= "b"', b"ab"),
        ],
    )
    def test_headers_may_come_before_every_kind_and_space_only_behind_thoughts(
        self, kind: str, text: Any, value: bytes
    ) -> None:
        before = 'before: "final" B?\nB: "!"'
        for marks in (None, THINK):
            for first in (b"", b"final", b"final!"):
                read(begin(kind, text, before=before, thoughts=marks), first + value)
            assert not legal(begin(kind, text, before=before, thoughts=marks)) & set(b" \n")
        for first in (b"", b"\n\n", b"\n\n \nfinal"):
            opened = begin(kind, text, before=before, thoughts=OPEN)
            thought = begin(kind, text, before=before, thoughts=THINK)
            read(opened, b"x</think>" + first + value)
            read(thought, b"<think>x</think>" + first + value)

    def test_of_two_triggers_the_one_that_is_complete_first_counts(self) -> None:
        state = begin("regex", "b>c", triggers=(b"<ab>", b"<a"))
        read(state, b"<a")
        assert state.is_active
        read(state, b"b>c")

    def test_a_draft_is_followed_across_the_trigger(self) -> None:
        state = begin("regex", "[0-9]+", triggers=(b"</think>",))
        with state.lookahead() as ahead:
            assert ahead.read_legal(b"x</think>12a") == len(b"x</think>12")
        assert not state.is_active
        read(state, b"x</think>12")


THINK = ThoughtMarks(b"<think>", b"</think>", is_open=False, opening=tuple(b"<think>"))
OPEN = ThoughtMarks(b"<think>", b"</think>", is_open=True)


class TestThoughts:
    """Where the model thinks its text is free, and triggers do not count."""

    @pytest.mark.parametrize("marks", [THINK, OPEN])
    def test_a_trigger_inside_thoughts_does_not_begin_the_constraint(self, marks) -> None:
        state = begin("regex", "[0-9]+", triggers=(b"<tool>",), thoughts=marks)
        opening = b"" if marks.is_open else b"Well <think>"
        read(state, opening + b"I may call <tool> so")
        assert not state.is_active
        assert legal(state) == set(range(TOKENS.size))
        read(state, b"</think> now <tool>")
        assert legal(state) == set(b"0123456789")

    def test_a_draft_is_followed_across_the_end_of_thoughts(self) -> None:
        state = begin("regex", "[0-9]+", triggers=(b"<tool>",), thoughts=OPEN)
        for text in (b"a<tool>b</think><tool>12a", b"a<tool>bc</think>no<tool>12a"):
            with state.lookahead() as ahead:
                assert ahead.read_legal(text) == len(text) - 1
        read(state, b"a<tool>b")
        with state.lookahead() as ahead:
            assert ahead.read_legal(b"</think><tool>x") == len(b"</think><tool>")

    def test_the_end_of_thoughts_may_be_the_trigger(self) -> None:
        state = begin("regex", "[0-9]+", triggers=(b"</think>\n",), thoughts=OPEN)
        read(state, b"x\n</think>\n")
        assert legal(state) == set(b"0123456789")

    def test_an_answer_is_constrained_text_or_begins_with_thoughts(self) -> None:
        state = begin("regex", "[0-9]+", thoughts=THINK)
        assert legal(state) == set(b"0123456789<")
        assert state.forced() == []
        read(state, b"<")
        assert legal(state) == set(b"t")
        assert bytes(state.forced()) == b"think>"
        read(state, b"think>")
        assert legal(state) == set(range(TOKENS.size)) - {EOS}
        read(state, b"free <think> text</think>\n")
        assert legal(state) == set(b"0123456789 \t\r\n")
        read(state, b"12")
        assert legal(state) == {*b"0123456789", EOS}

    def test_without_thoughts_the_text_is_constrained_from_its_first_token_on(self) -> None:
        state = read(begin("regex", "ab", thoughts=THINK), b"a")
        assert bytes(state.forced()) == b"b"

    def test_the_mark_and_the_text_may_begin_alike(self) -> None:
        marks = ThoughtMarks(b"<a>", b"</a>", is_open=False, opening=tuple(b"<a>"))
        state = read(begin("regex", "<x>[0-9]", thoughts=marks), b"<")
        assert legal(state) == set(b"ax")
        read(state, b"x>1")
        assert state.is_over
        state = read(begin("regex", "<x>[0-9]", thoughts=marks), b"<a>free</a>")
        assert legal(state) == set(b"< \t\r\n")

    def test_a_draft_is_followed_through_thoughts_that_it_begins(self) -> None:
        state = begin("regex", "[0-9]+", thoughts=THINK)
        for before in (b"", b"<th"):
            read(state, before)
            for text, num_legal in (
                (b"<think>x</think>12a", 18), (b"<think>x", 8), (b"<thinx", 5), (b"12a", 2)
            ):  # fmt: skip
                if not text.startswith(before):
                    continue
                with state.lookahead() as ahead:
                    assert ahead.read_legal(text[len(before) :]) == num_legal - len(before)
        read(state, b"ink>x</think>12")

    def test_an_answer_that_begins_inside_thoughts_is_constrained_behind_them(self) -> None:
        state = begin("regex", "[0-9]+", thoughts=OPEN)
        assert legal(state) == set(range(TOKENS.size)) - {EOS}
        read(state, b"hm</think>\n\n12")


class PairVocab(ByteVocab):
    """Some tokens of several bytes, as real vocabularies have; the last one is a control token."""

    extra = (b'{"', b'">', b'>{"', b">{x", b"</think>", b"na", b"name", b'":', b": ", b'": "')
    size = 258 + len(extra) + 1

    def token_bytes(self, token: int) -> bytes:
        if token == self.size - 1:
            return b""
        return self.extra[token - 258] if token >= 258 else super().token_bytes(token)

    def token_text(self, token: int) -> bytes:
        if token == self.size - 1:
            return b"<tool>"
        return self.extra[token - 258] if token >= 258 else super().token_text(token)

    def is_control(self, token: int) -> bool:
        return token == self.size - 1 or 256 <= token < 258

    def tokenize(self, text: str | bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        raw = text.encode() if isinstance(text, str) else text
        ids: list[int] = []
        while raw:
            piece = max((p for p in (*self.extra, raw[:1]) if raw.startswith(p)), key=len)
            ids.append(258 + self.extra.index(piece) if piece in self.extra else piece[0])
            raw = raw[len(piece) :]
        return ids


PAIRS = PairVocab()
PAIR_TOKENS = GrammarTokens.read(PAIRS)


def ids(text: bytes) -> Sequence[int]:
    return PAIRS.tokenize(text, add_special=False, parse_special=False)


class TestLongTokens:
    def begin(self, kind: str, text: Any = "", **options: Any) -> GrammarState:
        return Compiled(constraint(kind, text, **options), PAIR_TOKENS).begin()

    def test_forced_text_is_tokenized_as_the_model_would(self) -> None:
        state = self.begin("json_schema", SCHEMA)
        text = state.forced()
        assert text[:2] == ids(b'{"name')
        # `": "` might go on as another token; what later bytes can change is not forced
        assert b"".join(map(PAIRS.token_bytes, text)) in (b'{"name', b'{"name": "')

    def test_a_piece_of_a_forced_token_is_not_legal(self) -> None:
        state = self.begin("json_schema", SCHEMA)
        assert state.legal_mask().nonzero()[0].tolist() == ids(b'{"')
        assert not state.allows(ord("{"))

    def test_a_token_may_complete_a_trigger_and_begin_the_text(self) -> None:
        state = self.begin("json_schema", SCHEMA, triggers=(b"t>",))
        for token in (*b"<t", *ids(b'>{"')):
            assert state.allows(token)
            state.read(token)
        assert state.forced()[0] == ids(b"name")[0]

    def test_a_token_that_completes_a_trigger_and_goes_on_wrongly_is_illegal(self) -> None:
        state = self.begin("json_schema", SCHEMA, triggers=(b"t>",))
        for token in b"<t":
            state.read(token)
        (wrong,) = ids(b">{x")
        assert [token for token in range(PAIRS.size) if not state.allows(token)] == [wrong]

    def test_a_control_token_is_a_trigger_by_its_spelling(self) -> None:
        state = self.begin("regex", "[0-9]", triggers=(b"<tool>",))
        state.read(PAIRS.size - 1)
        assert state.is_active

    def test_a_control_token_is_never_matched_by_its_text(self) -> None:
        state = self.begin("regex", "(.|\n)*")
        assert not state.allows(PAIRS.size - 1)
        assert not state.allows(257)
        assert state.allows(256)

    def test_a_grammar_can_name_a_control_token(self) -> None:
        state = self.begin("lark", f'start: <[{PAIRS.size - 1}]> "a"')
        assert state.legal_mask().nonzero()[0].tolist() == [PAIRS.size - 1]


def test_a_look_ahead_into_what_is_too_complex_changes_nothing(monkeypatch) -> None:
    """llguidance's errors are for ever; the state begins anew and knows the same text."""
    monkeypatch.setattr(
        compiled, "LIMITS", LLParserLimits(max_items_in_row=50, verbose_errors=False)
    )
    state = read(begin("lark", 'start: s\ns: s s | "a" | "b"'), b"ab")
    before = legal(state)
    with state.lookahead() as ahead:
        assert 2 < ahead.read_legal(b"ab" * 50) < 100
    assert legal(state) == before
    with pytest.raises(RequestError, match="Current row has 52 items; max is 50"):
        read(state, b"ab" * 50)
