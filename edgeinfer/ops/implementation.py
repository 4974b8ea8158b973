"""What a module of operations offers; the package's own docstrings say what each function computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import mlx.core as mx

from edgeinfer.ops.rotary import Rotary
from edgeinfer.ops.weights import ExpertWeight, PackedExperts, PackedWeight, Weight
from edgeinfer.quant.codec import Codec


class Implementation(Protocol):
    KV_DTYPE: mx.Dtype
    PATHS: Mapping[str, str]

    def bits(self, codec: Codec) -> float:
        """Bits that a prepared weight takes, its share of scales with it."""

    def prepare(self, packed: PackedWeight, wide: bool) -> Weight: ...

    def prepare_experts(self, packed: PackedExperts, wide: bool) -> ExpertWeight: ...

    def add(self, x: mx.array, y: mx.array) -> mx.array: ...

    def split_heads(self, x: mx.array, heads: int) -> mx.array: ...

    def rms_norm(self, x: mx.array, weight: mx.array, eps: float) -> mx.array: ...

    def gated(self, gate: mx.array, up: mx.array, activation: str) -> mx.array: ...

    def rope(self, x: mx.array, rotary: Rotary, offset: int) -> mx.array: ...

    def attention(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        length: int,
        *,
        scale: float,
        window: int,
        softcap: float,
        sinks: mx.array | None = None,
    ) -> mx.array: ...
