"""The ``tokenizer.*`` metadata of a GGUF file as ``tokenizer.json`` and its companion: the way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgeinfer.converted.vocabulary import CONTROL, NORMAL, SPLITS, UNUSED, USER_DEFINED
from edgeinfer.errors import UnsupportedModel
from edgeinfer.tokenizer.pretokenizers import PRETOKENIZERS

_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
_SPACE = "\u2581"


def tokenizer_files(metadata: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """File name -> JSON. Raises UnsupportedModel for a vocabulary or rules that tokenizer.json is not written for."""
    kind, tokens = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.tokens")
    if kind not in ("gpt2", "llama") or not isinstance(tokens, list):
        raise _unsupported("tokenizer.ggml.model", kind, "gpt2, llama")
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    added = [
        {"id": index, "content": text, "special": types[index] == CONTROL, **_FLAGS}
        for index, text in enumerate(tokens)
        if types[index] in (CONTROL, USER_DEFINED)
    ]
    vocab = {text: index for index, text in enumerate(tokens) if types[index] != UNUSED}
    spaced = kind == "llama"
    rules = _spaced(metadata, types, vocab) if spaced else _by_bytes(metadata)
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    model = {
        "type": "BPE", "dropout": None, "unk_token": tokens[unknown] if spaced and isinstance(unknown, int) else None,
        "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": spaced, "byte_fallback": spaced,
        "vocab": vocab, **rules.pop("model"),
    }  # fmt: skip
    settings, post = _settings(metadata, tokens)
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **rules}
    return {
        "tokenizer.json": {**whole, "post_processor": post, "model": model},
        "tokenizer_config.json": settings,
    }


def end_tokens(metadata: Mapping[str, Any]) -> list[int]:
    """The tokens that end an answer, as ``generation_config.json`` lists them."""
    found = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot"))
    return list(dict.fromkeys(each for each in found if isinstance(each, int)))


def _unsupported(key: str, value: object, supported: str) -> UnsupportedModel:
    return UnsupportedModel(f"{key}: {value!r:.40}; as tokenizer.json are written: {supported}", None, key, value)


def _by_bytes(metadata: Mapping[str, Any]) -> dict[str, Any]:
    name = str(metadata.get("tokenizer.ggml.pre", "default"))
    rule = PRETOKENIZERS.get(name)
    published = {known: pattern for pattern, known in SPLITS.items()}
    patterns = {known: PRETOKENIZERS[known].patterns for known in (*published, "gpt-2", "smollm")}
    found = next((known for known, each in patterns.items() if rule is not None and each == rule.patterns), None)
    if rule is None or found is None:
        raise _unsupported("tokenizer.ggml.pre", name, ", ".join(patterns))
    if found in published:
        split = {"type": "Split", "pattern": {"Regex": published[found]}, "behavior": "Isolated", "invert": False}
        steps: list[dict[str, Any]] = [split, {**_LEVEL, "use_regex": False}]
    else:
        steps = [{"type": "Digits", "individual_digits": True}] * (found == "smollm") + [{**_LEVEL, "use_regex": True}]
    before = steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}
    merges = [str(each).split(" ", 1) for each in metadata.get("tokenizer.ggml.merges", [])]
    return {
        "normalizer": None,
        "pre_tokenizer": before,
        "decoder": {**_LEVEL, "use_regex": True},
        "model": {"merges": merges, "ignore_merges": rule.ignore_merges},
    }


def _spaced(metadata: Mapping[str, Any], types: Sequence[int], vocab: Mapping[str, int]) -> dict[str, Any]:
    """SentencePiece's kind: a token is made by each pair of others that spell it, the highest scores first."""
    scores = metadata["tokenizer.ggml.scores"]
    spelled = {text for text, index in vocab.items() if types[index] == NORMAL}
    merges = [
        (text[:at], text[at:])
        for text in spelled
        for at in range(1, len(text))
        if text[:at] in spelled and text[at:] in spelled
    ]
    merges.sort(key=lambda pair: (-scores[vocab[pair[0] + pair[1]]], vocab[pair[0]], vocab[pair[1]]))
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True) is True
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    back = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    prepend = [{"type": "Prepend", "prepend": _SPACE}] if prefix else []
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, replace]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "model": {"merges": [list(pair) for pair in merges], "ignore_merges": False},
    }


def _settings(metadata: Mapping[str, Any], tokens: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """``tokenizer_config.json``, and what is put before a text."""
    found: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")):
        index = metadata.get(f"tokenizer.ggml.{ours}_token_id")
        if isinstance(index, int) and 0 <= index < len(tokens):
            found[f"{theirs}_token"] = tokens[index]
    rule = PRETOKENIZERS.get(str(metadata.get("tokenizer.ggml.pre", "")))
    usual = metadata.get("tokenizer.ggml.model") == "llama" or bool(rule and rule.add_bos)
    adds = bool(metadata.get("tokenizer.ggml.add_bos_token", usual)) and "bos_token" in found
    templates = {
        key.removeprefix("tokenizer.chat_template").lstrip(".") or "default": text
        for key, text in metadata.items()
        if key.startswith("tokenizer.chat_template")
    }
    if list(templates) == ["default"]:
        found["chat_template"] = templates["default"]
    elif templates:
        found["chat_template"] = [{"name": name, "template": text} for name, text in templates.items()]
    found["add_bos_token"] = adds
    if not adds:
        return found, None
    bos = str(found["bos_token"])
    first = {"SpecialToken": {"id": bos, "type_id": 0}}
    post = {
        "type": "TemplateProcessing",
        "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [first, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {bos: {"id": bos, "ids": [tokens.index(bos)], "tokens": [bos]}},
    }
    return found, post
