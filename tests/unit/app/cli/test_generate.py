"""`headstart generate` over a scripted engine."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator

import pytest
from rich.console import Console

from headstart.app.cli.generate import closing, show
from headstart.types.errors import EngineError
from headstart.types.request import ErrorEvent, Event, FinishEvent, RequestStats, TokenEvent
from headstart.types.speculation_stats import SpeculationStats

PIECES = {1: b"one ", 2: b"two ", 3: b"\xe2\x82", 4: b"\xac!", 5: b"STOP", 6: b"[red]"}
STATS = RequestStats(
    num_prompt=10,
    num_cached=2,
    num_emitted=6,
    num_steps=3,
    drafts=SpeculationStats(
        verified=Counter({(0, 5, 3): 1, (0, 3, 0): 1}), reasons=Counter({"no match": 2})
    ),
    prompt_seconds=0.5,
    generation_seconds=2.0,
)


def emitted(
    tokens: tuple[int, ...], sources: tuple[str, ...], text: bytes | None = None
) -> TokenEvent:
    certain = b"".join(PIECES[t] for t in tokens) if text is None else text
    return TokenEvent("r", tokens, certain, sources)


def shown(*events: Event, color: bool, speculators: tuple[str, ...] = ()) -> str:
    buffer = io.StringIO()
    console = Console(
        file=buffer, force_terminal=color, color_system="standard" if color else None, width=200
    )
    show(iter(events), PIECES.__getitem__, console, speculators)
    return buffer.getvalue()


def test_draft_tokens_are_coloured_by_speculator_and_the_targets_own_are_plain() -> None:
    finish = FinishEvent("r", "length", STATS)
    out = shown(emitted((1, 2, 1), ("", "draft-model", "ngram-simple")), finish, color=True)
    assert out.startswith("one \x1b[4;34mtwo \x1b[0m\x1b[3;32mone \x1b[0m")
    assert "3 tokens: 1 from the model, \x1b[4;34m1 accepted from draft-model\x1b[0m, " in out


def test_styles_follow_the_order_of_the_speculators_as_on_the_page() -> None:
    events = [emitted((1,), ("draft-model",)), FinishEvent("r", "length", STATS)]
    out = shown(*events, color=True, speculators=("suffix", "draft-model"))
    assert out.startswith("\x1b[3;32mone \x1b[0m")
    assert "suffix" not in out  # none of its tokens were accepted


def test_the_closing_lines_agree_and_compare_only_what_was_measured() -> None:
    finish = FinishEvent("r", "length", STATS)
    assert closing(finish, 3.0).splitlines() == [
        "2.00 s, 2.5 tokens/s; without drafts 3.00 s (1.5 x as long)",
        "3 steps for 6 tokens; without a draft: 2 no match",
        "stopped at --predict",
    ]
    assert closing(finish, None).splitlines()[0] == "2.00 s, 2.5 tokens/s"
    assert closing(FinishEvent("r", "cancelled", RequestStats()), None).startswith("0.00 s")


def test_text_is_the_same_without_colour_and_markup_is_not_read() -> None:
    finish = FinishEvent("r", "length", STATS)
    out = shown(emitted((1, 6, 3), ("", "a", "")), emitted((4,), ("a",)), finish, color=False)
    assert out.splitlines()[0] == "one [red]€!"


def test_a_stop_string_that_was_held_back_is_not_shown() -> None:
    finish = FinishEvent("r", "word", STATS, stopping_word="STOP")
    out = shown(emitted((1, 5), ("", "a"), b"one "), finish, color=False)
    assert out.splitlines()[0] == "one "


def test_text_held_back_is_shown_once_it_is_certain() -> None:
    finish = FinishEvent("r", "length", STATS)
    out = shown(
        emitted((1, 5), ("", ""), b"one S"), emitted((2,), ("",), b"TOPtwo "), finish, color=False
    )
    assert out.splitlines()[0] == "one STOPtwo "


def test_a_failed_request_is_an_error() -> None:
    with pytest.raises(EngineError, match="it broke"):
        shown(emitted((1,), ("",)), ErrorEvent("r", EngineError("it broke")), color=False)


def test_events_that_just_end_are_an_error() -> None:
    def nothing() -> Iterator[Event]:
        yield from ()

    with pytest.raises(EngineError, match="without saying why"):
        shown(*nothing(), color=False)
