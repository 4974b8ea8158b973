"""Windows computed side by side, in pieces that are small enough to hold, score as they would at once."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.backends.tape import TapeBackend
from edgeinfer.errors import BadRequest
from edgeinfer.evaluation import lockstep
from edgeinfer.evaluation.lockstep import Side
from edgeinfer.evaluation.measures import divergences, perplexity
from edgeinfer.evaluation.scores import Perplexity, likelihood

VOCABULARY = 64
WINDOWS = np.random.default_rng(0).integers(0, VOCABULARY, (5, 48)).tolist()


def scored_at_once(first: int) -> Perplexity:
    """Each window in one step of its own."""
    found = []
    for window in WINDOWS:
        backend = TapeBackend(vocab_size=VOCABULARY)
        [logits] = backend.step([lockstep.Chunk(backend.open(), window, "all")])
        found.append(likelihood(logits[first:-1], np.array(window[first + 1 :])))
    return Perplexity.of(np.concatenate(found))


@pytest.mark.parametrize("held", [1, 3, 20, 1000])
def test_pieces_change_nothing_and_hold_no_more_than_they_may(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep, "LOGITS_BYTES", held * 4 * VOCABULARY)
    monkeypatch.setattr(lockstep, "LEAST_PIECE", 4)
    monkeypatch.setattr(lockstep, "UNSCORED_PIECE", 10)
    backend = TapeBackend(vocab_size=VOCABULARY)
    seen: list[int] = []
    step = backend.step

    def counted(chunks):  # type: ignore[no-untyped-def]
        logits = step(chunks)
        seen.append(sum(map(len, logits)))
        return logits

    monkeypatch.setattr(backend, "step", counted)
    progress: list[tuple[int, int]] = []
    found = perplexity(Side("tape", backend), WINDOWS, lambda *at: progress.append(at))
    expected = scored_at_once(24)
    assert (found.ppl, found.error, found.tokens) == pytest.approx((expected.ppl, expected.error, 5 * 23))
    assert max(seen) <= held
    assert sum(seen) == 5 * 24
    assert progress[-1] == (5 * 48, 5 * 48)
    assert progress == sorted(progress)
    assert not backend.open_sequences


def test_several_windows_share_a_step() -> None:
    backend = TapeBackend(vocab_size=VOCABULARY)
    perplexity(Side("tape", backend), WINDOWS)
    assert backend.sizes == [5, 5]  # the half that is only read, and the half that counts


def test_a_side_is_as_far_from_itself_as_nothing_and_far_from_another() -> None:
    one, other = TapeBackend(vocab_size=VOCABULARY), TapeBackend([3] * 99, vocab_size=VOCABULARY)
    same, far = divergences(Side("a", one), [Side("b", one), Side("c", other)], WINDOWS, 0)
    assert (same.mean, same.top, same.ppl_ratio) == (0, 1, 1)
    assert far.mean > 0.5
    assert far.tokens == same.tokens == 5 * 47


def test_different_vocabularies_are_refused() -> None:
    sides = [Side("a", TapeBackend(vocab_size=64)), Side("b", TapeBackend(vocab_size=65))]
    with pytest.raises(BadRequest, match="a 64, b 65 tokens"):
        divergences(sides[0], sides[1:], WINDOWS, 0)
