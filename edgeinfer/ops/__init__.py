"""The operations that models are made of, and where one of the implementations is picked.

- ``native``: whole steps of a layer in C++, on a CPU. Where it was built.
- ``composed``: the same steps put together from single operations, which are
  ``metal``, our kernels on the blocks of the file and MLX for the rest: what an Apple GPU runs;
  ``plain``, MLX alone: what another GPU runs, and the twin of ``metal``; or
  ``host``, numpy on the arrays' own memory: MLX's CPU build multiplies with the reference BLAS, 10 to 70 times slower
  than numpy's OpenBLAS on the same two cores, and each of its small operations waits for another thread.

Shapes: T rows of all chunks together, L tokens of one chunk, H query heads, K kv heads, D head size, S cached tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import mlx.core as mx

from edgeinfer.native import obstacle, primitives
from edgeinfer.ops import composed, host, metal, native, plain, recurrent, workers
from edgeinfer.ops.adopt import tally
from edgeinfer.ops.composed import ComposedChain, ComposedHeads, ComposedMap
from edgeinfer.ops.implementation import Implementation
from edgeinfer.ops.paged import Block, Frame, HostBlock, Paging, Place
from edgeinfer.ops.parts import Cache, GatedExperts, Heads, HeadsParts, LinearMap, MapParts, Span
from edgeinfer.ops.pool import Pool, PoolBlock, PoolFrame
from edgeinfer.ops.rotary import Rotary
from edgeinfer.ops.weights import ExpertWeight, PackedExperts, PackedWeight, Weight
from edgeinfer.quant.codec import Codec

__all__ = [
    "Block", "Cache", "ExpertWeight", "Frame", "GatedExperts", "Heads", "HeadsParts", "LinearMap", "MapParts",
    "PackedExperts", "PackedWeight", "Paging", "Place", "Pool", "Rotary", "Span", "Weight", "add", "attend_latents",
    "attention", "block", "built_plainly", "causal_conv", "chain", "device", "embed", "expert_linear", "frame", "gated",
    "gated_delta", "gated_experts", "greedy", "heads", "kv_dtype", "linear", "linear_map", "obstacle", "on_gpu",
    "page_bytes", "paths", "pool", "prepare", "prepare_experts", "prepared_bytes", "recorder", "rms_norm", "rope",
    "sample", "selective_scan", "shared_bytes", "softcap", "split_heads", "threads",
]  # fmt: skip

on_gpu: Final[bool] = mx.default_device() == mx.Device(mx.gpu)
here: Implementation = host if not on_gpu else metal if mx.metal.is_available() else plain
fused: bool = primitives is not None and not on_gpu
"""Whether new models take the native path."""


def prepare(packed: PackedWeight, wide: bool = False) -> Weight:
    """A stored matrix made ready to multiply. ``wide``: activations may leave the range of float16."""
    return native.prepare(packed) if fused else here.prepare(packed, wide)


def prepare_experts(packed: PackedExperts, wide: bool = False) -> ExpertWeight:
    """Stored matrices of experts made ready to multiply, as ``prepare`` does it."""
    return native.prepare_experts(packed) if fused else here.prepare_experts(packed, wide)


def prepared_bytes(codec: Codec, weights: int) -> int:
    """Bytes that ``prepare`` makes of so many weights."""
    return round((native.bits(codec) if fused else here.bits(codec)) * weights / 8)


def shared_bytes() -> int:
    """Bytes of weights, since the process started, that are used where they lie in a mapped file."""
    return tally.shared


def linear_map(parts: MapParts) -> LinearMap:
    """A linear map and all that is done around it, as one operation where there is one."""
    plainly = ComposedMap(parts, here)
    if here is metal:
        return metal.linear_map(parts, plainly)
    return (native.linear_map(parts) if fused else None) or plainly


def chain(first: LinearMap, then: LinearMap) -> LinearMap:
    """then(first(x)), with the residual added to that."""
    return native.chain(first, then) if fused and native.is_native(first) else ComposedChain(first, then)


def heads(parts: HeadsParts, output: LinearMap | None) -> Heads:
    """Attention with the writing of its cache and the map of its output, if any, in as few operations as can be."""
    if _heads_made is not None:
        return _heads_made(parts, output, here)
    known = native.has_heads(parts.head_dim) and not (parts.lends or parts.borrows)
    if fused and known and (output is None or native.is_native(output)):
        return native.NativeHeads(parts, output)
    return ComposedHeads(parts, output, here)


def attend_latents(
    queries: mx.array,
    latents: mx.array,
    spans: Sequence[Span],
    caches: Sequence[Cache],
    *,
    scale: float,
    value_dim: int,
) -> tuple[mx.array, list[Cache]]:
    """Causal attention of all heads over one latent a token, whose first ``value_dim`` channels are its value.

    queries: (T, H, D), latents: (T, D), every row in one span -> (T, H * value_dim), and each span's cache, one array
    (1, capacity, D), with its rows written.
    """
    return composed.attend_latents(here, queries, latents, spans, caches, scale, value_dim)


_heads_made: Callable[[HeadsParts, LinearMap | None, Implementation], Heads] | None = None


@contextmanager
def built_plainly(make: Callable[[HeadsParts, LinearMap | None, Implementation], Heads]) -> Iterator[None]:
    """Models that are built meanwhile are put together from single operations, with heads that ``make`` makes.

    So an evaluation comes between a model and its cache; on a CPU nothing else rounds then, not even activations.
    """
    global fused, _heads_made
    before = fused, _heads_made
    fused, _heads_made = False, make
    try:
        yield
    finally:
        fused, _heads_made = before


def causal_conv(x: mx.array, window: mx.array, kernel: mx.array) -> tuple[mx.array, mx.array]:
    """Each channel over the last tokens: sum over k of kernel[:, k] * the token k - taps + 1 places on.

    x: (L, n), window: the (taps - 1, n) before it, kernel: (n, taps) -> (L, n), and the window behind it.
    """
    return recurrent.run(recurrent.causal_conv, here is host, x, window, kernel)


def selective_scan(
    x: mx.array, step: mx.array, decay: mx.array, keys: mx.array, queries: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """S = exp(decay) S + step x kᵀ, y = S q, token by token (Dao and Gu, 2024).

    x: (L, H, P); step, decay: (L, H); keys, queries: (L, groups of heads, N); state: (H, P, N) -> (L, H, P), the state.
    """
    return recurrent.run(recurrent.selective_scan, here is host, x, step, decay, keys, queries, state)


def gated_delta(
    q: mx.array, k: mx.array, v: mx.array, decay: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """S = exp(decay) S, then S = S + beta k (v - Sᵀk)ᵀ, y = Sᵀq, token by token (Yang et al., 2024).

    q, k: (L, H, K); v: (L, H, V); decay, beta: (L, H); state: (H, K, V) -> (L, H, V), the state.
    """
    return recurrent.run(recurrent.gated_delta, here is host, q, k, v, decay, beta, state)


def greedy(logits: mx.array) -> mx.array:
    """The first of each row's largest logits, -1 where they are not all finite. (T, V) float32 -> (T,) int32."""
    if fused:
        return native.greedy(logits)
    best = mx.argmax(logits, axis=-1).astype(mx.int32)
    return mx.where(mx.isfinite(mx.max(logits, axis=-1)), best, -1)


