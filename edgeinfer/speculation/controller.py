"""How long a draft should be: as long as a token's chance outweighs the time that its row takes.

The idea is the scheduler of DSpark (DeepSeek, 2026): of all drafted tokens of all requests take the likeliest, as many
as give the most expected tokens a second. A chance may come from counting, as here, or from a trained head: all that is
asked of a draft is its ``survival``.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.speculation.costs import MOST_ROWS
from edgeinfer.speculation.drafter import Draft

MARGIN = 0.03
"""The gain over plain decoding that a draft must promise."""


def admit(drafts: Sequence[Draft], sequences: int, ratios: Sequence[float], margin: float = MARGIN) -> list[int]:
    """How many tokens of each draft to verify in one step of ``sequences`` sequences, drafting or not.

    ``ratios``: the cost of a step by rows; that of a plain one is at ``sequences``. The best of all lengths is taken,
    or none where it is not better than plain decoding by ``margin``. A draft that is only forecast adds its price.
    """
    lengths = [0] * len(drafts)
    room = MOST_ROWS - sequences
    if room < 1:
        return lengths
    if len(drafts) == 1:
        chances, prices = drafts[0].survival, drafts[0].prices
    else:
        ranked = [
            (chance, -place, index) for index, draft in enumerate(drafts) for place, chance in enumerate(draft.survival)
        ]
        ranked.sort(reverse=True)
        chances = [chance for chance, _, _ in ranked]
        prices = ()
        if any(draft.prices for draft in drafts):
            prices = [drafts[index].prices[-place] if drafts[index].prices else 0.0 for _, place, index in ranked]
    count = _best_count(chances[:room], prices, sequences, ratios, margin)
    if len(drafts) == 1:
        return [count]
    for _, _, index in ranked[:count]:
        lengths[index] += 1
    return lengths


def _best_count(
    chances: Sequence[float], prices: Sequence[float], sequences: int, ratios: Sequence[float], margin: float
) -> int:
    expected, price = float(sequences), 0.0
    best, count = expected / ratios[sequences] * (1 + margin), 0
    for rows, chance in enumerate(chances, sequences + 1):
        expected += chance
        if prices:
            price += prices[rows - sequences - 1]
        if expected > best * (ratios[rows] + price):
            best, count = expected / (ratios[rows] + price), rows - sequences
    return count


def best_rate(draft: Draft, ratios: Sequence[float]) -> float:
    """Tokens in the time of a plain step that a draft gives at its best length, alone in a step."""
    expected, price, best = 1.0, 0.0, 0.0
    for place, chance in enumerate(draft.survival[: MOST_ROWS - 1]):
        expected += chance
        price += draft.prices[place] if draft.prices else 0.0
        best = max(best, expected / (ratios[place + 2] + price))
    return best


class Account:
    """What drafting has cost one request beyond plain decoding, in plain steps, and what follows from it.

    Debt raises the margin and then parks: no drafts for a while, twice as long each time. It is forgiven over some 512
    tokens, and so are gains, of which little can be saved up: no stretch of text may pay for a much worse one.
    """

    _WINDOW = 512
    _LIMIT_AT_FIRST, _LIMIT = 2.0, 6.0  # debt that parks, growing over a window; half of it makes careful
    _SAVED = 6.0  # gains that count later
    _CAREFUL = 0.1
    _SHORTEST, _LONGEST = 16, 1024  # tokens parked

    def __init__(self) -> None:
        self.debt = 0.0
        self.parked = 0  # tokens still to pass
        self.times_parked = 0
        self._tokens = 0

    @property
    def margin(self) -> float:
        return self._CAREFUL if self.debt > self._limit / 2 else MARGIN

    def settle(self, tokens: int, cost: float) -> None:
        """A step of speculation gave ``tokens`` and took as long as ``cost`` plain steps."""
        self.debt = max(-self._SAVED, self.debt + cost - tokens)
        if self.debt > self._limit and not self.parked:
            self.parked = min(self._SHORTEST << self.times_parked, self._LONGEST)
            self.times_parked = min(self.times_parked + 1, 6)

    def passed(self, tokens: int) -> None:
        """So many tokens came, in whatever way."""
        self._tokens += tokens
        self.debt *= (1 - 1 / self._WINDOW) ** tokens
        self.parked = max(0, self.parked - tokens)

    def unpark(self) -> None:
        self.parked = 0

    @property
    def _limit(self) -> float:
        share = min(self._tokens, self._WINDOW) / self._WINDOW
        return self._LIMIT_AT_FIRST + share * (self._LIMIT - self._LIMIT_AT_FIRST)
