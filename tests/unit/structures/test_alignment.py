"""A text is followed while it is copied with changes, and a change made before is expected again."""

from hypothesis import given
from hypothesis import strategies as st

from headstart.structures.alignment import HUNCH, LONGEST_NEW, LONGEST_OLD, Alignment
from headstart.structures.suffix_index import SEPARATOR, Place, SuffixIndex

OLD, NEW = 100, 200
SCORE = 0.9


def copying(source, position=1, variants=None):
    """An alignment at the beginning of a copy of `source`."""
    index = SuffixIndex((2, 4))
    index.extend(source)
    alignment = Alignment(variants)
    alignment.start(index, Place(2, position))
    return alignment, index


def position(alignment, index):
    place = alignment.place(index)
    return None if place is None else place.position


def rewritten(alignment, source):
    tokens, scores = alignment.rewrite(source, [SCORE] * len(source))
    assert len(tokens) == len(scores)
    return tokens


def test_an_exact_copy_is_followed_token_by_token():
    alignment, index = copying([0, 1, 2, 3, 4, 5])
    alignment.follow([1, 2])
    alignment.follow([3])
    assert alignment.place(index) == Place(5, 4)
    assert alignment.is_exact


def test_a_copy_goes_on_behind_a_change():
    alignment, index = copying([0, 1, OLD, 2, 3, 4])
    alignment.follow([1, NEW])
    assert not alignment.is_exact
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
    tokens, first = alignment.rewrite([OLD, 6], [SCORE, SCORE])
    assert tokens == [NEW, 6]
    alignment.follow([NEW])
    assert alignment.is_exact, "an expected change does not interrupt the copy"
    _, second = alignment.rewrite([OLD, 6], [SCORE, SCORE])
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
    alignment, _ = copying([0, 1, OLD, 2, 3, 4], variants=lambda old, new: [([old[0] + 1], [new[0] + 1])])
    alignment.follow([1, NEW, 2, 3])
    assert rewritten(alignment, [OLD + 1, 4]) == [NEW + 1, 4]


def test_the_longer_of_two_changes_that_fit_is_expected():
    alignment, _ = copying([0, 1, 7, 2, 3, 7, 8, 4, 5, 6])
    alignment.follow([1, 70, 2, 3, 71, 72, 4, 5])
    assert rewritten(alignment, [7, 8]) == [71, 72]
    assert rewritten(alignment, [7, 9]) == [70, 9]


def test_one_equal_token_behind_a_change_is_a_hunch():
    alignment, index = copying([0, 1, OLD, 2, 3, 4])
    alignment.follow([1, NEW, 2])
    assert alignment.place(index) == Place(HUNCH, 4)


def test_a_weak_match_elsewhere_does_not_end_the_search():
    alignment, index = copying([0, 1, OLD, 2, 3, 4, 9, 9])
    alignment.follow([1, NEW])
    alignment.start(index, Place(2, 7))
    alignment.follow([2, 3])
    assert position(alignment, index) == 5
    alignment.follow([NEW])
    alignment.start(index, Place(8, 7))
    assert alignment.place(index) == Place(8, 7)


def test_a_text_that_goes_its_own_way_is_not_followed():
    alignment, index = copying([0, 1, 2, 3, 4])
    alignment.follow([1, *range(50, 50 + LONGEST_NEW + 2)])
    assert alignment.place(index) is None
    assert alignment.index is None


def test_a_copy_ends_at_the_end_of_a_document():
    alignment, index = copying([0, 1, 2, SEPARATOR, 3, 4])
    alignment.follow([1, 2])
    assert alignment.place(index) is None


def test_a_text_never_follows_what_it_is_just_writing():
    """The index is the text's own: behind a change at its end there is nothing yet to go on with."""
    index = SuffixIndex((2, 4))
    index.extend([1, 2, 3, 4, 1, 2])
    alignment = Alignment()
    alignment.start(index, Place(2, 2))
    for token in (9, 8, 7, 9, 8, 7):
        alignment.follow([token])
        index.extend([token])
        place = alignment.place(index)
        assert place is None or place.position < 6


edits = st.dictionaries(st.integers(0, 9), st.lists(st.integers(10, 14), min_size=1, max_size=3).map(tuple), max_size=3)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), edits, st.integers(1, 5))
def test_an_exact_place_stands_behind_the_token_that_was_copied(source, replaced, step):
    """Whatever is replaced throughout; new tokens are 10 and above, so the others were copied."""
    text = [new for token in source for new in replaced.get(token, (token,))]
    alignment, index = copying([99, *source, 98])
    for start in range(0, len(text), step):
        written = text[start : start + step]
        alignment.follow(written)
        if alignment.is_exact and written[-1] < 10:
            assert index.tokens[alignment.position - 1] == written[-1]


@given(st.lists(st.integers(0, 3), min_size=4, max_size=80), st.lists(st.integers(0, 3), max_size=80))
def test_places_are_always_inside_the_source(source, text):
    alignment, index = copying([*source, SEPARATOR, 1], position=2)
    for token in text:
        alignment.follow([token])
        place = alignment.place(index)
        if place is not None:
            assert 0 < place.position < len(index)
            assert index.tokens[place.position] != SEPARATOR
            tokens, scores = alignment.rewrite(index.copy(place.position, LONGEST_OLD), [SCORE] * LONGEST_OLD)
            assert len(tokens) == len(scores[: len(tokens)])
