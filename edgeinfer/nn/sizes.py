"""The sizes that every decoder has, read from its settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from edgeinfer.formats.config import Config
from edgeinfer.nn.tensors import Tensors


@dataclass(frozen=True, slots=True)
class Sizes:
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    eps: float

    @classmethod
    def read(cls, config: Config, tensors: Tensors) -> Self:
        """Raises CorruptFile or UnsupportedModel when a size is missing, out of range or does not fit another one."""
        hidden = config.read("embedding_length", int)
        heads = config.read("attention.head_count", int)
        kv_heads = config.read("attention.head_count_kv", int, heads)
        if heads % kv_heads:
            raise config.error("attention.head_count_kv", f"{kv_heads}; expected a divisor of the {heads} heads")
        head_dim = config.read("attention.key_length", int, hidden // heads)
        if head_dim % 2:
            raise config.error("attention.key_length", f"{head_dim} channels a head; expected an even number")
        config.expect("attention.value_length", head_dim, None)
        vocabulary = tensors.rows("token_embd.weight")
        config.expect("vocab_size", vocabulary, None)
        return cls(
            layers=config.read("block_count", int),
            hidden=hidden,
            feed_forward=config.read("feed_forward_length", int),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocabulary=vocabulary,
            eps=config.read("attention.layer_norm_rms_epsilon", float, minimum=0),
        )