def sample(logits: mx.array, u: float, **filters: float) -> mx.array | None:
    """The token on which ``u`` falls among the ``top_k`` best logits that the filters of generation/sampling.py leave.

    (V,) float32 -> (1,) int32, -1 where logits are not finite. None where there is no native form.
    """
    return native.sample(logits, u, **filters) if fused else None


@contextmanager
def threads(count: int) -> Iterator[None]:
    """How many threads operations on a CPU may take meanwhile."""
    if fused:
        native.use_threads(count)
        yield
    else:
        with workers.threads(count):
            yield


def linear(x: mx.array, weight: Weight) -> mx.array:
    """x @ weight.T. x: (T, columns) float32, weight: (rows, columns) -> (T, rows) float32."""
    return weight.linear(x)


def expert_linear(x: mx.array, weight: ExpertWeight, experts: mx.array) -> mx.array:
    """x[m] @ weight[experts[m]].T. x: (M, columns) float32, experts: (M,) int32 ascending -> (M, rows) float32."""
    return weight.linear(x, experts)


def gated_experts(gate: ExpertWeight, up: ExpertWeight, activation: str) -> GatedExperts:
    """Two products by expert with ``gated`` of them, as one operation where there is one."""
    one = native.gated_experts(gate, up, activation) if fused else None
    return one or (lambda x, experts: gated(gate.linear(x, experts), up.linear(x, experts), activation))


