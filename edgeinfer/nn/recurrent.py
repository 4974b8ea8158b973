"""Layers that remember a state instead of keys and values."""

from __future__ import annotations

import mlx.core as mx

from edgeinfer.cache.state import Arrays, LayerState, Run
from edgeinfer.formats.config import Config
from edgeinfer.nn.batch import Batch
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors


def advance(batch: Batch, layer: int, run: Run, inputs: Arrays) -> mx.array:
    """Runs each chunk's rows of the inputs, (T, …), on its own state. -> (T, …)."""
    outs = []
    for view in batch.views:
        state = view.layers[layer]
        if not isinstance(state, LayerState):
            raise TypeError(f"layer {layer} keeps keys and values, not a state")
        outs.append(state.advance(run, tuple(each[view.start : view.stop] for each in inputs)))
    return outs[0] if len(outs) == 1 else mx.concatenate(outs)


def silu(x: mx.array) -> mx.array:
    return x * mx.sigmoid(x)


def softplus(x: mx.array) -> mx.array:
    """ln(1 + eˣ)."""
    return mx.logaddexp(x, 0)


def headless_sizes(config: Config, tensors: Tensors) -> Sizes:
    """Of a model without attention and without feed-forward networks."""
    for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"):
        config.expect(key, 0, None)
    vocabulary = tensors.rows("token_embd.weight")
    config.expect("vocab_size", vocabulary, None)
    blocks, hidden = config.read("block_count", int), config.read("embedding_length", int)
    eps = config.read("attention.layer_norm_rms_epsilon", float, minimum=0)
    return Sizes(blocks, blocks, hidden, 0, 0, 0, 0, vocabulary, eps)
