"""A panel of small plots: speed, memory, and tokens a step of decoding."""

from __future__ import annotations

from collections import deque

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Sparkline, Static

from edgeinfer.app.render.figures import rate
from edgeinfer.app.render.lines import cells, cut
from edgeinfer.units import human_bytes

POINTS = 120


class Plot(Vertical):
    """A line of text over a sparkline of the latest values."""

    def __init__(self, name: str, empty: str) -> None:
        super().__init__()
        self._title, self._empty = name, empty
        self._values: deque[float] = deque(maxlen=POINTS)

    def compose(self) -> ComposeResult:
        yield Static(f"{self._title}  {self._empty}", markup=False)
        yield Sparkline([], summary_function=max)

    def add(self, value: float, text: str) -> None:
        self._values.append(value)
        self.query_one(Sparkline).data = list(self._values)
        self.tell(text)

    def tell(self, text: str) -> None:
        """Beside the name of the plot, or in place of it where there is no room for both."""
        room = self.content_size.width
        named = f"{self._title}  {text}"
        self.query_one(Static).update(named if cells(named) <= room else cut(text, room))


class Figures(Horizontal):
    """``speed`` and ``steps`` while a reply is made, ``memory`` all the time, ``drafts`` when a reply is whole."""

    def compose(self) -> ComposeResult:
        yield Plot("speed", "no reply yet")
        yield Plot("memory", "no model yet")
        yield Plot("drafts", "no reply yet")

    def speed(self, tokens_per_second: float) -> None:
        self._plot(0).add(tokens_per_second, rate(tokens_per_second))

    def memory(self, used: int) -> None:
        self._plot(1).add(used, human_bytes(used))

    def steps(self, tokens_per_step: float) -> None:
        """Tokens that a step of the model gives; those beyond one are drafts that came true."""
        self._plot(2).add(tokens_per_step, f"{tokens_per_step:.1f}/step")

    def drafts(self, tokens_per_step: float, accepted: int, drafted: int) -> None:
        share = f"{tokens_per_step:.1f}/step, {accepted:,} of {drafted:,} kept" if drafted else "none drafted"
        self._plot(2).tell(share)

    def _plot(self, place: int) -> Plot:
        return list(self.query(Plot))[place]
