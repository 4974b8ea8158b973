"""The process that one engine lives in: ``python -m edgeinfer.bench.worker``, JSON lines in and out.

The first line is the job. Then ``{"do": "probe" | "warm" | "sample", "case": [kind, size, depth]}``, each
answered by one line: ``{"ok": …}``, ``{"skipped": why}`` for one case, or ``{"failed": why}`` for good. An engine may
print what it likes: the answers have a channel of their own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Self, TextIO

from edgeinfer.errors import EdgeInferError

ENGINES = {
    "edgeinfer": "edgeinfer.bench.seam",
    "llm.generate": "edgeinfer.bench.api",
    "llama-cpp": "edgeinfer.bench.llama",
    "mlx-lm": "edgeinfer.bench.mlxlm",
}
"""The modules: each has ``prepare()`` and ``load(job)``, and ``load_tokenizer(path)`` or ``TOKENIZER_INCLUDED``."""


@dataclass(frozen=True, slots=True)
class Job:
    """An engine and how to load it. ``checkpoint`` is the folder that mlx-lm loads in place of ``model``."""

    engine: str
    model: Path
    threads: int
    context: int
    window: float
    patience: float
    flash: bool = False
    kv: str = "exact"
    cpu: bool = True
    checkpoint: Path | None = None

    def to_json(self) -> dict[str, Any]:
        return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        checkpoint = row["checkpoint"]
        return cls(**{**row, "model": Path(row["model"]), "checkpoint": Path(checkpoint) if checkpoint else None})


class Worker:
    """Obeys requests; loads the engine when it is first needed."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._measurer: Any = None

    def obey(self, request: Mapping[str, Any]) -> dict[str, Any]:
        from edgeinfer.bench.subject import NotMeasured, TooSlow

        try:
            return {"ok": self._do(request)}
        except (TooSlow, NotMeasured) as error:
            return {"skipped": str(error)}
        except EdgeInferError as error:
            return {"failed": str(error)}
        except MemoryError:
            return {"failed": "out of memory"}

    def _do(self, request: Mapping[str, Any]) -> dict[str, Any]:
        from edgeinfer.bench.plan import Case

        if request["do"] == "probe":
            from edgeinfer.bench.probe import probe

            return asdict(probe(self._job))
        if self._measurer is None:
            self._measurer = _measurer(self._job)
        case = Case(*request["case"])
        if request["do"] == "warm":
            self._measurer.warm(case)
            return {}
        return asdict(self._measurer.sample(case))


def _measurer(job: Job) -> Any:
    from edgeinfer.bench.busy import Guard
    from edgeinfer.bench.subject import Measurer

    module = import_module(ENGINES[job.engine])
    module.prepare()
    return Measurer(module.load(job), job.window, job.patience, Guard())


def serve(requests: TextIO, answers: TextIO, open_worker: Callable[[Job], Worker] = Worker) -> None:
    """Until the requests end."""
    worker = open_worker(Job.from_json(json.loads(requests.readline())))
    for line in requests:
        answers.write(json.dumps(worker.obey(json.loads(line))) + "\n")
        answers.flush()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with suppress(KeyboardInterrupt, BrokenPipeError):  # whoever asked has gone
        serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
