"""A folder of converted weights, opened as the GGUF file that it would become."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.converted.compressed import compressed
from edgeinfer.converted.families import Family, past_the_last
from edgeinfer.converted.folder import Folder, read_json
from edgeinfer.converted.gptoss import PARTS, expert_matrices
from edgeinfer.converted.schemes import (
    Matrix,
    Reader,
    Refusal,
    as_bf16,
    awq,
    bitsandbytes,
    experts_alone,
    fp8,
    gptq,
    mlx,
    plain,
)
from edgeinfer.converted.settings import Settings
from edgeinfer.converted.vocabulary import vocabulary
from edgeinfer.errors import UnsupportedModel
from edgeinfer.formats.cursor import shown
from edgeinfer.formats.gguf import GGUFFile, TensorInfo
from edgeinfer.formats.safetensors import SafetensorsFile
from edgeinfer.quant.codec import CODECS, Codec, decode

SCHEMES: Mapping[str, Reader] = {
    "awq": awq,
    "gptq": gptq,
    "bitsandbytes": bitsandbytes,
    "fp8": fp8,
    "compressed-tensors": compressed,
    "mlx": mlx,
    "mxfp4": experts_alone,
}
"""By ``quant_method``; MLX writes its own key instead."""

_PART = re.compile(
    r"(.+?)\.(weight|bias|qweight|qzeros|scales|biases|g_idx|SCB|weight_format|weight_packed|weight_scale|weight_scale_inv"
    r"|weight_shape|weight_zero_point|weight_global_scale|weight_g_idx|input_scale|input_global_scale)(\..+)?",
    re.ASCII,
)
DRAFT_ADAPTER = "linear_spec_lora"
_LORA = re.compile(
    r"base_model\.model\.(?:encoder|model)\.layers\.(\d{1,4})\.self_attn\.o_proj\.lora_([AB])\.weight", re.ASCII
)
_IGNORED = re.compile(
    r".*\.rotary_emb\.inv_freq|(?:model\.)?(?:vision_tower|vision_model|multi_modal_projector)\..*", re.ASCII
)
"""What text does not need."""
_PACKED = re.compile(rf"(model\.layers\.(\d{{1,4}})\.mlp\.experts)\.({'|'.join(PARTS)})", re.ASCII)
_TURNED = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}
"""Whose rows GGUF pairs, and how many heads they are."""


class Checkpoint(GGUFFile):
    """Metadata under GGUF's keys, tensors under its names; ``blocks`` rearranges a tensor when it is asked for."""

    def __init__(self, path: Path) -> None:
        """Raises ModelNotFound, CorruptFile or UnsupportedModel: an adapter, an unknown family or quantization."""
        self._folder = Folder(path)
        try:
            self.path, self.version, self.notes = path, 0, ()
            self.files = tuple(file.path for file in self._folder.files)
            self._settings = Settings(self._folder.config, path)
            self._family: Family = self._settings.family
            self._scheme, self._quantization = _scheme(self._folder)
            metadata = self._settings.metadata()
            prefix = self._family.architecture
            self._layers = int(metadata.get(f"{prefix}.block_count", 0))
            self._heads = {
                part: int(metadata.get(f"{self._family.architecture}.{key}") or metadata.get(
                    f"{self._family.architecture}.attention.head_count", 0)) for part, key in _TURNED.items()
            }  # fmt: skip
            self._matrices = self._collect() | self._adapter()
            if f"blk.{self._layers}.nextn.eh_proj.weight" in self._matrices:
                metadata |= {f"{prefix}.block_count": self._layers + 1, f"{prefix}.nextn_predict_layers": 1}
            self.tensors = MappingProxyType({name: _info(name, each) for name, each in self._matrices.items()})
            self.metadata = MappingProxyType(
                {"general.name": path.resolve().name, **metadata, **self._adapted, **vocabulary(path, self._rows())}
            )
        except BaseException:
            self.close()
            raise

    def field_offset(self, key: str) -> int | None:
        """None: keys are made, they stand nowhere."""

    def blocks(self, name: str) -> NDArray[np.uint8]:
        """(rows, bytes per row) uint8, made anew each time. Raises CorruptFile if a file was changed."""
        info = self.tensors[name]
        made = self._matrices[name].make()
        if made.shape != (info.rows, info.row_bytes):
            raise UnsupportedModel(
                f"{self.path.name}: {shown(name)}: {made.shape} bytes; expected {(info.rows, info.row_bytes)}",
                self.path,
                name,
            )
        return made

    def release(self, name: str) -> None:
        """Nothing is held."""

    def check_unchanged(self) -> None:
        for file in self._folder.files:
            file.mapped.check_unchanged()

    def close(self) -> None:
        self._folder.close()

    def _rows(self) -> int:
        if "token_embd.weight" not in self.tensors:
            raise UnsupportedModel(f"{self.path.name}: tensor model.embed_tokens.weight is missing", self.path)
        return self.tensors["token_embd.weight"].shape[0]

    def _collect(self) -> dict[str, Matrix]:
        """Every tensor under its GGUF name; what has none is refused."""
        packed = self._packed_experts()
        names = [name for name in self._folder.tensors if not (_IGNORED.fullmatch(name) or _PACKED.fullmatch(name))]
        whole = {name: target for name in names if (target := self._family.rename_whole(name))}
        matrices = packed | {target: self._vector(name) for name, target in whole.items()}
        modules = self._modules(name for name in names if name not in whole)
        experts: dict[str, dict[int, Matrix]] = {}
        for module, kinds in modules.items():
            named = past_the_last(module.removeprefix("language_model."), self._layers)
            target, expert = self._family.rename(named)
            if not target:
                raise self._no_place(f"{module}.{sorted(kinds)[0]}")
            matrix = self._turned(target, self._matrix(module, kinds))
            if expert is None:
                matrices[f"{target}.weight"] = matrix
            else:
                experts.setdefault(f"{target}.weight", {})[expert] = matrix
            if "bias" in kinds:
                matrices[f"{target}.bias"] = self._turned(target, self._vector(f"{module}.bias"))
        matrices |= {name: self._stacked(name, rows) for name, rows in experts.items()}
        for name, factors in self._settings.frequencies().items():
            matrices[name] = Matrix(CODECS["f32"], factors.shape, partial(_row, factors))
        return self._latents(matrices) if self._family.latent else matrices

    def _packed_experts(self) -> dict[str, Matrix]:
        found: dict[str, Matrix] = {}
        for name in self._folder.tensors:
            match = _PACKED.fullmatch(name)
            if match is None or match[3] != PARTS[0]:
                continue
            try:
                made = expert_matrices(self._folder, match[1])
            except (Refusal, KeyError) as refusal:
                raise UnsupportedModel(f"{self.path.name}: {shown(match[1])}: {refusal}", self.path, name) from None
            found |= {f"blk.{int(match[2])}.{part}": matrix for part, matrix in made.items()}
        return found

    def _modules(self, names: Iterable[str]) -> dict[str, set[str]]:
        """The parts that each module has."""
        modules: dict[str, set[str]] = {}
        for name in names:
            found = _PART.fullmatch(name)
            if found is None:
                raise self._no_place(name)
            modules.setdefault(found[1], set()).add(found[2])
        if self._settings.config.get("tie_word_embeddings") is True:
            modules.pop("lm_head", None)
            modules.pop("language_model.lm_head", None)
        return modules

    def _latents(self, matrices: dict[str, Matrix]) -> dict[str, Matrix]:
        """A head's rows of kv_b_proj are its keys' and then its values'; GGUF has the keys' turned over."""
        heads, values = self._heads["attn_q"], self._settings.whole("v_head_dim") or 0
        found = {name: each for name, each in matrices.items() if not name.endswith(".attn_kv_b.weight")}
        for name in matrices.keys() - found.keys():
            both = matrices[name]
            rows, columns = both.shape
            if rows % heads or rows // heads <= values:
                raise UnsupportedModel(f"{self.path.name}: {name} has {rows} rows for {heads} heads", self.path, name)
            place, keys = name.removesuffix("attn_kv_b.weight"), rows // heads - values
            dense = both.codec if both.codec.family == "plain" else CODECS["f16"]
            found[f"{place}attn_k_b.weight"] = Matrix(
                dense, (heads, columns, keys), partial(_keys, both, heads, keys, dense)
            )
            found[f"{place}attn_v_b.weight"] = Matrix(
                both.codec, (heads, values, columns), partial(_values, both, heads, keys)
            )
        return found

    def _adapter(self) -> dict[str, Matrix]:
        """The low-rank matrices of an adapter that is shipped for drafts, in a folder of its own."""
        self._adapted: dict[str, float] = {}
        place = self.path / DRAFT_ADAPTER
        if not place.is_dir():
            return {}
        config, file = read_json(place / "adapter_config.json"), SafetensorsFile(place / "adapter_model.safetensors")
        self._folder.files.append(file)
        rank, alpha = config.get("r"), config.get("lora_alpha")
        if not isinstance(rank, int) or not isinstance(alpha, (int, float)) or rank < 1 or alpha <= 0:
            raise UnsupportedModel(f"{place.name}: adapter_config.json: expected numbers for r and lora_alpha", place)
        self._adapted[f"{self._family.architecture}.diffusion.adapter_scale"] = float(alpha) / rank
        found = {}
        for name in file.tensors:
            self._folder.tensors.setdefault(name, (file, file.tensors[name]))
            matched = _LORA.fullmatch(name)
            if matched is None:
                raise self._no_place(name)
            half = f"blk.{int(matched[1])}.attn_output.lora_{matched[2].lower()}.weight"
            found[half] = plain(self._folder, name)
        return found

    def _no_place(self, name: str) -> UnsupportedModel:
        kind = self._settings.kind
        return UnsupportedModel(
            f"{self.path.name}: tensor {shown(name)} is not one that {kind} has here", self.path, name
        )

    def _matrix(self, module: str, kinds: set[str]) -> Matrix:
        name = f"{module}.weight"
        marks = {"scales", "qweight", "SCB", "weight_packed", "weight_scale", "weight_scale_inv", "weight_format"}
        packed = bool(kinds & marks) or (name in self._folder and self._folder.info(name).dtype == "U8")
        try:
            if packed:
                if self._scheme is None:
                    raise Refusal("quantized, but config.json has no quantization_config")
                own = self._quantization.get(module)
                return self._scheme(self._folder, module, own if isinstance(own, dict) else self._quantization)
            if len(self._folder.info(name).shape) == 1:
                return self._vector(name)
            return plain(self._folder, name)
        except Refusal as refusal:
            raise UnsupportedModel(f"{self.path.name}: {shown(module)}: {refusal}", self.path, module) from None
        except (ValueError, IndexError) as error:  # shapes that do not go together
            raise UnsupportedModel(
                f"{self.path.name}: {shown(module)}: its tensors do not fit each other ({error})", self.path, module
            ) from None

    def _vector(self, name: str) -> Matrix:
        """A norm or a bias, in float32 as GGUF has them."""
        add = np.float32(self._family.one_plus and name.endswith("norm.weight"))
        shape = self._folder.info(name).shape
        rows = math.prod(shape[:-1])
        return Matrix(CODECS["f32"], shape, lambda: (self._folder.floats(name) + add).view(np.uint8).reshape(rows, -1))

    def _turned(self, target: str, matrix: Matrix) -> Matrix:
        """Rows of queries and keys from half a head apart to side by side."""
        heads = self._heads.get(target.rpartition(".")[2], 0)
        if not self._family.paired or not heads:
            return matrix
        rows, make = matrix.shape[0], matrix.make
        if rows % (2 * heads):
            raise UnsupportedModel(f"{self.path.name}: {target} has {rows} rows for {heads} heads", self.path, target)
        order = np.arange(rows).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)
        if len(matrix.shape) == 1:
            return Matrix(matrix.codec, matrix.shape, lambda: make().reshape(rows, -1)[order].reshape(1, -1))
        return Matrix(matrix.codec, matrix.shape, lambda: make()[order])

    def _stacked(self, name: str, experts: Mapping[int, Matrix]) -> Matrix:
        rows = [experts[index] for index in sorted(experts)]
        same = all((each.codec, each.shape) == (rows[0].codec, rows[0].shape) for each in rows)
        if sorted(experts) != list(range(len(experts))) or not same:
            raise UnsupportedModel(f"{self.path.name}: {name}: experts are missing or differ in shape", self.path, name)
        make: Callable[[], NDArray[np.uint8]] = lambda: np.concatenate([each.make() for each in rows])  # noqa: E731
        return Matrix(rows[0].codec, (len(rows), *rows[0].shape), make)


