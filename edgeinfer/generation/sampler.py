"""One request's way from logits to tokens: on the host, or on the device without the host reading anything."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeinfer.errors import EdgeInferError
from edgeinfer.generation import sampling
from edgeinfer.generation.penalties import Breakers, bias_row, dry, penalize, penalizes
from edgeinfer.generation.sampling import Purpose, uniform
from edgeinfer.generation.structured import Constraint
from edgeinfer.speculation.drafter import Proposal
from edgeinfer.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Choice:
    """A token, and where asked for its logprob and the most likely (id, logprob) pairs, before any filter."""

    id: int
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Samples for one request. A token depends on the logits, the seed and the tokens before it, on nothing else."""

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        breakers: Breakers | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        self.params = params
        self.seed = secrets.randbits(64) if params.seed is None else params.seed
        self.needs_host = (
            penalizes(params)
            or params.dry_multiplier > 0
            or params.mirostat
            or params.logprobs is not None
            or constraint is not None
        )
        self._constraint = constraint
        self._bias = bias_row(params.logit_bias, vocab_size) if params.logit_bias else None
        self._device_bias: Any = None
        self._breakers = breakers or {}
        self._mirostat_limit = 2 * params.mirostat_tau

    @property
    def finished(self) -> bool:
        """The grammar lets nothing follow."""
        return self._constraint is not None and self._constraint.finished

    def on_device(self, xp: Any, row: Any, position: int) -> Any:
        """The token for ``position`` from (V,) logits, as a lazy (1,) int32 array; -1 where they are not finite.

        Only for a sampler that does not need the host.
        """
        row = row.astype(xp.float32)
        if self.params.greedy and self._bias is None:
            from edgeinfer import ops  # with mlx, which only such a backend has imported by now

            return ops.greedy(row.reshape(1, -1))
        if self._bias is not None:
            if self._device_bias is None:
                self._device_bias = xp.array(self._bias)
            row = row + self._device_bias
        token = self._sample_natively(row, position)
        return sampling.choose(xp, row, self.params, self.seed, position) if token is None else token

    def _sample_natively(self, row: Any, position: int) -> Any:
        """What ``sampling.choose`` gives, as one operation; None where that has no native form."""
        params = self.params
        if params.greedy or not params.top_k or params.top_n_sigma > 0:
            return None
        from edgeinfer import ops  # with mlx, which only such a backend has imported by now

        return ops.sample(
            row,
            sampling.uniform(self.seed, position),
            top_k=params.top_k,
            temperature=params.temperature,
            typical_p=params.typical_p,
            top_p=params.top_p,
            min_p=params.min_p,
            xtc_threshold=params.xtc_threshold if sampling.crosses(params, self.seed, position) else -1,
        )

    def greedy_rows(self, xp: Any, rows: Any) -> Any:
        """What ``on_device`` gives for each of (L, V) logits with the greedy sampler: (L,) int32."""
        rows = rows.astype(xp.float32)
        if self._bias is None:
            from edgeinfer import ops  # with mlx, which only such a backend has imported by now

            return ops.greedy(rows)
        rows = rows + xp.array(self._bias)
        return xp.where(xp.isfinite(xp.max(rows, axis=-1)), xp.argmax(rows, axis=-1).astype(xp.int32), -1)

    def on_host(
        self, row: npt.NDArray[np.float32], history: Sequence[int], drawn: tuple[int, Proposal] | None = None
    ) -> Choice:
        """The token that follows ``history``, from (V,) logits. Raises where they are not finite.

        ``drawn``: a drafted token and the distribution that it was drawn from; it is taken as often as it can be.
        """
        position = len(history)
        if not np.isfinite(row.max()):
            raise not_finite(position)
        logits = self._penalized(row, history)
        if drawn is None or self.params.mirostat or self.params.greedy:
            token = self._sample(logits, position)
        else:
            token = self._accepted_or_other(logits, position, *drawn)
        if self._constraint is not None:
            self._constraint.take(token)
        if self.params.logprobs is None:
            return Choice(token)
        return _with_logprobs(row, token, self.params.logprobs)

    def _penalized(self, row: npt.NDArray[np.float32], history: Sequence[int]) -> npt.NDArray[np.float32]:
        params = self.params
        logits = row.copy() if self._bias is None else row + self._bias
        if penalizes(params):
            penalize(logits, np.asarray(history[-params.penalty_window :]), params)
        if params.dry_multiplier > 0:
            dry(logits, np.asarray(history[-params.dry_window :]), params, self._breakers)
        if not np.isfinite(logits.max()):
            raise EdgeInferError(f"no token may come at place {len(history)}: logit_bias rules every one out")
        if self._constraint is not None:
            logits = self._constraint.mask(logits)
            if not np.isfinite(logits.max()):
                raise EdgeInferError(f"no token may come at place {len(history)}: grammar and logit_bias exclude each")
        return logits

    def _accepted_or_other(self, logits: npt.NDArray[np.float32], position: int, token: int, proposal: Proposal) -> int:
        """The drafted token with chance min(1, p / q), else one from what p has more of than q (Leviathan et al., 2023,
        algorithm 1)."""
        chances = sampling.distribution(logits, self.params, self.seed, position)
        if uniform(self.seed, position, Purpose.ACCEPT) * proposal[token] < chances[token]:
            return token
        rest = np.maximum(chances - proposal, 0)
        order = np.argsort(-rest)
        if not rest[order[0]]:  # the two differ by rounding alone
            return self._sample(logits, position)
        with np.errstate(divide="ignore"):
            best = np.log(rest[order])
        return int(order[sampling.draw(np, best, uniform(self.seed, position, Purpose.RESIDUAL))])

    def _sample(self, logits: npt.NDArray[np.float32], position: int) -> int:
        if not self.params.mirostat or self.params.greedy:
            return int(sampling.choose(np, logits, self.params, self.seed, position)[0])
        token, surprise = sampling.mirostat(np, logits, self.params, self.seed, position, self._mirostat_limit)
        self._mirostat_limit -= self.params.mirostat_eta * (float(surprise) - self.params.mirostat_tau)
        return int(token)


