"""The near end of a worker process."""

from __future__ import annotations

import contextlib
import json
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

from edgeinfer.bench.plan import Case
from edgeinfer.bench.probe import Probe
from edgeinfer.bench.subject import Sample
from edgeinfer.bench.worker import Job
from edgeinfer.sanitize import sanitize

_ANSWER_SECONDS = 900.0  # a worker that has been silent for so long is given up


class EngineFailed(Exception):
    """The engine is gone for the rest of the run."""


class CaseSkipped(Exception):
    """The engine does not do this case, the others it may."""


class RemoteEngine:
    """One engine in a process that starts when it is first used. Close it, or use it as a context manager."""

    def __init__(self, job: Job, answer_seconds: float = _ANSWER_SECONDS) -> None:
        self.job = job
        self._answer_seconds = answer_seconds
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  # closed with the process

    def probe(self) -> Probe:
        """Loads the engine in a process of its own that ends with this call."""
        with RemoteEngine(self.job, self._answer_seconds) as fresh:
            return Probe(**fresh._ask({"do": "probe"}))

    def warm(self, case: Case) -> None:
        self._ask({"do": "warm", "case": _row(case)})

    def sample(self, case: Case) -> Sample:
        return Sample(**self._ask({"do": "sample", "case": _row(case)}))

    def close(self) -> None:
        """Ends the process. Twice is once."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The worker's answer. Raises CaseSkipped or EngineFailed."""
        process = self._process or self._start()
        assert process.stdout is not None
        self._tell(process, request)
        ready, _, _ = select.select([process.stdout], [], [], self._answer_seconds)
        if not ready:
            raise EngineFailed(f"no answer within {self._answer_seconds:.0f} s")
        line = process.stdout.readline()
        if not line:
            raise EngineFailed(self._last_words(process.wait()))
        answer = json.loads(line)
        if "failed" in answer:
            raise EngineFailed(answer["failed"])
        if "skipped" in answer:
            raise CaseSkipped(answer["skipped"])
        found: dict[str, Any] = answer["ok"]
        return found

    def _start(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "edgeinfer.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # Ctrl-C is for us to handle: we end it
        )
        self._tell(self._process, self.job.to_json())
        return self._process

    def _tell(self, process: subprocess.Popen[str], row: Mapping[str, Any]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: reading its answer says so
            process.stdin.write(json.dumps(row) + "\n")
            process.stdin.flush()

    def _last_words(self, code: int) -> str:
        """Why a process ended that should not have."""
        if code == -signal.SIGKILL:
            return "killed by the system, most likely for want of memory"
        if code < 0:
            return f"crashed with {signal.Signals(-code).name}"
        self._errors.seek(0)
        lines = [line for line in self._errors.read().splitlines() if line.strip()]
        reason = sanitize(lines[-1].strip(), single_line=True) if lines else "it gave no reason"
        return f"ended with exit code {code}: {reason[:200]}"


def _row(case: Case) -> list[Any]:
    return list(asdict(case).values())
