"""Products, embeddings and choices of the native path against numpy in float64."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.quant.codec import CODECS, Codec
from tests.metal_kernels.blocks import DECODABLE
from tests.oracle_ggml import decoded
from tests.tiny import encode, random_blocks

PLAIN = ("f32", "f16", "bf16")
ROWS = [*range(1, 20), 33]
random = np.random.default_rng(7)


def matrix(native: Any, codec: Codec, rows: int, columns: int) -> tuple[Any, NDArray[np.float64]]:
    """A random matrix in tiles, and its weights as the ``gguf`` package, or ggml, decodes them."""
    blocks = random_blocks(codec, rows, columns, random)
    weights = decoded(codec, blocks)
    return native.pack(codec.ggml_id, blocks, columns), weights.astype(np.float64)


def as_bytes(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """Each 32 activations rounded to whole multiples of a 127th of the largest."""
    blocks = x.reshape(-1, 32)
    scale = (np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)).astype(np.float32)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    return np.asarray(np.rint(blocks * inverse).astype(np.float64) * scale).reshape(x.shape)


def zeros(native: Any) -> Any:
    return native.pack(2, np.zeros((4, 18), np.uint8), 32)


def activations(rows: int, columns: int) -> NDArray[np.float32]:
    return random.standard_normal((rows, columns)).astype(np.float32)


@pytest.mark.parametrize("codec", DECODABLE, ids=lambda codec: codec.name)
def test_products_are_those_of_the_stored_weights(native: Any, each_isa: str, codec: Codec) -> None:
    """Exact but for float32 sums with activations rounded alike; within a byte's rounding of what it stands for."""
    for rows, columns in ((1, codec.weights), (16, 256), (37, 512), (50, 2048)):
        packed, weights = matrix(native, codec, rows, columns)
        apply = native.linear([packed])
        for count in (1, 3, 16, 21):
            x = activations(count, columns)
            found = np.array(apply(mx.array(x)))
            rounded = x.astype(np.float64) if codec.name in PLAIN else as_bytes(x)
            size = np.abs(rounded) @ np.abs(weights).T + 1e-30
            assert (np.abs(found - rounded @ weights.T) / size).max() < 1e-6
            assert (np.abs(found - x @ weights.T) / size).max() < 1e-2


@pytest.mark.parametrize("codec", DECODABLE, ids=lambda codec: codec.name)
def test_embedded_rows_are_the_stored_weights_to_the_bit(native: Any, codec: Codec) -> None:
    packed, weights = matrix(native, codec, 37, 512)
    tokens = np.array([36, 0, 17, 17], np.int32)
    rows = np.array(native.embed(packed, mx.array(tokens)))
    if codec.name.startswith("affine8"):  # half of the range is moved from the codes to the offset, which rounds once
        assert np.abs(rows - weights[tokens]).max() < 1e-7 * np.abs(weights).max()
    else:
        assert np.array_equal(rows, weights[tokens].astype(np.float32))
    assert np.isnan(np.array(native.embed(packed, mx.array(np.array([37, -1], np.int32))))).all()


@pytest.mark.parametrize("codec", DECODABLE, ids=lambda codec: codec.name)
def test_a_row_is_the_same_whatever_its_company(native: Any, each_isa: str, codec: Codec) -> None:
    packed, _ = matrix(native, codec, 40, 512)
    x = activations(33, 512)
    apply = native.linear([packed], norm=activations(1, 512)[0], eps=1e-5)
    whole = np.array(apply(mx.array(x)))
    for threads in (1, 2, 3):
        native.set_threads(threads)
        for count in ROWS:
            start = int(random.integers(0, 34 - count))
            assert np.array_equal(np.array(apply(mx.array(x[start : start + count]))), whole[start : start + count])


def test_products_are_equal_on_every_instruction_set_that_fuses(native: Any) -> None:
    """Integer sums are exact; what follows is the same order of float32 operations."""
    packed, _ = matrix(native, CODECS["q4_k"], 48, 1024)
    x = mx.array(activations(5, 1024))
    before, found = native.instruction_set(), []
    for isa in native.instruction_sets():
        if isa != "generic":  # no fused multiply-add in the oldest x86
            native.use_instruction_set(isa)
            found.append(np.array(native.linear([packed])(x)))
    native.use_instruction_set(before)
    assert all(np.array_equal(each, found[0]) for each in found)


