"""From GGUF to MLX's folders and back: codes stay, and MLX itself decodes them to the numbers of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tokenizers

from edgeinfer import ops
from edgeinfer.conversion.codes import to_gguf, to_mlx
from edgeinfer.conversion.folders import write_mlx
from edgeinfer.conversion.tokenizing import tokenizer_files
from edgeinfer.conversion.writing import write_gguf
from edgeinfer.converted.checkpoint import Checkpoint, weights_of
from edgeinfer.converted.vocabulary import vocabulary
from edgeinfer.errors import BadRequest, UnsupportedModel
from edgeinfer.formats.gguf import open_gguf
from edgeinfer.quant.affine import blocks_of
from edgeinfer.quant.codec import CODECS, decode
from edgeinfer.tokenizer.vocabulary import Tokenizer
from tests.architectures import tiny
from tests.conversion.test_conversion import run
from tests.makers import WINDOW, YARN
from tests.models.test_logits import mean_kl, our_logits, some_tokens
from tests.tiny import random_blocks, tiny_gguf

EXACT = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4", "nvfp4")
ROUNDED = ("q4_k", "q5_k")
TEXTS = ("Hello there, the HELLO of 2026!", "  two  spaces\n\n\tand tabs", "naïve café 日本語 🙂", "it's 12345")
WIDE: dict[str, Any] = {"hidden": 256, "head_dim": 64, "feed_forward": 256}


@pytest.mark.parametrize("codec", [*EXACT, *ROUNDED])
def test_mlx_decodes_what_the_file_holds(codec: str) -> None:
    seed = int(np.random.default_rng().integers(1 << 31))
    blocks = random_blocks(CODECS[codec], 5, 512, np.random.default_rng(seed))
    packed = to_mlx(CODECS[codec], blocks)
    assert packed is not None
    assert packed.exact is (codec in EXACT)
    scales = mx.array(packed.scales)
    biases = None if packed.biases is None else mx.array(packed.biases).astype(mx.float32)
    scales = scales if packed.biases is None else scales.astype(mx.float32)
    mode = packed.mode
    found = mx.dequantize(mx.array(packed.words), scales, biases, mode.group, mode.bits, mode.name)
    expected = decode(CODECS[codec], blocks)
    largest = np.abs(expected).max()
    bound = {"exact": 1e-6, "rounded": 2.0**-10}["exact" if codec in EXACT else "rounded"] * largest
    assert np.abs(np.array(found.astype(mx.float32)) - expected).max() <= bound, seed


@pytest.mark.parametrize("codec", EXACT)
def test_a_file_that_becomes_a_folder_becomes_itself_again(tmp_path: Path, codec: str) -> None:
    """Every block comes back as it was, or in the format with an offset that holds the same numbers."""
    path = tiny_gguf(tmp_path / "m.gguf", codec=codec, **WIDE)
    with open_gguf(path) as file:
        outcome = write_mlx(file, tmp_path / "mlx")
        assert (outcome.rounded, outcome.decoded) == (0, 0)
        with Checkpoint(tmp_path / "mlx") as folder:
            back = write_gguf(folder, tmp_path / "back.gguf", "keep")
            assert (back.kept, back.decoded) == (outcome.kept, 0)
        with open_gguf(tmp_path / "back.gguf") as again:
            assert again.tensors.keys() == file.tensors.keys()
            for name, info in file.tensors.items():
                np.testing.assert_array_equal(weights_of(again, name), weights_of(file, name), name)
                assert again.tensors[name].codec == info.codec
            assert again.metadata["tokenizer.ggml.tokens"] == file.metadata["tokenizer.ggml.tokens"]
            assert again.metadata["tokenizer.chat_template"] == file.metadata["tokenizer.chat_template"]


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "gemma3"])
def test_a_folder_computes_what_its_file_does(tmp_path: Path, architecture: str) -> None:
    """Tied or not, with codes that differ from matrix to matrix and some that MLX has not."""
    codec = {"attn_v": "q8_0", "ffn_down": "q6_k", "ffn_up": "q5_0", "token_embd": "q8_0", "attn_": "q4_0"}
    path = tiny_gguf(tmp_path / "m.gguf", architecture, codec=codec, tied=architecture != "qwen2", **WIDE)
    with open_gguf(path) as file:
        outcome = write_mlx(file, tmp_path / "mlx")
    assert outcome.kept
    assert outcome.decoded == 2  # q6_k in two layers
    config = json.loads((tmp_path / "mlx" / "config.json").read_text())
    assert config["quantization"]["model.layers.1.self_attn.v_proj"] == {"group_size": 32, "bits": 8, "mode": "affine"}
    tokens = some_tokens(80)
    assert mean_kl(our_logits(tmp_path / "mlx", tokens), our_logits(path, tokens)) < 1e-3


def test_experts_keep_their_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the operations that round nothing: a rounding exchanges experts."""
    monkeypatch.setattr(ops, "fused", False)
    path = tiny(tmp_path / "m.gguf", "qwen3moe", codec={"_exps": "q4_1", "attn": "q8_0", "": "f16"})
    with open_gguf(path) as file:
        write_mlx(file, tmp_path / "mlx")
        with Checkpoint(tmp_path / "mlx") as folder:
            name = "blk.1.ffn_down_exps.weight"
            np.testing.assert_array_equal(weights_of(folder, name), weights_of(file, name))
    tokens = some_tokens(60)
    assert mean_kl(our_logits(tmp_path / "mlx", tokens), our_logits(path, tokens)) < 1e-6


