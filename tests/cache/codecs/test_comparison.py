"""The codes of others, against what their authors published and against their own libraries."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from edgeinfer.cache.codecs.base import KVCodec
from edgeinfer.cache.codecs.compared import COMPARED
from edgeinfer.cache.codecs.floats import E2M1, E4M3, FP8, NVFP4
from edgeinfer.cache.codecs.groups import Q4_0, Q8_0, Affine
from edgeinfer.cache.codecs.haar import rotation
from edgeinfer.cache.codecs.lloydmax import polar, sphere
from edgeinfer.cache.codecs.packing import pack, packed_bytes, unpack
from edgeinfer.cache.codecs.polarquant import PolarQuant
from edgeinfer.cache.codecs.turboquant import TurboQuant, TurboQuantProduct

CODECS = {name: keys for name, (keys, _) in COMPARED.items()}
HEADS = (16, 48, 64, 72, 80, 96, 128, 256)


def normal(rows: int, head: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, head), dtype=np.float32)


def there_and_back(codec: KVCodec, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    stored = codec.encode(rows)
    assert stored.dtype == np.uint8
    assert stored.shape == (len(rows), codec.row_bytes(rows.shape[1]))
    decoded = codec.decode(stored, rows.shape[1])
    assert (decoded.dtype, decoded.shape) == (np.float32, rows.shape)
    return decoded


@pytest.mark.parametrize(
    ("bits", "levels", "distortion"),
    [
        (1, [0.7980], 0.3634),
        (2, [0.4528, 1.510], 0.1175),
        (3, [0.2451, 0.7560, 1.344, 2.152], 0.03454),
        (4, [0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733], 0.009497),
        (5, [0.0659, 0.1981, 0.3314, 0.4668, 0.6050, 0.7473, 0.8947, 1.049, 1.212, 1.387, 1.577, 1.788, 2.029, 2.319,
             2.692, 3.263], 0.002499),
    ],
)  # fmt: skip
def test_levels_are_those_that_max_published(bits: int, levels: list[float], distortion: float) -> None:
    """Max (1960), table I, for the normal density, which a coordinate of a large sphere has."""
    book = sphere(bits, 1 << 16)
    np.testing.assert_allclose(book.levels[2 ** (bits - 1) :], levels, rtol=2e-3)
    np.testing.assert_allclose(book.levels, -book.levels[::-1], atol=1e-4)
    assert book.distortion == pytest.approx(distortion, rel=4e-3)


@pytest.mark.parametrize(("bits", "published"), [(1, 0.36), (2, 0.117), (3, 0.0345), (4, 0.0095), (5, 0.0025)])
def test_turboquant_distorts_as_published(bits: int, published: float) -> None:
    """TurboQuant's theorem 1 names 0.36, 0.117, 0.03 and 0.009 and the bound; two more digits are Max's."""
    rows = normal(4096, 128)
    error = float(np.mean((there_and_back(TurboQuant(bits), rows) - rows) ** 2) / np.mean(rows**2))
    assert error == pytest.approx(published, rel=0.03)
    assert 4.0**-bits < error < np.sqrt(3) * np.pi / 2 * 4.0**-bits


@pytest.mark.parametrize(("bits", "published"), [(2, 0.56), (3, 0.18), (4, 0.047)])
def test_turboquant_for_products_varies_as_published_and_has_no_bias(bits: int, published: float) -> None:
    """Theorem 2, in units of 1/d; the paper rounds the distortion behind 0.047 from 0.0345 to 0.03."""
    head = 128
    keys, queries = (normal(20_000, head, seed) for seed in (1, 2))
    keys, queries = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (keys, queries))
    queries = 0.6 * keys + 0.8 * queries  # products far from zero, where a shrinking code is off
    error = np.sum((there_and_back(TurboQuantProduct(bits), keys) - keys) * queries, axis=1)
    assert np.mean(error**2) * head / np.mean(np.sum(queries**2, axis=1)) == pytest.approx(published, rel=0.16)
    assert abs(np.mean(error)) < 4 * np.std(error) / np.sqrt(len(error)) + 0.002
    plain = np.sum((there_and_back(TurboQuant(bits), keys) - keys) * queries, axis=1)
    assert np.mean(plain) < -0.5 * sphere(bits, head).distortion * np.mean(np.sum(keys * queries, axis=1))


def test_the_split_is_a_quarter_at_one_bit_more() -> None:
    rows = normal(4096, 128)
    for bits, size in ((2, 40), (3, 56)):
        codec = TurboQuant(bits, split=True)
        assert codec.row_bytes(128) == size  # 2.5 and 3.5 bits a channel, both lengths included
        error = float(np.mean((there_and_back(codec, rows) - rows) ** 2))
        expected = (sphere(bits + 1, 128).distortion + 3 * sphere(bits, 128).distortion) / 4
        assert error == pytest.approx(expected, rel=0.03)


def test_a_rotation_is_orthogonal_and_the_same_everywhere() -> None:
    for head in HEADS:
        np.testing.assert_allclose(rotation(head, 1) @ rotation(head, 1).T, np.eye(head), atol=1e-5)
    np.testing.assert_allclose(rotation(4, 2504)[0], [0.203204, -0.136098, -0.791237, -0.560473], atol=1e-5)


def test_angles_have_the_density_that_polarquant_expects() -> None:
    """Errors of the codebooks on angles of real random numbers: what Lloyd's rounds foresaw."""
    numbers = normal(1 << 15, 16, 3)
    for level in (2, 3, 4):
        half = 1 << (level - 1)
        angles = np.arctan2(
            np.linalg.norm(numbers[:, half : 2 * half], axis=1), np.linalg.norm(numbers[:, :half], axis=1)
        )
        book = polar(2, level)
        assert np.mean((book.levels[book.nearest(angles)] - angles) ** 2) == pytest.approx(book.distortion, rel=0.03)


