"""Every Metal kernel: one row each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A kernel is ``<name>.metal``; its inputs, outputs and template parameters are in the order of the call.

    ``scalars`` are inputs of no dimension. MLX passes every other input of fewer than 8 elements in another address
    space than larger ones, so these are either refused or, where they are named in ``padded``, filled up with zeros.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    template: tuple[str, ...]
    twin: str  # what computes the same without it
    scalars: frozenset[str] = frozenset()
    padded: frozenset[str] = frozenset()

    @property
    def fuses(self) -> frozenset[str]:
        """Parts of a linear map (``ops.parts.MapParts``) that the kernel does along with its product.

        A norm of the result is never among them: it needs whole rows, which no threadgroup sees.
        """
        parts = {name.removeprefix("has_") for name in self.inputs if name.startswith("has_")}
        return frozenset(parts | ({"activation"} if "ACTIVATION" in self.template else set()))


ACTIVATIONS = ("silu", "gelu")
"""What a gate may pass through; a kernel knows each by its place."""


def _table(*rows: KernelSpec) -> dict[str, KernelSpec]:
    return {row.name: row for row in rows}


KERNELS = _table(
    KernelSpec(
        "qmv",
        ("w", "x", "gain", "bias", "residual", "eps", "has_norm", "has_bias", "has_residual"),
        ("y",),
        ("T", "CODEC", "ROWS", "OUTPUTS", "SIMDGROUPS"),
        "residual + rms_norm(x, gain) @ decode(w).T + bias",
        scalars=frozenset({"eps", "has_norm", "has_bias", "has_residual"}),
        padded=frozenset({"bias", "residual"}),
    ),
    KernelSpec(
        "qmv_gated",
        ("w", "up", "x", "gain", "eps", "has_norm"),
        ("y",),
        ("T", "CODEC", "ROWS", "OUTPUTS", "SIMDGROUPS", "ACTIVATION"),
        "activation(norm @ decode(w).T) * (norm @ decode(up).T), norm = rms_norm(x, gain)",
        scalars=frozenset({"eps", "has_norm"}),
    ),
    KernelSpec(
        "qmv_joined",
        ("w", "second", "third", "x", "gain", "bias", "residual", "eps", "has_norm", "has_bias", "has_residual"),
        ("y",),
        ("T", "CODEC", "LAST", "ROWS", "OUTPUTS", "SIMDGROUPS"),
        "qmv of w, second and third, side by side",
        scalars=frozenset({"eps", "has_norm", "has_bias", "has_residual"}),
        padded=frozenset({"bias", "residual"}),
    ),
    KernelSpec("qmm", ("w", "x"), ("y",), ("T", "CODEC", "ROWS"), "x @ decode(w).T"),
    KernelSpec(
        "qmv_experts",
        ("w", "x", "experts"),
        ("y",),
        ("T", "CODEC", "ROWS", "OUTPUTS", "SIMDGROUPS"),
        "for each row m: x[m] @ decode(w[experts[m]]).T",
        padded=frozenset({"experts"}),
    ),
    KernelSpec(
        "qmm_experts",
        ("w", "x", "experts"),
        ("y",),
        ("T", "CODEC", "ROWS"),
        "for each row m: x[m] @ decode(w[experts[m]]).T",
        padded=frozenset({"experts"}),
    ),
    KernelSpec("rows", ("w", "tokens"), ("y",), ("T", "CODEC"), "decode(w)[tokens]", padded=frozenset({"tokens"})),
    KernelSpec(
        "attention_part",
        ("q", "k", "v", "table", "head_pages", "length", "first_split", "window", "scale", "softcap"),
        ("part", "largest", "total"),
        ("SIZE", "QUERIES", "SIMDGROUPS", "SPLIT"),
        "mx.fast.scaled_dot_product_attention, with attention_merge",
        scalars=frozenset({"head_pages", "length", "first_split", "window", "scale", "softcap"}),
        padded=frozenset({"table"}),
    ),
    KernelSpec(
        "attention_merge",
        ("part", "largest", "total", "sinks", "splits"),
        ("y",),
        ("SIZE", "SINKS"),
        "mx.fast.scaled_dot_product_attention, with attention_part",
        scalars=frozenset({"splits"}),
        padded=frozenset({"largest", "total", "sinks"}),
    ),
    KernelSpec(
        "attention_rows",
        ("q", "k", "v", "table", "sinks", "rows", "head_pages", "length", "window", "scale", "softcap"),
        ("y",),
        ("SIZE", "TOKENS", "SINKS"),
        "mx.fast.scaled_dot_product_attention",
        scalars=frozenset({"rows", "head_pages", "length", "window", "scale", "softcap"}),
        padded=frozenset({"table", "sinks"}),
    ),
    KernelSpec(
        "seal",
        ("k", "v", "signs", "first"),
        ("page",),
        ("SIZE", "KEY_BITS", "VALUE_BITS"),
        "cache.codecs.uniform.Uniform.encode, in the layout of include/pages.h",
        scalars=frozenset({"first"}),
    ),
    KernelSpec("rotate", ("x", "signs"), ("y",), ("SIZE",), "cache.codecs.uniform.rotate"),
    KernelSpec(
        "sealed_part",
        ("q", "turned", "k", "v", "packed", "table", "position", "base", "sealed_tokens", "plain", "scale", "softcap"),
        ("part", "largest", "total"),
        ("SIZE", "KEY_BITS", "VALUE_BITS", "QUERIES", "SIMDGROUPS", "SPLIT"),
        "ops.paged, with sealed_merge",
        scalars=frozenset({"position", "base", "sealed_tokens", "plain", "scale", "softcap"}),
        padded=frozenset({"table"}),
    ),
    KernelSpec(
        "sealed_rows",
        ("q", "turned", "k", "v", "packed", "table", "rows", "position", "base", "scale", "softcap"),
        ("part", "largest", "total"),
        ("SIZE", "KEY_BITS", "VALUE_BITS", "TOKENS"),
        "ops.paged, with sealed_merge",
        scalars=frozenset({"rows", "position", "base", "scale", "softcap"}),
        padded=frozenset({"table"}),
    ),
    KernelSpec(
        "sealed_merge",
        ("part", "largest", "total", "signs", "splits", "plain"),
        ("y",),
        ("SIZE",),
        "ops.paged, with sealed_part or sealed_rows",
        scalars=frozenset({"splits", "plain"}),
        padded=frozenset({"largest", "total"}),
    ),
)
