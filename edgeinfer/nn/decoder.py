"""What decoders share: an embedding, blocks one after the other, and a head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, TypeAlias

import mlx.core as mx

from edgeinfer import ops
from edgeinfer.cache.kv import KVShape
from edgeinfer.cache.state import StateShape
from edgeinfer.nn.attention import Attention, AttentionSpec
from edgeinfer.nn.batch import Batch
from edgeinfer.nn.layers import GatedMLP, Head
from edgeinfer.nn.nextn import NextToken, has_head
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors

Half: TypeAlias = Callable[[mx.array], mx.array]


class Layer(Protocol):
    def __call__(self, x: mx.array, batch: Batch) -> mx.array:
        """x: (T, hidden) -> (T, hidden)."""


class Block:
    """Something that looks at other tokens, then something that looks at each by itself."""

    def __init__(self, attention: Layer, mlp: Half) -> None:
        self.attention = attention
        self.mlp = mlp

    def __call__(self, x: mx.array, batch: Batch) -> mx.array:
        """x: (T, hidden) -> (T, hidden)."""
        return self.mlp(self.attention(x, batch))


class Decoder:
    """``block`` makes one from its tensors and its number. The first block past the last one, where the file has it,
    predicts a further token; there may be more of these, which are left out."""

    wide: ClassVar[bool] = False

    def __init__(
        self,
        tensors: Tensors,
        sizes: Sizes,
        kv_shapes: Sequence[KVShape | StateShape],
        block: Callable[[Tensors, int], Layer],
    ) -> None:
        self.kv_shapes = kv_shapes
        self.token_embd = tensors.matrix("token_embd.weight", sizes.vocabulary, sizes.hidden)
        self.blocks = [block(tensors.under(f"blk.{i}."), i) for i in range(sizes.layers)]
        self.head = Head(tensors, self.token_embd, sizes)
        self.next: NextToken | None = None
        if sizes.layers < sizes.blocks and has_head(tensors, sizes.layers):
            self.next = NextToken(tensors, sizes.layers, sizes, block, self.token_embd, self.head)
        for i in range(sizes.layers, sizes.blocks):
            tensors.skip(f"blk.{i}.")

    def embed(self, batch: Batch) -> mx.array:
        """(T, hidden)."""
        return ops.embed(batch.tokens, self.token_embd)

    def __call__(self, batch: Batch) -> mx.array:
        """Logits of the wanted rows: (R, V) float32."""
        x = self.embed(batch)
        for block in self.blocks:
            x = block(x, batch)
        if batch.trace is not None:
            batch.trace.append(x)
        return self.head(batch.wanted(x))


class PreNormDecoder(Decoder):
    """A norm before each half of a block, and nothing after it. ``mlp`` makes the second half."""

    def __init__(
        self,
        spec: AttentionSpec,
        turn: ops.Rotary,
        tensors: Tensors,
        mlp: Callable[[Tensors, int], Half] | None = None,
    ) -> None:
        sizes = spec.sizes

        def block(part: Tensors, layer: int) -> Block:
            second = mlp(part, layer) if mlp else GatedMLP(part, sizes, "silu")
            return Block(Attention(part, spec, turn, layer), second)

        super().__init__(tensors, sizes, [spec.kv_shape] * sizes.layers, block)
