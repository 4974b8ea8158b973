"""``edgeinfer doctor``: what this machine can do, and which path each operation takes."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version

import click

from edgeinfer.cli.tables import facts, width
from edgeinfer.units import human_bytes

PACKAGES = ("edgeinfer", "mlx", "numpy", "tokenizers", "jinja2", "huggingface-hub", "llama-cpp-python")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object in place of a report.")
@click.option("--kernels", is_flag=True, help="Also run every Metal kernel against its twin, and time both.")
def command(as_json: bool, kernels: bool) -> None:
    """Report this machine, the backends and the path of each operation; nothing in it is secret."""
    report = examine()
    passed = True
    if kernels:
        report["Metal kernels"], passed = _kernels()
    if as_json:
        click.echo(json.dumps(report))
    else:
        _show(report)
    if not passed:
        raise click.exceptions.Exit(1)


def _show(report: dict[str, dict[str, str]]) -> None:
    for title, rows in report.items():
        click.echo(title)
        click.echo(facts(list(rows.items()), width(), indent="  "))


def examine() -> dict[str, dict[str, str]]:
    """The report: titles, and under each a name and what was found."""
    return {
        "machine": _machine(),
        "versions": {name: _version(name) for name in PACKAGES},
        "backends": _backends(),
        "operations on MLX": _operations(),
        "folders": _folders(),
    }


def _machine() -> dict[str, str]:
    import psutil

    memory = psutil.virtual_memory()
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    return {
        "system": f"{platform.system()} {platform.release()} on {platform.machine()}",
        "python": platform.python_version(),
        "cores": f"{cores} physical, {psutil.cpu_count()} logical",
        "memory": f"{human_bytes(memory.available)} of {human_bytes(memory.total)} available",
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _backends() -> dict[str, str]:
    from edgeinfer import ops
    from edgeinfer.backends.llama_library import gpu_offload, install_hint, installed, nvidia_present

    if not installed():
        fallback = f"not installed; {install_hint()}"
    elif gpu_offload():
        fallback = "installed, with GPU support"
    elif nvidia_present():
        fallback = f"installed, CPU only; an NVIDIA GPU is here, use it with: {install_hint()}"
    else:
        fallback = "installed, CPU only"
    return {"mlx": f"on {ops.device()}", "llama.cpp": fallback}


def _operations() -> dict[str, str]:
    from edgeinfer import ops

    return {**ops.paths(), "native path": ops.obstacle or "in use"}


def _kernels() -> tuple[dict[str, str], bool]:
    """What each kernel did on this GPU, and whether all passed."""
    from edgeinfer import ops

    if ops.device() != "metal":
        return {"none run": "no Metal GPU here; in our tests the kernels are emulated on the CPU"}, True
    from edgeinfer.cache import kernel_checks as page_checks
    from edgeinfer.ops import kernel_checks

    verdicts = [*kernel_checks.check(outputs=4096, columns=4096, repeats=20), *page_checks.check(repeats=20)]
    rows = {"loading": kernel_checks.loading()} | {verdict.kernel: str(verdict) for verdict in verdicts}
    return rows, all(verdict.passed for verdict in verdicts)


def _folders() -> dict[str, str]:
    from edgeinfer.settings import load_settings, model_folders

    settings = load_settings()
    found = {
        program: ", ".join(str(folder) for folder in folders if folder.is_dir()) or "none found"
        for program, folders in model_folders().items()
    }
    config = settings.paths.config_file
    return {
        "settings": f"{config}{'' if config.is_file() else ' (none; the defaults hold)'}",
        "models": str(settings.models_folder),
        **found,
    }
