"""tokenizer.json through our tokenizer against the library that defines the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from edgeinfer.converted.vocabulary import vocabulary
from edgeinfer.errors import EdgeInferError
from edgeinfer.tokenizer.vocabulary import Tokenizer
from tests.converted.writing import write_tokenizer

TEXTS = (
    "Hello there, the HELLO of 2026!", "  two  spaces\n\n\tand tabs", "it's we'LL 12345 and 007", "naïve café — über",
    "日本語 and 한국어 🙂🙃", "a\r\nb \n c", "…!?.. (x+y)=z", " the", "the the the",
)  # fmt: skip
END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}@| ?[^\s\p{L}\p{N}]+[\r\n]*|" + END
CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
    + END
)


def split(pattern: str) -> dict[str, Any]:
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [cut, level]}


WHOLE = ("llama-bpe", "tekken")
RULES: dict[str, dict[str, Any] | None] = {
    "smollm": None,
    "gpt-2": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "llama-bpe": split(WORDS.replace("@", "{1,3}")),
    "smaug-bpe": split(WORDS.replace("@", "{1,3}")),
    "qwen2": split(WORDS.replace("@", "")),
    "tekken": split(CASED),
}


def ours(folder: Path, rows: int = 320) -> Tokenizer:
    return Tokenizer.from_gguf(vocabulary(folder, "llama", rows), folder)


@pytest.mark.parametrize("rule", RULES)
def test_ids_are_those_of_the_library(tmp_path: Path, rule: str) -> None:
    write_tokenizer(tmp_path, RULES[rule], rule in WHOLE)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    found = ours(tmp_path)
    assert vocabulary(tmp_path, "llama", 320)["tokenizer.ggml.pre"] == rule
    for text in TEXTS:
        assert found.encode(text) == theirs.encode(text, add_special_tokens=False).ids, text
        assert found.decode(found.encode(text)) == text
    assert found.encode("<|im_start|>the", special=True) == theirs.encode("<|im_start|>the").ids
    assert found.token_text(found.end_ids and min(found.end_ids)).startswith("<|")


@pytest.mark.parametrize("prefix", [True, False])
def test_spaced_vocabularies_are_those_of_the_library(tmp_path: Path, prefix: bool) -> None:
    """As Llama 2 and Mistral have them: a mark for a space, single bytes for what no token holds."""
    words = ["▁t", "he", "▁a", "in", "an", "er", "el", "lo", "▁H", "▁the", "▁an", "▁in", "▁and", "ell", "ello"]
    letters = sorted({letter for word in words for letter in word} | set("bcdfgjkmpqrsuvwxyz"))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *dict.fromkeys([*letters, *words])]
    pairs = [
        (word[:at], word[at:]) for word in words for at in range(1, len(word)) if {word[:at], word[at:]} <= {*tokens}
    ]
    flags = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    steps = [{"type": "Prepend", "prepend": "▁"}] if prefix else []
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})
    file = {
        "version": "1.0", "truncation": None, "padding": None, "pre_tokenizer": None, "post_processor": None,
        "added_tokens": [{"id": i, "content": tokens[i], **flags} for i in range(3)],
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "decoder": None,
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
                  "vocab": {text: i for i, text in enumerate(tokens)}, "merges": [" ".join(pair) for pair in pairs]},
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    found = ours(tmp_path, len(tokens))
    assert (found.bos_id, found.eos_id, found.add_bos, found.space_prefix) == (1, 2, True, prefix)
    for text in ("the hello and in", "an inner banana", "Hello", "é 🙂 the", "a  b"):
        assert found.encode(text) == theirs.encode(text, add_special_tokens=False).ids, text


BAD: dict[str, tuple[Any, str]] = {
    "another kind": (lambda file: file["model"].update(type="Unigram"), "model.type: 'Unigram'; supported: BPE"),
    "unknown rules": (lambda file: file.update(pre_tokenizer=split("a|b")), "supported: the rules named llama-bpe"),
    "an unknown normalizer": (lambda file: file.update(normalizer={"type": "Lowercase"}), "'Lowercase'; supported"),
    "other merging": (
        lambda file: (file["model"].update(ignore_merges=True), file.update(pre_tokenizer=RULES["qwen2"])),
        "model.ignore_merges: True; supported: False with the rule qwen2",
    ),
    "an id too high": (lambda file: file["model"]["vocab"].update(zzz=999), "token 999, but the embedding has 320"),
    "an id twice": (lambda file: file["model"]["vocab"].update(zzz=3), "are both 3"),
    "an id that is text": (lambda file: file["model"]["vocab"].update(zzz="3"), "expected an id for each text"),
    "a merge of strangers": (lambda file: file["model"].update(merges=["q9 z8"]), "expected two tokens of the"),
    "no merges": (lambda file: file["model"].pop("merges"), "missing; expected pairs of texts"),
    "an added token without id": (lambda file: file.update(added_tokens=[{"content": 3}]), "expected id, content"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_tokenizer_of_ours_is_refused_by_name(tmp_path: Path, case: str) -> None:
    spoil, message = BAD[case]
    write_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    file = json.loads(path.read_text())
    spoil(file)
    path.write_text(json.dumps(file))
    with pytest.raises(EdgeInferError) as caught:
        vocabulary(tmp_path, "llama", 320)
    assert message in str(caught.value)


def test_templates_come_from_wherever_they_are(tmp_path: Path) -> None:
    write_tokenizer(
        tmp_path, chat_template=[{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    )
    found = vocabulary(tmp_path, "llama", 320)
    assert (found["tokenizer.chat_template"], found["tokenizer.chat_template.tool_use"]) == ("a", "b")
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "c"}))
    assert vocabulary(tmp_path, "llama", 320)["tokenizer.chat_template"] == "c"
    (tmp_path / "chat_template.jinja").write_text("d")
    assert vocabulary(tmp_path, "llama", 320)["tokenizer.chat_template"] == "d"
