"""Conversion to GGUF and to other quantizations, held against llama.cpp; checks of whole files and of both engines."""

from __future__ import annotations

import json
from pathlib import Path

import llama_cpp
import numpy as np
import pytest
from click.testing import CliRunner, Result

from edgeinfer.cli import edgeinfer
from edgeinfer.conversion.importance import importance
from edgeinfer.conversion.quantizing import FILE_TYPES, quantize
from edgeinfer.conversion.verifying import verify
from edgeinfer.conversion.writing import write_gguf
from edgeinfer.converted.checkpoint import Checkpoint, weights_of
from edgeinfer.converted.opening import open_model
from edgeinfer.errors import BadRequest
from edgeinfer.evaluation import texts
from edgeinfer.formats.gguf import open_gguf
from edgeinfer.quant.codec import decode
from edgeinfer.tokenizer.vocabulary import Tokenizer
from tests.converted.test_schemes import written
from tests.llama import llama_logits
from tests.models.test_logits import mean_kl, our_logits, some_tokens
from tests.tiny import tiny_gguf

TEXT = Path(__file__).parents[1] / "data" / "lighthouse.txt"


def run(*words: object) -> Result:
    return CliRunner().invoke(edgeinfer, [str(word) for word in words])


@pytest.mark.parametrize("scheme", ["mlx affine 4 bits, groups of 64", "awq", "bitsandbytes nf4, nested", "mlx mxfp4"])
def test_a_folder_as_gguf_computes_in_llama_cpp_what_the_folder_does_here(tmp_path: Path, scheme: str) -> None:
    folder = tmp_path / "model"
    written(folder, scheme)
    target = tmp_path / "m.gguf"
    result = run("convert", folder, target, "--to", "F32", "--no-kl", "--json")
    assert result.exit_code == 0, result.output
    with Checkpoint(folder) as source, open_gguf(target) as made:
        assert made.tensors.keys() == source.tensors.keys()
        for name in source.tensors:
            np.testing.assert_array_equal(weights_of(made, name), weights_of(source, name))
    tokens = some_tokens(60)
    expected = llama_logits(target, tokens)
    assert mean_kl(our_logits(target, tokens), expected) < 1e-4
    assert mean_kl(our_logits(folder, tokens), expected) < 6e-3  # packed weights meet activations of 8 bits


def test_keep_leaves_the_blocks_that_gguf_has(tmp_path: Path) -> None:
    folder, target = tmp_path / "model", tmp_path / "m.gguf"
    written(folder, "mlx mxfp4")
    with Checkpoint(folder) as source:
        write_gguf(source, target, "keep")
        with open_gguf(target) as made:
            name = "blk.0.ffn_up.weight"
            assert made.tensors[name].codec.name == "mxfp4"
            assert made.blocks(name).tobytes() == source.blocks(name).tobytes()


@pytest.mark.parametrize("form", ["F16", "BF16"])
def test_floats_are_rounded_once(tmp_path: Path, form: str) -> None:
    path, target = tiny_gguf(tmp_path / "m.gguf", codec="f32"), tmp_path / "out.gguf"
    with open_gguf(path) as file:
        write_gguf(file, target, form)
        with open_gguf(target) as made:
            for name, info in file.tensors.items():
                exact, found = weights_of(file, name), weights_of(made, name)
                bits = 24 if len(info.shape) == 1 else {"F16": 11, "BF16": 8}[form]
                assert (np.abs(found - exact) <= np.abs(exact) * 2.0**-bits + 2.0**-25).all()
            assert made.metadata["tokenizer.ggml.tokens"] == file.metadata["tokenizer.ggml.tokens"]
    assert mean_kl(our_logits(target, some_tokens(40)), llama_logits(target, some_tokens(40))) < 1e-3


def test_importance_is_the_mean_square_of_what_reaches_a_matrix(tmp_path: Path) -> None:
    """The first layer's queries see normed embeddings, which numpy can make too."""
    path = tiny_gguf(tmp_path / "m.gguf", codec="f32")
    windows = [some_tokens(32, seed) for seed in (1, 2)]
    found = importance(path, windows, 1)
    with open_gguf(path) as file:
        table, gain = (weights_of(file, name) for name in ("token_embd.weight", "blk.0.attn_norm.weight"))
    x = table[np.concatenate(windows)].astype(np.float64)
    normed = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + 1e-5) * gain
    np.testing.assert_allclose(found["blk.0.attn_q.weight"], np.mean(normed**2, axis=0), rtol=1e-4)
    assert found.keys() >= {f"blk.{i}.{part}.weight" for i in (0, 1) for part in ("attn_output", "ffn_down", "ffn_up")}


def test_importance_lowers_the_error_that_it_weighs(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", codec="f16", hidden=256, head_dim=64, feed_forward=256)
    order = np.random.default_rng(2).permutation(256)
    weights = {"blk.0.ffn_down.weight": np.geomspace(1e-3, 1e3, 256).astype(np.float32)[order]}
    errors = []
    for table in (None, weights):
        quantize(path, tmp_path / "q.gguf", "Q4_K_M", table, 1)
        with open_gguf(path) as exact, open_gguf(tmp_path / "q.gguf") as made:
            name = "blk.0.ffn_down.weight"
            errors.append(float(np.sum((weights_of(exact, name) - weights_of(made, name)) ** 2 * weights[name])))
    assert errors[1] < 0.7 * errors[0]


def test_names_of_file_types_are_those_of_llama_cpp() -> None:
    for name, number in FILE_TYPES.items():
        assert getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}", number) == number