def test_everything_around_the_product(native: Any, each_isa: str) -> None:
    codecs = [CODECS[name] for name in ("q4_0", "q6_k", "f16")]
    made = [matrix(native, codec, rows, 256) for codec, rows in zip(codecs, (17, 32, 5), strict=True)]
    packed, weights = zip(*made, strict=True)
    x, residual = activations(4, 256), activations(4, 54)
    norm, bias, post = activations(1, 256)[0], activations(1, 54)[0], activations(1, 54)[0]

    def normed(rows: NDArray[Any], weight: NDArray[np.float32]) -> NDArray[Any]:
        return np.asarray(rows / np.sqrt(np.mean(rows.astype(np.float64) ** 2, axis=1, keepdims=True) + 1e-5) * weight)

    inner = normed(x, norm)
    rounded = as_bytes(inner.astype(np.float32))
    y = np.concatenate([rounded @ weights[0].T, rounded @ weights[1].T, inner @ weights[2].T], axis=1) + bias
    plain = native.linear(list(packed), bias=bias, norm=norm, eps=1e-5)
    assert np.allclose(np.array(plain(mx.array(x))), y, atol=0.1)
    assert np.allclose(np.array(plain(mx.array(x), mx.array(residual))), y + residual, atol=0.1)
    posted = native.linear(list(packed), bias=bias, norm=norm, post_norm=post, eps=1e-5)
    exact = np.array(plain(mx.array(x)))
    found = np.array(posted(mx.array(x), mx.array(residual)))
    assert np.allclose(found, residual + normed(exact, post), atol=1e-5)


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_gated_activations(native: Any, each_isa: str, activation: str) -> None:
    (gate, gate_weights), (up, up_weights) = (matrix(native, CODECS[name], 37, 64) for name in ("f32", "bf16"))
    x = activations(5, 64)
    a, b = x @ gate_weights.T, x @ up_weights.T
    inner = (
        1 / (1 + np.exp(-a)) if activation == "silu" else (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3))) / 2
    )
    found = np.array(native.linear([gate, up], activation=activation)(mx.array(x)))
    assert np.allclose(found, a * inner * b, rtol=1e-4, atol=1e-4)


EXPERTS = ([0], [2, 2, 2, 3], [0, 1, 2, 3], [1] * 21 + [3] * 40, [3, 0, 0, 3])


@pytest.mark.parametrize("codec", ["q4_k", "q8_0", "mxfp4", "f16"])
@pytest.mark.parametrize("chosen", EXPERTS, ids=lambda chosen: str(chosen[:4]))
def test_a_row_is_what_its_own_expert_gives(native: Any, each_isa: str, codec: str, chosen: list[int]) -> None:
    """To the bit, with gates or without, whatever the other rows and the number of threads."""
    count, columns = 4, 256
    gates, ups = ([matrix(native, CODECS[codec], 37, columns)[0] for _ in range(count)] for _ in range(2))
    x, experts = activations(len(chosen), columns), mx.array(np.array(chosen, np.int32))
    for maps in (
        [native.linear([gate]) for gate in gates],
        [native.linear(list(pair), activation="silu") for pair in zip(gates, ups, strict=True)],
    ):
        alone = [np.array(maps[expert](mx.array(row[None])))[0] for expert, row in zip(chosen, x, strict=True)]
        for threads in (1, 2, 3):
            native.set_threads(threads)
            assert np.array_equal(np.array(native.experts(maps)(mx.array(x), experts)), np.stack(alone))


def test_experts_that_are_not_there(native: Any) -> None:
    maps = [native.linear([matrix(native, CODECS["q4_0"], 20, 64)[0]]) for _ in range(3)]
    x, experts = activations(4, 64), mx.array(np.array([-1, 0, 3, 3], np.int32))
    found = np.array(native.experts(maps)(mx.array(x), experts))
    assert np.isnan(found[[0, 2, 3]]).all()
    assert np.array_equal(found[1:2], np.array(maps[0](mx.array(x[1:2]))))
    nobody = native.experts(maps)(mx.zeros((0, 64)), mx.zeros((0,), mx.int32))
    assert np.array(nobody).shape == (0, 20)
    for wrong in (mx.zeros((4, 32)), mx.zeros((3, 64))):
        with pytest.raises(ValueError, match=r"x: expected|experts: expected"):
            native.experts(maps)(wrong, experts)
    with pytest.raises(ValueError, match="single maps of one shape"):
        native.experts([maps[0], native.linear([zeros(native)])])


@pytest.mark.parametrize("bad", [np.inf, np.nan], ids=str)
def test_a_scale_that_is_no_number_spoils_its_own_outputs_alone(native: Any, each_isa: str, bad: float) -> None:
    blocks = np.array(encode(activations(20, 256), "q8_0")).reshape(20, -1)
    clean = native.linear([native.pack(8, blocks, 256)])
    x = mx.array(activations(3, 256))
    blocks = blocks.copy()
    blocks[18, :2] = np.array([bad], np.float16).view(np.uint8)
    found, expected = np.array(native.linear([native.pack(8, blocks, 256)])(x)), np.array(clean(x))
    assert not np.isfinite(found[:, 18]).any()
    assert np.array_equal(np.delete(found, 18, 1), np.delete(expected, 18, 1))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan], ids=str)