RETURNING: dict[str, dict[str, Any]] = {
    "mistral3": {}, "qwen3moe": YARN, "gemma2": {}, "granite": {}, "smollm3": YARN, "olmo2": {}, "glm4": YARN,
    "olmo2, windows": YARN | WINDOW | {".attention.sliding_window_pattern": [True, True, True, False, True]},
}  # fmt: skip


@pytest.mark.parametrize("family", RETURNING)
def test_a_family_keeps_its_codes_and_its_settings_in_mlx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    monkeypatch.setattr(ops, "fused", False)
    path = tiny(tmp_path / "m.gguf", family.partition(",")[0], RETURNING[family], codec="q8_0")
    with open_gguf(path) as file:
        outcome = write_mlx(file, tmp_path / "mlx")
        assert outcome.decoded == 0
        with Checkpoint(tmp_path / "mlx") as folder:
            assert folder.tensors.keys() == file.tensors.keys()
            for name in file.tensors:
                np.testing.assert_allclose(weights_of(folder, name), weights_of(file, name), atol=2e-7, err_msg=name)
    tokens = some_tokens(150)  # past windows and original contexts
    assert mean_kl(our_logits(tmp_path / "mlx", tokens), our_logits(path, tokens)) < 1e-6


@pytest.mark.parametrize(("bits", "group"), [(2, 64), (3, 32), (4, 64), (4, 128), (5, 32), (8, 64)])
def test_affine_groups_fit_a_format_or_say_that_they_do_not(bits: int, group: int) -> None:
    random = np.random.default_rng(bits * group)
    q = random.integers(0, 1 << bits, (3, 256), np.uint8)
    scales = random.uniform(1e-3, 1e-2, (3, 256 // group)).astype(np.float16).astype(np.float32)
    zero = np.float32(-(1 << (bits - 1)))
    codec = CODECS[f"affine{bits}_{group}"]
    offsets = scales * zero if bits == 8 else random.uniform(-0.1, 0.1, scales.shape).astype(np.float16)
    rows = blocks_of(q, scales, offsets, bits)
    mapped = to_gguf(codec, rows)
    assert mapped is not None
    assert mapped[0].name == {2: "q4_1", 3: "q4_1", 4: "q4_1", 5: "q5_1", 8: "q8_0"}[bits]
    np.testing.assert_array_equal(decode(*mapped), decode(codec, rows))
    for uneven in (scales * np.float32(1.0001), scales):  # neither is held by float16
        odd = blocks_of(q, uneven, offsets + np.float32(1e-5 if uneven is scales else 0), bits)
        assert to_gguf(codec, odd) is None


def test_the_command_says_what_it_kept_and_how_far_it_is(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", codec={"ffn_down": "q6_k", "": "q4_k"}, **WIDE)
    result = run("convert", path, tmp_path / "mlx", "--to", "mlx", "--json")
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout)
    assert row["codes"] == {"kept": 0, "rounded": 13, "decoded": 2}
    assert 0 < row["kl"] < 6e-3  # packed weights meet activations of 8 bits
    again = run("convert", path, tmp_path / "mlx", "--to", "mlx", "--force")
    assert "not empty; give another name" in str(again.exception)
    shown = run("convert", tmp_path / "mlx", tmp_path / "back.gguf", "--to", "keep", "--no-kl")
    assert "15 matrices as they are\n" in shown.output


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama3", "smaug-bpe", "qwen2", "tekken"])
def test_the_tokenizer_of_a_folder_is_that_of_the_file(tmp_path: Path, pre: str) -> None:
    """By the library that defines the file."""
    path = tiny_gguf(tmp_path / "m.gguf", metadata={"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": True})
    with open_gguf(path) as file:
        write_mlx(file, tmp_path / "mlx")
        ours = Tokenizer.from_gguf(file.metadata, path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "mlx" / "tokenizer.json"))
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids, text
        assert theirs.encode(text).ids[0] == ours.bos_id
        assert theirs.decode(ours.encode(text)) == text


def test_what_a_folder_could_not_say_is_refused(tmp_path: Path) -> None:
    for changes, message in (
        ({"tokenizer.ggml.pre": "chameleon"}, "tokenizer.ggml.pre: 'chameleon'"),
        ({".rope.scaling.type": "yarn", ".rope.scaling.factor": 4.0}, "rope.scaling.type"),
    ):
        path = tiny_gguf(tmp_path / "m.gguf", metadata=changes)
        with open_gguf(path) as file, pytest.raises(UnsupportedModel, match=message):
            write_mlx(file, tmp_path / "mlx")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with open_gguf(tiny_gguf(tmp_path / "m.gguf")) as file, pytest.raises(BadRequest, match="not empty"):
        write_mlx(file, tmp_path / "full")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["full", "m.gguf"]


@pytest.mark.real_model
@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path"])
def test_real_vocabularies_keep_their_ids(request: pytest.FixtureRequest, tmp_path: Path, model: str) -> None:
    path: Path = request.getfixturevalue(model)
    text = (Path(__file__).parents[1] / "data" / "lighthouse.txt").read_text()[:4000]
    with open_gguf(path) as file:
        for name, document in tokenizer_files(file.metadata).items():
            (tmp_path / name).write_text(json.dumps(document))
        ours = Tokenizer.from_gguf(file.metadata, path).encode(text)
        rows = file.tensors["token_embd.weight"].shape[0]
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert theirs.encode(text, add_special_tokens=False).ids == ours
    if rows < 100_000:  # Gemma's takes half a minute to read twice
        assert Tokenizer.from_gguf(vocabulary(tmp_path, "llama", rows), path).encode(text) == ours
