"""Small GGUF files that hold a vocabulary and nothing else; llama.cpp loads them with ``vocab_only``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import gguf
from tokenizers import models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Trained

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
