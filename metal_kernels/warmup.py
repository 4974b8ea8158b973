"""Compiles the kernels that a model will want while it is loaded, so that a failure is met before the first token."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import cache, partial

import mlx.core as mx

from edgeinfer.metal_kernels import attention, products, sealed
from edgeinfer.metal_kernels.specs import ACTIVATIONS
from edgeinfer.metal_kernels.tuning import ROW_TILES
from edgeinfer.quant.codec import Codec

log = logging.getLogger("edgeinfer")


def gpu() -> str:
    """The name of the GPU."""
    info = mx.device_info()
    return f"{info.get('device_name', 'unknown GPU')} ({info.get('architecture', 'unknown')})"


@cache
def codec_obstacle(codec: Codec) -> str:
    """Why the kernels of a codec cannot be used on this GPU; empty where all of them were compiled and ran."""
    columns = max(products.CHUNK, codec.weights)
    w = mx.zeros((products.CHUNK, columns // codec.weights * codec.bytes), mx.uint8)

    def calls() -> Iterator[tuple[str, Callable[[], mx.array]]]:
        yield f"rows<{codec.name}>", partial(products.rows, mx.array([0], mx.int32), w, codec)
        for rows in ROW_TILES:
            yield f"qmv<{codec.name}, {rows} rows>", partial(products.qmv, mx.zeros((rows, columns)), w, codec)
            for activation in ACTIVATIONS:
                gated = partial(products.qmv_gated, mx.zeros((rows, columns)), w, w, codec, activation)
                yield f"qmv_gated<{codec.name}, {activation}, {rows} rows>", gated
        for rows in products.TILES:
            yield f"qmm<{codec.name}, {rows} rows>", partial(products.qmm, mx.zeros((rows, columns)), w, codec)

    return _first_failure(calls(), f"{codec.name} is multiplied by MLX's own kernels")


@cache
def joined_obstacle(codec: Codec, last: Codec) -> str:
    """As ``codec_obstacle``, for three matrices in one launch, the last in a codec of its own."""
    columns = max(products.CHUNK, codec.weights, last.weights)
    first, third = (
        mx.zeros((products.CHUNK, columns // each.weights * each.bytes), mx.uint8) for each in (codec, last)
    )

    def calls() -> Iterator[tuple[str, Callable[[], mx.array]]]:
        for rows in ROW_TILES:
            call = partial(products.qmv_joined, mx.zeros((rows, columns)), [first, first, third], codec, last)
            yield f"qmv_joined<{codec.name}, {last.name}, {rows} rows>", call

    return _first_failure(calls(), "matrices are multiplied one after the other")


@cache
def experts_obstacle(codec: Codec) -> str:
    """As ``codec_obstacle``, for matrices of experts."""
    columns = max(products.CHUNK, codec.weights)
    w = mx.zeros((1, products.CHUNK, columns // codec.weights * codec.bytes), mx.uint8)

    def calls() -> Iterator[tuple[str, Callable[[], mx.array]]]:
        for rows in (*ROW_TILES, products.TILES[0]):
            x, chosen = mx.zeros((rows, columns)), mx.zeros(rows, mx.int32)
            call = partial(products.multiply_experts, x, w, codec, chosen)
            yield f"experts<{codec.name}, {rows} rows>", call

    return _first_failure(calls(), f"experts in {codec.name} are multiplied by MLX's own kernels")


@cache
def attention_obstacle(heads: int, kv_heads: int, head_dim: int) -> str:
    """Why the attention kernels cannot be used for heads of this shape on this GPU; empty where they ran."""

    def calls() -> Iterator[tuple[str, Callable[[], mx.array]]]:
        kv = mx.zeros((kv_heads, attention.PAGE, head_dim), mx.float16)
        for rows in ROW_TILES:
            if attention.supports(rows, heads, kv_heads, head_dim):
                queries = mx.zeros((rows, heads, head_dim))
                yield (
                    f"attention<{head_dim} channels, {rows} rows>",
                    partial(attention.attend, queries, kv, kv, rows, scale=1.0),
                )
        if head_dim in attention.HEAD_DIMS:
            queries = mx.zeros((attention.BLOCK, heads, head_dim))
            yield (
                f"attention<{head_dim} channels, many rows>",
                partial(attention.attend_rows, queries, kv, kv, attention.BLOCK, scale=1.0),
            )

    return _first_failure(calls(), f"attention over heads of {head_dim} is computed by MLX's own kernels")


@cache
def sealed_obstacle(form: sealed.PageFormat) -> str:
    """Why kernels cannot seal keys and values on this GPU, or attend to sealed ones; empty where they ran."""
    size = form.head_dim
    kv = mx.zeros((1, 2 * sealed.SINKS + sealed.TAIL, size), mx.float16)
    packed, table, signs = mx.zeros((1, 1, form.nbytes), mx.uint8), mx.array([0], mx.int32), mx.ones(size)
    held = sealed.Held(kv, kv, 2 * sealed.SINKS, packed, table, signs)
    name = f"{size} channels, {form.key_bits} and {form.value_bits} bits"

    def calls() -> Iterator[tuple[str, Callable[[], mx.array]]]:
        yield f"seal<{name}>", partial(sealed.seal, kv, kv, sealed.SINKS, 1, form, signs)
        for rows, heads in ((1, 1), (16, 8), (2 * attention.BLOCK, 16)):
            queries = mx.zeros((rows, heads, size))
            position = 2 * sealed.SINKS + sealed.TAIL - rows
            call = partial(sealed.attend, queries, position, held, form, scale=1.0)
            yield f"sealed attention<{name}, {rows} rows of {heads} heads>", call

    return _first_failure(calls(), f"heads of {size} in sealed pages are computed in numpy")


def _first_failure(calls: Iterator[tuple[str, Callable[[], mx.array]]], instead: str) -> str:
    for name, call in calls:
        try:
            mx.eval(call())
        except RuntimeError as error:
            reason = f"{name} does not run on {gpu()}: {str(error).splitlines()[0]}; {instead}"
            log.warning("%s", reason)
            return reason
    return ""
