"""The sizes that every decoder has, read from its settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from edgeinfer.formats.config import Config
from edgeinfer.nn.tensors import Tensors


@dataclass(frozen=True, slots=True)
class Sizes:
    blocks: int
    layers: int  # without those that only predict further tokens (``nextn_predict_layers``)
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    eps: float

    @classmethod
    def read(
        cls,
        config: Config,
        tensors: Tensors,
        *,
        dense: bool = True,
        value_dim: int = 0,
        kv_heads: int = 0,
        feed_forward: int = 0,
    ) -> Self:
        """``dense``: there is a feed-forward network that is no expert. ``value_dim``: if not that of keys.

        ``kv_heads``, ``feed_forward``: where they differ from layer to layer, those of one.
        Raises CorruptFile or UnsupportedModel when a size is missing, out of range or does not fit another one.
        """
        hidden = config.read("embedding_length", int)
        heads = config.read("attention.head_count", int)
        kv_heads = kv_heads or config.read("attention.head_count_kv", int, heads)
        if heads % kv_heads:
            raise config.error("attention.head_count_kv", f"{kv_heads}; expected a divisor of the {heads} heads")
        head_dim = config.read("attention.key_length", int, hidden // heads)
        if head_dim % 2:
            raise config.error("attention.key_length", f"{head_dim} channels a head; expected an even number")
        config.expect("attention.value_length", value_dim or head_dim, None)
        vocabulary = tensors.rows("token_embd.weight")
        config.expect("vocab_size", vocabulary, None)
        blocks, predicting = config.read("block_count", int), config.read("nextn_predict_layers", int, 0)
        if predicting >= blocks:
            raise config.error("nextn_predict_layers", f"{predicting}; expected fewer than the {blocks} blocks")
        inner = feed_forward or (
            config.read("feed_forward_length", int) if dense else config.read("feed_forward_length", int, 0)
        )
        return cls(
            blocks=blocks,
            layers=blocks - predicting,
            hidden=hidden,
            feed_forward=inner,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocabulary=vocabulary,
            eps=config.read("attention.layer_norm_rms_epsilon", float, minimum=0),
        )
