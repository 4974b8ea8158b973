"""The text itself: what MLX generates around it, the lint, the address spaces, and the table that describes it."""

from __future__ import annotations

import re
from pathlib import Path

import mlx.core as mx
import pytest

from edgeinfer.metal_kernels import attention, launcher, products, sealed, tuning
from edgeinfer.metal_kernels.specs import KERNELS
from edgeinfer.quant.codec import AFFINE_BITS, CODECS
from tests.metal_kernels.blocks import DECODABLE, floats, kv_cache, matrix
from tests.metal_kernels.emulator import CompileError, emulated
from tests.metal_kernels.lint import findings
from tests.metal_kernels.sealed_blocks import sequence

FOLDER = Path(__file__).parents[2] / "metal_kernels"
GOLDEN = Path(__file__).with_name("golden")
HEADERS = [path for path in sorted(FOLDER.rglob("*.h")) if path.name != "host.h"]
BODIES = sorted(FOLDER.glob("*.metal"))
MOST_BUFFERS = 31


def generated(text: str) -> str:
    """What MLX wrote around our text: the signature, and the instance."""
    signature = text[
        text.rindex("\ntemplate <", 0, text.index("[[kernel]]")) + 1 : text.index(") {", text.index("[[kernel]]")) + 3
    ]
    return f"{signature}\n{text.rstrip().rpartition(chr(10))[2]}\n"


@pytest.fixture(scope="module")
def texts(metal: None) -> dict[str, str]:
    """Of each kernel one text as MLX would compile it."""
    with emulated() as emulator:
        w = matrix(CODECS["q4_k"], 9, 256)
        products.qmv(floats((2, 256)), w.array, w.codec)
        products.qmv_gated(floats((2, 256)), w.array, w.array, w.codec, "silu")
        products.qmv_joined(floats((2, 256)), [w.array] * 3, w.codec, w.codec)
        products.qmm(floats((20, 256), mx.float16), w.array, w.codec)
        experts = w.array.reshape(3, 3, -1)
        products.multiply_experts(floats((2, 256)), experts, w.codec, mx.array([0, 2], mx.int32))
        products.multiply_experts(floats((17, 256)), experts, w.codec, mx.array([1] * 17, mx.int32))
        products.rows(mx.array([1], mx.int32), w.array, w.codec)
        attention.attend_rows(floats((9, 2, 64)), kv_cache(2, 9, 64, 1), kv_cache(2, 9, 64, 2), 9, scale=1.0)
        attention.attend(floats((1, 8, 64)), kv_cache(2, 9, 64, 1), kv_cache(2, 9, 64, 2), 9, scale=1.0)
        form = sealed.PageFormat(64, 6, 4)
        held = sequence(form, 2, 650, 630).held
        sealed.seal(held.keys, held.values, 0, 1, form, held.signs)
        for rows in (3, 20):
            sealed.attend(floats((rows, 4, 64)), 650 - rows, held, form, scale=1.0)
    return {name.partition("<")[0].removeprefix("edgeinfer_"): text for name, text in emulator.texts.items()}


@pytest.mark.usefixtures("emulator_only")
@pytest.mark.parametrize("name", KERNELS)
def test_mlx_generates_the_signature_that_was_tested(name: str, texts: dict[str, str]) -> None:
    """A missing golden file is written, and fails this once."""
    path, found = GOLDEN / f"{name}.txt", generated(texts[name])
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(found)
        pytest.fail(f"{path.name} was missing and has been written: look at it")
    assert found == path.read_text()


@pytest.mark.usefixtures("emulator_only")
@pytest.mark.parametrize("name", KERNELS)
def test_every_buffer_fits_and_lies_where_the_kernel_expects_it(name: str, texts: dict[str, str]) -> None:
    places = [int(number) for number in re.findall(r"\[\[buffer\((\d+)\)\]\]", texts[name])]
    assert places == list(range(len(places)))
    assert len(places) <= MOST_BUFFERS
    for given in KERNELS[name].inputs:
        space = "constant" if given in KERNELS[name].scalars else "device"
        assert re.search(rf"const {space} \w+[*&] {given} ", texts[name]), given


