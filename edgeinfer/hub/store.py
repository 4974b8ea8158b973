"""The folder that pull keeps models in: one folder a model, with its files and a manifest.

A model exists when its manifest does; the manifest is written last and deleted first.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from edgeinfer.errors import BadInput
from edgeinfer.hub.model import LocalModel, OnProgress, Plan, Progress
from edgeinfer.hub.names import safe_name
from edgeinfer.hub.partial import disk_errors, read_json, sync_folder, write_json

MANIFEST = "model.json"
_OURS = ("*.gguf", "*.safetensors", "*.json", "*.jinja", "*.part", "*.whl", "*.tmp")
_CONFIG = "config.json"  # of a model that is a folder


@dataclass(frozen=True, slots=True)
class StoredFile:
    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What ``model.json`` says. ``sources`` are the names the model was pulled by, ``origin`` the exact one."""

    name: str
    sources: tuple[str, ...]
    origin: str
    files: tuple[StoredFile, ...]
    revision: str = ""
    license: str = ""
    quant: str = ""
    architecture: str = ""
    pulled_at: str = ""
    version: int = 1


@dataclass(frozen=True, slots=True)
class Removed:
    """A model, or what was left of a pull, in the trash; ``freed`` bytes come back when that is emptied."""

    name: str
    freed: int
    folder: Path


