"""A forward pass as one operation: the bits of one that runs operation by operation, and caches written in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.base import Chunk
from edgeinfer.backends.mlx import MLXBackend
from edgeinfer.cache.kv import KVShape
from edgeinfer.nn.batch import Batch
from edgeinfer.nn.forward import Forward
from tests import architectures
from tests.models.test_logits import VARIANTS, some_tokens
from tests.tiny import tiny_gguf

TOKENS = some_tokens(700, seed=5)


@pytest.fixture(autouse=True)
def needs_it(native: Any) -> None:
    """Recording is native."""


def story(backend: MLXBackend) -> list[NDArray[np.float32]]:
    """Logits of a sequence past one growth of its cache, of rows taken back, of a fork, and of two in one step."""
    sequence, found, start = backend.open(), [], 0
    for count, kept in ((250, 250), (7, 3), (1, 1), (60, 0), (300, 300), (1, 1)):
        chunk = Chunk(sequence, TOKENS[start : start + count], "all" if count < 100 else "last")
        found.append(np.array(backend.step([chunk])[0]))
        sequence.accept(kept)
        start += kept
    fork = sequence.fork()
    for each, tokens in ((fork, [5, 6]), (sequence, [7]), (fork, [8])):
        found.append(np.array(backend.step([Chunk(each, tokens, "all")])[0]))
        each.accept(len(tokens))
    found += [np.array(rows) for rows in backend.step([Chunk(sequence, [1, 2]), Chunk(fork, [3], "none")])]
    return found


@pytest.mark.parametrize(("architecture", "options"), VARIANTS.values(), ids=VARIANTS.keys())
def test_a_recorded_pass_gives_the_bits_of_its_operations(
    tmp_path: Path, architecture: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", architecture, **{"context": 1024, **options})
    assert MLXBackend.load(path).recorded
    assert_same_bits(path, monkeypatch)


@pytest.mark.parametrize(("architecture", "keys"), architectures.VARIANTS.values(), ids=architectures.VARIANTS.keys())
def test_architectures_compute_the_same_recorded_or_not(
    tmp_path: Path, architecture: str, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that looked at what a batch holds would have that of the recording in it for ever."""
    path = architectures.tiny(tmp_path / "m.gguf", architecture, keys, context=1024)
    assert_same_bits(path, monkeypatch)


def assert_same_bits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = MLXBackend.load(path, threads=2)
    monkeypatch.setattr("edgeinfer.ops.recorder", lambda: None)
    one_by_one = MLXBackend.load(path, threads=2)
    assert not one_by_one.recorded
    for found, expected in zip(story(recorded), story(one_by_one), strict=True):
        assert np.array_equal(found, expected)


class Toy:
    kv_shapes: Sequence[KVShape] = ()

    def __init__(self, forward: Callable[[Any], Any]) -> None:
        self._forward = forward

    def __call__(self, batch: Batch) -> mx.array:
        value: mx.array = self._forward(batch)
        return value


@pytest.fixture
def matrix(native: Any) -> Any:
    weights = np.random.default_rng(2).standard_normal((64, 64)).astype(np.float32)
    return native.pack(0, weights.view(np.uint8), 64)


def test_values_that_are_still_read_are_not_overwritten(native: Any, matrix: Any) -> None:
    """Against the same operations on arrays."""
    apply = native.linear([matrix])

    def forward(x: Any, wanted: Callable[[Any], Any]) -> Any:
        first = apply(x, x)
        second = apply(first, x)
        third = apply(second * 0.5, first)
        return apply(wanted(apply(third, second)))

    recorder = native.Recorder()
    program = recorder.finish(forward(native.embed(matrix, recorder), lambda x: x.wanted()).softcap(3.0))
    tokens = mx.array([5, 63, 0, 9, 9], mx.int32)
    logits, made = program(tokens, [(0, 2, 0), (2, 3, 7)], [[], []], [True, True], [1, 3])
    expected = forward(native.embed(matrix, tokens), lambda x: mx.take(x, mx.array([1, 3]), axis=0))
    assert np.allclose(np.array(logits), 3 * np.tanh(np.array(expected) / 3), atol=1e-6)
    assert made == [[], []]


@pytest.mark.parametrize(
    "forward",
    [
        lambda batch: mx.tanh(batch.tokens),
        lambda batch: batch.tokens.shape,
        lambda batch: batch.wanted(batch.tokens),
    ],
    ids=["operation", "attribute", "wanted"],
)
def test_what_cannot_be_recorded_runs_by_itself(forward: Callable[[Any], Any]) -> None:
    assert not Forward(Toy(forward)).recorded


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": mx.array([1.0])}, "tokens: expected"),
        ({"rows": [(0, 2, 0)]}, "expected all of the call"),
        ({"rows": [(1, 1, 0)]}, "expected each to follow"),
        ({"caches": []}, "expected one entry for each"),
        ({"caches": [[None]]}, "expected one for each layer"),
        ({"wanted": [1]}, "wanted: expected rows in order"),
        ({"wanted": [0, 0]}, "wanted: expected rows in order"),
    ],
)
def test_calls_that_do_not_fit_are_refused(native: Any, matrix: Any, arguments: dict[str, Any], message: str) -> None:
    recorder = native.Recorder()
    program = recorder.finish(native.embed(matrix, recorder).wanted())
    good = {"tokens": mx.array([1], mx.int32), "rows": [(0, 1, 0)], "caches": [[]], "owned": [True], "wanted": [0]}
    assert program(**good)[0].shape == (1, 64)
    with pytest.raises(ValueError, match=message):
        program(**{**good, **arguments})


def test_a_program_without_wanted_rows_is_refused(native: Any, matrix: Any) -> None:
    recorder = native.Recorder()
    with pytest.raises(ValueError, match="expected logits of the wanted rows"):
        recorder.finish(native.embed(matrix, recorder))
    with pytest.raises(ValueError, match="of this program"):
        native.Recorder().finish(native.embed(matrix, recorder).wanted())
