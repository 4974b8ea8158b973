"""Closed sequences that are kept: the longest prefix wins, and the budget holds."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from edgeinfer.cache.formats import policy
from edgeinfer.cache.kv import BLOCK, KVShape
from edgeinfer.cache.layout import Layout
from edgeinfer.cache.sequence import CachedSequence, common_prefix
from edgeinfer.cache.store import PrefixStore
from edgeinfer.ops.composed import write_rows

SHAPES = [KVShape(2, 4), KVShape(2, 4)]
WHOLE = Layout.of(policy("exact", SHAPES, 1), SHAPES)


def sequence(tokens: list[int]) -> CachedSequence:
    """One whose keys and values are the tokens themselves."""
    made = CachedSequence.empty(SHAPES, WHOLE)
    write(made, tokens)
    return made


def write(target: CachedSequence, tokens: list[int]) -> None:
    rows = mx.broadcast_to(mx.array(tokens, mx.float32)[:, None, None], (len(tokens), 2, 4))
    for layer in target.layers:
        nothing = mx.zeros((2, 0, 4))
        keys, values = layer.arrays or (nothing, nothing)
        layer.arrays = write_rows(keys, rows, target.length), write_rows(values, -rows, target.length)
    target.keep(tokens, len(tokens))


def check(found: CachedSequence, tokens: list[int]) -> None:
    assert found.tokens == tokens
    for layer in found.layers:
        keys, values = layer.arrays
        assert np.array_equal(keys[1, : found.length, 3], tokens)
        assert np.array_equal(values[0, : found.length, 0], [-token for token in tokens])


def test_common_prefix() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4, 5]) == 2
    assert common_prefix([1, 2], [1, 2, 3]) == 2
    assert common_prefix([], [1]) == 0


def test_the_longest_prefix_is_found_and_the_last_token_left_out() -> None:
    store = PrefixStore(1 << 30)
    store.put(sequence([1, 2, 3]))
    store.put(sequence([1, 2, 7, 8, 9]))
    running = sequence([1, 2, 7, 8])
    found = store.find([1, 2, 7, 8, 9], [running])
    assert found is not None
    check(found, [1, 2, 7, 8])
    assert store.find([4, 5], [running]) is None
    assert store.find([1], [running]) is None


def test_a_kept_sequence_that_is_a_whole_prefix_is_handed_over() -> None:
    store = PrefixStore(1 << 30)
    kept = sequence([1, 2, 3])
    store.put(kept)
    assert store.find([1, 2, 3, 4], []) is kept
    assert len(store) == 0


def test_a_kept_sequence_survives_being_used_in_part() -> None:
    store = PrefixStore(1 << 30)
    store.put(sequence([1, 2, 3, 4]))
    part = store.find([1, 2, 9, 9], [])
    assert part is not None
    write(part, [9])
    check(part, [1, 2, 9])
    whole = store.find([1, 2, 3, 4, 5], [])
    assert whole is not None
    check(whole, [1, 2, 3, 4])


def test_a_longer_sequence_replaces_what_it_continues() -> None:
    store = PrefixStore(1 << 30)
    store.put(sequence([1, 2]))
    store.put(sequence([1, 2, 3]))
    store.put(CachedSequence.empty(SHAPES, WHOLE))
    assert len(store) == 1


def test_the_oldest_go_when_the_budget_is_spent() -> None:
    one = sequence([1, 2]).nbytes
    assert one == 2 * 2 * 2 * 4 * BLOCK * 4
    store = PrefixStore(2 * one)
    for first in (1, 2, 3):
        store.put(sequence([first, 5]))
    assert store.nbytes == 2 * one
    assert store.find([1, 5, 6], []) is None
    assert store.find([3, 5, 6], []) is not None
    too_small = PrefixStore(one - 1)
    too_small.put(sequence([1, 2]))
    assert len(too_small) == 0


def test_forks_are_independent_at_every_length_around_a_block() -> None:
    for length in (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3):
        tokens = list(range(length))
        origin = sequence(tokens)
        fork, short = origin.fork(), origin.fork(length // 2)
        write(origin, [7, 7])
        write(fork, [8])
        write(short, [9])
        check(origin, [*tokens, 7, 7])
        check(fork, [*tokens, 8])
        check(short, [*tokens[: length // 2], 9])


def test_a_lone_cache_is_written_in_place() -> None:
    """The memory stays where it is: an append costs its own rows, not the whole cache."""
    row = mx.ones((1, 2, 4))
    keys = write_rows(mx.zeros((2, 0, 4)), row, 0)
    mx.eval(keys)
    places = set()
    for length in range(1, 20):
        keys = write_rows(keys, row, length)
        mx.eval(keys)
        places.add(np.asarray(keys).__array_interface__["data"][0])
    assert len(places) == 1


def test_tokens_made_on_the_device_are_read_late() -> None:
    target = sequence([1, 2])
    target.keep(mx.array([3, 4]) + 0, 1)
    target.keep([5], 1)
    target.keep(mx.array([6]), 1)
    assert target.length == 5
    assert target.tokens == [1, 2, 3, 5, 6]
