"""The block past the last one, which some models have to predict one more token (DeepSeek-AI, 2024, section 2.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import mlx.core as mx

from edgeinfer import ops
from edgeinfer.nn.batch import Batch
from edgeinfer.nn.layers import Head
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors


class Layer(Protocol):
    def __call__(self, x: mx.array, batch: Batch) -> mx.array:
        """x: (T, hidden) -> (T, hidden)."""


class NextToken:
    """From the hidden state at a place and the token after it to the token after that.

    x = block(eh_proj(enorm(embedding of the token) | hnorm(hidden))), logits = output(norm(x)). Hidden states are those
    behind the model's last norm; norm(x) stands for the next place's where the head goes on by itself.
    """

    def __init__(
        self,
        tensors: Tensors,
        layer: int,
        sizes: Sizes,
        block: Callable[[Tensors, int], Layer],
        token_embd: ops.Weight,
        head: Head,
    ) -> None:
        part = tensors.under(f"blk.{layer}.")
        own = part.under("nextn.")
        hidden, vocabulary = sizes.hidden, sizes.vocabulary
        self.layer, self.eps = layer, sizes.eps
        self.output_norm = head.norm
        self.embed_tokens = own.head("embed_tokens.weight", token_embd, vocabulary, hidden)
        self.enorm, self.hnorm = own.vector("enorm.weight", hidden), own.vector("hnorm.weight", hidden)
        self.eh_proj = ops.linear_map(ops.MapParts([own.matrix("eh_proj.weight", hidden, 2 * hidden)]))
        self.block = block(part, layer)
        named = "shared_head_norm.weight" in own
        self.norm = own.vector("shared_head_norm.weight", hidden) if named else self.output_norm
        matrix = own.head("shared_head_head.weight", head.matrix, vocabulary, hidden)
        self.output = ops.linear_map(ops.MapParts([matrix]))

    def behind_norm(self, x: mx.array) -> mx.array:
        """What the last block gives, as this head wants it: (T, hidden)."""
        return ops.rms_norm(x, self.output_norm, self.eps)

    def __call__(self, hidden: mx.array, batch: Batch) -> mx.array:
        """hidden: (T, hidden), of the places before ``batch.tokens`` -> (T, hidden) of these."""
        embedded = ops.rms_norm(ops.embed(batch.tokens, self.embed_tokens), self.enorm, self.eps)
        x = self.eh_proj(mx.concatenate([embedded, ops.rms_norm(hidden, self.hnorm, self.eps)], axis=1))
        return ops.rms_norm(self.block(x, batch), self.norm, self.eps)


def has_head(tensors: Tensors, layer: int) -> bool:
    """Whether the file holds the head: many leave its tensors out and keep the setting that counts them."""
    return f"blk.{layer}.nextn.eh_proj.weight" in tensors
