"""A limit on thoughts: what counts, where they end, and how."""

from __future__ import annotations

from headstart.sampling.thoughts import ThoughtCounter
from headstart.types.thought_limit import NO_LIMIT, ThoughtLimit

CLOSING = tuple(b"!</t>")


def counter(
    max_tokens: int = 3, *, is_thinking: bool = True, start: bytes = b"<t>"
) -> ThoughtCounter:
    limit = ThoughtLimit(
        max_tokens=max_tokens, start=start, end=b"</t>", closing=CLOSING, is_thinking=is_thinking
    )
    return ThoughtCounter(limit, lambda token: bytes([token]))


def read(thoughts: ThoughtCounter, text: bytes) -> ThoughtCounter:
    for token in text:
        thoughts.read(token)
    return thoughts


def test_thoughts_are_ended_after_so_many_tokens() -> None:
    thoughts = read(counter(), b"ab")
    assert (thoughts.num_free, list(thoughts.closing())) == (1, [])
    read(thoughts, b"c")
    for index in range(len(CLOSING)):
        assert tuple(thoughts.closing()) == CLOSING[index:]
        thoughts.read(CLOSING[index])
    assert not read(thoughts, b"a long answer").closing()
    assert thoughts.num_free == NO_LIMIT


def test_thoughts_that_end_by_themselves_are_left_alone() -> None:
    assert not read(counter(9), b"ab</t>and so on and on").closing()


def test_thoughts_may_end_with_any_of_several_marks() -> None:
    limit = ThoughtLimit(
        max_tokens=9,
        start=b"<t>",
        end=b"</t>",
        closing=CLOSING,
        is_thinking=True,
        further_ends=(b"</a long mark>",),
    )
    thoughts = ThoughtCounter(limit, lambda token: bytes([token]))
    assert not read(thoughts, b"a</a long mark>and so on and on").closing()
    assert read(thoughts, b"<t>" + b"a" * 9).closing()


def test_thoughts_count_from_their_mark_on_and_each_anew() -> None:
    thoughts = read(counter(is_thinking=False), b"hello world")
    assert not thoughts.closing()
    assert not read(thoughts, b"<t>ab").closing()
    assert tuple(read(thoughts, b"c").closing()) == CLOSING
    read(thoughts, bytes(CLOSING))
    assert not read(thoughts, b"answer<t>ab").closing()
    assert read(thoughts, b"c").closing()


def test_a_character_is_not_cut() -> None:
    euro = "\u20ac".encode()
    for cut in (1, 2):
        thoughts = read(counter(cut), euro[:cut])
        assert not thoughts.closing()
        assert thoughts.num_free == 1
        assert read(thoughts, euro[cut:]).closing()


def test_a_mark_that_may_have_begun_counts_like_any_text() -> None:
    assert read(counter(4), b"ab</").closing()
