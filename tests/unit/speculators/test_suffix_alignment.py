"""A text is followed while it is copied with changes; a change made before is expected again."""

from hypothesis import given
from hypothesis import strategies as st

from headstart.speculators.suffix_alignment import (
    ANCHOR,
    LONGEST_NEW,
    LONGEST_OLD,
    MAX_FURTHER,
    Alignment,
)
from headstart.structures.suffix_index import SEPARATOR, SuffixIndex

OLD, NEW = 100, 200
SCORE = 0.9
ALL = 2**30  # tokens that a draft may have


def copying(source, position=1, variants=None):
    """An alignment at the beginning of a copy of `source`."""
    index = SuffixIndex((2, 4))
    index.extend(source)
    alignment = Alignment(variants)
    alignment.start(index, (2, position))
    return alignment, index


def position(alignment, index):
    place = alignment.place() if alignment.index is index else None
    return None if place is None else place[1]


def rewritten(alignment, source):
    tokens, scores = alignment.rewrite(source, [SCORE] * len(source), ALL)
    assert len(tokens) == len(scores)
    return tokens


def test_an_exact_copy_is_followed_token_by_token():
    alignment, _ = copying([0, 1, 2, 3, 4, 5])
    alignment.follow([1, 2])
    alignment.follow([3])
    assert alignment.place() == (5, 4)
    assert alignment.exact()


def test_a_copy_goes_on_behind_a_change():
    alignment, index = copying([0, 1, OLD, 2, 3, 4])
    alignment.follow([1, NEW])
    assert alignment.exact() is None
    alignment.follow([2, 3])
    assert position(alignment, index) == 5


def test_a_change_may_be_longer_or_shorter_than_what_it_replaces():
    for old, new in (([7, 8, 9], [70]), ([7], [70, 80, 90])):
        alignment, _ = copying([0, 1, *old, 2, 3, 4])
        alignment.follow([1, *new, 2, 3])
        assert rewritten(alignment, [5, *old, 6]) == [5, *new, 6]


def test_a_change_made_before_is_expected_again():
    alignment, _ = copying([0, 1, OLD, 2, 3, OLD, 4, 5, OLD, 6])
    assert rewritten(alignment, [OLD, 6]) == [OLD, 6]
    alignment.follow([1, NEW, 2, 3])
    tokens, first = alignment.rewrite([OLD, 6], [SCORE, SCORE], ALL)
    assert tokens == [NEW, 6]
    alignment.follow([NEW])
    assert alignment.exact(), "an expected change does not interrupt the copy"
    _, second = alignment.rewrite([OLD, 6], [SCORE, SCORE], ALL)
    assert first[0] < second[0] < SCORE, "a change is trusted more the more often it was made"


def test_what_is_left_out_is_left_out_again():
    alignment, _ = copying([0, 1, OLD, 2, 3, OLD, 2, 5])
    alignment.follow([1, 2, 3])
    assert rewritten(alignment, [OLD, 2, 5]) == [2, 5]


def test_a_change_that_is_not_made_again_is_forgotten():
    alignment, _ = copying([0, 1, OLD, 2, 3, OLD, 4, OLD, 5])
    alignment.follow([1, NEW, 2, 3])
    assert rewritten(alignment, [OLD]) == [NEW]
    alignment.follow([OLD, 4, OLD, 5])
    assert rewritten(alignment, [OLD]) == [OLD]


def test_what_else_follows_from_a_change_is_expected_too():
    alignment, _ = copying(
        [0, 1, OLD, 2, 3, 4], variants=lambda old, new: [([old[0] + 1], [new[0] + 1])]
    )
    alignment.follow([1, NEW, 2, 3])
    assert rewritten(alignment, [OLD + 1, 4]) == [NEW + 1, 4]


def test_a_step_looks_for_few_of_the_changes_that_follow():
    """Each costs vocabulary calls, so what one change brings is spread over the next steps."""
    asked = []

    def variants(old, new):
        for i in range(1, 8):
            asked.append(i)
            yield [old[0] + i], [new[0] + i]

    alignment, _ = copying([0, 1, OLD, 2, 3, 4, 5, 6, 7, 8], variants=variants)
    for i, emitted in enumerate(([1, NEW, 2, 3], [4], [5], [6], [7])):
        alignment.follow(emitted)
        assert len(asked) == min(7, (i + 1) * MAX_FURTHER)
    assert rewritten(alignment, [OLD + 7]) == [NEW + 7]
    alignment.follow([8])
    assert len(asked) == 7, "all were found"


def test_changes_that_follow_are_looked_for_until_all_are_found():
    """Those of the newest change first, as its like is what comes next."""
    asked = []

    def variants(old, new):
        for i in range(1, 5):
            asked.append(old[0])
            yield [old[0] + 10 * i], [new[0] + 10 * i]

    alignment, _ = copying([0, 1, OLD, 2, 3, OLD + 1, 4, 5, 6, 7, 8], variants=variants)
    alignment.follow([1, NEW, 2, 3])
    alignment.follow([NEW + 1, 4, 5])
    alignment.follow([6])
    alignment.follow([7])
    assert asked == [OLD] * 3 + [OLD + 1] * 4 + [OLD]


