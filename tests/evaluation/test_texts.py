"""Windows are cut as llama-perplexity cuts them; our own texts fill four."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.errors import BadRequest
from edgeinfer.evaluation.model import EvaluatedModel
from edgeinfer.evaluation.texts import own_texts, windows
from tests.tiny import tiny_gguf


def test_a_text_is_cut_without_gaps_and_begins_each_window_as_the_model_wants(tmp_path: Path) -> None:
    plain = EvaluatedModel.of(tiny_gguf(tmp_path / "a.gguf", metadata={"tokenizer.ggml.add_bos_token": False}))
    begun = EvaluatedModel.of(tiny_gguf(tmp_path / "b.gguf", metadata={"tokenizer.ggml.add_bos_token": True}))
    text = "the one and the other " * 30
    tokens = plain.tokenizer.encode(text)
    cut = windows(text, plain.tokenizer, 16)
    assert [token for window in cut for token in window] == tokens[: len(cut) * 16]
    assert len(tokens) - len(cut) * 16 < 16
    assert windows(text, plain.tokenizer, 16, most=2) == cut[:2]
    first = begun.tokenizer.bos_id
    shifted = [first, *tokens]
    for index, window in enumerate(windows(text, begun.tokenizer, 16)):
        assert window == [first, *shifted[16 * index + 1 : 16 * index + 16]]


def test_a_text_that_fills_no_window_is_refused(tmp_path: Path) -> None:
    model = EvaluatedModel.of(tiny_gguf(tmp_path / "m.gguf"))
    with pytest.raises(BadRequest, match="give a longer text or --window"):
        windows("the end", model.tokenizer)
    with pytest.raises(BadRequest, match="2 tokens or more"):
        windows("the end", model.tokenizer, 1)


@pytest.mark.real_model
def test_our_own_texts_fill_four_windows_of_512(smollm2_path: Path, gemma3_path: Path) -> None:
    for path in (smollm2_path, gemma3_path):
        tokenizer = EvaluatedModel.of(path).tokenizer
        assert [len(window) for window in windows(None, tokenizer)] == [512] * 4
        assert [len(window) for window in windows(None, tokenizer, 2048)] == [2048]
        for text in own_texts():
            assert len(tokenizer.encode(text)) > 512
