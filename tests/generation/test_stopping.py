"""Stop strings cut exactly, however the text is cut into pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.generation.stopping import StopFinder


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    borders = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(borders)]


def run(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    finder = StopFinder(stops)
    text = "".join(finder.push(piece) for piece in pieces) + finder.finish()
    return text, finder.found


def first_complete(text: str, stops: list[str]) -> tuple[str, str | None]:
    """By definition: the stop that ends first, the longest of those."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            longest = max(hits, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(deadline=None)
@given(
    st.text("abcé", max_size=40),
    st.lists(st.text("abcé", min_size=1, max_size=5), max_size=4),
    st.lists(st.integers(0, 100), max_size=8),
)
def test_any_cutting_gives_the_text_before_the_first_stop(text: str, stops: list[str], cuts: list[int]) -> None:
    assert run(stops, pieces_of(text, cuts)) == first_complete(text, stops)


@settings(deadline=None)
@given(st.text("ab", max_size=60), st.text("ab", min_size=1, max_size=6), st.lists(st.integers(0, 100), max_size=8))
def test_one_stop_splits_the_text(text: str, stop: str, cuts: list[int]) -> None:
    assert run([stop], pieces_of(text, cuts))[0] == text.split(stop)[0]


@settings(deadline=None)
@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3))
def test_nothing_is_held_back_but_the_beginning_of_a_stop(text: str, stops: list[str]) -> None:
    finder = StopFinder(stops)
    given = ""
    for end, character in enumerate(text, start=1):
        given += finder.push(character)
        if finder.found is not None:
            return
        held = text[len(given) : end]
        assert not held or any(stop.startswith(held) for stop in stops)


@pytest.mark.parametrize(
    ("stops", "pieces", "expected", "found"),
    [
        (["\n\n"], ["Hi", "\n", "\nthere"], "Hi", "\n\n"),
        (["END"], ["xE", "EN", "Dy"], "xE", "END"),
        (["###"], ["a##b###c"], "a##b", "###"),
        (["long stop", "stop"], ["a long st", "op"], "a ", "long stop"),
        (["👩‍👩‍👧"], ["hi 👩", "‍👩", "‍👧!"], "hi ", "👩‍👩‍👧"),
        (["abcd", "bc"], ["abc", "d"], "a", "bc"),
        (["a"], ["a"], "", "a"),
        (["never"], ["nev", "e"], "neve", None),
        ([], ["any", "thing"], "anything", None),
    ],
)
def test_examples(stops: list[str], pieces: list[str], expected: str, found: str | None) -> None:
    assert run(stops, pieces) == (expected, found)


def test_text_after_the_stop_never_comes() -> None:
    finder = StopFinder(["x"])
    assert finder.push("axb") == "a"
    assert finder.push("c") == ""
    assert finder.finish() == ""


def test_a_hostile_stop_costs_linear_time() -> None:
    finder = StopFinder(["a" * 50_000 + "b"])
    given = sum(len(finder.push("a" * 1000)) for _ in range(200))
    assert given + len(finder.finish()) == 200_000
