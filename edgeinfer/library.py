"""The models of this machine and those it could have: what is here, what fits, how fast it would be, pull and delete.

The commands and the app share it; it draws nothing. Functions that take no settings read the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from edgeinfer import bandwidth as memory
from edgeinfer.catalog import Entry, catalogue
from edgeinfer.errors import BadInput, ModelError, ModelNotFound, UnsupportedModel
from edgeinfer.hub import sources
from edgeinfer.hub.header import read_header
from edgeinfer.hub.local import in_folder
from edgeinfer.hub.model import LocalModel, Plan, Progress
from edgeinfer.hub.names import quant_of
from edgeinfer.hub.partial import free_bytes
from edgeinfer.hub.store import Removed, Store
from edgeinfer.settings import Settings, load_settings
from edgeinfer.units import human_bytes

__all__ = [
    "Fit", "KVChoice", "LocalModel", "Offer", "Plan", "Progress", "PullStopped", "Removed", "bandwidth", "delete",
    "disk_free", "empty_trash", "fetch", "find", "fit", "forecast", "kv_formats", "matching", "offers", "on_disk",
    "plan", "trained_context", "undo_delete",
]  # fmt: skip

_OVERHEAD = 1.1  # of the weights: what repacking and buffers take
_CONTEXT = 256 * 10**6  # bytes of a short conversation and of the program


class PullStopped(Exception):
    """A pull that was told to stop. What arrived is kept, and the next pull goes on from there."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether weights of some bytes would fit the memory that is available now."""

    needed: int
    available: int

    @property
    def fits(self) -> bool:
        return self.needed <= self.available

    def __str__(self) -> str:
        verdict = "fits" if self.fits else "will not fit"
        return f"{verdict}: about {human_bytes(self.needed)} of {human_bytes(self.available)} available memory"


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that can be used by its name: here already, or in the catalogue."""

    name: str
    title: str
    size: int  # bytes of weights
    quant: str
    architecture: str
    license: str
    origin: str  # "edgeinfer", "hugging-face", "lm-studio", "ollama", "file"; "catalogue": not here
    source: str
    path: Path | None = None
    partial: int = 0  # bytes that an unfinished pull left
    rounded: bool = False  # the size: the file was never asked for it

    @property
    def here(self) -> bool:
        return self.path is not None

    @property
    def managed(self) -> bool:
        """Whether ``pull`` put it there, so that ``delete`` may take it away."""
        return self.origin == "edgeinfer"

    @property
    def fit(self) -> Fit | None:
        return fit(self.size) if self.size else None


@dataclass(frozen=True, slots=True)
class KVChoice:
    """A format that a model's keys and values can be kept in, with what it saves and what it costs."""

    name: str
    chosen: bool  # by ``auto``
    bytes_ratio: float  # of float16, for each token that a long conversation adds, over all layers
    longest: int  # tokens of context that fit the memory now; 0: none
    kl: float | None  # nats a token against float16, nothing kept exact; None: nobody measured it
    where: str  # what the KL was measured on, in a few words


def fit(weight_bytes: int) -> Fit:
    return Fit(int(weight_bytes * _OVERHEAD) + _CONTEXT, int(psutil.virtual_memory().available))


def bandwidth() -> float:
    """Bytes of memory that this machine reads in a second. The first time it is measured, in about a second."""
    return memory.bandwidth(load_settings().paths.measured)


def forecast(weight_bytes: int, bytes_per_second: float) -> float:
    """Tokens a second that weights of some bytes would make at a short context."""
    return memory.forecast(weight_bytes, bytes_per_second)


def on_disk(folders: Sequence[Path] = ()) -> list[LocalModel]:
    """Models on this machine, or in ``folders``, with what their files say of themselves."""
    found = [model for folder in folders for model in in_folder(folder)]
    return [_with_header(model) for model in (found if folders else sources.local_models(load_settings()))]


def offers() -> list[Offer]:
    """What is here, then what the catalogue adds, each in its order."""
    settings = load_settings()
    models = on_disk()
    entries = {found.path: entry for entry in catalogue().values() if (found := _found(entry, settings))}
    unfinished = dict(Store(settings.models_folder).leftovers())
    here = [_here(model, entries.get(model.path)) for model in models]
    named = {entry.name for entry in entries.values()}
    missing = [entry for entry in catalogue().values() if entry.name not in named]
    return [*here, *(_missing(entry, unfinished.get(entry.name, 0)) for entry in missing)]


def matching(found: Iterable[Offer], query: str) -> list[Offer]:
    """Those in which every word of the query occurs: in name, title, quant, architecture, licence or origin."""
    words = query.casefold().split()
    return [
        offer
        for offer in found
        if all(
            word in f"{offer.name} {offer.title} {offer.quant} {offer.architecture} {offer.license} {offer.origin}"
            .casefold()
            for word in words
        )
    ]  # fmt: skip


