"""Each operation, in both implementations, against its formula in float64."""

from __future__ import annotations

from types import ModuleType

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer import ops
from edgeinfer.ops import host, plain
from edgeinfer.ops.implementation import Implementation

HERE: list[Implementation] = [host, plain]
both = pytest.mark.parametrize("here", HERE, ids=["host", "plain"])


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@both
@pytest.mark.parametrize("shape", [(1, 576), (7, 64), (3, 2, 16)])
def test_rms_norm(here: Implementation, shape: tuple[int, ...]) -> None:
    x, weight = normal(*shape), normal(shape[-1], seed=1)
    found = here.rms_norm(mx.array(x), mx.array(weight), 1e-5)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight
    assert np.allclose(found, expected, atol=1e-6, rtol=1e-5)


@both
def test_add_and_split_heads(here: Implementation) -> None:
    x, y, row = normal(3, 8), normal(3, 8, seed=1), normal(8, seed=2)
    assert np.array_equal(here.add(mx.array(x), mx.array(y)), x + y)
    assert np.array_equal(here.add(mx.array(x), mx.array(row)), x + row)
    assert np.array_equal(here.split_heads(mx.array(x), 4), x.reshape(3, 4, 2))


@both
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_gated_also_far_from_zero(here: Implementation, activation: str) -> None:
    gate = np.concatenate([np.linspace(-200, 200, 401), [0.0, -88.5, -104.0]]).astype(np.float32)[None]
    up = normal(*gate.shape)
    wide = gate.astype(np.float64)
    silu = wide / (1 + np.exp(-wide))
    gelu = 0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
    expected = (silu if activation == "silu" else gelu) * up
    assert np.allclose(here.gated(mx.array(gate), mx.array(up), activation), expected, atol=1e-5, rtol=1e-5)


@both
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("dims", [16, 8])
@pytest.mark.parametrize("magnitude", [1.0, 1.25])
def test_rope(here: Implementation, interleaved: bool, dims: int, magnitude: float) -> None:
    x, offset = normal(5, 3, 16), 1000
    rotary = ops.Rotary(10000.0 ** (-np.arange(0, dims, 2) / dims), interleaved, magnitude)
    turn = np.exp(1j * np.arange(offset, offset + 5)[:, None, None] * rotary.frequencies) * magnitude
    expected = x.astype(np.float64)
    first, second = (
        (slice(0, dims, 2), slice(1, dims, 2)) if interleaved else (slice(0, dims // 2), slice(dims // 2, dims))
    )
    turned = (expected[..., first] + 1j * expected[..., second]) * turn
    expected[..., first], expected[..., second] = turned.real, turned.imag
    assert np.allclose(here.rope(mx.array(x), rotary, offset), expected, atol=2e-3)  # float32 angles of 1000 radians
    if here is host:
        assert np.allclose(here.rope(mx.array(x), rotary, offset), expected, atol=1e-6)


@both
@pytest.mark.parametrize(
    ("count", "length", "window", "softcap"),
    [
        *[(1, 1, 0, 0), (1, 40, 0, 0), (1, 40, 9, 0), (6, 40, 0, 0), (6, 40, 4, 0), (40, 40, 9, 0), (6, 40, 64, 0)],
        *[(1, 40, 9, 1.5), (6, 40, 4, 1.5), (300, 320, 0, 0), (300, 320, 100, 0)],
    ],
)
def test_attention(here: Implementation, count: int, length: int, window: int, softcap: float) -> None:
    """The cache is longer than what is stored, and its spare rows hold rubbish."""
    heads, kv_heads, size, capacity = 6, 2, 16, length + 5
    queries, keys, values = normal(count, heads, size), normal(kv_heads, capacity, size), normal(2, capacity, size)
    keys[:, length:] = values[:, length:] = 1e4
    found = here.attention(
        mx.array(queries), mx.array(keys), mx.array(values), length, scale=0.3, window=window, softcap=softcap
    )
    assert np.allclose(found, expected_attention(queries, keys, values, length, window, softcap), atol=1e-5)


def expected_attention(
    queries: NDArray[np.float32],
    keys: NDArray[np.float32],
    values: NDArray[np.float32],
    length: int,
    window: int,
    softcap: float,
) -> NDArray[np.float64]:
    count, heads, size = queries.shape
    out = np.zeros((count, heads, size))
    for row in range(count):
        position = length - count + row
        seen = slice(max(0, position + 1 - window) if window else 0, position + 1)
        for head in range(heads):
            kv = head // (heads // len(keys))
            scores = keys[kv, seen].astype(np.float64) @ queries[row, head] * 0.3
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            weights = np.exp(scores - scores.max())
            out[row, head] = weights / weights.sum() @ values[kv, seen]
    return out.reshape(count, -1)


def test_scores_that_do_not_fit_are_computed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    x, keys, values = normal(50, 4, 8), normal(2, 64, 8), normal(2, 64, 8, seed=1)
    arguments = (mx.array(x), mx.array(keys), mx.array(values), 60)
    whole = np.array(host.attention(*arguments, scale=0.3, window=0, softcap=0))
    monkeypatch.setattr(host, "_SCORES", 4 * 60 * 7)
    assert np.allclose(host.attention(*arguments, scale=0.3, window=0, softcap=0), whole, atol=1e-6)


def test_every_operation_names_its_path() -> None:
    paths = ops.paths()
    products = {"weights", "linear", "expert_linear", "embed"}
    assert set(paths) == products | {"add", "split_heads", "rms_norm", "rope", "gated", "attention", "recurrence"}
    assert all(paths.values())


@pytest.mark.parametrize("module", HERE, ids=["host", "plain"])
def test_both_implementations_describe_the_same_operations(module: Implementation) -> None:
    assert isinstance(module, ModuleType)
    assert set(module.PATHS) == set(ops.paths())
