"""One step's drafts: what each request offers, how much of it is worth verifying together, and what that is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgeinfer.speculation.controller import admit
from edgeinfer.speculation.costs import Terms
from edgeinfer.speculation.drafter import EMPTY, Draft
from edgeinfer.speculation.pilot import Pilot


@dataclass(slots=True)
class Candidate:
    """A decoding request in a step: ``pipelined``: its last token is still being computed."""

    pilot: Pilot | None
    room: int  # tokens it may still make beyond the next one
    pipelined: bool


@dataclass(slots=True)
class Now:
    """``plain``: seconds of a plain step, 0 while that is not known."""

    terms: Terms
    plain: float = 0.0

    @property
    def known(self) -> bool:
        return self.plain > 0

    @property
    def ratios(self) -> Sequence[float]:
        return self.terms.ratios

    def hopeful(self, candidate: Candidate, draft: Draft) -> bool:
        """Whether a draft might pay."""
        if candidate.pipelined and draft.tokens:
            return len(draft.survival) > 1 and draft.survival[1] >= self.terms.least_pipelined
        return bool(draft.survival) and draft.survival[0] >= self.terms.least


@dataclass(slots=True)
class Offer:
    candidate: Candidate
    pilot: Pilot
    draft: Draft
    length: int = 0  # tokens to verify


def settle_drafts(candidates: Sequence[Candidate], now: Now) -> None:
    """Gives each pilot its draft."""
    sequences = now.terms.sequences
    drafts = [each.pilot.offer(each.room, now) if each.pilot else EMPTY for each in candidates]
    if not any(map(now.hopeful, candidates, drafts)):
        return
    alone = candidates[0].pilot if sequences == 1 else None
    if alone is not None and alone.refused == (drafts[0], now.terms, alone.account.margin):
        return
    offers = [
        Offer(candidate, candidate.pilot, rest)
        for candidate, draft in zip(candidates, drafts, strict=True)
        if candidate.pilot and (rest := _rest(candidate, draft)).survival
    ]
    margin = max(offer.pilot.account.margin for offer in offers)
    _admit(offers, sequences, now, margin)
    if any(offer.length and offer.pilot.forecasting for offer in offers):
        for offer in offers:
            if offer.length and offer.pilot.forecasting and not offer.candidate.pipelined:
                offer.draft = offer.pilot.make(offer.length, now.plain)
        _admit(offers, sequences, now, margin)
    if alone is not None and not offers[0].length:
        alone.refused = (drafts[0], now.terms, margin) if alone.forecasting else None
        return
    leaves = _worth(offers, sequences, now) > now.terms.bubble
    for offer in offers:
        if not offer.candidate.pipelined:
            offer.pilot.choose(offer.length)
        elif offer.length and leaves:
            offer.pilot.leaving = True


def cost(ratios: Sequence[float], rows: int, sequences: int) -> float:
    """The usual cost of so many rows, in plain steps of so many sequences."""
    return ratios[min(rows, len(ratios) - 1)] / ratios[min(sequences, len(ratios) - 1)]


def _rest(candidate: Candidate, draft: Draft) -> Draft:
    """What can be verified: of a text in the pipeline, the first token is being computed already."""
    return Draft(draft.tokens[1:], draft.survival[1:]) if candidate.pipelined and draft.tokens else draft


def _admit(offers: Sequence[Offer], sequences: int, now: Now, margin: float) -> None:
    """Settles the lengths. Tokens that were drawn are verified as far as was settled before they were: a length that
    depended on them would favour some of them."""
    lengths = admit([offer.draft for offer in offers], sequences, now.ratios, margin)
    for offer, length in zip(offers, lengths, strict=True):
        offer.length = len(offer.draft.tokens) if offer.draft.proposals else length


def _worth(offers: Sequence[Offer], sequences: int, now: Now) -> float:
    """Plain steps that this one saves."""
    gained = sum(sum(offer.draft.survival[: offer.length]) for offer in offers)
    price = sum(sum(offer.draft.prices[: offer.length]) for offer in offers)
    return 1 + gained / sequences - price - cost(now.ratios, sequences + sum(each.length for each in offers), sequences)