def find(name: str) -> LocalModel | None:
    """The model that name means, if it is on this machine; None if it could be fetched. Never uses the network."""
    return sources.find(name, load_settings())


def plan(name: str) -> Plan:
    """What it would take to fetch name. Asks the network for no more than that."""
    return sources.plan(name, load_settings())


def fetch(
    planned: Plan,
    on_progress: Callable[[Progress], None] | None = None,
    stopped: Callable[[], bool] | None = None,
) -> LocalModel:
    """Carries out a plan, from where an earlier try ended. Raises PullStopped soon after ``stopped()`` is true."""

    def advance(progress: Progress) -> None:
        if stopped is not None and stopped():
            raise PullStopped(planned.name)
        if on_progress is not None:
            on_progress(progress)

    return sources.fetch(planned, load_settings(), advance)


def trained_context(model: str) -> int:
    """Tokens that a model was trained for. Raises ModelNotFound for what is not here, and CorruptFile."""
    return read_header(_path_of(model)).context


def kv_formats(model: str) -> list[KVChoice]:
    """What ``load(model, kv=…)`` could keep keys and values in, from the largest to the smallest; reads the header.

    Prices are those of ``edgeinfer eval kv`` where the user ran it for this model, else ours on another, which is
    named. Empty for what MLX does not run. Raises ModelNotFound for what is not here, and CorruptFile.
    """
    from edgeinfer.converted.opening import open_model
    from edgeinfer.loading import planner
    from edgeinfer.loading.prices import prices

    path = _path_of(model)
    with open_model(path) as file:
        try:
            planned = planner.plan(file)
        except UnsupportedModel:
            return []
        known = prices(load_settings().paths.measured, path, file.parameters)
    whole = planned.formats["exact"].per_token
    return [
        KVChoice(
            name=name,
            chosen=name == planned.kv,
            bytes_ratio=needs.per_token / whole if whole else 1.0,
            longest=needs.longest,
            kl=known[name].kl if name in known else None,
            where=known[name].where if name in known else "",
        )
        for name, needs in planned.formats.items()
    ]


def disk_free() -> tuple[Path, int]:
    """The folder that models are kept in, and the bytes that its disk has left."""
    folder = load_settings().models_folder
    return folder, free_bytes(folder)


def delete(name: str) -> Removed:
    """Takes a pulled model, or what an unfinished pull left, away; ``undo_delete`` until ``empty_trash``.

    Raises ModelNotFound, and BadInput for a model that another program keeps.
    """
    settings = load_settings()
    store = Store(settings.models_folder)
    removed = store.set_aside(name)
    if removed is None:
        model = sources.find(name, settings)
        if model is None:
            raise ModelNotFound(f"{name} is not on this machine")
        if not model.managed:
            raise BadInput(f"{name} was not pulled by edgeinfer; delete it where it is: {model.path}")
        removed = store.set_aside(model.name)
        if removed is None:
            raise ModelNotFound(f"{name} is not on this machine any more")
    return removed


def undo_delete(removed: Removed) -> None:
    """Puts a deleted model back. Raises BadInput where it is gone for good, or its name was taken since."""
    Store(load_settings().models_folder).put_back(removed)


def empty_trash() -> None:
    """Gives back the disk space of all that was deleted."""
    Store(load_settings().models_folder).empty_trash()


def _path_of(model: str) -> Path:
    found = find(model)
    if found is None:
        raise ModelNotFound(f"{model} is not on this machine; fetch it with: edgeinfer pull {model}")
    return found.path


def _with_header(model: LocalModel) -> LocalModel:
    """The model with what its file says of itself, where its name or manifest does not say it."""
    if model.architecture and model.quant:
        return model
    try:
        header = read_header(model.path)
    except (ModelError, OSError):
        return replace(model, architecture=model.architecture or "?", quant=model.quant or "?")
    return replace(model, architecture=header.architecture or "?", quant=model.quant or header.quant)


def _found(entry: Entry, settings: Settings) -> LocalModel | None:
    return sources.find(entry.name, settings)


def _here(model: LocalModel, entry: Entry | None) -> Offer:
    return Offer(
        name=model.name,
        title=entry.title if entry else "",
        size=model.size,
        quant=model.quant,
        architecture=model.architecture,
        license=model.license or (entry.license if entry else ""),
        origin=model.origin,
        source=model.source,
        path=model.path,
    )


def _missing(entry: Entry, partial: int) -> Offer:
    return Offer(
        name=entry.name,
        title=entry.title,
        size=entry.size or entry.about,
        quant=entry.quant or quant_of(entry.source.rpartition(":")[2]),
        architecture="",
        license=entry.license,
        origin="catalogue",
        source=entry.source,
        partial=partial,
        rounded=not entry.size,
    )
