"""Replacements in a text, and patterns of paths."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.extras.tools import glob
from headstart.extras.tools.files import normalize, replace_texts
from headstart.extras.tools.tool import ToolError


def test_edits_are_found_in_the_text_as_it_was():
    assert replace_texts("a b c", [("c", "a"), ("a", "x")]) == "x b a"
    for text, edits, reason in (
        ("a b c", [("d", "x")], "could not find"),
        ("a b c", [("a ", "x"), (" b", "y")], "overlap"),
        ("a a", [("a", "x")], "unique"),
    ):
        with pytest.raises(ToolError, match=reason):
            replace_texts(text, edits)


def test_an_inexact_edit_leaves_other_lines_as_they_are():
    text = "“one”  \nsay “two”\t\n“three”  \n"
    edited = replace_texts(text, [('say "two"', "2")])
    assert edited == "“one”  \n2\n“three”  \n"
    joined = replace_texts(text, [('"one"\nsay', "1"), ('"two"\n"three"', "23")])
    assert joined == "1 23\n"


@given(st.text("ab “”\t\n", max_size=40), st.integers(0, 40), st.integers(1, 10))
def test_an_edit_changes_nothing_else(text, start, length):
    old = text[start : start + length]
    if not normalize(old) or normalize(text).count(normalize(old)) != 1:
        return
    assert replace_texts(text, [(old, "NEW")]) == text.replace(old, "NEW", 1)


@given(st.text("ab*?/[].-", max_size=6), st.text("ab/.-", max_size=8))
def test_globs_agree_with_a_regular_expression(pattern, path):
    parts = re.findall(r"\*\*|\[[\]-]?[^\]]*\]|.", pattern)
    named = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
    if any(len(part) > 1 and part != "**" for part in parts):
        return
    regex = "".join(named.get(part, re.escape(part)) for part in parts)
    if "/" not in pattern:
        path = path.rpartition("/")[2]
    elif not pattern.startswith(("**/", "/")):
        regex = f".*/{regex}"
    assert glob.matches(pattern, path) == bool(re.fullmatch(regex, path, re.DOTALL))


def test_a_glob_of_many_stars_and_much_white_space_take_no_time():
    begin = time.process_time()
    assert not glob.matches("*a" * 30 + "b", "a" * 2000)
    assert normalize(" \t" * 50_000 + "x \r\n\t\n \t") == " \t" * 50_000 + "x\n\n"
    assert time.process_time() - begin < 2


@pytest.mark.parametrize(
    ("pattern", "fitting"),
    [("[a-c].c", "ab"), ("[!a-c].c", "z!^]"), ("[^z].c", "z^"), ("[]a].c", "a]")],
)
def test_a_class_of_a_glob_may_be_negated_and_have_ranges(pattern, fitting):
    assert [one for one in "abz!^]" if glob.matches(pattern, f"{one}.c")] == [*fitting]
