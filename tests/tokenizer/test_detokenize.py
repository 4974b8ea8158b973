"""Text that is made token by token equals the text of all tokens at once."""

from __future__ import annotations

import random
import unicodedata
from pathlib import Path

import pytest

from edgeinfer.formats.gguf import open_gguf
from edgeinfer.tokenizer.detokenize import Detokenizer
from edgeinfer.tokenizer.vocabulary import Tokenizer
from tests.tokenizer.strings import HAND, SEED
from tests.tokenizer.synthetic import byte_level_metadata, sentence_piece_metadata

SAMPLES = 20_000  # of the million that was run once


def assert_streams(tokenizer: Tokenizer, samples: int) -> None:
    """Half of the tokens are bytes or parts of characters, so that most sequences are no valid UTF-8."""
    print("seed", SEED)
    source = random.Random(SEED)
    spelled = [tokenizer.token_bytes(index) for index in range(tokenizer.vocab_size)]
    parts = [
        index for index, raw in enumerate(spelled) if len(raw) < 2 or raw.decode("utf-8", "ignore").encode() != raw
    ]
    assert len(parts) >= 128
    for _ in range(samples):
        ids = [
            source.choice(parts) if source.random() < 0.5 else source.randrange(tokenizer.vocab_size)
            for _ in range(source.choice((1, 2, 4, 8, 16)))
        ]
        special, continues = source.random() < 0.5, source.random() < 0.5
        stream = Detokenizer(tokenizer, special, continues)
        pieces = [*map(stream.add, ids), stream.finish()]
        assert "".join(pieces) == tokenizer.decode(ids, special, continues), ids


@pytest.mark.real_model
def test_streams_of_a_byte_level_vocabulary_equal_the_full_decode(smollm2_path: Path) -> None:
    with open_gguf(smollm2_path) as file:
        assert_streams(Tokenizer.from_gguf(file.metadata, file.path), SAMPLES)


@pytest.mark.real_model
def test_streams_of_a_sentence_piece_vocabulary_equal_the_full_decode(gemma3_path: Path) -> None:
    with open_gguf(gemma3_path) as file:
        assert_streams(Tokenizer.from_gguf(file.metadata, file.path), SAMPLES)


@pytest.mark.parametrize("metadata", [byte_level_metadata("qwen2"), sentence_piece_metadata()], ids=["bytes", "spm"])
def test_streams_of_synthetic_vocabularies_equal_the_full_decode(metadata: dict[str, object]) -> None:
    assert_streams(Tokenizer.from_gguf(metadata, "x.gguf"), SAMPLES)


@pytest.fixture(scope="module")
def spm() -> Tokenizer:
    return Tokenizer.from_gguf(sentence_piece_metadata(), "x.gguf")


def test_no_piece_ends_inside_a_character() -> None:
    tokenizer = Tokenizer.from_gguf(sentence_piece_metadata(space_prefix=False), "x.gguf")
    for text in (text for text in HAND if "<0x" not in text):  # scores may merge that into a byte
        stream = Detokenizer(tokenizer)
        pieces = [stream.add(index) for index in tokenizer.encode(text)]
        assert not any("\ufffd" in piece for piece in pieces) or "\ufffd" in text
        assert "".join(pieces) == text.replace("▁", " ")  # SentencePiece has one token for both
        assert stream.finish() == ""


def test_a_character_of_several_tokens_appears_with_its_last_one(spm: Tokenizer) -> None:
    ids = [1 + byte for byte in "\U0001f9ff".encode()]
    stream = Detokenizer(spm)
    assert [stream.add(index) for index in ids] == ["", "", "", "\U0001f9ff"]
    assert unicodedata.name(spm.decode(ids)) == "NAZAR AMULET"


def test_an_unfinished_character_is_replaced_at_the_end(spm: Tokenizer) -> None:
    stream = Detokenizer(spm)
    assert stream.add(1 + 0xE2) + stream.add(1 + 0x82) == ""
    assert stream.finish() == "\ufffd"
    stream = Detokenizer(spm)
    assert stream.add(1 + 0xE2) + stream.add(1 + 0x41) == "\ufffdA"


def test_the_space_before_a_text_is_dropped_once_unless_the_text_goes_on(spm: Tokenizer) -> None:
    ids = spm.encode("the the")
    assert spm.decode(ids) == "the the"
    assert spm.decode(ids, continues=True) == " the the"
    stream = Detokenizer(spm, continues=True)
    assert "".join(map(stream.add, ids)) == " the the"
    assert spm.decode([spm.control_tokens["<s>"], *ids], special=False) == " the the"


def test_control_tokens_show_their_text_only_when_asked(spm: Tokenizer) -> None:
    ids = [*spm.encode("a"), spm.control_tokens["<|im_end|>"]]
    assert spm.decode(ids) == "a<|im_end|>"
    assert spm.decode(ids, special=False) == "a"
