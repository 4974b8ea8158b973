"""Needles are hidden where they should be, and found by whoever can find them: models that are a line of Python."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from edgeinfer.backends.tape import TapeBackend
from edgeinfer.errors import BadRequest
from edgeinfer.evaluation.model import EvaluatedModel
from edgeinfer.evaluation.needle import Haystack, find_needles
from edgeinfer.tokenizer.vocabulary import Tokenizer
from tests.tiny import tiny_gguf


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return EvaluatedModel.of(tiny_gguf(tmp_path_factory.mktemp("m") / "m.gguf")).tokenizer


def repeating(reach: int, vocab_size: int) -> TapeBackend:
    """Continues as the last ``reach`` tokens went on where they came closest to the latest ones."""

    def tape(history: Sequence[int]) -> int:
        tokens = list(history[-reach:])
        for size in range(24, 0, -1):
            for start in range(len(tokens) - size - 1, -1, -1):
                if tokens[start : start + size] == tokens[-size:]:
                    return tokens[start + size]
        return 0

    return TapeBackend(tape, vocab_size=vocab_size, context=4096)


def test_what_remembers_everything_finds_every_needle(tokenizer: Tokenizer) -> None:
    backend = repeating(4096, tokenizer.vocab_size)
    cells = find_needles(backend, tokenizer, [1000, 2000], [0.0, 0.5, 1.0], needles=3)
    assert [(cell.length, cell.depth) for cell in cells] == [(n, d) for n in (1000, 2000) for d in (0.0, 0.5, 1.0)]
    assert {cell.found for cell in cells} == {1.0}
    assert not backend.open_sequences


def test_what_forgets_finds_the_late_ones_alone(tokenizer: Tokenizer) -> None:
    backend = repeating(700, tokenizer.vocab_size)
    cells = find_needles(backend, tokenizer, [2000], [0.0, 0.5, 1.0])
    assert [cell.found for cell in cells] == [0.0, 0.0, 1.0]
    [cell] = find_needles(backend, tokenizer, [2000], [1.0], needles=2)
    assert cell.found == 0.5  # the other lies half way


def test_a_haystack_is_as_long_as_asked_and_in_the_order_of_the_seed(tokenizer: Tokenizer) -> None:
    haystack = Haystack.of(tokenizer, 1)
    filled = haystack.filled(5000)
    longest = max(map(len, haystack.sentences))
    assert 5000 - longest <= sum(map(len, filled)) <= 5000
    assert Haystack.of(tokenizer, 1) == haystack
    assert Haystack.of(tokenizer, 2).sentences != haystack.sentences


@pytest.mark.parametrize(("lengths", "needles", "message"), [([5000], 1, "context of 4096"), ([100], 1, "expected 128"),
                                                           ([1000], 9, "expected 1 to 8")])  # fmt: skip
def test_what_cannot_be_is_refused(tokenizer: Tokenizer, lengths: list[int], needles: int, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        find_needles(repeating(10, tokenizer.vocab_size), tokenizer, lengths, needles=needles)
