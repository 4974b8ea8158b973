"""How a layer asks for its weights: by name and shape, so that building a model is also checking its file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import mlx.core as mx
import numpy as np

from edgeinfer import ops
from edgeinfer.errors import UnsupportedModel, WrongTensors
from edgeinfer.formats.gguf import GGUFFile, TensorInfo
from edgeinfer.quant.codec import CODECS, decode


class Tensors:
    """The tensors of a file, under a prefix. Remembers which were asked for."""

    def __init__(self, file: GGUFFile, prefix: str = "", asked: set[str] | None = None, wide: bool = False) -> None:
        self.file = file
        self.prefix = prefix
        self.asked = set() if asked is None else asked
        self.wide = wide

    def under(self, prefix: str) -> Tensors:
        """The same tensors, with names that start behind ``prefix``."""
        return type(self)(self.file, self.prefix + prefix, self.asked, self.wide)

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.file.tensors

    def matrix(self, name: str, rows: int, columns: int) -> ops.Weight:
        """A matrix ready to multiply."""
        return self._read_matrix(self._info(name, (rows, columns)))

    def split(self, name: str, rows: Sequence[int], columns: int) -> list[ops.Weight]:
        """Matrices that the file keeps as one, the first on top."""
        info = self._info(name, (sum(rows), columns))
        ends = list(accumulate(rows))
        return [self._read_matrix(info, slice(end - count, end)) for end, count in zip(ends, rows, strict=True)]

    def experts(self, name: str, count: int, rows: int, columns: int) -> ops.ExpertWeight:
        """A matrix for each expert, ready to multiply."""
        return self._read_experts(self._info(name, (count, rows, columns)))

    def adapted(self, name: str, rows: int, columns: int, scale: float) -> ops.Weight:
        """A matrix with its low-rank adapter (LoRA, Hu et al., 2021) added: weight + scale * b @ a, in float16."""
        info, rank = self._info(f"{name}.weight", (rows, columns)), self.rows(f"{name}.lora_a.weight")
        a, b = self.dense(f"{name}.lora_a.weight", rank, columns), self.dense(f"{name}.lora_b.weight", rows, rank)
        return self._read_adapted(info, a, b, scale)

    def vector(self, name: str, size: int) -> mx.array:
        """A norm's weight or a bias: (size,) float32."""
        return self.dense(name, size)

    def dense(self, name: str, *shape: int) -> mx.array:
        """A tensor that is small, or not for a product: ``shape`` float32."""
        return self._read_dense(self._info(name, shape))

    def skip(self, prefix: str) -> None:
        """Leaves out what stands under ``prefix``, of which the caller knows that the logits do not depend on it."""
        self.asked.update(name for name in self.file.tensors if name.startswith(self.prefix + prefix))

    def rows(self, name: str) -> int:
        """How many rows a matrix has, where the file alone knows."""
        full = self.prefix + name
        info = self.file.tensors.get(full)
        if info is None:
            raise WrongTensors(f"{self.file.path.name}: tensor {full} is missing", self.file.path, full)
        return info.rows

    def head(self, name: str, tied: ops.Weight, rows: int, columns: int) -> ops.Weight:
        """The matrix that turns hidden states into logits; the embedding's, where the file has none of its own."""
        return self.matrix(name, rows, columns) if name in self else tied

    def left_over(self) -> Iterator[str]:
        """Tensors of the file that nobody asked for."""
        return (name for name in self.file.tensors if name not in self.asked)

    def _info(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        full = self.prefix + name
        path = self.file.path
        info = self.file.tensors.get(full)
        if info is None:
            raise WrongTensors(f"{path.name}: tensor {full} is missing; expected {list(shape)}", path, full)
        if tuple(info.shape) != shape:
            found = list(info.shape)
            raise WrongTensors(f"{path.name}: {full} has shape {found}; expected {list(shape)}", path, full, found)
        if not info.codec.decodable:
            elsewhere = "llama.cpp has one" if info.codec.weights > 1 else "nor has llama.cpp"
            raise UnsupportedModel(
                f"{path.name}: {full} is stored as {info.codec.name}, which has no decoder here; {elsewhere}",
                path,
                full,
                info.codec.name,
            )
        self.asked.add(full)
        return info

    def _read_matrix(self, info: TensorInfo, part: slice = slice(None)) -> ops.Weight:
        blocks = self.file.blocks(info.name)[part]
        return ops.prepare(ops.PackedWeight(info.codec, blocks, (len(blocks), info.shape[1])), self.wide)

    def _read_adapted(self, info: TensorInfo, a: mx.array, b: mx.array, scale: float) -> ops.Weight:
        added = np.array(b) @ np.array(a)
        whole = decode(info.codec, self.file.blocks(info.name)).reshape(info.shape) + np.float32(scale) * added
        blocks = whole.astype(np.float16).view(np.uint8).reshape(len(whole), -1)
        return ops.prepare(ops.PackedWeight(CODECS["f16"], blocks, (info.shape[0], info.shape[1])), self.wide)

    def _read_experts(self, info: TensorInfo) -> ops.ExpertWeight:
        count, rows, columns = info.shape
        stacked = ops.PackedWeight(info.codec, self.file.blocks(info.name), (count * rows, columns))
        return ops.prepare_experts(ops.PackedExperts(count, stacked), self.wide)

    def _read_dense(self, info: TensorInfo) -> mx.array:
        return mx.array(decode(info.codec, self.file.blocks(info.name)).reshape(info.shape))


class Outline(Tensors):
    """Checks names, shapes and codecs as a loading model would, and reads no weights."""

    def _read_matrix(self, info: TensorInfo, part: slice = slice(None)) -> ops.Weight:
        return _Unread(info.nbytes)

    def _read_adapted(self, info: TensorInfo, a: mx.array, b: mx.array, scale: float) -> ops.Weight:
        return _Unread(2 * info.shape[0] * info.shape[1])

    def _read_experts(self, info: TensorInfo) -> ops.ExpertWeight:
        return _Unread(info.nbytes)

    def _read_dense(self, info: TensorInfo) -> mx.array:
        return mx.array(np.ones(info.shape, np.float32))


class _Unread:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def linear(self, x: mx.array, experts: mx.array | None = None) -> mx.array:
        raise TypeError("the weights of an outline are not read")

    def embed(self, tokens: mx.array) -> mx.array:
        raise TypeError("the weights of an outline are not read")
