"""The public interface as a subject of the bench: what a user's program sees of the engine's speed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from edgeinfer.bench.plan import Kind
from edgeinfer.bench.subject import random_tokens
from edgeinfer.llm import LLM
from edgeinfer.llm import load as load_llm

if TYPE_CHECKING:
    from edgeinfer.bench.worker import Job


def prepare() -> None:
    """Nothing: this subject is never asked how long it takes to load."""


def load(job: Job) -> ApiSubject:
    """``edgeinfer.load`` with the model of a job."""
    return ApiSubject(load_llm(str(job.model), backend="mlx", context=job.context, threads=job.threads, kv=job.kv))


class ApiSubject:
    """``llm.generate`` with the greedy sampler. A prompt is computed once; then its prefix is reused."""

    kinds: ClassVar[tuple[Kind, ...]] = ("decode",)
    computes_depth: ClassVar[bool] = True

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._tokens = random_tokens(llm.info.context, llm.info.vocab_size)
        self._depth = 1

    def hold(self, depth: int) -> None:
        self._depth = max(1, depth)

    def decode(self, count: int) -> float:
        """From the first token to the last, as ``reply.timings`` has it."""
        prompt = self._tokens[: self._depth]
        options = {"max_tokens": count + 1, "temperature": 0.0, "ignore_eos": True}
        reply = self._llm.generate(prompt, speculation=False, **options)  # plain decoding, as the peer does
        return count / reply.timings.decode_rate

    def prefill(self, length: int) -> float:
        raise TypeError("llm.generate is measured at decoding")

    def verify(self, rows: int) -> float:
        raise TypeError("llm.generate is measured at decoding")

    def close(self) -> None:
        self._llm.close()