def test_a_change_inside_a_longer_one_is_not_made_twice():
    alignment, _ = copying([0, 1, 8, 2, 3, 7, 8, 4, 5, 6])
    alignment.follow([1, 80, 2, 3, 71, 72, 4, 5])
    assert rewritten(alignment, [7, 8, 9]) == [71, 72, 9]
    assert rewritten(alignment, [8, 9]) == [80, 9]


def test_only_a_place_with_a_longer_match_than_others_have_is_named():
    alignment, _ = copying([0, 1, 2, 3, OLD, 4, 5])
    alignment.follow([1, 2, 3])
    assert alignment.place(longest=4) == (5, 4)
    assert alignment.place(longest=5) is None
    alignment.follow([NEW, 4])
    assert alignment.place(longest=ANCHOR - 1) == (ANCHOR, 6)
    assert alignment.place(longest=ANCHOR) is None


def test_the_longest_part_that_was_left_out_is_left_out_again():
    left_out = [OLD + i for i in range(LONGEST_OLD)]
    alignment, _ = copying([0, 1, *left_out, 2, 3, *left_out, 2, 4])
    alignment.follow([1, 2, 3])
    assert rewritten(alignment, [*left_out, 2, 4]) == [2, 4]
    alignment.follow([2])
    assert alignment.exact(), "an expected change does not interrupt the copy"


def test_the_end_of_a_text_is_no_change():
    """No token stands for it, and a vocabulary asked for one may end the process."""
    asked = []

    def variants(old, new):
        asked.append((old, new))
        return ()

    alignment, _ = copying([0, 1, OLD, SEPARATOR, 2, 3, 4], variants=variants)
    alignment.follow([1, NEW, 2, 3])
    assert asked == []
    assert rewritten(alignment, [OLD, 5]) == [OLD, 5]


def test_the_longer_of_two_changes_that_fit_is_expected():
    alignment, _ = copying([0, 1, 7, 2, 3, 7, 8, 4, 5, 6])
    alignment.follow([1, 70, 2, 3, 71, 72, 4, 5])
    assert rewritten(alignment, [7, 8]) == [71, 72]
    assert rewritten(alignment, [7, 9]) == [70, 9]


def test_one_equal_token_behind_a_change_is_a_hunch():
    alignment, _ = copying([0, 1, OLD, 2, 3, 4])
    alignment.follow([1, NEW, 2])
    assert alignment.place() == (ANCHOR, 4)


def test_a_weak_match_elsewhere_does_not_end_the_search():
    alignment, index = copying([0, 1, OLD, 2, 3, 4, 9, 9])
    alignment.follow([1, NEW])
    alignment.start(index, (2, 7))
    alignment.follow([2, 3])
    assert position(alignment, index) == 5
    alignment.follow([NEW])
    alignment.start(index, (8, 7))
    assert alignment.place() == (8, 7)


def test_a_text_that_goes_its_own_way_is_not_followed():
    alignment, _ = copying([0, 1, 2, 3, 4])
    alignment.follow([1, *range(50, 50 + LONGEST_NEW + 2)])
    assert alignment.place() is None
    assert alignment.index is None


def test_a_copy_ends_at_the_end_of_a_document():
    alignment, _ = copying([0, 1, 2, SEPARATOR, 3, 4])
    alignment.follow([1, 2])
    assert alignment.place() is None


def test_a_text_never_follows_what_it_is_just_writing():
    """The index is the text's own: after a change at its end nothing follows yet."""
    index = SuffixIndex((2, 4))
    index.extend([1, 2, 3, 4, 1, 2])
    alignment = Alignment()
    alignment.start(index, (2, 2))
    for token in (9, 8, 7, 9, 8, 7):
        alignment.follow([token])
        index.extend([token])
        place = alignment.place()
        assert place is None or place[1] < 6


edits = st.dictionaries(
    st.integers(0, 9), st.lists(st.integers(10, 14), min_size=1, max_size=3).map(tuple), max_size=3
)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), edits, st.integers(1, 5))
def test_an_exact_place_stands_behind_the_token_that_was_copied(source, replaced, step):
    """Whatever is replaced throughout; new tokens are 10 and above, so the others were copied."""
    text = [new for token in source for new in replaced.get(token, (token,))]
    alignment, index = copying([99, *source, 98])
    for start in range(0, len(text), step):
        written = text[start : start + step]
        alignment.follow(written)
        if alignment.exact() and written[-1] < 10:
            assert index.tokens[alignment.position - 1] == written[-1]


@given(
    st.lists(st.integers(0, 3), min_size=4, max_size=80), st.lists(st.integers(0, 3), max_size=80)
)
def test_places_are_always_inside_the_source(source, text):
    alignment, index = copying([*source, SEPARATOR, 1], position=2)
    for token in text:
        alignment.follow([token])
        place = alignment.place()
        if place is not None:
            assert 0 < place[1] < len(index)
            assert index.tokens[place[1]] != SEPARATOR
            tokens, scores = alignment.rewrite(
                index.copy(place[1], LONGEST_OLD), [SCORE] * LONGEST_OLD, ALL
            )
            assert len(tokens) == len(scores[: len(tokens)])
