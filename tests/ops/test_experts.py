"""Products by experts, scores that rest and values of a size of their own, against their formulas."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from edgeinfer import ops
from edgeinfer.ops import PackedExperts, host, plain
from edgeinfer.ops.implementation import Implementation
from tests.ops.test_ops import both, normal
from tests.ops.test_weights import packed

COUNT, ROWS = 4, 6
CHOSEN = ([0, 0, 0, 2, 3, 3], [1], [3, 3, 3])


@pytest.mark.parametrize("codec", ["f32", "bf16", "q4_0", "q5_1", "q8_0", "q4_k", "q6_k"])
@pytest.mark.parametrize("chosen", CHOSEN, ids=str)
def test_each_row_is_multiplied_by_its_own_expert(codec: str, chosen: list[int]) -> None:
    stacked = packed(codec, rows=COUNT * ROWS)
    x, weights = normal(len(chosen), 512), stacked.decode().reshape(COUNT, ROWS, 512)
    expected = np.einsum("mk,mnk->mn", x.astype(np.float64), weights[chosen])
    experts = mx.array(np.array(chosen, np.int32))
    exact = host.prepare_experts(PackedExperts(COUNT, stacked), wide=False)
    assert np.allclose(exact.linear(mx.array(x), experts), expected, atol=1e-4)
    half = plain.prepare_experts(PackedExperts(COUNT, stacked), wide=False)
    assert np.allclose(half.linear(mx.array(x), experts), expected, atol=0.6)
    here = ops.prepare_experts(PackedExperts(COUNT, stacked))
    found = np.array(ops.expert_linear(mx.array(x), here, experts))
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max() + 1e-4
    assert exact.nbytes == weights.nbytes
    assert here.nbytes > 0


@both
def test_clamped_swiglu(here: Implementation) -> None:
    gate, up = 6 * normal(5, 40), 6 * normal(5, 40, seed=1)
    low, held = np.minimum(gate, 7).astype(np.float64), np.clip(up, -7, 7).astype(np.float64)
    expected = low / (1 + np.exp(-1.702 * low)) * (held + 1)
    assert np.allclose(here.gated(mx.array(gate), mx.array(up), "clamped_swiglu"), expected, atol=1e-4)


@both
@pytest.mark.parametrize("window", [0, 7])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_attention_with_sinks_and_shorter_values(here: Implementation, window: int, softcap: float) -> None:
    heads, kv_heads, size, length, count = 6, 2, 16, 40, 5
    queries, keys, values = normal(count, heads, size), normal(kv_heads, 44, size), normal(kv_heads, 44, 8, seed=1)
    sinks = normal(heads, seed=2)
    arrays = [mx.array(each) for each in (queries, keys, values)]
    options = {"scale": 0.3, "window": window, "softcap": softcap}
    found = np.array(here.attention(*arrays, length, sinks=mx.array(sinks), **options)).reshape(count, heads, 8)
    for row in range(count):
        stop = length - count + row + 1
        seen = slice(max(0, stop - window) if window else 0, stop)
        for head in range(heads):
            kv = head // (heads // kv_heads)
            scores = 0.3 * keys[kv, seen].astype(np.float64) @ queries[row, head]
            scores = np.append(softcap * np.tanh(scores / softcap) if softcap else scores, sinks[head])
            weights = np.exp(scores) / np.exp(scores).sum()
            assert np.allclose(found[row, head], weights[:-1] @ values[kv, seen], atol=1e-5)
