"""From what a user types to a model on disk: the only module of the hub that others need.

A name is one of: a catalogue name, the name of a model on this machine, a path, ``hf:org/repo[:quant or file]
[@revision]``, ``pypi:name[==version]``, ``https://…[#sha256=…]``. Once a model has been pulled, no call of this module
uses the network for it again.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from edgeinfer.catalog import catalogue
from edgeinfer.converted.opening import open_model
from edgeinfer.errors import BadInput, ModelError, ModelNotFound, NetworkFailed
from edgeinfer.hub import huggingface, local, wheels
from edgeinfer.hub.download import download, probe
from edgeinfer.hub.model import LocalModel, OnProgress, Plan, Progress, Remote, silent
from edgeinfer.hub.names import plain_file, quant_of
from edgeinfer.hub.partial import check_space
from edgeinfer.hub.store import Store, StoredFile
from edgeinfer.hub.transport import Patience, is_url, shown
from edgeinfer.settings import Settings, model_folders

__all__ = ["LocalModel", "Plan", "Progress", "fetch", "find", "local_models", "plan", "resolve"]

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_REQUIREMENT = re.compile(r"([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)(?:==([A-Za-z0-9][\w.+!-]*))?", re.ASCII)
_SHA256 = re.compile(r"sha256=([0-9a-fA-F]{64})")
_PLANNING = Patience(attempts=3)  # someone is waiting for the first line
_HUB_PAGE = re.compile(r"https://(?:huggingface\.co|hf\.co)/([^/?#]+/[^/?#]+)(?:/(?:resolve|blob)/([^/?#]+)/([^?#]+))?")


@dataclass(frozen=True, slots=True)
class HubSource:
    repo: str
    selector: str = ""  # a quantization or a file
    revision: str = ""

    def __str__(self) -> str:
        selector = f":{self.selector}" if self.selector else ""
        return f"hf:{self.repo}{selector}{f'@{self.revision}' if self.revision else ''}"


@dataclass(frozen=True, slots=True)
class WheelSource:
    project: str
    version: str = ""

    @property
    def requirement(self) -> str:
        return f"{self.project}=={self.version}" if self.version else self.project

    def __str__(self) -> str:
        return f"pypi:{self.requirement}"


@dataclass(frozen=True, slots=True)
class UrlSource:
    url: str
    sha256: str = ""

    def __str__(self) -> str:
        query = urlsplit(self.url).query  # may hold a signature: only a hash of it is kept
        return shown(self.url) + (f"?{hashlib.sha256(query.encode()).hexdigest()[:12]}" if query else "")


RemoteSource: TypeAlias = HubSource | WheelSource | UrlSource


def parse(text: str) -> RemoteSource | Path | None:
    """What text means by its form; None for a plain name. Raises BadInput for a malformed source."""
    if text.startswith("hf:"):
        return _parse_hub(text)
    if text.startswith("pypi:"):
        match = _REQUIREMENT.fullmatch(text.removeprefix("pypi:").strip())
        if match is None:
            raise BadInput(f"{text!r}: expected pypi:NAME or pypi:NAME==VERSION")
        return WheelSource(match[1], match[2] or "")
    if page := _HUB_PAGE.match(text):
        repo, revision, file = page.groups()
        revision = "" if revision in (None, "main") else unquote(revision)
        return _parse_hub(str(HubSource(repo, unquote(file or ""), revision)))
    if text.startswith(("https://", "http://")):
        url, _, fragment = text.partition("#")
        match = _SHA256.fullmatch(fragment)
        if match is None and fragment:
            raise BadInput(f"{text!r}: expected nothing behind # but sha256= and 64 hexadecimal digits")
        if not is_url(url):
            raise BadInput(f"{text!r}: expected https://HOST/FILE")
        return UrlSource(url, match[1].lower() if match else "")
    if not text.strip() or "\0" in text:
        raise BadInput(f"{text!r} is no name of a model")
    if text.startswith(("/", "./", "../", "~", ".\\", "..\\")) or text in (".", "..") or text.endswith(".gguf"):
        return Path(text).expanduser()
    return None


def resolve(name: str, settings: Settings, on_progress: OnProgress | None = None) -> LocalModel:
    """The model that name means, fetched if it is not on this machine yet.

    Raises ModelNotFound (with the nearest names), NetworkFailed (also when offline), DiskLimit, CorruptFile.
    """
    found = find(name, settings)
    return found if found is not None else fetch(plan(name, settings), settings, on_progress)


def find(name: str, settings: Settings) -> LocalModel | None:
    """The model that name means, if it is on this machine; None if it could be fetched. Never uses the network."""
    source = parse(name)
    if isinstance(source, Path):
        return local.at_path(source)
    store = Store(settings.models_folder)
    if source is None:
        entry = catalogue().get(name.lower())
        if entry is None:
            return _find_by_name(name, store)
        source = parse(entry.source)
    found = store.by_source(str(source))
    if found is None and isinstance(source, HubSource):
        found = local.cached(source.repo, source.selector, source.revision, model_folders()["hugging-face"])
    return found


def local_models(settings: Settings) -> list[LocalModel]:
    """Every model on this machine, ours first, then those of other programs; their headers are not read."""
    return [*Store(settings.models_folder).models(), *local.find_models(model_folders())]


def plan(name: str, settings: Settings, patience: Patience | None = None) -> Plan:
    """What it would take to fetch name: files, sizes, hashes. Asks the network for no more than that."""
    patience = patience or _PLANNING
    entry = catalogue().get(name.lower())
    source = parse(entry.source if entry else name)
    if source is None or isinstance(source, Path):
        raise _not_found(name, settings)
    if settings.offline:
        raise NetworkFailed(
            f"{name} is not on this machine, and offline mode (EDGEINFER_OFFLINE, HF_HUB_OFFLINE) is on"
        )
    entry = entry or next((row for row in catalogue().values() if row.source == str(source)), None)
    match source:
        case HubSource(repo, selector, revision):
            made = huggingface.plan(repo, selector, revision, entry.name if entry else "", str(source), patience)
            return replace(made, license=made.license or (entry.license if entry else ""))
        case WheelSource():
            return wheels.plan(source.requirement, str(source), entry, patience)
        case UrlSource():
            return _url_plan(source, patience)


def fetch(
    plan: Plan, settings: Settings, on_progress: OnProgress | None = None, patience: Patience | None = None
) -> LocalModel:
    """Carries out a plan. One process does it at a time; a second one waits and finds it done."""
    on_progress, patience = on_progress or silent, patience or Patience()
    store = Store(settings.models_folder)
    home = store.home(plan)
    with store.lock(home.name, on_progress):
        if (done := store.adopt(plan)) is not None:
            return done
        check_space(store.folder, _still_needed(plan, home), plan.name)
        if not plan.wheels:
            files = [_download(remote, home, on_progress, patience) for remote in plan.downloads]
            return store.commit(home, plan, files, _architecture(home if plan.folder else home / files[0].name))
        packages = [wheels.local_wheel(remote) or home / remote.file for remote in plan.downloads]
        for remote, package in zip(plan.downloads, packages, strict=True):
            if package.parent == home:
                _download(remote, home, on_progress, patience)
        path, sha256 = wheels.unpack(packages, home, plan.sha256, on_progress)
        for package in packages:
            if package.parent == home:
                package.unlink()
        known = replace(plan, quant=plan.quant or quant_of(path.stem))
        return store.commit(home, known, [StoredFile(path.name, path.stat().st_size, sha256)], _architecture(path))


def _parse_hub(text: str) -> HubSource:
    rest, _, revision = text.removeprefix("hf:").partition("@")
    repo, _, selector = rest.partition(":")
    if not _REPO.fullmatch(repo) or ".." in repo or "--" in repo or ".." in revision:
        raise BadInput(f"{text!r}: expected hf:ORG/REPO, then :QUANT or :FILE, then @REVISION")
    return HubSource(repo, selector, revision)


def _find_by_name(name: str, store: Store) -> LocalModel | None:
    if (own := store.by_name(name)) is not None:
        return own
    others = local.find_models(model_folders())
    if match := next((model for model in others if model.name.casefold() == name.casefold()), None):
        return match
    if os.path.exists(name):
        return local.at_path(Path(name))
    raise _not_found_among(name, [*store.models(), *others])


def _not_found(name: str, settings: Settings) -> ModelNotFound:
    return _not_found_among(name, local_models(settings))


def _not_found_among(name: str, models: Iterable[LocalModel]) -> ModelNotFound:
    names = {candidate.lower(): candidate for candidate in (*catalogue(), *(model.name for model in models))}
    near = [names[close] for close in difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.6)]
    if _REPO.fullmatch(name):
        near.insert(0, f"hf:{name}")
    hint = (
        f"did you mean {' or '.join(near)}?"
        if near
        else "`edgeinfer list --catalogue` shows what can be pulled by name"
    )
    return ModelNotFound(f"no model is called {name!r}; {hint}", near)


def _url_plan(source: UrlSource, patience: Patience) -> Plan:
    remote = Remote(source.url, plain_file(source.url), sha256=source.sha256)
    remote = replace(remote, size=probe(remote, patience))
    stem = remote.file.removesuffix(".gguf")
    return Plan(
        name=stem,
        source=str(source),
        origin=str(source),
        downloads=(remote,),
        quant=quant_of(stem),
        weight_bytes=remote.size,
    )


def _still_needed(plan: Plan, home: Path) -> int:
    """Bytes that the plan still has to write, as far as they are known."""
    here = sum(path.stat().st_size for path in home.glob("*") if path.is_file() and not path.is_symlink())
    return max(0, (plan.disk_bytes or 0) - here)


def _download(remote: Remote, home: Path, on_progress: OnProgress, patience: Patience) -> StoredFile:
    path = home / remote.file
    sha256 = download(remote, path, patience, on_progress)
    return StoredFile(remote.file, path.stat().st_size, sha256)


def _architecture(path: Path) -> str:
    """What the header says; a header that is wrong is reported when the model is opened."""
    try:
        with open_model(path) as file:
            return str(file.metadata.get("general.architecture", ""))
    except ModelError:
        return ""
