"""Tokens become events: whole characters, cut at stops, and every token in exactly one event."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.generation.output import Writer
from edgeinfer.generation.reasoning import Reasoning
from edgeinfer.tokenizer.detokenize import Detokenizer
from edgeinfer.types import TextDelta, TokenLogprob
from tests.generation.fakes import FakeTokenizer, ids_of, text_of, thoughts_of

PIECES = [
    b"<end>",
    b"a",
    b"b",
    b"ab",
    b"ba",
    b"\xc3",
    b"\xa9",
    b"\xf0\x9f",
    b"\x98\x80",
    b" ",
    b"<think>",
    b"</think>",
    b"",
]
TOKENIZER = FakeTokenizer(PIECES)
TOKENS = st.lists(st.integers(1, len(PIECES) - 1), max_size=30)


def write(tokens: list[int], stops: list[str], reasoning: Reasoning | None = None) -> tuple[list, str | None]:
    writer = Writer(Detokenizer(TOKENIZER, continues=True), stops, reasoning)  # type: ignore[arg-type]
    events = []
    for token in tokens:
        events += writer.add(token, TokenLogprob(token, "", -1.0))
        if writer.stop is not None:
            break
    events += writer.finish()
    return events, writer.stop


@settings(deadline=None)
@given(TOKENS, st.lists(st.sampled_from(["ab", "bab", "é", "a ", "😀", "aab", "b"]), max_size=3))
def test_text_is_the_full_text_cut_at_the_first_stop(tokens: list[int], stops: list[str]) -> None:
    events, stop = write(tokens, stops)
    full = TOKENIZER.decode(tokens)
    ends = {full.find(item) + len(item): item for item in sorted(stops, key=len) if item in full}
    if not ends:
        assert (text_of(events), stop, ids_of(events)) == (full, None, tokens)
        return
    assert stop == ends[min(ends)]
    assert text_of(events) == full[: min(ends) - len(stop)]


@settings(deadline=None)
@given(TOKENS, st.lists(st.sampled_from(["ab", "bab", "é", "😀"]), max_size=2))
def test_ids_after_a_stop_are_those_that_begin_before_the_cut(tokens: list[int], stops: list[str]) -> None:
    events, stop = write(tokens, stops)
    ids, text = ids_of(events), text_of(events)
    assert ids == tokens[: len(ids)]
    assert TOKENIZER.decode(ids).startswith(text)
    if stop is not None and ids:
        decoder = Detokenizer(TOKENIZER, continues=True)  # type: ignore[arg-type]
        before = "".join(decoder.add(token) for token in ids[:-1])
        assert len(before) < len(text)


@settings(deadline=None)
@given(TOKENS)
def test_every_token_is_in_one_event_with_its_logprob(tokens: list[int]) -> None:
    events, _ = write(tokens, [], Reasoning())
    assert ids_of(events) == tokens
    assert [entry.id for event in events for entry in event.logprobs] == tokens


@settings(deadline=None)
@given(TOKENS)
def test_no_event_ends_inside_a_character(tokens: list[int]) -> None:
    """Joined pieces equal the whole only if no piece was decoded on its own from a part of a character."""
    events, _ = write(tokens, ["zzz"])
    assert text_of(events) == TOKENIZER.decode(tokens)


def test_thoughts_carry_the_ids_of_their_markers() -> None:
    tokens = [10, 1, 2, 11, 3]
    events, _ = write(tokens, [], Reasoning())
    assert (thoughts_of(events), text_of(events)) == ("ab", "ab")
    assert ids_of(events) == tokens
    assert ids_of([event for event in events if isinstance(event, TextDelta)]) == [11, 3]


def test_a_stop_inside_one_token_keeps_that_token() -> None:
    events, stop = write([1, 3], ["b"])
    assert (text_of(events), ids_of(events), stop) == ("aa", [1, 3], "b")


def test_a_token_that_begins_where_an_event_ends_waits_for_the_next() -> None:
    writer = Writer(Detokenizer(TOKENIZER, continues=True), ["bba"], None)  # type: ignore[arg-type]
    assert [writer.add(2), writer.add(2)] == [[], []]
    assert writer.add(2) == [TextDelta("b", (2,))]
    assert writer.finish() == [TextDelta("bb", (2, 2))]
