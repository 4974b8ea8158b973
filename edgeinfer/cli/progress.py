"""How far a download has come: a bar on a terminal, a line at its start and end elsewhere, or JSON lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from edgeinfer.cli.terminal import note
from edgeinfer.sanitize import sanitize
from edgeinfer.units import human_bytes

if TYPE_CHECKING:
    from tqdm import tqdm

    from edgeinfer.hub.sources import Progress

_JSON_SECONDS = 0.5  # between two lines of one file


class Lines:
    """One line when a file starts and one when it is there."""

    def __init__(self) -> None:
        self.file = ""
        self.whole = False

    def __call__(self, progress: Progress) -> None:
        if progress.waiting:
            note(_waiting(progress))
            return
        if progress.file != self.file:
            self.file, self.whole = progress.file, False
            size = f" ({human_bytes(progress.total)})" if progress.total is not None else ""
            note(f"fetching {progress.file}{size}")
        if progress.done == progress.total and not self.whole:
            self.whole = True
            note(f"have {progress.file}")

    def close(self) -> None:
        pass


class Bar:
    """A tqdm bar on stderr, one a file."""

    def __init__(self) -> None:
        self.file = ""
        self.bar: tqdm | None = None

    def __call__(self, progress: Progress) -> None:
        if progress.waiting:
            note(_waiting(progress))
            return
        if self.bar is None or progress.file != self.file:
            self.close()
            self.file = progress.file
            self.bar = self._new(progress)
        self.bar.update(progress.done - self.bar.n)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()

    def _new(self, progress: Progress) -> tqdm:
        from tqdm import tqdm

        return tqdm(
            desc=sanitize(progress.file, single_line=True),
            total=progress.total,
            initial=progress.done,
            unit="B",
            unit_scale=True,
            dynamic_ncols=True,
            file=sys.stderr,
        )


class Json:
    """``{"event": "progress", …}`` lines on stdout."""

    def __init__(self) -> None:
        self.file = ""
        self.last = 0.0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        due = progress.file != self.file or now - self.last >= _JSON_SECONDS or progress.done == progress.total
        if progress.waiting:
            click.echo(json.dumps({"event": "waiting", "model": progress.file}))
        elif due:
            self.file, self.last = progress.file, now
            row = {"event": "progress", "file": progress.file, "done": progress.done, "total": progress.total}
            click.echo(json.dumps(row))

    def close(self) -> None:
        pass


@contextmanager
def download_progress(as_json: bool = False) -> Iterator[Lines | Bar | Json]:
    """An ``on_progress`` for resolve and fetch; whatever happens, the bar's line is ended."""
    shown = Json() if as_json else Bar() if sys.stderr.isatty() else Lines()
    try:
        yield shown
    finally:
        shown.close()


@contextmanager
def counting(what: str, unit: str = "tokens") -> Iterator[Callable[[int, int], None]]:
    """An ``on_progress`` of things done and things in all: a bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from tqdm import tqdm

    scaled = unit == "B"
    with tqdm(desc=what, unit=f" {unit}", unit_scale=scaled, leave=False, dynamic_ncols=True, file=sys.stderr) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show


def _waiting(progress: Progress) -> str:
    return f"waiting: another process is pulling {progress.file}"