def _row(numbers: NDArray[np.float32]) -> NDArray[np.uint8]:
    return numbers.view(np.uint8).reshape(1, -1)


def _keys(both: Matrix, heads: int, keys: int, dense: Codec) -> NDArray[np.uint8]:
    weights = decode(both.codec, both.make()).reshape(heads, -1, both.shape[1])[:, :keys].swapaxes(1, 2)
    if dense.name == "bf16":
        return as_bf16(weights)
    numbers = np.ascontiguousarray(weights, "<f2" if dense.name == "f16" else "<f4")
    return numbers.view(np.uint8).reshape(heads * both.shape[1], -1)


def _values(both: Matrix, heads: int, keys: int) -> NDArray[np.uint8]:
    blocks = both.make()
    return np.ascontiguousarray(blocks.reshape(heads, -1, blocks.shape[1])[:, keys:]).reshape(-1, blocks.shape[1])


def _scheme(folder: Folder) -> tuple[Reader | None, Mapping[str, Any]]:
    """The reader of quantized weights and its settings; None without one. Raises UnsupportedModel."""
    config: Mapping[str, Any] = folder.config
    found = config.get("quantization_config") or config.get("quantization") or {}
    if not isinstance(found, dict):
        raise UnsupportedModel(
            f"{folder.path.name}: quantization_config: {found!r:.40}; expected an object", folder.path
        )
    method = found.get("quant_method", "mlx" if "group_size" in found and "bits" in found else None)
    if isinstance(config.get("quantization"), dict) and "quant_method" not in found:
        method = "mlx"
    if not found:
        return None, {}
    if not isinstance(method, str) or method not in SCHEMES:
        known = ", ".join(SCHEMES)
        message = f"{folder.path.name}: quantization_config: quant_method {shown(repr(method))}; supported: {known}"
        raise UnsupportedModel(message, folder.path, "quant_method", method)
    return SCHEMES[method], found


def _info(name: str, matrix: Matrix) -> TensorInfo:
    codec, shape = matrix.codec, matrix.shape
    if not shape or shape[-1] % codec.weights or min(shape) < 1:
        raise UnsupportedModel(f"{name}: shape {list(shape)}, which {codec.name} does not hold whole")
    return TensorInfo(name, shape, codec, 0, math.prod(shape) // codec.weights * codec.bytes)


def weights_of(file: GGUFFile, name: str) -> NDArray[np.float32]:
    """A tensor's numbers, in its own shape."""
    info = file.tensors[name]
    return decode(info.codec, file.blocks(name)).reshape(info.shape)
