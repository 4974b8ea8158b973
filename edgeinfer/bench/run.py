"""From a model's file to a report: starts the engines, gives them what they need, and ends them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psutil

from edgeinfer.bench.checkpoint import checkpoint_bytes, write_checkpoint
from edgeinfer.bench.machine import this_machine
from edgeinfer.bench.mlxlm import check_installed as check_mlx_lm
from edgeinfer.bench.plan import OURS, Case, Plan, checked_peers
from edgeinfer.bench.probe import Probe
from edgeinfer.bench.remote import EngineFailed, RemoteEngine
from edgeinfer.bench.report import API, VARIANTS, Model, Report, build_lines, failures_by_engine
from edgeinfer.bench.session import Engine, Session, Step
from edgeinfer.bench.subject import Sample
from edgeinfer.bench.worker import Job
from edgeinfer.errors import EdgeInferError, MemoryLimit
from edgeinfer.formats.gguf import open_gguf
from edgeinfer.hub.header import describe

QUICK_NOTE = "a quick look: few rounds and short windows, so the figures are rough"
CHECKPOINT_NOTE = "mlx-lm ran a float32 checkpoint that the bench made of the file: it reads no GGUF"


def bench(
    path: Path,
    plan: Plan,
    against: Sequence[str] = (),
    *,
    name: str = "",
    asked: frozenset[str] = frozenset(),
    on_step: Callable[[Step], None] = lambda step: None,
) -> Report:
    """Measures a model on this package's engine and on others, in turn.

    asked: fields of the plan that must be measured as they are; what does not fit the model's context is an error in
    them and left out of the others. An engine that fails does so in its own column.
    Raises BadRequest, ModelError, or EdgeInferError when no engine could run.
    """
    engines = (OURS, *checked_peers(against))
    with open_gguf(path) as file:
        header = describe(file)
        model = Model(
            name=name or header.title or path.stem,
            file=path.name,
            architecture=header.architecture,
            quantization=header.quant,
            parameters=header.parameters,
            bytes=sum(info.nbytes for info in file.tensors.values()),
        )
    plan = replace(plan.within(header.context, asked), threads=plan.threads or psutil.cpu_count(logical=False) or 1)
    machine, device = this_machine(), _device()
    with ExitStack() as stack:
        running = _start(path, plan, engines, device, stack, on_step)
        probed = frozenset(next(iter(VARIANTS[each])) for each in engines)
        measured = Session(plan, running, probed=probed, on_step=on_step).run()
    failures = failures_by_engine(measured, engines)
    if len(failures) == len(engines):
        raise EdgeInferError(f"no engine could run {path.name}: {failures[OURS]}")
    return Report(
        model=model,
        machine=machine,
        plan=plan,
        device=device,
        engines=engines,
        failures=failures,
        lines=build_lines(measured, plan, engines),
        rounds=measured.rounds,
        reruns=measured.reruns,
        notes=_notes(plan, engines, failures),
    )


class Unavailable:
    """An engine that cannot even start, and why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def probe(self) -> Probe:
        raise EngineFailed(self.reason)

    def warm(self, case: Case) -> None:
        raise EngineFailed(self.reason)

    def sample(self, case: Case) -> Sample:
        raise EngineFailed(self.reason)


def _start(
    path: Path, plan: Plan, engines: Sequence[str], device: str, stack: ExitStack, on_step: Callable[[Step], None]
) -> dict[str, Engine]:
    """The engines of a session by name; those that cannot run say why when they are asked to."""
    job = Job(OURS, path, plan.threads, plan.context, plan.window, plan.patience, cpu=device == "cpu", kv=plan.kv)
    jobs = {OURS: job, API: replace(job, engine=API)}
    if "llama-cpp" in engines:
        jobs["llama-cpp flash"] = replace(job, engine="llama-cpp", flash=True)
        jobs["llama-cpp plain"] = replace(job, engine="llama-cpp", flash=False)
    running: dict[str, Engine] = {name: stack.enter_context(RemoteEngine(each)) for name, each in jobs.items()}
    if "mlx-lm" in engines:
        on_step(Step(0, 1, "writing the float32 checkpoint for mlx-lm"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgeinfer-bench-")))
        try:
            _prepare_mlx_lm(path, folder)
        except EdgeInferError as error:
            running["mlx-lm"] = Unavailable(str(error))
        else:
            with_checkpoint = replace(job, engine="mlx-lm", checkpoint=folder)
            running["mlx-lm"] = stack.enter_context(RemoteEngine(with_checkpoint))
    return running


def _prepare_mlx_lm(path: Path, folder: Path) -> None:
    check_mlx_lm()
    needed, available = checkpoint_bytes(path), psutil.virtual_memory().available
    if needed > available:
        raise MemoryLimit(
            f"its float32 weights take {needed >> 20} MiB of memory, {available >> 20} MiB are free", needed, available
        )
    write_checkpoint(path, folder)


def _notes(plan: Plan, engines: Sequence[str], failures: Mapping[str, str]) -> tuple[str, ...]:
    notes = [QUICK_NOTE] if plan.quick else []
    if "mlx-lm" in engines and "mlx-lm" not in failures:
        notes.append(CHECKPOINT_NOTE)
    return tuple(notes)


def _device() -> str:
    """What our engine computes on; llama.cpp is given the same."""
    from edgeinfer import ops

    return ops.device()
