"""What the MLX backend promises beside the contract that it shares with the others."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from threadpoolctl import threadpool_info

from edgeinfer import ops
from edgeinfer.backends.base import Chunk
from edgeinfer.backends.mlx import MLXBackend, MLXSequence
from edgeinfer.errors import BadRequest, EngineClosed, MemoryLimit
from edgeinfer.loading import fit
from edgeinfer.ops import host, plain, workers
from tests.oracle import Oracle
from tests.tiny import tiny_gguf

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
TOKENS = np.random.default_rng(1).integers(0, 316, 90).tolist()


def run(backend: MLXBackend, sequence: MLXSequence, tokens: list[int], rows: str = "all") -> np.ndarray:
    (logits,) = backend.step([Chunk(sequence, tokens, rows)])  # type: ignore[arg-type]
    sequence.accept(len(tokens))
    return np.array(logits)


@pytest.fixture(autouse=True, params=["native", "composed"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every promise holds whichever way a layer is computed."""
    if request.param == "native" and not ops.fused:
        pytest.skip(ops.obstacle or "no CPU")
    monkeypatch.setattr(ops, "fused", request.param == "native")
    return str(request.param)


@pytest.fixture
def backend(tmp_path: Path) -> MLXBackend:
    return MLXBackend.load(tiny_gguf(tmp_path / "m.gguf", "gemma3", layers=7))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_ragged_step_equals_steps_of_their_own(tmp_path: Path, architecture: str) -> None:
    backend = MLXBackend.load(tiny_gguf(tmp_path / "m.gguf", architecture, layers=7))
    parts = [(TOKENS[:40], TOKENS[40:41]), (TOKENS[:3], TOKENS[3:20]), ([], TOKENS[:33]), (TOKENS[:60], TOKENS[60:64])]
    alone, together = [], []
    for before, new in parts:
        first, second = backend.open(), backend.open()
        for sequence in (first, second):
            if before:
                run(backend, sequence, before)
        alone.append(run(backend, first, new))
        together.append(Chunk(second, new, "all"))
    for expected, found in zip(alone, backend.step(together), strict=True):
        assert np.abs(expected - np.array(found)).max() < 1e-4


def test_each_chunk_gets_the_rows_it_asks_for(backend: MLXBackend) -> None:
    sequences = [backend.open() for _ in range(4)]
    whole = run(backend, sequences[3], TOKENS[:9])
    chunks = [Chunk(sequences[0], TOKENS[:9], "none"), Chunk(sequences[1], TOKENS[:9], "last")]
    none, last, every = backend.step([*chunks, Chunk(sequences[2], TOKENS[:9], "all")])
    assert none.shape == (0, 320)
    assert np.abs(np.array(last) - whole[-1:]).max() < 1e-4
    assert np.abs(np.array(every) - whole).max() < 1e-4
    (nothing,) = backend.step([Chunk(sequences[3], TOKENS[:9], "none")])
    assert nothing.shape == (0, 320)


def test_tokens_may_be_arrays_that_nobody_has_read(backend: MLXBackend) -> None:
    """A greedy loop that never looks at a token, and then continues from the prefix it made."""
    lazy, eager = backend.open(), backend.open()
    (logits,) = backend.step([Chunk(lazy, TOKENS[:8])])
    lazy.accept(8)
    token = int(run(backend, eager, TOKENS[:8])[-1].argmax())
    made = []
    for _ in range(12):
        ahead = mx.argmax(logits[-1:], axis=-1)
        (logits,) = backend.step([Chunk(lazy, ahead)])
        lazy.accept(1)
        made.append(token)
        token = int(run(backend, eager, [token])[-1].argmax())
    eager.close()
    lazy.close()
    assert backend.open([*TOKENS[:8], *made, 1]).length == 20


def test_lazy_tokens_must_be_a_row_of_integers(backend: MLXBackend) -> None:
    for tokens in (mx.array([[1]]), mx.array([1.0])):
        with pytest.raises(BadRequest, match="whole numbers"):
            backend.step([Chunk(backend.open(), tokens)])


