"""Nemotron-Labs-Diffusion (NVIDIA, 2026): Ministral 3, also trained to fill in a block of masked tokens all at once.

The same weights draft a block, whose rows see each other, and verify it as a causal model. An adapter on each
attention's output, shipped beside the weights, is on for drafts alone.
"""

from __future__ import annotations

from edgeinfer import ops
from edgeinfer.cache.kv import KVShape
from edgeinfer.formats.config import Config
from edgeinfer.models.mistral3 import Model as Ministral
from edgeinfer.nn.attention import Attention
from edgeinfer.nn.decoder import Block
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors


class Model(Ministral):
    def __init__(self, config: Config, tensors: Tensors) -> None:
        super().__init__(config, tensors)
        sizes = Sizes.read(config, tensors)
        kept = KVShape(sizes.kv_heads, sizes.head_dim, whole=True)  # drafted rows see what follows them
        self.kv_shapes = [kept] * sizes.layers
        self.mask = config.read("diffusion.mask_token_id", int, maximum=sizes.vocabulary - 1)
        self.longest = config.read("diffusion.block_size", int, minimum=2)
        scale = config.read("diffusion.adapter_scale", float, 0.0)
        for i, block in enumerate(self.blocks):
            part = tensors.under(f"blk.{i}.")
            columns = sizes.heads * sizes.head_dim
            if scale:
                weight = part.adapted("attn_output", sizes.hidden, columns, scale)
            else:
                weight = part.matrix("attn_output.weight", sizes.hidden, columns)
            assert isinstance(block, Block)
            assert isinstance(block.attention, Attention)
            block.attention.draft_output = ops.linear_map(ops.MapParts([weight]))
