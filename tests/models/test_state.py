"""Taking tokens back, forks and prefix reuse: any series of them gives the logits of a cold run, recurrent or not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from edgeinfer import ops
from edgeinfer.backends.base import Chunk
from edgeinfer.backends.mlx import MLXBackend
from edgeinfer.ops import recurrent
from tests.architectures import FAMILIES, tiny
from tests.models.test_logits import our_logits

SEED = int(os.environ.get("EDGEINFER_TEST_SEED", "0")) or int(np.random.default_rng().integers(1, 1 << 31))
RECURRENT = ("mamba2", "qwen3next")
OTHERS = [name for name in FAMILIES if name not in (*RECURRENT, "deepseek2 lite")]
SAMPLED = (*RECURRENT, *np.random.default_rng(SEED).choice(OTHERS, 2).tolist())
STEPS = 24


@pytest.mark.parametrize("fused", [False, True], ids=["composed", "native"])
@pytest.mark.parametrize("architecture", SAMPLED)
def test_any_series_gives_the_logits_of_a_cold_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str, fused: bool
) -> None:
    """Of experts, which a rounding may exchange where two score alike, most rows of a chunk are held to that."""
    print(f"EDGEINFER_TEST_SEED={SEED}")
    if fused and not ops.fused:
        pytest.skip("the native path is not built")
    monkeypatch.setattr(ops, "fused", fused)
    random = np.random.default_rng(SEED)
    path = tiny(tmp_path / "m.gguf", architecture, seed=SEED % 97)
    backend = MLXBackend.load(path)
    running: list[tuple[Any, list[int]]] = [(backend.open(), [])]
    checked: list[tuple[list[int], np.ndarray]] = []
    for _ in range(STEPS):
        kind = random.choice(["step", "step", "step", "together", "fork", "reopen"])
        at = int(random.integers(len(running)))
        sequence, tokens = running[at]
        if kind == "fork":
            running.append((sequence.fork(), list(tokens)))
        elif kind == "reopen":
            sequence.close()
            cut = int(random.integers(len(tokens) + 1))
            wanted = tokens if random.random() < 0.5 else tokens[:cut]
            again = backend.open([*wanted, 7, 8])
            running[at] = again, wanted[: again.length]
        else:
            several = running if kind == "together" else [running[at]]
            chunks = [random.integers(0, 316, random.integers(1, 20)).tolist() for _ in several]
            made = backend.step([Chunk(each, new, "all") for (each, _), new in zip(several, chunks, strict=True)])
            for (each, old), new, logits in zip(several, chunks, made, strict=True):
                checked.append(([*old, *new], np.array(logits)))
                kept = int(random.choice([0, len(new), random.integers(len(new) + 1)]))
                each.accept(kept)
                old.extend(new[:kept])
                assert each.length == len(old)
    for tokens, logits in checked[:: max(1, len(checked) // 8)]:
        rows = np.abs(our_logits(path, tokens)[-len(logits) :] - logits).max(axis=1)
        worst = np.median(rows) if ".expert_count" in FAMILIES[architecture].keys else rows.max()
        assert worst < (0.05 if fused else 2e-3), f"seed {SEED}, {len(tokens)} tokens"


def test_a_state_is_reused_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    backend = MLXBackend.load(tiny(tmp_path / "m.gguf", "mamba2"))
    sequence = backend.open()
    backend.step([Chunk(sequence, list(range(20)))])
    sequence.accept(20)
    sequence.close()
    assert backend.open([*range(12), 300, 301]).length == 0
    assert backend.open([*range(20), 300, 301]).length == 20


@pytest.mark.parametrize("xp", [np, mx], ids=["numpy", "mlx"])
@pytest.mark.parametrize("count", [1, 5, recurrent.BLOCK, 2 * recurrent.BLOCK + 9])
def test_blocks_compute_what_the_recurrences_say(xp: Any, count: int) -> None:
    """Token by token in float64, as the formulas stand in the docstrings of ``ops``."""
    random = np.random.default_rng(count)
    heads, groups, size, width = 4, 2, 8, 6

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    x, step = normal(count, heads, width), np.abs(normal(count, heads))
    decay, keys, queries = -np.abs(normal(count, heads)), normal(count, groups, size), normal(count, groups, size)
    state = normal(heads, width, size)
    given = (x, step, decay, keys, queries, state)
    found = recurrent.run(recurrent.selective_scan, xp is np, *map(mx.array, given))
    memory, expected = state.astype(np.float64), np.zeros((count, heads, width))
    for i in range(count):
        k, q = (np.repeat(each[i], heads // groups, axis=0) for each in (keys, queries))
        memory = np.exp(decay[i])[:, None, None] * memory + (step[i][:, None] * x[i])[..., None] * k[:, None]
        expected[i] = np.einsum("hpn,hn->hp", memory, q)
    assert np.allclose(found[0], expected, atol=2e-4)
    assert np.allclose(found[1], memory, atol=2e-4)

    q, k, v = normal(count, heads, size), normal(count, heads, size), normal(count, heads, width)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    beta, state = 1 / (1 + np.exp(-normal(count, heads))), normal(heads, size, width)
    found = recurrent.run(recurrent.gated_delta, xp is np, *map(mx.array, (q, k, v, decay, beta, state)))
    memory, expected = state.astype(np.float64), np.zeros((count, heads, width))
    for i in range(count):
        memory = np.exp(decay[i])[:, None, None] * memory
        error = beta[i][:, None] * (v[i] - np.einsum("hkv,hk->hv", memory, k[i]))
        memory = memory + k[i][..., None] * error[:, None]
        expected[i] = np.einsum("hkv,hk->hv", memory, q[i])
    assert np.allclose(found[0], expected, atol=2e-4)
    assert np.allclose(found[1], memory, atol=2e-4)


def test_a_convolution_sees_what_came_before() -> None:
    x, kernel = np.random.default_rng(0).standard_normal((30, 5)), np.random.default_rng(1).standard_normal((5, 4))
    padded = np.concatenate([np.zeros((3, 5)), x])
    expected = np.stack([(padded[i : i + 4].T * kernel).sum(axis=1) for i in range(30)])
    window, outs = mx.zeros((3, 5)), []
    for start, stop in ((0, 1), (1, 3), (3, 30)):
        part, window = ops.causal_conv(mx.array(x[start:stop].astype(np.float32)), window, mx.array(kernel))
        outs.append(np.array(part))
    assert np.allclose(np.concatenate(outs), expected, atol=1e-5)
