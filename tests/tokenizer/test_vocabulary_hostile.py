"""Broken tokenizer metadata: one line that names the key and its byte, and quickly."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeinfer.errors import CorruptFile, ModelError, UnsupportedModel
from edgeinfer.tokenizer.metadata import MAX_TOKENS
from edgeinfer.tokenizer.pretokenizers import PRETOKENIZERS
from edgeinfer.tokenizer.vocabulary import Tokenizer
from tests.tokenizer.synthetic import byte_level_metadata, sentence_piece_metadata, spaced_metadata

Metadata = dict[str, object]
G = "tokenizer.ggml."


def with_token(index: int, text: object) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        tokens = list(metadata[f"{G}tokens"])  # type: ignore[call-overload]
        tokens[index] = text
        metadata[f"{G}tokens"] = tokens

    return change


def with_value(key: str, value: object) -> Callable[[Metadata], None]:
    return lambda metadata: metadata.update({f"{G}{key}": value})


def without(key: str) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        del metadata[f"{G}{key}"]

    return change


def with_item(key: str, index: int, value: object) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        items = list(metadata[f"{G}{key}"])  # type: ignore[call-overload]
        items[index] = value
        metadata[f"{G}{key}"] = items

    return change


BYTE_LEVEL = {
    "no tokens": (without("tokens"), "tokens", "missing or empty"),
    "empty tokens": (with_value("tokens", []), "tokens", "missing or empty"),
    "tokens is a string": (with_value("tokens", "abc"), "tokens", "found str, expected an array"),
    "tokens is a number": (with_value("tokens", 5), "tokens", "found int, expected an array"),
    "tokens of numbers": (with_value("tokens", [1, 2]), "tokens", "holds int items, expected str"),
    "one token a number": (with_token(3, 7), "tokens", "holds int items, expected str"),
    "too many tokens": (with_value("tokens", [""] * (MAX_TOKENS + 1)), "tokens", "2000001 tokens, at most 2000000"),
    "two equal tokens": (with_token(300, "A"), "tokens", r"tokens \d+ and 300 have the same text 'A'"),
    "types of strings": (with_value("token_type", ["x"]), "token_type", "holds str items, expected int"),
    "types of floats": (with_item("token_type", 0, 1.0), "token_type", "holds float items, expected int"),
    "types of booleans": (with_item("token_type", 0, True), "token_type", "holds bool items, expected int"),
    "too few types": (with_value("token_type", [1]), "token_type", r"1 items for \d+ tokens"),
    "no such type": (with_item("token_type", 9, 7), "token_type", "found type 7, expected 0 to 6"),
    "negative type": (with_item("token_type", 9, -1), "token_type", "found type -1, expected 0 to 6"),
    "no merges": (without("merges"), "merges", "missing; a byte-pair vocabulary needs its merges"),
    "merges of numbers": (with_value("merges", [1]), "merges", "holds int items, expected str"),
    "merge of one": (with_item("merges", 4, "ab"), "merges", "merge 4 is 'ab', expected two tokens"),
    "empty merge": (with_item("merges", 0, ""), "merges", "merge 0 is '', expected two tokens"),
    "merge with an empty side": (with_item("merges", 2, "a "), "merges", "merge 2 is 'a ', expected two tokens"),
    "merge of unknown tokens": (
        with_item("merges", 7, "qqqq x"),
        "merges",
        "merge 7 .* names 'qqqq', which is no token",
    ),
    "merge to an unknown token": (with_item("merges", 7, "Ā ÿ"), "merges", "merge 7 .* names 'Āÿ', which is no token"),
    "bos beyond the vocabulary": (with_value("bos_token_id", 10**6), "bos_token_id", "token id 1000000, but"),
    "negative eos": (with_value("eos_token_id", -1), "eos_token_id", "token id -1, but"),
    "eos a string": (with_value("eos_token_id", "</s>"), "eos_token_id", "found '</s>', expected a token id"),
    "eos a boolean": (with_value("eos_token_id", True), "eos_token_id", "found True, expected a token id"),
    "eot beyond the vocabulary": (with_value("eot_token_id", 10**6), "eot_token_id", "token id 1000000, but"),
    "fim beyond the vocabulary": (with_value("fim_pad_token_id", 10**6), "fim_pad_token_id", "token id 1000000"),
    "add_bos a number": (with_value("add_bos_token", 1), "add_bos_token", "found 1, expected true or false"),
    "model a number": (with_value("model", 3), "model", "found int, expected a string"),
    "pre an array": (with_value("pre", ["a"]), "pre", "found list, expected a string"),
}
SENTENCE_PIECE = {
    "no scores": (without("scores"), "scores", r"0 items for \d+ tokens"),
    "too few scores": (with_value("scores", [0.0]), "scores", r"1 items for \d+ tokens"),
    "scores of strings": (with_item("scores", 0, "x"), "scores", "holds str items, expected float or int"),
    "a score that is no number": (with_item("scores", 5, math.nan), "scores", "the score of token 5 is NaN"),
    "byte token of a negative": (with_token(1, "<0x-1>"), "tokens", "byte token 1 is '<0x-1>'"),
    "byte token of letters": (with_token(1, "<0xZZ>"), "tokens", "byte token 1 is '<0xZZ>'"),
    "byte token of one digit": (with_token(1, "<0x1>"), "tokens", "byte token 1 is '<0x1>'"),
    "byte token in small letters": (with_token(0xAC, "<0xab>"), "tokens", "byte token 172 is '<0xab>'"),
    "byte token of wide digits": (with_token(1, "<0x００>"), "tokens", "byte token 1 is"),
    "no byte token": (with_item("token_type", 66, 3), "tokens", "no byte token <0x41>; expected <0x00> to <0xFF>"),
}
CASES = [
    *((byte_level_metadata("qwen2"), *case) for case in BYTE_LEVEL.values()),
    *((sentence_piece_metadata(), *case) for case in SENTENCE_PIECE.values()),
    (spaced_metadata("gpt2", "gemma4"), with_item("token_type", 65, 3), "tokens", "no byte token <0x41>"),
]


@pytest.mark.parametrize(
    ("metadata", "change", "key", "problem"), CASES, ids=[*BYTE_LEVEL, *SENTENCE_PIECE, "no byte token on characters"]
)
def test_broken_metadata_names_its_key_and_its_byte(
    metadata: Metadata, change: Callable[[Metadata], None], key: str, problem: str
) -> None:
    broken = dict(metadata)
    change(broken)
    offsets = {name: 1000 + place for place, name in enumerate(broken)}
    begin = time.perf_counter()
    with pytest.raises(CorruptFile, match=problem) as failure:
        Tokenizer.from_gguf(broken, Path("folder/model.gguf"), offsets.__getitem__)
    assert time.perf_counter() - begin < 2
    assert failure.value.field == G + key
    assert failure.value.offset == offsets.get(G + key)
    assert str(failure.value).startswith(f"model.gguf: {G}{key}")
    assert "\n" not in str(failure.value)
    assert failure.value.exit_code == 2


@pytest.mark.parametrize(
    "model", ["bert", "t5", "rwkv", "plamo2", "hybriddna", "whitespace", "no_vocab", "", "x\x1b]52"]
)
def test_other_kinds_of_vocabulary_are_refused_by_name(model: str) -> None:
    with pytest.raises(UnsupportedModel, match="supported: gemma4, gpt2, llama") as failure:
        Tokenizer.from_gguf({f"{G}model": model, f"{G}tokens": ["a", "a"]}, "model.gguf")
    assert (failure.value.setting, failure.value.value) == (f"{G}model", model)
    assert "\x1b" not in str(failure.value)


@pytest.mark.parametrize("pre", ["whitespace", "qwen9", "LLAMA3", " qwen2", "a" * 10_000])
def test_an_unknown_rule_is_refused_by_name(pre: str) -> None:
    with pytest.raises(UnsupportedModel) as failure:
        Tokenizer.from_gguf({**byte_level_metadata("qwen2"), f"{G}pre": pre}, "model.gguf")
    assert (failure.value.setting, failure.value.value) == (f"{G}pre", pre)
    assert pre[:20] in str(failure.value)
    assert len(str(failure.value)) < 300


def test_no_two_rules_share_a_name() -> None:
    assert sum(len(row.names) for row in dict.fromkeys(PRETOKENIZERS.values())) == len(PRETOKENIZERS)


@pytest.mark.parametrize("text", ["a", "\ud800", "\x00" * 999, "\U0010ffff" * 99, "<0x41>", "<s>" * 500, " \n\t" * 300])
def test_any_string_can_be_encoded(text: str) -> None:
    for metadata in (byte_level_metadata("llama3"), sentence_piece_metadata(), spaced_metadata("gpt2", "gemma4")):
        tokenizer = Tokenizer.from_gguf(metadata, "x.gguf")
        assert tokenizer.encode(text)
        assert not any(map(tokenizer.is_control, tokenizer.encode(text)))


@pytest.mark.parametrize("value", [None, 3, 2.5, "text", [], [1], [1.5], ["a"], [True], [""] * 3, True])
@pytest.mark.parametrize("metadata", [byte_level_metadata("qwen2"), sentence_piece_metadata()], ids=["bytes", "spm"])
def test_any_value_under_any_key_raises_a_model_error_or_works(metadata: Metadata, value: object) -> None:
    for key in metadata:
        broken = {**metadata, key: value}
        try:
            tokenizer = Tokenizer.from_gguf(broken, "x.gguf")
        except ModelError as error:
            assert key in str(error) or "tokenizer.ggml" in str(error)  # noqa: PT017
        else:
            assert tokenizer.encode("a b", special=True, add_bos=True)