class Store:
    """The models under one folder. Reading never opens weights."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def models(self) -> list[LocalModel]:
        """Every complete model, in order of name."""
        found = ((home, self._manifest(home)) for home in self._homes())
        return [_local(home, manifest) for home, manifest in found if manifest and _complete(home, manifest)]

    def leftovers(self) -> list[tuple[str, int]]:
        """Folders without a complete model, and bytes of unfinished pulls in the others: (name, bytes)."""
        rows = []
        for home in self._homes():
            manifest = self._manifest(home)
            whole = manifest is not None and _complete(home, manifest)
            kept = {file.name for file in manifest.files} if whole and manifest else set()
            size = sum(file.lstat().st_size for file in _our_files(home) if file.name not in kept)
            if size or not whole:
                rows.append((home.name, size))
        return rows

    def by_name(self, name: str) -> LocalModel | None:
        """The model of a name; upper and lower case are one, as they are on many disks."""
        return next((model for model in self.models() if model.name.casefold() == name.casefold()), None)

    def by_source(self, source: str) -> LocalModel | None:
        """The model that was pulled as source, or whose exact origin it is."""
        for home in self._homes():
            manifest = self._manifest(home)
            if manifest and source in (*manifest.sources, manifest.origin) and _complete(home, manifest):
                return _local(home, manifest)
        return None

    def home(self, plan: Plan) -> Path:
        """The folder for a plan: its name, or with a number where another model has that name already."""
        taken = {home.name.casefold(): home for home in self._homes()}
        name, number = safe_name(plan.name), 1
        while (home := taken.get(name.casefold())) is not None:
            manifest = self._manifest(home)
            if manifest is None or plan.origin == manifest.origin or plan.source in manifest.sources:
                return home
            number += 1
            name = f"{safe_name(plan.name)}-{number}"
        return self.folder / name

    @contextmanager
    def lock(self, name: str, on_progress: OnProgress | None) -> Iterator[None]:
        """Holds the one right to write the model ``name``; waits for it, or fails at once without on_progress."""
        path = self.folder / ".locks" / f"{safe_name(name).casefold()}.lock"
        lock = FileLock(path)
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(Timeout):
                lock.acquire(timeout=0)
        if not lock.is_locked:
            if on_progress is None:
                raise BadInput(f"{name} is being pulled by another process; wait for it or stop it")
            on_progress(Progress(0, None, name, waiting=True))
            with disk_errors(path):
                lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def adopt(self, plan: Plan) -> LocalModel | None:
        """The model of the plan's exact origin, which from now on is found by the plan's source too."""
        for home in self._homes():
            manifest = self._manifest(home)
            if manifest and manifest.origin == plan.origin and _complete(home, manifest):
                if plan.source not in manifest.sources:
                    with disk_errors(home / MANIFEST):
                        write_json(home / MANIFEST, asdict(replace(manifest, sources=(*manifest.sources, plan.source))))
                return _local(home, manifest)
        return None

    def commit(self, home: Path, plan: Plan, files: list[StoredFile], architecture: str) -> LocalModel:
        """Writes the manifest: from here on the model is there."""
        manifest = Manifest(
            name=home.name,
            sources=(plan.source,),
            origin=plan.origin,
            files=tuple(files),
            revision=plan.revision,
            license=plan.license,
            quant=plan.quant,
            architecture=architecture,
            pulled_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        with disk_errors(home / MANIFEST):
            write_json(home / MANIFEST, asdict(manifest))
            sync_folder(home)
        return _local(home, manifest)

    def set_aside(self, name: str) -> Removed | None:
        """Moves a model, or what an unfinished pull left, to the trash; None when there is no such name."""
        home = next((home for home in self._homes() if home.name.casefold() == name.casefold()), None)
        if home is None:
            return None
        with self.lock(home.name, None), disk_errors(home):
            self._trash.mkdir(exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=f"{home.name}.", dir=self._trash))
            files = [home / MANIFEST, *_our_files(home)]  # the manifest first: with it the model is gone
            for file in files:
                if file.is_symlink() or file.exists():
                    file.rename(folder / file.name)
            if not any(home.iterdir()):
                home.rmdir()
            freed = sum(file.lstat().st_size for file in _our_files(folder))
        return Removed(home.name, freed, folder)

    def put_back(self, removed: Removed) -> None:
        """Undoes ``set_aside``. Raises BadInput where the trash was emptied, or the name is in use again."""
        home = self.folder / removed.name
        with self.lock(removed.name, None), disk_errors(home):
            if not removed.folder.is_dir():
                raise BadInput(f"{removed.name} is gone for good; pull it again")
            if self._manifest(home) is not None:
                raise BadInput(f"{removed.name} was pulled again meanwhile; it is there")
            home.mkdir(exist_ok=True)
            for file in sorted(removed.folder.iterdir(), key=lambda file: file.name == MANIFEST):
                file.rename(home / file.name)
            removed.folder.rmdir()

    def empty_trash(self) -> None:
        """Deletes what was set aside, in this process and in earlier ones."""
        if self._trash.is_dir() and not self._trash.is_symlink():
            with disk_errors(self._trash):
                shutil.rmtree(self._trash)

    def remove(self, name: str) -> int | None:
        """Deletes a model or what an unfinished pull left. Returns the bytes freed, None when there is no such name."""
        removed = self.set_aside(name)
        if removed is None:
            return None
        with disk_errors(removed.folder):
            shutil.rmtree(removed.folder)
        return removed.freed

    @property
    def _trash(self) -> Path:
        return self.folder / ".trash"

    def _homes(self) -> list[Path]:
        try:
            entries = sorted(self.folder.iterdir(), key=lambda entry: entry.name.casefold())
        except OSError:
            return []
        # A link in place of a folder is not ours: nothing is read, written or deleted through it.
        return [entry for entry in entries if not entry.name.startswith(".") and _is_folder(entry)]

    def _manifest(self, home: Path) -> Manifest | None:
        path = home / MANIFEST
        with suppress(OSError, ValueError, KeyError, TypeError):
            if not path.is_symlink():
                return _parse(read_json(path))
        return None


def _parse(value: Any) -> Manifest:
    files = tuple(StoredFile(str(row["name"]), int(row["size"]), str(row["sha256"])) for row in value["files"])
    if value["version"] != 1 or not files or any("/" in file.name or "\\" in file.name for file in files):
        raise ValueError(value["version"])
    return Manifest(
        name=str(value["name"]),
        sources=tuple(str(source) for source in value["sources"]),
        origin=str(value["origin"]),
        files=files,
        revision=str(value["revision"]),
        license=str(value["license"]),
        quant=str(value["quant"]),
        architecture=str(value["architecture"]),
        pulled_at=str(value["pulled_at"]),
    )


def _complete(home: Path, manifest: Manifest) -> bool:
    paths = [(home / file.name, file.size) for file in manifest.files]
    return all(path.is_file() and not path.is_symlink() and path.stat().st_size == size for path, size in paths)


def _local(home: Path, manifest: Manifest) -> LocalModel:
    files = tuple(home / file.name for file in manifest.files)
    return LocalModel(
        path=home if any(file.name == _CONFIG for file in manifest.files) else files[0],
        name=home.name,
        origin="edgeinfer",
        files=files,
        size=sum(file.size for file in manifest.files),
        quant=manifest.quant,
        architecture=manifest.architecture,
        source=manifest.origin,
        revision=manifest.revision,
        license=manifest.license,
        sha256=tuple(file.sha256 for file in manifest.files),
    )


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _our_files(home: Path) -> list[Path]:
    found = (file for pattern in _OURS for file in home.glob(pattern) if file.name != MANIFEST)
    return [file for file in found if file.is_symlink() or file.is_file()]