def test_what_cannot_be_converted_is_said_before_anything_is_written(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf")
    target = tmp_path / "out.gguf"
    for words, message in (
        (("--to", "Q9_Z"), "expected F32, F16, BF16, keep"),
        (("--to", "IQ2_XXS"), "needs to know which weights matter"),
        (("--to", "IQ2_XXS", "--text", tmp_path / "none.txt"), "No such file"),
    ):
        result = run("convert", path, target, *words)
        assert isinstance(result.exception, Exception)
        assert message in str(result.exception)
        assert not target.exists()
    assert "exists; give another name or --force" in str(run("convert", path, path).exception)
    assert "is SRC itself" in str(run("convert", path, path, "--force").exception)
    with pytest.raises(BadRequest, match="expected one of"), open_gguf(path) as file:
        write_gguf(file, target, "Q4_K_M")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["m.gguf"]


@pytest.mark.real_model
def test_smollm2_quantized_here_is_as_near_as_llama_cpp_says(smollm2_path: Path, tmp_path: Path) -> None:
    """F16 decoded from the file, to Q4_K_M with importance: our KL is llama.cpp's on the same files, within 10 %."""
    whole, target = tmp_path / "f16.gguf", tmp_path / "q4.gguf"
    with open_model(smollm2_path) as file:
        write_gguf(file, whole, "F16")
        tokenizer = Tokenizer.from_gguf(file.metadata, file.path)
    quantize(whole, target, "Q4_K_M", importance(whole, [tokenizer.encode(TEXT.read_text())[256:512]], 2), 2)
    windows = texts.windows(None, tokenizer, 256, 3)
    ours, theirs = (
        float(np.mean([mean_kl(logits(whole, window), logits(target, window)) for window in windows]))
        for logits in (our_logits, llama_logits)
    )
    print(f"mean KL of Q4_K_M from F16: {ours:.5f} here, {theirs:.5f} by llama.cpp")
    assert 0.9 * theirs < ours < 1.1 * theirs
    assert target.stat().st_size < 0.45 * whole.stat().st_size


def test_verify_finds_what_is_no_number(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", codec="q8_0")
    with open_gguf(path) as file:
        report = verify(file)
        assert report.whole
        assert not report.obstacle
        info = file.tensors["blk.1.ffn_up.weight"]
    raw = bytearray(path.read_bytes())
    for block in (3, 9):
        raw[info.offset + block * 34 : info.offset + block * 34 + 2] = np.float16(np.inf).tobytes()
    path.write_bytes(raw)
    with open_gguf(path) as file:
        (bad,) = verify(file).bad
    assert (bad.name, bad.blocks, bad.first) == ("blk.1.ffn_up.weight", 2, 3)
    result = run("verify", path, "--json")
    assert json.loads(result.stdout)["whole"] is False
    assert "2 blocks of 1 tensors hold no numbers, first blk.1.ffn_up.weight block 3" in str(result.exception)


def test_verify_finds_tensors_that_do_not_fit(tmp_path: Path) -> None:
    wrong = {"shape": np.zeros((9, 64), np.float32), "missing": None}
    for name, weight in wrong.items():
        path = tiny_gguf(tmp_path / f"{name}.gguf", tensors={"blk.1.attn_k.weight": weight})
        result = run("verify", path)
        assert "blk.1.attn_k.weight" in str(result.exception)
        assert getattr(result.exception, "exit_code", None) == 2


def test_a_place_that_cannot_be_written_is_said_before_anything_is_read(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf")
    for form in ("F16", "Q8_0", "mlx"):
        result = run("convert", path, tmp_path / "nothing" / "x", "--to", form)
        assert "is no folder that can be written" in str(result.exception)
        assert getattr(result.exception, "exit_code", None) == 2


def test_verify_compares_hashes_and_reads_folders(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf")
    with open_gguf(path) as file:
        right = verify(file).files[0].sha256
        assert verify(file, [right]).whole
        assert not verify(file, ["0" * 64]).whole
    written(tmp_path / "model", "awq")
    result = run("verify", tmp_path / "model")
    assert result.exit_code == 0, result.output
    assert "all that the architecture needs" in result.output


def test_check_finds_both_engines_agree(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", codec="f32")
    result = run("check", path, TEXT, "--window", 64, "--json")
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout)
    assert row["agrees"]
    assert row["top"] > 0.97
    assert row["mean"] < 1e-3
    assert row["tokens"] == 2 * 63


def test_check_says_where_engines_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that turns its logits around parts at the first token."""
    from edgeinfer.backends.mlx import MLXBackend

    right = MLXBackend.step
    monkeypatch.setattr(MLXBackend, "step", lambda self, chunks: [-each for each in right(self, chunks)])
    path = tiny_gguf(tmp_path / "m.gguf", codec="f32")
    result = run("check", path, TEXT, "--window", 64, "--windows", 1)
    assert "equal best tokens at 0.0 % of the places" in str(result.exception)
    assert "window 0, token 0: MLX" in result.output


def test_the_numbers_of_a_decoded_block_are_what_verify_reads(tmp_path: Path) -> None:
    """A NaN in a float tensor counts as well."""
    bad = np.ones(64)
    bad[7] = np.nan
    path = tiny_gguf(tmp_path / "m.gguf", tensors={"output_norm.weight": bad})
    with open_gguf(path) as file:
        (found,) = verify(file).bad
        assert np.isnan(decode(file.tensors[found.name].codec, file.blocks(found.name))).sum() == found.blocks == 1
