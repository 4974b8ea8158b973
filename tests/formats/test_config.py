"""Settings, read strictly."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.errors import CorruptFile, UnsupportedModel
from edgeinfer.formats.config import LIMITS, Config
from edgeinfer.formats.cursor import MetadataValue
from edgeinfer.formats.gguf import open_gguf
from tests.formats.craft import sample

METADATA: dict[str, MetadataValue] = {
    "general.architecture": "llama",
    "llama.block_count": 30,
    "llama.attention.head_count": [9, 9, 3],
    "llama.rope.freq_base": 10_000.0,
    "llama.rope.scaling.type": "yarn",
    "llama.attention.causal": True,
    "llama.nan": float("nan"),
    "llama.names": ["a", "b"],
    "llama.extra": 7,
    "tokenizer.ggml.model": "gpt2",
}
OFFSETS = {key: 24 + 10 * index for index, key in enumerate(METADATA)}


@pytest.fixture
def config() -> Config:
    return Config(METADATA, "llama", Path("m.gguf"), OFFSETS.get)


def test_values_are_read_under_the_architecture(config: Config) -> None:
    assert config.read("block_count", int) == 30
    assert config.read("rope.freq_base", float) == 10_000.0
    assert config.read("rope.scaling.type", str) == "yarn"
    assert config.read("attention.causal", bool) is True
    assert config.read("tokenizer.ggml.model", str) == "gpt2"
    assert config.read("absent", int, 4) == 4
    assert config.read("absent", int, None) is None
    assert "block_count" in config
    assert "general.architecture" in config
    assert "absent" not in config


@pytest.mark.parametrize(
    ("key", "kind", "problem"),
    [
        ("absent", int, "m.gguf: llama.absent: missing; expected a whole number"),
        ("block_count", float, "m.gguf: llama.block_count at byte 34: 30; expected a number"),
        ("block_count", str, "m.gguf: llama.block_count at byte 34: 30; expected a string"),
        ("block_count", bool, "m.gguf: llama.block_count at byte 34: 30; expected true or false"),
        ("attention.causal", int, "m.gguf: llama.attention.causal at byte 74: True; expected a whole number"),
        ("rope.freq_base", int, "m.gguf: llama.rope.freq_base at byte 54: 10000.0; expected a whole number"),
        ("names", str, "m.gguf: llama.names at byte 94: an array of 2; expected a string"),
        ("nan", float, "m.gguf: llama.nan at byte 84: nan; expected a finite number"),
    ],
)
def test_a_missing_or_mistyped_value_is_named(config: Config, key: str, kind: type, problem: str) -> None:
    with pytest.raises(CorruptFile) as caught:
        config.read(key, kind)
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    ("minimum", "maximum", "problem"),
    [
        (8, 16, "7; expected 8 to 16"),
        (8, float("inf"), "7; expected at least 8"),
        (float("-inf"), 6, "7; expected at most 6"),
    ],
)
def test_a_value_out_of_range_is_named(config: Config, minimum: float, maximum: float, problem: str) -> None:
    with pytest.raises(CorruptFile, match=problem):
        config.read("extra", int, minimum=minimum, maximum=maximum)
    assert config.read("extra", int, minimum=7, maximum=7) == 7


@pytest.mark.parametrize("key", LIMITS)
def test_sizes_have_limits_of_their_own(key: str) -> None:
    low, high = LIMITS[key]
    for value in (low, high):
        assert Config({f"llama.{key}": value}, "llama", Path("m"), {}.get).read(key, int) == value
    for value in (low - 1, high + 1, 10**9):
        config = Config({f"llama.{key}": value}, "llama", Path("m"), {}.get)
        with pytest.raises(CorruptFile, match=rf"{value}; expected {low} to {high}"):
            config.read(key, int)


def test_a_caller_can_only_narrow_a_limit(config: Config) -> None:
    with pytest.raises(CorruptFile, match="30; expected 1 to 29"):
        config.read("block_count", int, minimum=0, maximum=29)


def test_an_unsupported_value_is_refused_by_name(config: Config) -> None:
    config.expect("rope.scaling.type", "linear", "yarn")
    config.expect("absent", None)
    config.expect("attention.causal", True)
    with pytest.raises(UnsupportedModel) as caught:
        config.expect("rope.scaling.type", None, "linear", "llama3")
    assert str(caught.value) == "m.gguf: llama.rope.scaling.type at byte 64: 'yarn'; supported: 'linear', 'llama3'"
    assert (caught.value.setting, caught.value.value) == ("llama.rope.scaling.type", "yarn")
    with pytest.raises(UnsupportedModel, match=r"llama\.absent: missing; supported: 'x'"):
        config.expect("absent", "x")
    with pytest.raises(UnsupportedModel, match=r"llama\.extra at byte 104: 7; supported: none"):
        config.expect("extra", None)
    with pytest.raises(UnsupportedModel, match="True; supported: 1"):
        config.expect("attention.causal", 1)
    with pytest.raises(UnsupportedModel, match="an array of 2; supported: 'a'"):
        config.expect("names", "a")


def test_settings_that_nobody_read_are_found(config: Config) -> None:
    for key in ("block_count", "rope.freq_base"):
        config.read(key, (key.endswith("count") and int) or float)
    config.expect("attention.causal", True)
    ignored = ["nan", "names", "attention.head_count"]
    assert config.unread(ignored) == ["llama.rope.scaling.type", "llama.extra"]
    with pytest.raises(UnsupportedModel) as caught:
        config.refuse_unread([*ignored, "rope.scaling.type"])
    assert str(caught.value) == "m.gguf: llama.extra at byte 104: 7; this setting is not supported"
    config.refuse_unread([*ignored, "rope.scaling.type", "extra"])


def test_text_from_the_file_is_made_safe() -> None:
    config = Config({"llama.x": "a\x1b]52;\x07\n" + "b" * 500}, "llama", Path("m"), {}.get)
    with pytest.raises(CorruptFile) as caught:
        config.read("x", int)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


def test_the_settings_of_a_file_carry_its_offsets(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(sample().data)
    with open_gguf(path) as file:
        config = Config.from_gguf(file)
        assert config.architecture == "llama"
        assert config.read("block_count", int) == 1
        error = config.error("block_count", "too few")
        assert (error.offset, error.path) == (file.field_offset("llama.block_count"), path)