def test_polarquant_is_its_recursion_written_out() -> None:
    """One block: radii and angles by complex numbers and norms, level by level."""
    row = normal(1, 16, 4)
    turned = (row @ rotation(16, 2502).T)[0].astype(np.float64)
    pairs = turned[0::2] + 1j * turned[1::2]
    sector = 2 * np.pi / 16
    radii, directions = np.abs(pairs), np.exp(1j * (np.floor(np.angle(pairs) / sector) + 0.5) * sector)
    share = np.ones(8)
    for level in (2, 3, 4):
        angles, book = np.arctan2(radii[1::2], radii[0::2]), polar(2, level)
        kept = book.levels[np.abs(book.levels[None] - angles[:, None]).argmin(axis=1)]
        spread = len(share) // len(kept) // 2
        share *= np.stack([np.cos(kept), np.sin(kept)], axis=1).reshape(-1).repeat(spread)
        radii = np.hypot(radii[0::2], radii[1::2])
    expected = directions * share * radii[0]
    decoded = (there_and_back(PolarQuant(), row) @ rotation(16, 2502).T)[0]
    np.testing.assert_allclose(decoded[0::2] + 1j * decoded[1::2], expected, atol=2e-3 * radii[0])


def test_floats_are_those_of_mlx() -> None:
    codes = mx.arange(127, dtype=mx.uint8)
    np.testing.assert_array_equal(np.array(mx.from_fp8(codes, dtype=mx.float32)), E4M3)
    np.testing.assert_array_equal(E2M1, [0, 0.5, 1, 1.5, 2, 3, 4, 6])
    rows = np.concatenate([normal(64, 64, 5), normal(64, 64, 6) * 100])
    rows[:, 0] = 300 * np.sign(rows[:, 0])  # the peak that needs no other power of two
    rows = np.clip(rows, -300, 300)
    np.testing.assert_array_equal(FP8().encode(rows)[:, 1:], np.array(mx.to_fp8(mx.array(rows))))


def test_nvfp4_is_that_of_mlx() -> None:
    rows = normal(256, 64, 7) * 400
    rows[:, 3] = 1600  # the same for both: the row's power of two is then 1
    mine = there_and_back(NVFP4(), rows)
    packed, scales = mx.quantize(mx.array(rows), group_size=16, bits=4, mode="nvfp4")
    theirs = np.array(mx.dequantize(packed, scales, group_size=16, bits=4, mode="nvfp4", dtype=mx.float32))
    np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_q8_0_and_q4_0_are_the_bytes_of_ggml() -> None:
    rows = normal(512, 128, 8) * np.float32(3)
    expected = quants.quantize(rows, GGMLQuantizationType.Q8_0)
    np.testing.assert_array_equal(Q8_0().encode(rows), expected)
    np.testing.assert_array_equal(Q8_0().decode(expected, 128), quants.dequantize(expected, GGMLQuantizationType.Q8_0))
    turned = hadamard(rows.reshape(-1, 64)).reshape(rows.shape)
    theirs = quants.quantize(turned.astype(np.float32), GGMLQuantizationType.Q4_0)
    assert np.mean(Q4_0().encode(rows) == theirs) > 0.999  # but for ties that the transform's rounding decides
    decoded = quants.dequantize(theirs, GGMLQuantizationType.Q4_0)
    np.testing.assert_allclose(
        Q4_0().decode(theirs, 128), hadamard(decoded.reshape(-1, 64)).reshape(rows.shape), atol=1e-5
    )


