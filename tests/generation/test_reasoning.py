"""Thoughts and answer are told apart, and nothing of an ordinary text is lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.generation.reasoning import FORMATS, Markers, Reasoning, Splitter, closing, opened_by, switched_off


def run(pieces: list[str], reasoning: Reasoning | None) -> tuple[str, str]:
    """The thoughts and the answer; checks that the places add up."""
    splitter = Splitter(reasoning)
    segments = [segment for piece in pieces for segment in splitter.push(piece)] + splitter.finish()
    ends = [segment.end for segment in segments]
    assert ends == sorted(ends)
    assert all(segment.text for segment in segments)
    assert not ends or ends[-1] <= sum(map(len, pieces))
    thoughts = "".join(segment.text for segment in segments if segment.kind == "reasoning")
    return thoughts, "".join(segment.text for segment in segments if segment.kind != "reasoning")


@pytest.mark.parametrize("markers", [row for row in FORMATS if row.end], ids=lambda markers: markers.start)
@settings(deadline=None)
@given(cuts=st.sets(st.integers(1, 80)))
def test_markers_are_found_across_any_pieces(markers: Markers, cuts: set[int]) -> None:
    text = f"\n{markers.start}\nLet me see. <b> {markers.start}\n{markers.end}\n\nSo: 1 < 2. {markers.start} stays."
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in pairwise(borders)]
    expected = (f"Let me see. <b> {markers.start}\n", f"So: 1 < 2. {markers.start} stays.")
    assert run(pieces, Reasoning()) == expected


@settings(deadline=None)
@given(st.lists(st.text(" <think>/a\n", max_size=6), max_size=8))
def test_ordinary_text_is_never_eaten(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert run(pieces, None) == ("", text)
    if not text.lstrip().startswith("<think>"):
        assert run(pieces, Reasoning()) == ("", text)


@settings(deadline=None)
@given(st.lists(st.text(" <think>/a\n", max_size=6), max_size=8))
def test_the_cutting_never_matters(pieces: list[str]) -> None:
    for reasoning in (Reasoning(), Reasoning(opened=FORMATS[0])):
        assert run(pieces, reasoning) == run(["".join(pieces)], reasoning)


def test_a_block_that_the_template_opened() -> None:
    opened = opened_by("<|im_start|>assistant\n<think>\n")
    assert opened == FORMATS[0]
    assert run(["Hm", ".</th", "ink> Yes"], Reasoning(opened=opened)) == ("Hm.", "Yes")
    assert opened_by("<|im_start|>assistant\n") is None
    assert opened_by("<think>\n\n</think>\n\n") is None


def test_what_keeps_a_model_from_thinking() -> None:
    assert switched_off("{% if enable_thinking %}<think>{% endif %}") == {"enable_thinking": False}
    assert switched_off("{{ messages[0].content }}") == {}
    template = "… <think> … </think> …"
    assert closing("assistant\n<think>\n", template) == "\n</think>\n\n"
    assert closing("assistant\n", template) == "<think>\n\n</think>\n\n"
    assert closing("assistant\n<think>\n\n</think>\n\n", template) == ""
    assert closing("assistant\n", "{{ messages[0].content }}") == ""


@pytest.mark.parametrize("cut", range(1, 12))
def test_harmony_names_the_channel_of_the_answer(cut: int) -> None:
    thought = "<|channel|>analysis<|message|>Hm.<|end|>"
    text = f"{thought}<|start|>assistant<|channel|>final<|message|>Yes"
    pieces = [text[start : start + cut] for start in range(0, len(text), cut)]
    assert run(pieces, Reasoning()) == ("Hm.", "Yes")
    assert run([thought, "Yes"], Reasoning()) == ("Hm.", "Yes")
    assert run([f"{thought}<|start|>assi"], Reasoning()) == ("Hm.", "<|start|>assi")
    assert run(["<|channel|>final<|message|>Yes"], Reasoning()) == ("", "Yes")


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["<think>never closed"], ("never closed", "")),
        (["<think>ends in </thi"], ("ends in </thi", "")),
        (["<think></think>Hello"], ("", "Hello")),
        (["<thin"], ("", "<thin")),
        (["  \n"], ("", "  \n")),
        (["I <think>so</think>"], ("", "I <think>so</think>")),
    ],
)
def test_edges(pieces: list[str], expected: tuple[str, str]) -> None:
    assert run(pieces, Reasoning()) == expected