class Guesser:
    """Chooses for a drafter as ``sampler`` would, but for what that one knows of the text."""

    def __init__(self, sampler: Sampler, vocab_size: int) -> None:
        self._params, self._seed = sampler.params, sampler.seed
        self._vocab_size = vocab_size

    def point(self, row: npt.NDArray[np.float32], position: int) -> tuple[int, float]:
        """See ``Chooser``: the sampler's own random number, so that two models that agree choose alike."""
        row = row[: self._vocab_size]
        if self._params.greedy:
            token = int(row.argmax())
            return token, float(1 / np.exp(row - row[token]).sum())
        best, ids = sampling.candidates(np, row, self._params, self._seed, position)
        place = int(sampling.draw(np, best, uniform(self._seed, position)))
        return int(ids[place]), float(sampling.softmax(np, best)[place])

    def drawn(self, row: npt.NDArray[np.float32], position: int) -> tuple[int, Proposal]:
        """See ``Chooser``: the distribution is (V,) of this model, whatever the drafter's own V."""
        row = row[: self._vocab_size]
        best, ids = sampling.candidates(np, row, self._params, self._seed, position)
        proposal = np.zeros(self._vocab_size, np.float32)
        proposal[ids] = sampling.softmax(np, best)
        return int(ids[sampling.draw(np, best, uniform(self._seed, position, Purpose.DRAFT))]), proposal


def not_finite(position: int) -> EdgeInferError:
    return EdgeInferError(
        f"the logits for token {position} are not finite numbers: the weights may be damaged, fetch the model again "
        "or try another backend"
    )


def _with_logprobs(row: npt.NDArray[np.float32], token: int, count: int) -> Choice:
    best = row.max()
    total = float(best) + math.log(np.exp(row - best).sum(dtype=np.float64))
    ids = sampling.top_k(np, row, count)[1].tolist() if count else []
    return Choice(token, float(row[token]) - total, tuple((id_, float(row[id_]) - total) for id_ in ids))