@pytest.mark.parametrize("path", [*HEADERS, *BODIES], ids=lambda path: path.name)
def test_the_text_keeps_to_metal(path: Path) -> None:
    assert findings(path.read_text(), header=path.suffix == ".h") == []


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("double x;", False), ("goto end;", False), ("std::min(1, 2);", False), ("__builtin_clz(x);", False),
        ("if constexpr (N > 2) {", False), ("x.lo = 1;", False), ("static int count = 0;", True),
        ("int ceildiv(int a, int b) {", True), ("x = simd_sum(x);", False), ("x = metal::exp(x);", False),
        ("void f(float* x) {", True), ("int g(const Chunk& c, int n) {", True), ("threadgroup float tile[32];", True),
        ("run(w + output * w_shape[1], 3);", False), ("y[(row + m) * all_outputs + n] = 0;", False),
        ("struct A { virtual void f(); };", True),
    ],
)  # fmt: skip
def test_the_lint_finds_what_metal_refuses(text: str, header: bool) -> None:
    assert findings(text, header) != []


@pytest.mark.usefixtures("emulator_only")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("add((const threadgroup uint8_t*)staged", "add((const device uint8_t*)staged"),
        ("add(const threadgroup uint8_t* staged", "add(const device uint8_t* staged"),
        ("thread const float* value", "device const float* value"),
        ("const device uint8_t* from = w", "const constant uint8_t* from = w"),
        ("const device ushort* source =", "device ushort* source ="),
        ("metal::fma(chunk.scale, dot, sum)", "metal::max(chunk.scale, 1)"),
        ("float total = 0;", "float total; total += 1;"),
    ],
)
def test_the_strict_pass_refuses(before: str, after: str) -> None:
    w = matrix(CODECS["q8_0"], 9, 32)
    with emulated(edit=(before, after)) as emulator, pytest.raises(CompileError):
        products.qmv(floats((2, 32)), w.array, w.codec)
    assert emulator.edits == 1


def test_every_kernel_has_a_row_and_every_row_a_kernel() -> None:
    assert {path.stem for path in BODIES} == set(KERNELS)


def test_kernels_know_every_codec_by_its_number() -> None:
    text = (FOLDER / "include" / "by_id.h").read_text()
    rows = {(int(number), struct.lower()) for number, struct in re.findall(r"CODEC_ROW\((\d+), (\w+)\)", text)}
    affine = {int(bits) for bits in re.findall(r"AFFINE_ROWS\((\d)\)", text)}
    assert rows == {(codec.ggml_id, codec.name) for codec in DECODABLE if codec.family != "affine"}
    assert affine == set(AFFINE_BITS)


def test_a_small_input_is_refused_or_padded() -> None:
    spec = KERNELS["qmv"]
    with pytest.raises(ValueError, match="x has 4 elements; expected at least 8"):
        launcher.launch("qmv", [mx.zeros((1, 8), mx.uint8), mx.zeros((1, 4))], [(key, 1) for key in spec.template],
                        (32, 1, 1), (32, 1, 1), [(1, 1)], [mx.float32])  # fmt: skip
    with pytest.raises(ValueError, match="template"):
        launcher.launch("qmv", [], [], (1, 1, 1), (1, 1, 1), [], [])


@pytest.mark.parametrize(
    ("architecture", "row"),
    [("applegpu_g13g", tuning.BY_GENERATION[13]), ("applegpu_g14s", tuning.BY_GENERATION[14]),
     ("applegpu_g16s", tuning.DEFAULT), ("applegpu_g99x", tuning.DEFAULT),
     ("sm_90", tuning.DEFAULT), ("", tuning.DEFAULT)],
)  # fmt: skip
def test_a_gpu_takes_its_own_row_or_the_default(architecture: str, row: tuning.Tuning) -> None:
    assert tuning.tuning_for(architecture) == row


@pytest.mark.usefixtures("emulator_only")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(const device ushort*)(from", "(const device ushort*)(const constant uint8_t*)(from"),
        ("(const threadgroup uint8_t*)staged", "(const threadgroup uint8_t*)(thread ushort*)staged"),
        ("float total = 0;", "float total = 0; double exact = 0; total += float(exact);"),
    ],
)
def test_opencl_refuses_what_plain_cpp_takes(before: str, after: str) -> None:
    w = matrix(CODECS["q8_0"], 9, 32)
    with emulated(edit=(before, after)) as emulator, pytest.raises(CompileError):
        products.qmv(floats((2, 32)), w.array, w.codec)
    assert emulator.edits == 1
