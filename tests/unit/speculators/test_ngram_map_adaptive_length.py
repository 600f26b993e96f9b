"""How far a guess holds is what the whole log of guesses and outcomes says."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from headstart.speculators import ngram_map
from headstart.speculators.ngram_map import AdaptiveLength
from headstart.structures.prefix import common_prefix_length

LONGEST = 6
tokens = st.lists(st.integers(0, 1), max_size=7)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("watch"), st.integers(0, 5), tokens),
        st.tuples(st.just("learn"), st.just(0), tokens.filter(bool)),
    ),
    max_size=60,
)


def said(log: list[tuple[int, list[int], list[int]]], max_keys: int) -> dict[int, int]:
    """Reach by key after these (key, guess, what came), the one that is dropped first in front."""
    adaptive_length: dict[int, int] = {}
    for key, guess, came in log:
        right = common_prefix_length(guess, came)
        if right == len(guess):
            value = 2 * max(right, adaptive_length.get(key, LONGEST))
        elif right < len(came):
            value = right + 1
        else:
            continue
        if key not in adaptive_length and len(adaptive_length) == max_keys:
            del adaptive_length[next(iter(adaptive_length))]
        adaptive_length[key] = min(LONGEST, value)
    return adaptive_length


@given(steps, st.sampled_from([2, 4096]))
def test_reach_is_that_of_the_whole_log(
    steps: list[tuple[str, int, list[int]]], max_keys: int
) -> None:
    adaptive_length = AdaptiveLength(LONGEST)
    log: list[tuple[int, list[int], list[int]]] = []
    watched: tuple[int, list[int]] | None = None
    with patch.object(ngram_map, "MAX_KEYS", max_keys):
        for name, key, value in steps:
            if name == "watch":
                adaptive_length.watch(key, value)
                watched = (key, value) if value else None
            else:
                adaptive_length.learn(value)
                if watched is not None:
                    log.append((*watched, value))
                watched = None
            known = said(log, max_keys)
            assert [adaptive_length.of(key) for key in range(6)] == [
                known.get(key, LONGEST) for key in range(6)
            ]
