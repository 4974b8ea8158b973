"""A prompt fits, is refused with the numbers, or is cut by the policy that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.errors import BadRequest, ContextLimit
from edgeinfer.generation.context import checked_overflow, fit_messages, fit_tokens
from edgeinfer.types import Message


@dataclass
class Encoded:
    ids: Sequence[int]


def encode(messages: Sequence[Message]) -> Encoded:
    """Ten tokens a message, each its content."""
    return Encoded([int(message["content"]) for message in messages for _ in range(10)])


def conversation(turns: int) -> list[Message]:
    messages: list[Message] = [{"role": "system", "content": "0"}]
    for turn in range(1, turns + 1):
        messages += [{"role": "user", "content": str(turn)}, {"role": "assistant", "content": str(turn)}]
    return messages[:-1]  # the last turn waits for its answer


def test_a_prompt_that_fits_is_left_alone() -> None:
    assert fit_tokens([1, 2, 3], context=4, max_tokens=100, bos=1, overflow="refuse") == ([1, 2, 3], False)


def test_a_prompt_that_fills_the_context_is_refused_with_the_numbers() -> None:
    with pytest.raises(ContextLimit, match=r"1,000 tokens, the context holds 1,000") as caught:
        fit_tokens([1] * 1000, context=1000, max_tokens=10, bos=None, overflow="refuse")
    assert (caught.value.needed, caught.value.available) == (1001, 1000)


@given(st.integers(2, 200), st.integers(1, 300), st.integers(1, 300), st.booleans())
def test_a_cut_prompt_keeps_its_end_and_its_beginning_of_text(
    context: int, length: int, max_tokens: int, with_bos: bool
) -> None:
    ids = list(range(1, length + 1))
    kept, cut = fit_tokens(ids, context, max_tokens, bos=1 if with_bos else None, overflow="drop-oldest")
    assert cut == (length >= context)
    assert 1 <= len(kept) < context
    if cut:
        assert len(kept) == context - min(max_tokens, context // 2)
        tail = kept[1:] if with_bos else kept
        assert list(tail) == ids[length - len(tail) :]
        assert kept[0] == 1 or not with_bos


def test_whole_turns_are_dropped_oldest_first_and_the_system_message_stays() -> None:
    encoded, cut = fit_messages(conversation(5), encode, context=60, max_tokens=10, overflow="drop-oldest")
    assert cut
    assert sorted(set(encoded.ids)) == [0, 4, 5]


def test_a_long_conversation_is_not_encoded_once_for_every_turn() -> None:
    calls: list[int] = []

    def counted(messages: Sequence[Message]) -> Encoded:
        calls.append(len(messages))
        return encode(messages)

    encoded, _ = fit_messages(conversation(1000), counted, context=100, max_tokens=10, overflow="drop-oldest")
    assert sorted(set(encoded.ids)) == [0, 997, 998, 999, 1000]
    assert len(calls) < 16


def test_messages_that_fit_are_left_alone() -> None:
    encoded, cut = fit_messages(conversation(2), encode, context=60, max_tokens=500, overflow="drop-oldest")
    assert (sorted(set(encoded.ids)), cut) == ([0, 1, 2], False)


def test_a_last_turn_that_leaves_little_room_is_kept() -> None:
    encoded, cut = fit_messages(conversation(3), encode, context=25, max_tokens=20, overflow="drop-oldest")
    assert (sorted(set(encoded.ids)), cut) == ([0, 3], True)


def test_messages_that_cannot_be_cut_enough_are_refused() -> None:
    with pytest.raises(ContextLimit, match="even with every older turn dropped"):
        fit_messages(conversation(3), encode, context=15, max_tokens=5, overflow="drop-oldest")
    with pytest.raises(ContextLimit, match="60 tokens"):
        fit_messages(conversation(3), encode, context=30, max_tokens=5, overflow="refuse")


def test_an_unknown_policy_is_named() -> None:
    assert checked_overflow("drop-oldest") == "drop-oldest"
    with pytest.raises(BadRequest, match="overflow='shrink'"):
        checked_overflow("shrink")