def test_a_prefix_is_found_in_running_and_in_closed_sequences(backend: MLXBackend) -> None:
    first = backend.open()
    run(backend, first, TOKENS[:50])
    assert backend.open(TOKENS[:50]).length == 49
    assert backend.open([*TOKENS[:20], 5, *TOKENS[20:]]).length == 20
    first.close()
    again = backend.open(TOKENS[:70])
    assert again.length == 50
    expected = run(backend, backend.open(), TOKENS[:70])[50:]
    assert np.abs(run(backend, again, TOKENS[50:70]) - expected).max() < 1e-4


def test_a_fork_and_its_origin_do_not_see_each_other(backend: MLXBackend) -> None:
    origin = backend.open()
    run(backend, origin, TOKENS[:40])
    forks = [origin.fork() for _ in range(3)]
    for index, sequence in enumerate([origin, *forks]):
        own = [index + 1, index + 2]
        found = run(backend, sequence, own)
        expected = run(backend, backend.open(), [*TOKENS[:40], *own])[40:]
        assert np.abs(found - expected).max() < 1e-4


def test_a_cache_grows_past_a_block_and_shrinks_by_accepting_less(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", context=1024)
    backend = MLXBackend.load(path)
    tokens = np.random.default_rng(2).integers(0, 316, 700).tolist()
    sequence = backend.open()
    for start in range(0, 700, 70):
        backend.step([Chunk(sequence, [*tokens[start : start + 70], 1, 2, 3], "none")])
        sequence.accept(70)
    backend.step([Chunk(sequence, [4, 4, 4], "none")])
    sequence.accept(0)
    assert sequence.length == 700
    found = run(backend, sequence, [9])
    limit = 0.03 if ops.fused else 1e-4  # keys and values are float16 there
    assert np.abs(found[0] - Oracle(path).logits([*tokens, 9])[-1]).max() < limit


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_path_of_gpus_computes_the_same(tmp_path: Path, architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed weights, lazy arrays and a float16 cache, on the CPU. Q4_K multiplies in float32 there."""
    sizes = {"hidden": 256, "head_dim": 64, "feed_forward": 256, "layers": 7}
    path = tiny_gguf(tmp_path / "m.gguf", architecture, codec="q4_k", **sizes)  # type: ignore[arg-type]
    monkeypatch.setattr(ops, "here", plain)
    monkeypatch.setattr(ops, "fused", False)
    backend = MLXBackend.load(path)
    sequence = backend.open()
    found = np.concatenate([run(backend, sequence, part) for part in (TOKENS[:50], TOKENS[50:51], TOKENS[51:])])
    assert np.abs(found - Oracle(path).logits(TOKENS)).max() < 0.05
    assert sequence.cached.layers[0].arrays[0].dtype == mx.float16


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_ours_and_not_those_of_blas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    seen: list[tuple[int, set[int]]] = []

    def blas() -> set[int]:
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
        seen.append((workers.current().count, blas()))
        return real(x, weight, eps)

    before, real = blas(), host.rms_norm
    monkeypatch.setattr(ops, "fused", False)
    monkeypatch.setattr(host, "rms_norm", rms_norm)
    backend = MLXBackend.load(tiny_gguf(tmp_path / "m.gguf"), threads=threads)
    run(backend, backend.open(), TOKENS)
    assert seen
    assert all(found == (threads, {1}) for found in seen)
    assert blas() == before
    assert workers.current().count == 1


@pytest.mark.parametrize("broken", ["blk.0.ffn_up.weight", "blk.1.attn_q.weight"])
def test_broken_weights_give_logits_that_are_not_finite_and_no_warnings(tmp_path: Path, broken: str) -> None:
    """What to do about it is the caller's matter; here an infinite scale meets a q of zero."""
    columns = 64
    infinite = np.full((128 if "ffn" in broken else 64, columns), np.inf)
    infinite[:, ::2] = 0
    backend = MLXBackend.load(tiny_gguf(tmp_path / "m.gguf", tensors={broken: infinite}))
    assert not np.isfinite(run(backend, backend.open(), TOKENS[:5])).any()


def test_after_close_nothing_runs(backend: MLXBackend) -> None:
    sequence = backend.open()
    run(backend, sequence, TOKENS[:5])
    backend.close()
    backend.close()
    sequence.close()
    for use in (backend.open, sequence.fork, lambda: backend.step([Chunk(sequence, [1])])):
        with pytest.raises(EngineClosed):
            use()


def test_a_model_that_does_not_fit_is_refused_with_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_gguf(tmp_path / "m.gguf")
    monkeypatch.setattr(fit, "available_memory", lambda: 1 << 20)
    with pytest.raises(MemoryLimit, match=r"m\.gguf needs .* of weights, .* of context\); .* are free") as caught:
        MLXBackend.load(path)
    assert caught.value.needed > caught.value.available == 1 << 20


def test_close_gives_the_memory_back(tmp_path: Path) -> None:
    """30 MB of tiles, or 160 of float32; a fresh interpreter, since malloc keeps what other tests used."""
    path = tiny_gguf(tmp_path / "m.gguf", codec="q8_0", hidden=1024, heads=16, head_dim=64, feed_forward=4096)
    program = f"""
        import psutil, numpy as np
        from pathlib import Path
        from edgeinfer import ops
        from edgeinfer.backends.base import Chunk
        from edgeinfer.backends.mlx import MLXBackend
        ops.fused = {ops.fused}
        rss = lambda: psutil.Process().memory_info().rss
        for _ in range(2):
            backend = MLXBackend.load(Path({str(path)!r}))
            sequence = backend.open()
            np.array(backend.step([Chunk(sequence, [1, 2, 3])])[0])
            sequence.accept(3)
            loaded = rss()
            backend.close()
            print(backend.info.weight_bytes, loaded, rss())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True, timeout=120
    )
    lines = [list(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(lines) == 2
    for weights, loaded, after in lines:
        assert weights > (25 if ops.fused else 100) << 20
        assert loaded - after > 0.9 * weights


def test_a_backend_works_on_whichever_thread_made_it(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf")
    found: list[np.ndarray] = []

    def work() -> None:
        backend = MLXBackend.load(path)
        found.append(run(backend, backend.open(), TOKENS[:5]))
        backend.close()

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert np.array_equal(*found)


def test_weights_outlive_the_file_they_came_from(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "model.gguf", codec="f32")
    backend = MLXBackend.load(path)
    before = np.asarray(backend.step([Chunk(backend.open(), [1, 2])])[0])
    with path.open("r+b") as file:
        file.truncate(1000)
    np.testing.assert_array_equal(np.asarray(backend.step([Chunk(backend.open(), [1, 2])])[0]), before)
    backend.close()


def test_an_edited_message_goes_on_from_the_turn_before(tmp_path: Path) -> None:
    """Also where the answer that it replaces has sealed pages behind that place."""
    path = tiny_gguf(tmp_path / "m.gguf", "llama", context=1536)
    text = np.random.default_rng(2).integers(0, 316, 1100).tolist()
    other = text[:700] + text[720:760]
    backend = MLXBackend.load(path, 1536, kv="k8v4")

    def turn(prompt: list[int], answer: list[int]) -> int:
        """How many tokens were there already."""
        sequence = backend.open(prompt)
        found = sequence.length
        run(backend, sequence, prompt[found:], "last")
        for start in range(0, len(answer), 50):
            run(backend, sequence, answer[start : start + 50], "last")
        sequence.close()
        return found

    assert turn(text[:44], text[44:700]) == 0
    assert turn(text[:720], text[720:1100]) == 700
    assert turn(other, text[:300]) == 700
    assert turn(text[:720], text[:300]) == 700
    cold = MLXBackend.load(path, 1536, kv="k8v4")
    sequence = backend.open(other)
    warm = run(backend, sequence, other[sequence.length :], "last")
    assert sequence.length == len(other)
    assert int(warm.argmax()) == int(run(cold, cold.open(), other, "last").argmax())
