"""The table of formats, and the policy that picks one of them."""

from __future__ import annotations

import pytest

from edgeinfer.cache.formats import FORMATS, policy
from edgeinfer.cache.kv import KVShape
from edgeinfer.errors import BadRequest

PLAIN, LARGE = KVShape(3, 64), KVShape(8, 128)


@pytest.mark.parametrize(
    ("shapes", "parameters", "bias", "name"),
    [
        ([PLAIN], 135_000_000, 0.0, "k8v4"),
        ([LARGE], 3_000_000_000, 0.0, "k8v4"),
        ([LARGE], 8_000_000_000, 0.0, "k6v4"),
        ([LARGE], 8_000_000_000, 40.0, "k8v4"),
        ([PLAIN], 8_000_000_000, 0.0, "k8v4"),
    ],
)
def test_auto(shapes: list[KVShape], parameters: int, bias: float, name: str) -> None:
    chosen = policy("auto", shapes, parameters, bias)
    assert chosen.name == name
    assert chosen.reason


def test_windows_and_learned_sinks_stay_exact() -> None:
    shapes = [LARGE, KVShape(8, 128, window=512), KVShape(8, 128, learned_sinks=True)]
    assert [layer.name for layer in policy("k4v4", shapes, 10**10).layers] == ["k4v4", "exact", "exact"]
    chosen = policy("k4v4", shapes[1:], 10**10)
    assert chosen.name == "exact"
    assert "sinks" in chosen.reason


def test_bytes_of_a_row_against_float16() -> None:
    limits = {
        "exact": 1,
        "k8v8": 0.52,
        "k8v4": 0.40,
        "k6v4": 0.34,
        "k5v4": 0.30,
        "k4v4": 0.28,
        "k4v3": 0.25,
        "k3v3": 0.22,
    }
    for size in (64, 128, 256):
        for name, limit in limits.items():
            assert FORMATS[name].row_bytes(size) / (4 * size) <= limit


def test_an_unknown_format_offers_the_nearest() -> None:
    with pytest.raises(BadRequest, match="did you mean 'k8v8'"):
        policy("k8v5", [PLAIN], 1)
