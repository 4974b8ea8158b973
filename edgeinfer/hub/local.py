"""Models that other programs keep on this machine, found by how each lays out its folder. Only read, never changed."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from edgeinfer.converted.folder import CONFIG, is_folder_model
from edgeinfer.errors import ModelError, ModelNotFound
from edgeinfer.hub.model import LocalModel
from edgeinfer.hub.names import Variant, choose, variants
from edgeinfer.hub.partial import read_json

_DEPTH = 5  # folders below a root
_OLLAMA_MODEL = "application/vnd.ollama.image.model"
_OLLAMA_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


def find_models(folders: Mapping[str, list[Path]]) -> list[LocalModel]:
    """Models in the folders of other programs, by program; a name that several share is told apart by its folder."""
    found: dict[Path, LocalModel] = {}
    for program, roots in folders.items():
        for root in roots:
            for model in _FINDERS[program](root):
                found.setdefault(model.path.resolve(), model)
    names = Counter(model.name.casefold() for model in found.values())
    return [
        replace(model, name=_longer(model)) if names[model.name.casefold()] > 1 else model for model in found.values()
    ]


def in_folder(folder: Path) -> list[LocalModel]:
    """Models in a plain folder and the folders in it."""
    if not folder.is_dir():
        raise ModelNotFound(f"{folder}: no such folder")
    return list(_models(folder, "file"))


def at_path(path: Path) -> LocalModel:
    """The model that a path means: a GGUF file, a shard, or a folder with one model."""
    try:
        return _at_path(path)
    except OSError as error:  # no permission, or a name that no disk can have
        raise ModelError(f"{str(path)[:200]}: {error.strerror}", path) from None


def _at_path(path: Path) -> LocalModel:
    if path.is_dir():
        found = _variants_of(path, path.iterdir())
        if not found and is_folder_model(path):
            return _folder_model(path, "file")
        if len(found) > 1:
            names = ", ".join(one.files[0] for one in found[:5])
            raise ModelError(f"{path} holds {len(found)} models; name one: {names}", path)
        chosen = choose(found, "", str(path))
    elif path.is_file():
        siblings = path.parent.iterdir() if re.search(r"-\d{5}-of-\d{5}\.gguf$", path.name, re.I) else [path]
        found = [one for one in _variants_of(path.parent, siblings) if path.name in one.files]
        if not found:  # no .gguf suffix: the reader will say what it is
            return LocalModel(path, path.name, "file", (path,), path.stat().st_size)
        chosen = choose(found, path.name, str(path.parent))
    else:
        if os.path.lexists(path):
            raise ModelNotFound(f"{path}: {_what_is_there(path)}; give a regular .gguf file")
        near = _nearest_files(path)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise ModelNotFound(f"{path}: no such file{hint}", near)
    return _model(path if path.is_dir() else path.parent, chosen, "file")


def cached(repo: str, selector: str, revision: str, roots: list[Path]) -> LocalModel | None:
    """The model of an ``hf:`` source in the Hugging Face cache, if it is there without a doubt."""
    for root in roots:
        home = root / f"models--{repo.replace('/', '--')}"
        snapshots = _snapshots(home)
        if revision:
            wanted = (revision, _reference(home, revision))
            snapshots = [snapshot for snapshot in snapshots if snapshot.name in wanted]
        for snapshot in snapshots[:1]:
            found = [one for one in _variants_of(snapshot, _walk(snapshot)) if not one.missing]
            with suppress(ModelError):
                if found and (selector or len(found) == 1):
                    return _hugging_face_model(home, snapshot, choose(found, selector, repo))
            if not found and not selector and snapshot in _folders(snapshot):
                return _hugging_face_folder(home, snapshot)
    return None


def _hugging_face(root: Path) -> Iterator[LocalModel]:
    for home in sorted(root.glob("models--*")):
        for snapshot in _snapshots(home):
            for variant in _variants_of(snapshot, _walk(snapshot)):
                if not variant.missing:
                    yield _hugging_face_model(home, snapshot, variant)
            if snapshot in _folders(snapshot):
                yield _hugging_face_folder(home, snapshot)


def _hugging_face_model(home: Path, snapshot: Path, variant: Variant) -> LocalModel:
    repo = home.name.removeprefix("models--").replace("--", "/", 1)
    model = _model(snapshot, variant, "hugging-face")
    return replace(model, source=f"hf:{repo}:{variant.files[0]}", revision=snapshot.name)


def _hugging_face_folder(home: Path, snapshot: Path) -> LocalModel:
    repo = home.name.removeprefix("models--").replace("--", "/", 1)
    model = _folder_model(snapshot, "hugging-face")
    return replace(model, name=repo.rpartition("/")[2], source=f"hf:{repo}", revision=snapshot.name)


def _snapshots(home: Path) -> list[Path]:
    """The snapshots of a cached repository, that of its main branch first."""
    main = _reference(home, "main")
    found = [path for path in (home / "snapshots").glob("*") if path.is_dir()]
    return sorted(found, key=lambda path: (path.name != main, path.name))


def _reference(home: Path, name: str) -> str:
    with suppress(OSError, ValueError):
        return (home / "refs" / name).read_text(encoding="utf-8").strip()
    return ""


def _lm_studio(root: Path) -> Iterator[LocalModel]:
    return _models(root, "lm-studio")


def _ollama(root: Path) -> Iterator[LocalModel]:
    """Manifests lie at manifests/HOST/NAMESPACE/NAME/TAG and name a blob by its digest."""
    for path in _walk(root / "manifests"):
        parts = path.relative_to(root / "manifests").parts
        digest = _ollama_digest(path)
        blob = root / "blobs" / f"sha256-{digest}"
        if len(parts) < 3 or not digest or not blob.is_file():
            continue
        name = _ollama_name(parts)
        size = blob.stat().st_size
        yield LocalModel(blob, name, "ollama", (blob,), size, source=f"ollama:{name}", sha256=(digest,))


def _ollama_name(parts: tuple[str, ...]) -> str:
    """The name as ``ollama run`` takes it: its own host and its library are left out."""
    host, *namespace, name, tag = parts
    place = namespace if host == "registry.ollama.ai" else [host, *namespace]
    return f"{'/'.join([*(place if place != ['library'] else []), name])}:{tag}"


def _ollama_digest(manifest: Path) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        layers = read_json(manifest)["layers"]
        digests = [layer["digest"] for layer in layers if layer.get("mediaType") == _OLLAMA_MODEL]
        if len(digests) == 1 and (match := _OLLAMA_DIGEST.fullmatch(digests[0])):
            return match[1]
    return ""


_FINDERS: dict[str, Callable[[Path], Iterator[LocalModel]]] = {
    "hugging-face": _hugging_face,
    "lm-studio": _lm_studio,
    "ollama": _ollama,
}


def _models(root: Path, origin: str) -> Iterator[LocalModel]:
    for variant in _variants_of(root, _walk(root)):
        if not variant.missing:
            yield _model(root, variant, origin)
    for folder in _folders(root):
        yield _folder_model(folder, origin)


def _folders(root: Path) -> Iterator[Path]:
    """Folders of converted weights below a root."""
    configs = (path for path in _walk(root) if path.name == CONFIG)
    return (path.parent for path in configs if any(path.parent.glob("*.safetensors")))


def _folder_model(folder: Path, origin: str) -> LocalModel:
    files = tuple(sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".json", ".jinja")))
    size = sum(path.stat().st_size for path in files if path.suffix == ".safetensors")
    return LocalModel(folder, folder.resolve().name, origin, files, size)


def _model(root: Path, variant: Variant, origin: str) -> LocalModel:
    files = tuple(root / file for file in variant.files)
    return LocalModel(files[0], variant.name, origin, files, variant.size, variant.quant)


def _longer(model: LocalModel) -> str:
    if model.source.startswith("hf:"):
        return f"{model.source[3:].partition(':')[0]}/{model.name}"
    return f"{model.path.parent.name}/{model.name}" if model.origin != "ollama" else model.name


def _variants_of(root: Path, paths: Iterator[Path] | list[Path]) -> list[Variant]:
    sizes = {}
    for path in paths:
        with suppress(OSError):  # a dangling link, or a file that has just gone
            if path.suffix.lower() == ".gguf" and path.is_file():
                sizes[path.relative_to(root).as_posix()] = path.stat().st_size
    return variants(sizes)


def _walk(root: Path) -> Iterator[Path]:
    """Files below root, in order, no deeper than _DEPTH; what cannot be read is passed over. Links to folders too."""
    for folder, folders, files in os.walk(root):
        depth = len(Path(folder).relative_to(root).parts)
        folders[:] = sorted(folders) if depth < _DEPTH else []
        yield from (Path(folder) / file for file in sorted(files))


def _what_is_there(path: Path) -> str:
    if path.is_symlink() and not path.exists():
        return "a symbolic link that leads nowhere"
    return "a device or a pipe"


def _nearest_files(path: Path) -> list[str]:
    import difflib

    with suppress(OSError):
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix.lower() == ".gguf" or entry.is_dir()]
        return difflib.get_close_matches(path.name, names, n=3)
    return []