def hadamard(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """By butterflies, normalized."""
    out, half = rows.astype(np.float64), 1
    while half < rows.shape[1]:
        pairs = out.reshape(len(rows), -1, 2, half)
        out = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(rows.shape)
        half *= 2
    return out / np.sqrt(rows.shape[1])


@pytest.mark.parametrize(("bits", "group"), [(4, 32), (4, 64), (8, 32), (8, 64)])
def test_affine_is_that_of_mlx(bits: int, group: int) -> None:
    rows = (normal(256, 128, 9) + normal(1, 128, 10)).astype(np.float16).astype(np.float32)
    packed, scales, biases = mx.quantize(mx.array(rows).astype(mx.float16), group_size=group, bits=bits)
    theirs = np.array(mx.dequantize(packed, scales, biases, group_size=group, bits=bits).astype(mx.float32))
    stored = Affine(bits, group).encode(rows)
    groups = 128 // group
    for start, expected in ((0, scales), (2 * groups, biases)):
        mine = np.ascontiguousarray(stored[:, start : start + 2 * groups]).view(np.float16)
        np.testing.assert_array_equal(mine, np.array(expected))
    assert np.mean(stored[:, 4 * groups :] == np.array(packed).view(np.uint8)) > 0.999
    np.testing.assert_allclose(Affine(bits, group).decode(stored, 128), theirs, atol=float(scales.max()) * 1.01)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("turboquant1", 18), ("turboquant2", 34), ("turboquant2.5", 40), ("turboquant3", 50), ("turboquant3.5", 56),
        ("turboquant4", 66), ("turboquant5", 82), ("turboquant3-qjl", 52), ("turboquant4-qjl", 68), ("polarquant", 62),
        ("fp8", 129), ("nvfp4", 73), ("q8_0", 136), ("q4_0", 72), ("affine4-32", 80), ("affine4-64", 72),
        ("affine8-64", 136),
    ],
)  # fmt: skip
def test_bytes_of_a_head_of_128(name: str, size: int) -> None:
    assert CODECS[name].row_bytes(128) == size


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", CODECS)
def test_hostile_rows_stay_what_they_are(name: str, head: int) -> None:
    """Zeros, constants, spikes, and numbers from a millionth to 1e5, in heads of any size."""
    rows = np.stack(
        [
            np.zeros(head),
            np.full(head, 3.0),
            np.full(head, -1e5),
            np.eye(head)[1] * 1e5,
            *(normal(4, head, 11) * np.array([[1e-6], [0.02], [1.0], [2e4]])),
        ]
    ).astype(np.float32)
    decoded = there_and_back(CODECS[name], rows)
    assert np.isfinite(decoded).all()
    np.testing.assert_array_equal(decoded[0], 0)
    if name.startswith("affine"):  # holds what float16 holds
        rows = np.clip(rows, -65504, 65504)
    error = np.linalg.norm(decoded - rows, axis=1)[1:] / np.linalg.norm(rows, axis=1)[1:]
    worst = {"turboquant1": 1.0, "turboquant2": 0.75, "turboquant2.5": 0.75, "turboquant3-qjl": 1.2}.get(name, 0.62)
    tiny = 3  # of the rows above, the one whose numbers are near the smallest that float16 has
    assert np.delete(error, tiny).max() < worst
    assert error[tiny] < (worst if name in ("fp8", "nvfp4") else max(worst, 1.01))


@pytest.mark.parametrize("bits", range(1, 9))
def test_codes_are_packed_without_gaps(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (5, 50)).astype(np.uint8)
    packed = pack(codes, bits)
    assert packed.shape == (5, packed_bytes(50, bits)) == (5, -(-50 * bits // 8))
    np.testing.assert_array_equal(unpack(packed, bits, 50), codes)
    number = int.from_bytes(packed[0].tobytes(), "little")
    assert [number >> bits * index & (1 << bits) - 1 for index in range(50)] == codes[0].tolist()