def test_an_activation_that_is_no_number_spoils_its_row_alone(native: Any, each_isa: str, bad: float) -> None:
    packed, _ = matrix(native, CODECS["q4_1"], 20, 256)
    x = activations(3, 256)
    expected = np.array(native.linear([packed])(mx.array(x)))
    x[1, 70] = bad
    found = np.array(native.linear([packed])(mx.array(x)))
    assert np.isnan(found[1]).all()
    assert np.array_equal(found[::2], expected[::2])


@pytest.mark.parametrize(("size", "window"), [(64, 0), (64, 130), (512, 0)])
def test_scores_that_rest(native: Any, each_isa: str, size: int, window: int) -> None:
    """Learned sinks take their share of the softmax, and rows are the same in steps and at once."""
    heads, kv_heads, length, scale = 4, 2, 300, 0.2
    sinks = np.array([-3.0, 0.5, 9.0, 200.0], np.float32)  # the last leaves next to nothing
    made = native.heads(heads, kv_heads, size, scale=scale, window=window, sinks=sinks)
    qkv = activations(length, (heads + 2 * kv_heads) * size)
    still = native.rope(np.zeros(size // 2), 1.0)

    def run(chunks: list[int]) -> NDArray[np.float32]:
        cache, start, out = None, 0, []
        for count in chunks:
            rows, x = (0, count, start), mx.array(qkv[start : start + count])
            table = still([rows])
            cache = made.append(x, table, cache, rows)
            out.append(np.array(made.attend(x, table, [cache], [rows])))
            start += count
        return np.concatenate(out)

    found = run([length])
    assert np.array_equal(run([1, 70, 200, 29]), found)
    q, k, v = np.split(qkv.astype(np.float64), [heads * size, (heads + kv_heads) * size], axis=1)
    for row in (0, 5, length - 1):
        seen = slice(max(0, row + 1 - window) if window else 0, row + 1)
        for head in range(heads):
            part = slice(head // 2 * size, (head // 2 + 1) * size)
            scores = np.append(scale * k[seen, part] @ q[row, head * size : (head + 1) * size], sinks[head])
            weights = np.exp(scores - scores.max())
            expected = (weights / weights.sum())[:-1] @ v[seen, part]
            assert np.allclose(found[row, head * size : (head + 1) * size], expected, atol=4e-3)


def test_no_rows_give_no_rows(native: Any) -> None:
    packed, _ = matrix(native, CODECS["q4_k"], 20, 256)
    assert np.array(native.linear([packed])(mx.zeros((0, 256)))).shape == (0, 20)
    assert np.array(native.embed(packed, mx.zeros((0,), mx.int32))).shape == (0, 256)


def test_inputs_need_not_lie_row_by_row(native: Any) -> None:
    packed, _ = matrix(native, CODECS["q5_1"], 20, 64)
    apply, wide = native.linear([packed]), mx.array(activations(6, 128))
    straight = np.array(apply(mx.array(np.ascontiguousarray(np.array(wide)[1:4, 32:96]))))
    assert np.array_equal(np.array(apply(wide[1:4, 32:96])), straight)
    turned = mx.array(np.ascontiguousarray(np.array(wide)[1:4, 32:96].T)).T
    assert np.array_equal(np.array(apply(turned)), straight)


def test_the_largest_logit(native: Any, each_isa: str) -> None:
    logits = activations(9, 4099)
    logits[1, 4098], logits[2, [70, 3000]], logits[3, 0] = 9, 9, 9
    logits[4, 2000], logits[5, 4098], logits[6, 7], logits[7] = np.nan, np.inf, -np.inf, -np.inf
    expected = logits.argmax(axis=1)
    expected[[4, 5, 7]] = -1
    assert np.array(native.argmax(mx.array(logits))).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda native: native.pack(2, np.zeros((4, 17), np.uint8), 32), "bytes do not fit"),
        (lambda native: native.pack(2, np.zeros((4, 18), np.uint8), 33), "whole number of blocks"),
        (lambda native: native.pack(99, np.zeros((4, 18), np.uint8), 32), "no tiles for this format"),
        (lambda native: native.linear([]), "expected 1 to 3"),
        (lambda native: native.linear([zeros(native)], norm=np.ones(5, np.float32)), "norm: expected 32 values"),
        (lambda native: native.linear([zeros(native)])(mx.zeros((1, 64))), "x: expected"),
        (lambda native: native.heads(3, 2, 64), "whole groups"),
        (lambda native: native.use_instruction_set("mmx"), "no such instruction set"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(native: Any, call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(native)
