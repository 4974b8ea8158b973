"""Models: what is on this machine, what it could have, how it fits and how fast it would be; pull, delete, use."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import work
from textual.binding import BindingType
from textual.widgets.option_list import Option

from edgeinfer.app.actions import bindings
from edgeinfer.app.engine import in_thread
from edgeinfer.app.render.rows import aligned, columns, row
from edgeinfer.app.screens.picker import TALL, Picker
from edgeinfer.errors import EdgeInferError
from edgeinfer.units import human_bytes

if TYPE_CHECKING:
    from edgeinfer.library import Offer, Progress, Removed

_SHOWN_SECONDS = 0.2  # between two figures of a pull
_TITLES = 90  # cells of a row that has room for titles
_MARK = 2  # cells before a name
_HEADS = ("size", "state", "memory", "forecast", "quant")


class ModelsScreen(Picker):
    """The library is imported when the screen opens, and asked in threads."""

    NAME = "models"
    SEARCH = "Search models; or hf:org/repo, a link to a .gguf, a path"
    BINDINGS: ClassVar[list[BindingType]] = bindings("models")

    def __init__(self) -> None:
        super().__init__()
        self.offers: list[Offer] = []
        self.bandwidth = 0.0
        self.pulls: dict[str, str] = {}  # what is being pulled, and how far it is
        self._stops: dict[str, threading.Event] = {}
        self._removed: list[Removed] = []

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one("#rows").loading = True
        self.look()

    def on_unmount(self) -> None:
        for stop in self._stops.values():
            stop.set()

    @work(group="library", exclusive=True)
    async def look(self) -> None:
        """Reads the disk, and measures the memory if that was never done."""
        from edgeinfer import library

        self.offers = await in_thread(library.offers)
        self.query_one("#rows").loading = False
        self.refresh_rows()
        if not self.bandwidth:
            self.bandwidth = await in_thread(library.bandwidth)
            self.refresh_rows()

    def refresh_rows(self) -> None:
        from edgeinfer.library import matching

        found = matching(self.offers, self.query_text)
        titles = self.room >= _TITLES
        names = aligned([offer.name for offer in found]) if titles else [offer.name for offer in found]
        names = [name + offer.title if titles else name for name, offer in zip(names, found, strict=True)]
        heads, *facts = columns([_HEADS, *(self._facts(offer) for offer in found)], names, self.room - _MARK)
        self.head(row("model", heads, self.room) if found and self.size.height >= TALL else None)
        options = [self._option(*each) for each in zip(found, names, facts, strict=True)]
        if not options and self.query_text and self.offers:
            options = [Option(Text(f"Fetch {self.query_text}"), id=f"fetch {self.query_text}")]
        self.fill(options)

    def pick(self, chosen: str) -> None:
        """Uses a model that is here; fetches another one, and then uses it."""
        if chosen.startswith("fetch "):
            self.pull(chosen.removeprefix("fetch "))
            return
        offer = self._offer(chosen)
        if offer is None or chosen in self.pulls:
            return
        if not offer.here:
            self.pull(chosen)
        elif self.chat_app.chat.turns.busy:
            self.say("A reply is being made; stop it before you switch models.", trouble=True)
        else:
            self.chat_app.use_model(str(offer.path) if offer.origin == "file" else offer.name)
            self.dismiss()

    def action_stop(self) -> None:
        """Stops the pull of the chosen model; what arrived is kept."""
        if self.chosen in self._stops:
            self._stops[self.chosen].set()

    @work(group="library")
    async def action_delete(self) -> None:
        from edgeinfer import library

        offer = self._offer(self.chosen)
        if offer is None or not (offer.here or offer.partial):
            return
        running = self.chat_app.engine.llm
        if running is not None and running.name == offer.name:
            self.say(f"{offer.name} is in use; switch to another model first.", trouble=True)
            return
        try:
            removed = await in_thread(lambda: library.delete(offer.name))
        except EdgeInferError as error:
            self.say(str(error), trouble=True)
            return
        self._removed.append(removed)
        if library.empty_trash not in self.chat_app.leaving:
            self.chat_app.leaving.append(library.empty_trash)
        self.say(f"Deleted {removed.name}; {human_bytes(removed.freed)} come back when the app ends. F9 undoes it.")
        self.look()

    @work(group="library")
    async def action_undo(self) -> None:
        from edgeinfer import library

        if not self._removed:
            self.say("Nothing was deleted here.")
            return
        removed = self._removed.pop()
        try:
            await in_thread(lambda: library.undo_delete(removed))
        except EdgeInferError as error:
            self.say(str(error), trouble=True)
        self.look()

    @work(group="pull")
    async def pull(self, name: str) -> None:
        """Fetches a model, from where an earlier pull ended; the screen may be left meanwhile, which stops it."""
        from edgeinfer import library

        stop = self._stops[name] = threading.Event()
        loop = asyncio.get_running_loop()
        shown = 0.0

        def on_progress(progress: Progress) -> None:
            nonlocal shown
            if time.monotonic() - shown > _SHOWN_SECONDS or progress.done == progress.total:
                shown = time.monotonic()
                loop.call_soon_threadsafe(self._advance, name, _state(progress))

        self._advance(name, "asking …")
        try:
            planned = await in_thread(lambda: library.plan(name))
            model = await in_thread(lambda: library.fetch(planned, on_progress, stop.is_set))
        except library.PullStopped:
            self.say(f"Stopped; what arrived of {name} is kept, Enter goes on.")
        except EdgeInferError as error:
            self.say(str(error), trouble=True)
        else:
            self.say(f"{model.name} is here: Enter uses it.")
        finally:
            self.pulls.pop(name, None)
            self._stops.pop(name, None)
            if self.is_mounted:
                self.look()

    def _advance(self, name: str, state: str) -> None:
        if self.is_mounted and name in self._stops:
            self.pulls[name] = state
            self.refresh_rows()

    def _offer(self, name: str | None) -> Offer | None:
        return next((offer for offer in self.offers if offer.name == name), None)

    def _facts(self, offer: Offer) -> list[str]:
        """The most important first: a narrow screen leaves out the last ones."""
        from edgeinfer.library import forecast

        fit = offer.fit
        speed = f"≈{forecast(offer.size, self.bandwidth):,.0f} tok/s" if self.bandwidth and offer.size else ""
        origin = "to fetch" if not offer.here else "here" if offer.managed else offer.origin
        state = self.pulls.get(offer.name) or (f"{human_bytes(offer.partial)} here" if offer.partial else origin)
        return [_size(offer), state, "fits" if fit and fit.fits else "too big", speed, offer.quant]

    def _option(self, offer: Offer, name: str, facts: list[str]) -> Option:
        running = self.chat_app.engine.llm
        mark = "● " if running is not None and running.name == offer.name else "  "
        return Option(row(name, facts, self.room, mark, "bold" if offer.here else ""), id=offer.name)

    def about(self, chosen: str | None) -> str | Text:
        offer = self._offer(chosen)
        if offer is None:
            return "Nothing is called so here or in the catalogue; Enter fetches it." if self.query_text else ""
        parts = [offer.title, offer.architecture, offer.license, str(offer.fit or "")]
        if self.bandwidth:
            parts.append(f"speed: a forecast from {self.bandwidth / 1e9:.0f} GB/s of memory bandwidth")
        return " · ".join(part for part in parts if part)


def _size(offer: Offer) -> str:
    return f"~{human_bytes(offer.size)}" if offer.rounded else human_bytes(offer.size)


def _state(progress: Progress) -> str:
    if progress.waiting:
        return "waiting"
    done = human_bytes(progress.done)
    return f"{100 * progress.done // progress.total}% {done}" if progress.total else done
