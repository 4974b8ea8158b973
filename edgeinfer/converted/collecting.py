"""Every tensor of a folder under its GGUF name, in the form that GGUF has; what has none is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from edgeinfer.converted.families import past_the_last
from edgeinfer.converted.folder import Folder
from edgeinfer.converted.gptoss import BLOCKS, SCALES, expert_blocks
from edgeinfer.converted.matrices import Matrix, Refusal, plain
from edgeinfer.converted.quantized import scheme_of
from edgeinfer.converted.reshaping import inputs_last, one_plus
from edgeinfer.converted.settings import Settings
from edgeinfer.errors import UnsupportedModel
from edgeinfer.formats.cursor import shown
from edgeinfer.quant.codec import CODECS

_PART = re.compile(
    r"(.+?)\.(weight|bias|qweight|qzeros|scales|biases|g_idx|SCB|weight_format|weight_packed|weight_scale|weight_scale_inv"
    r"|weight_shape|weight_zero_point|weight_global_scale|weight_g_idx|input_scale|input_global_scale)(\..+)?",
    re.ASCII,
)
_QUANTIZED = {"scales", "qweight", "SCB", "weight_packed", "weight_scale", "weight_scale_inv", "weight_format"}
_IGNORED = re.compile(
    r".*\.rotary_emb\.inv_freq|(?:model\.)?"
    r"(?:vision_tower|vision_model|vision_embedder|embed_vision|audio_tower|embed_audio|multi_modal_projector)\..*",
    re.ASCII,
)
"""What text does not need."""


class Collector:
    """Reads one folder. Raises UnsupportedModel with the name of the tensor."""

    def __init__(self, folder: Folder, settings: Settings) -> None:
        self._folder, self._settings, self._family = folder, settings, settings.family
        self._scheme, self._quantization = scheme_of(folder)
        stacked = any(".switch_" in name for name in folder.tensors)
        self._one_plus = self._family.one_plus and not (self._family.added and stacked)

    def matrices(self) -> dict[str, Matrix]:
        names = [name for name in self._folder.tensors if not self._ignored(name)]
        whole = {name: target for name in names if (target := self._family.rename_whole(self._moved(name)))}
        found: dict[str, Matrix] = {}
        for name, target in whole.items():
            found |= self._reshaped(name, target, self._loose(name, target))
        experts: dict[str, dict[int, Matrix]] = {}
        for module, kinds in self._modules(name for name in names if name not in whole).items():
            target, expert = self._family.rename(self._moved(module))
            if not target:
                raise self._no_place(f"{module}.{sorted(kinds)[0]}")
            matrix = self._matrix(module, kinds)
            if expert is None:
                found |= self._reshaped(module, f"{target}.weight", matrix)
            else:
                experts.setdefault(f"{target}.weight", {})[expert] = matrix
            if "bias" in kinds:
                found |= self._reshaped(module, f"{target}.bias", self._vector(f"{module}.bias"))
        found |= {name: self._stacked(name, rows) for name, rows in experts.items()}
        for name, factors in self._settings.frequencies().items():
            found[name] = Matrix(CODECS["f32"], factors.shape, _row(factors))
        return found

    def _ignored(self, name: str) -> bool:
        blocks = name.removesuffix(SCALES) + BLOCKS
        return _IGNORED.fullmatch(name) is not None or (name.endswith(SCALES) and blocks in self._folder)

    def _moved(self, name: str) -> str:
        return past_the_last(self._family.usual_name(name), self._settings.layers)

    def _modules(self, names: Iterable[str]) -> dict[str, set[str]]:
        """The parts that each module has."""
        modules: dict[str, set[str]] = {}
        for name in names:
            found = _PART.fullmatch(name)
            if found is None:
                raise self._no_place(name)
            modules.setdefault(found[1], set()).add(found[2])
        if self._settings.config.get("tie_word_embeddings") is True:
            modules = {name: each for name, each in modules.items() if self._family.usual_name(name) != "lm_head"}
        return modules

    def _reshaped(self, name: str, target: str, matrix: Matrix) -> dict[str, Matrix]:
        """A matrix as GGUF has it; in a few families it becomes two."""
        place, part = re.fullmatch(r"(blk\.\d+\.)?(.+)", target, re.ASCII).groups("")  # type: ignore[union-attr]
        module = part.removesuffix(".weight").removesuffix(".bias")
        if self._one_plus and module.endswith("norm") and module != "ssm_norm":
            matrix = one_plus(matrix)
        change = self._family.reshape.get(module)
        try:
            made = change(self._settings, part, matrix) if change else {part: matrix}
        except Refusal as refusal:
            raise self._unsupported(name, str(refusal)) from None
        return {place + each: piece for each, piece in made.items()}

    def _loose(self, name: str, target: str) -> Matrix:
        """A tensor that is no module's weight or bias."""
        if len(self._folder.info(name).shape) == 1 or target.endswith(".bias"):
            return self._vector(name)
        try:
            if name.endswith(BLOCKS):
                return expert_blocks(self._folder, name)
            matrix = plain(self._folder, name)
            return inputs_last(matrix) if self._family.inputs_first else matrix
        except Refusal as refusal:
            raise self._unsupported(name, str(refusal)) from None

    def _matrix(self, module: str, kinds: set[str]) -> Matrix:
        name = f"{module}.weight"
        packed = bool(kinds & _QUANTIZED) or (name in self._folder and self._folder.info(name).dtype == "U8")
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
            raise self._unsupported(module, str(refusal)) from None
        except (ValueError, IndexError) as error:  # shapes that do not go together
            raise self._unsupported(module, f"its tensors do not fit each other ({error})") from None

    def _vector(self, name: str) -> Matrix:
        """A norm or a bias, in float32 as GGUF has them."""
        shape = self._folder.info(name).shape
        rows = math.prod(shape[:-1])
        return Matrix(CODECS["f32"], shape, lambda: self._folder.floats(name).view(np.uint8).reshape(rows, -1))

    def _stacked(self, name: str, experts: Mapping[int, Matrix]) -> Matrix:
        rows = [experts[index] for index in sorted(experts)]
        same = all((each.codec, each.shape) == (rows[0].codec, rows[0].shape) for each in rows)
        if sorted(experts) != list(range(len(experts))) or not same:
            raise self._unsupported(name, "experts are missing or differ in shape")

        def make() -> NDArray[np.uint8]:
            return np.concatenate([each.make() for each in rows])

        return Matrix(rows[0].codec, (len(rows), *rows[0].shape), make)

    def _unsupported(self, name: str, problem: str) -> UnsupportedModel:
        path = self._folder.path
        return UnsupportedModel(f"{path.name}: {shown(name)}: {problem}", path, name)

    def _no_place(self, name: str) -> UnsupportedModel:
        path, kind = self._folder.path, self._settings.kind
        return UnsupportedModel(f"{path.name}: tensor {shown(name)} is not one that {kind} has here", path, name)


def _row(numbers: NDArray[np.float32]) -> Callable[[], NDArray[np.uint8]]:
    return lambda: numbers.view(np.uint8).reshape(1, -1)
