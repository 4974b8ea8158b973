"""Small GGUF files that hold a vocabulary and nothing else; llama.cpp loads them with ``vocab_only``."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import gguf
from tokenizers import Tokenizer as Trained
from tokenizers import models, pre_tokenizers, trainers

from edgeinfer.tokenizer.bytelevel import ALPHABET
from tests.tokenizer.strings import HAND, generated

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPECIALS = {
    "<|im_start|>": CONTROL, "<|im_end|>": CONTROL, "<s>": CONTROL, "</s>": CONTROL, "<|unused_7|>": CONTROL,
    "<think>": USER_DEFINED, "<thinking>": USER_DEFINED, "  ": USER_DEFINED, "king> x": USER_DEFINED,
    "<mask>": CONTROL, "<fim_prefix>": NORMAL, "[unk]": UNKNOWN, "<spare>": UNUSED,
}  # fmt: skip


@cache
def byte_level_arrays() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tokens and merges trained on whole strings, so that merges reach across every border that a rule may set."""
    trained = Trained(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=3000, initial_alphabet=ALPHABET, show_progress=False, min_frequency=2)
    texts = [*HAND, *generated(1500, seed=1)]
    trained.train_from_iterator([text for text in texts if not any(map(text.__contains__, SPECIALS))], trainer)
    vocabulary = trained.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True).pre_tokenize_str
    whole = dict.fromkeys(word for text in HAND for word, _ in cut(text))
    tokens += [word for word in whole if word not in vocabulary and word not in SPECIALS]  # tokens that no merge makes
    merges = json.loads(trained.to_str())["model"]["merges"]
    return tuple(tokens), tuple(map(" ".join, merges))


def byte_level_metadata(pre: str) -> dict[str, object]:
    words, merges = byte_level_arrays()
    tokens = [*words, *SPECIALS]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL] * len(words) + list(SPECIALS.values()),
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.bos_token_id": tokens.index("<s>"),
        "tokenizer.ggml.eos_token_id": tokens.index("</s>"),
    }


@cache
def spaced_arrays() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tokens and merges on characters, spaces as U+2581, and runs of newlines that no merge makes."""
    trained = Trained(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=2500, limit_alphabet=600, show_progress=False, min_frequency=2)
    texts = [text for text in (*HAND, *generated(1500, seed=1)) if not any(map(text.__contains__, SPECIALS))]
    lines = (line for text in texts for line in re.split("[\n\0]", text.replace(" ", "▁")))  # C cuts tokens at NUL
    trained.train_from_iterator(lines, trainer)
    vocabulary = trained.get_vocab()
    newlines = ["\n" * count for count in (1, 2, 3, 4, 7)]
    tokens = [*(f"<0x{byte:02X}>" for byte in range(256)), *newlines, *sorted(vocabulary, key=vocabulary.__getitem__)]
    merges = json.loads(trained.to_str())["model"]["merges"]
    return tuple(dict.fromkeys(tokens)), tuple(map(" ".join, merges))


def spaced_metadata(model: str, pre: str) -> dict[str, object]:
    words, merges = spaced_arrays()
    tokens = [*words, *SPECIALS]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [BYTE] * 256 + [NORMAL] * (len(words) - 256) + list(SPECIALS.values()),
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.bos_token_id": tokens.index("<s>"),
        "tokenizer.ggml.eos_token_id": tokens.index("</s>"),
    }


def sentence_piece_metadata(seed: int = 3, space_prefix: bool = True) -> dict[str, object]:
    """Tokens whose scores are few and random: ties everywhere, and tokens whose parts are no tokens."""
    words, _ = spaced_arrays()
    source = random.Random(seed)
    kept = [word for word in words[261:] if len(word) > 1 or source.random() < 0.9]
    tokens = ["<unk>", *words[:256], *kept, *SPECIALS]
    kinds = [UNKNOWN] + [BYTE] * 256 + [NORMAL] * len(kept) + list(SPECIALS.values())
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": [float(-source.randint(0, 20)) for _ in tokens],
        "tokenizer.ggml.add_space_prefix": space_prefix,
        "tokenizer.ggml.bos_token_id": tokens.index("<s>"),
        "tokenizer.ggml.eos_token_id": tokens.index("</s>"),
        "tokenizer.ggml.unknown_token_id": 0,
    }


def write_vocabulary(path: Path, metadata: Mapping[str, object]) -> Path:
    """A GGUF file of metadata alone."""
    writer = gguf.GGUFWriter(path, str(metadata["general.architecture"]))
    for key, value in metadata.items():
        if key == "general.architecture":
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            assert isinstance(value, Sequence)
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def byte_pairs_metadata(pre: str) -> dict[str, object]:
    """Every pair of bytes is a token, pairs with ASCII first, so that each border between words shows in the ids."""
    pairs = [(a, b) for a in range(256) for b in range(256)]
    pairs.sort(key=lambda pair: -sum(byte < 128 for byte in pair) if min(pair) < 128 else 0)
    merges = [f"{ALPHABET[a]} {ALPHABET[b]}" for a, b in pairs]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*ALPHABET, *(merge.replace(" ", "") for merge in merges)],
        "tokenizer.ggml.merges": merges,
    }