def embed(tokens: mx.array, weight: Weight) -> mx.array:
    """The rows of ``weight`` that ``tokens`` name. (T,) int32 -> (T, columns) float32."""
    return weight.embed(tokens)


def add(x: mx.array, y: mx.array) -> mx.array:
    """x + y; y may be a row. (T, n), (T, n) or (n,) -> (T, n)."""
    return here.add(x, y)


def split_heads(x: mx.array, heads: int) -> mx.array:
    """(T, heads * D) -> (T, heads, D)."""
    return here.split_heads(x, heads)


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """x / sqrt(mean(x²) + eps) * weight over the last axis (Zhang and Sennrich, 2019). (..., n) -> (..., n)."""
    return here.rms_norm(x, weight, eps)


def gated(gate: mx.array, up: mx.array, activation: str) -> mx.array:
    """activation(gate) * up, elementwise; ``silu``, or ``gelu`` in its tanh form (Hendrycks and Gimpel, 2016).

    ``clamped_swiglu`` (gpt-oss, OpenAI, 2025): g * sigmoid(1.702 g) * (u + 1), g = min(gate, 7), u = up within ±7.
    """
    return here.gated(gate, up, activation)


def rope(x: mx.array, rotary: Rotary, offset: int) -> mx.array:
    """Rotates the heads of consecutive tokens, the first at position ``offset`` (Su et al., 2021). x: (L, H, D)."""
    return here.rope(x, rotary, offset)


def attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    length: int,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: mx.array | None = None,
) -> mx.array:
    """Causal attention of the newest L tokens over the first ``length`` cached ones, themselves included.

    queries: (L, H, D); keys: (K, capacity, D), values: (K, capacity, E), capacity >= length -> (L, H * E) float32.
    sinks: (H,), a score of each head that takes part in the softmax and has no value. A token sees the last ``window``
    tokens, itself among them (0: all); scores pass ``softcap * tanh(s / softcap)``.
    """
    return here.attention(queries, keys, values, length, scale=scale, window=window, softcap=softcap, sinks=sinks)


def page_bytes(head_dim: int, widths: tuple[int, int]) -> int:
    """Bytes of a sealed page of one kv head in the kernels' layout; 0 where there are no kernels for it."""
    if here is metal and not fused:
        return metal.page_bytes(head_dim, widths)
    return native.page_bytes(head_dim, widths) if fused and native.has_heads(head_dim) and all(widths) else 0


def pool(block_bytes: int) -> Pool | None:
    """Where the blocks of a model lie that kernels fill; None where each has memory of its own."""
    return None if fused else Pool(block_bytes)


def block(nbytes: int, by_kernels: bool, pool: Pool | None) -> Block:
    """Memory for the sealed pages of PAGE positions, of all layers."""
    if pool is not None:
        return PoolBlock(pool)
    made: Block = primitives.Block(nbytes) if by_kernels else HostBlock(nbytes)
    return made


def frame(sinks: int, base: int, keep: int, blocks: Sequence[Any], filled: int, by_kernels: bool) -> Any:
    """A ``Frame``, in the form that the kernels take."""
    if not by_kernels:
        return Frame(base, keep, blocks, filled)
    return primitives.Frame(sinks, base, keep, blocks, filled) if fused else PoolFrame(base, keep, blocks, filled)


def softcap(x: mx.array, cap: float) -> mx.array:
    """cap * tanh(x / cap), elementwise."""
    if fused and native.is_recorded(x):
        return native.softcap(x, cap)
    return cap * mx.tanh(x / cap)


def recorder() -> Any:
    """What a forward pass is called with to be recorded, in place of its tokens; None where operations run one by one.

    Operations on it give values that hold nothing; ``finish(logits)`` makes one operation of all of them.
    """
    return native.recorder() if fused else None


def kv_dtype(head_dim: int, *, composed: bool = False) -> mx.Dtype:
    """What keys and values of this size are stored as here; ``composed`` if by attention that has no native form."""
    return native.KV_DTYPE if fused and native.has_heads(head_dim) and not composed else here.KV_DTYPE


def device() -> str:
    """``cpu``, ``metal`` or ``cuda``."""
    if not on_gpu:
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def paths() -> dict[str, str]:
    """Operation -> the implementation it takes on this machine."""
    return native.paths() if fused else dict(here.PATHS)
