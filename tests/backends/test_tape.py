from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from edgeinfer.backends.base import Chunk
from edgeinfer.backends.tape import TapeBackend, TapeSequence
from edgeinfer.errors import NetworkFailed


def reply(backend: TapeBackend, state: TapeSequence, prompt: Sequence[int], count: int) -> list[int]:
    """Greedy tokens after ``prompt``."""
    made: list[int] = []
    tokens = list(prompt)
    for _ in range(count):
        (logits,) = backend.step([Chunk(state, tokens)])
        state.accept(len(tokens))
        tokens = [int(logits[-1].argmax())]
        made += tokens
    return made


def test_the_reply_is_the_tape_then_its_end() -> None:
    backend = TapeBackend([11, 12, 13], end=7)
    assert reply(backend, backend.open(), [1, 2, 3], 5) == [11, 12, 13, 7, 7]
    assert reply(backend, backend.open(), [4], 2) == [11, 12]


def test_a_prompt_in_pieces_and_rows_of_a_draft_keep_the_place() -> None:
    backend = TapeBackend([11, 12, 13, 14])
    state = backend.open()
    backend.step([Chunk(state, [1, 2], "none")])
    state.accept(2)
    (prompt,) = backend.step([Chunk(state, [3, 4], "all")])
    state.accept(2)
    assert prompt.argmax(-1).tolist() == [4, 11]
    (draft,) = backend.step([Chunk(state, [11, 12, 9], "all")])
    assert draft.argmax(-1).tolist() == [12, 13, 14]
    state.accept(2)
    copy = state.fork()
    for each in (state, copy):
        assert reply(backend, each, [13], 1) == [14]


def test_a_prefix_is_reused_and_the_tape_starts_again() -> None:
    backend = TapeBackend([11, 12])
    first = backend.open()
    reply(backend, first, [1, 2, 3], 2)
    first.close()
    second = backend.open([1, 2, 3])
    assert second.length == 2
    assert reply(backend, second, [3], 2) == [11, 12]


def test_a_function_sees_every_token() -> None:
    backend = TapeBackend(lambda tokens: sum(tokens) % 64)
    assert reply(backend, backend.open(), [1, 2, 3], 3) == [6, 12, 24]


def test_noise_depends_on_the_whole_history() -> None:
    backend = TapeBackend()
    rows = [backend.step([Chunk(backend.open(), tokens)])[0] for tokens in ([1, 2, 3], [9, 2, 3], [1, 2, 3])]
    assert not np.array_equal(rows[0], rows[1])
    assert np.array_equal(rows[0], rows[2])


@pytest.mark.parametrize(("delays", "slept"), [(0.5, [0.5] * 3), ([0.1, 0.0, 0.2], [0.1, 0.2]), (0.0, [])])
def test_steps_take_the_times_of_the_tape(delays: float | list[float], slept: list[float]) -> None:
    naps: list[float] = []
    backend = TapeBackend([5], delays=delays, sleep=naps.append)
    reply(backend, backend.open(), [1], 3)
    assert naps == slept


def test_faults_strike_at_their_step_and_change_nothing() -> None:
    backend = TapeBackend([11, 12, 13], faults={1: NetworkFailed("unplugged"), 2: math.nan})
    state = backend.open()
    assert reply(backend, state, [1], 1) == [11]
    with pytest.raises(NetworkFailed, match="unplugged"):
        backend.step([Chunk(state, [11])])
    assert state.length == 1
    (logits,) = backend.step([Chunk(state, [11])])
    assert np.isnan(logits).all()
    state.accept(0)
    assert reply(backend, state, [11], 2) == [12, 13]


def test_work_is_counted() -> None:
    backend = TapeBackend([3])
    first, second = backend.open(), backend.open()
    backend.step([Chunk(first, [1, 2, 3], "all"), Chunk(second, [4], "none")])
    first.accept(3)
    second.accept(1)
    reply(backend, first, [5], 1)
    assert (backend.steps, backend.tokens, backend.rows, backend.sizes) == (2, 5, 4, [2, 1])
    assert backend.open_sequences == 2
    first.close()
    assert backend.open_sequences == 1


def test_only_the_latest_prefixes_are_kept() -> None:
    backend = TapeBackend(prefixes=1)
    for prompt in ([1, 2, 3], [4, 5, 6]):
        state = backend.open()
        reply(backend, state, prompt, 1)
        state.close()
    assert backend.open([1, 2, 3]).length == 0
    assert backend.open([4, 5, 6]).length == 2
