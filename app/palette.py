"""The command palette: the rows of the registry, found by a few letters of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from textual.command import Hit, Hits, Provider

from edgeinfer.app.actions import ACTIONS, Action
from edgeinfer.app.screens.chat import ChatScreen
from edgeinfer.app.screens.picker import Picker

if TYPE_CHECKING:
    from edgeinfer.app.app import ChatApp


class Palette(Provider):
    """The rows of the registry, as the command palette finds them."""

    async def discover(self) -> Hits:
        for action in self._rows():
            yield Hit(1.0, action.title, self._run(action), text=action.title, help=action.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action in self._rows():
            text = f"{action.title} {action.slash}".strip()
            if score := matcher.match(text):
                yield Hit(score, matcher.highlight(text), self._run(action), text=text, help=action.help)

    def _rows(self) -> list[Action]:
        here = ("app", self.screen.NAME if isinstance(self.screen, (ChatScreen, Picker)) else "")
        return [row for row in ACTIONS if row.shown and not row.takes and row.screen in here and row.key != "enter"]

    def _run(self, action: Action) -> partial[None]:
        return partial(cast("ChatApp", self.app).perform, action)
