"""Everything that can be done in the app, once: keys, palette, slash commands and help are made of these rows.

A feature that is not in the table does not exist. ``name`` is the id under which a key may be set anew, and the method
``action_<name>`` of the screen that the row belongs to (``app``: of the app itself, from every screen).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from textual.binding import Binding, BindingType


@dataclass(frozen=True, slots=True)
class Action:
    name: str
    title: str
    help: str
    key: str = ""
    slash: str = ""
    screen: str = "chat"
    takes: str = ""  # what stands behind the slash command, as help shows it
    shown: bool = True  # in the palette; a key that only moves about is not
    opens: str = ""  # the screen it opens, a row of SCREENS
    before: bool = True  # its key is looked at before the prompt gets it


SCREENS: dict[str, str] = {
    "help": "edgeinfer.app.screens.help:HelpScreen",
}
"""Screens by name; each is imported when it is opened, so that the app itself starts at once."""

ACTIONS: tuple[Action, ...] = (
    Action("send", "Send", "Send what you typed; while a reply is made it waits for its turn.", "enter",
           shown=False, before=False),
    Action("newline", "New line", "Begin a new line of the prompt.", "shift+enter,alt+enter,ctrl+j",
           shown=False, before=False),
    Action("stop", "Stop", "Stop the reply and keep what there is of it.", "escape", "/stop",
           before=False),
    Action("retry", "Retry", "Answer the last message again, as another branch.", "ctrl+r", "/retry"),
    Action("edit", "Edit", "Change the chosen message, or your last one; what followed stays a branch.", "f4", "/edit"),
    Action("branch", "Next branch", "Show the next answer or edit at the chosen message.", "f5", "/branch"),
    Action("copy_reply", "Copy reply", "Copy the chosen message, or the last reply.", "f8", "/copy"),
    Action("copy_code", "Copy code", "Copy the last block of code; again for the one before it.", "ctrl+b", "/code"),
    Action("reasoning", "Fold reasoning", "Show or fold what the model thought.", "f9", "/think"),
    Action("panel", "Figures", "Show speed, memory and drafts as they change.", "f2", "/stats"),
    Action("attach", "Attach a file", "Send a text file along, as @PATH does.", slash="/attach", takes="PATH"),
    Action("expand", "Expand pastes", "Put pasted text itself in place of its chip.", slash="/expand"),
    Action("new_chat", "New chat", "Begin with an empty context.", "ctrl+n", "/new"),
    Action("reload", "Reload the model", "Load the model anew, with another context if you name one.",
           slash="/reload", takes="[TOKENS]"),
    Action("earlier", "Earlier message", "Choose the message before.", "ctrl+up", shown=False),
    Action("later", "Later message", "Choose the message after.", "ctrl+down", shown=False),
    Action("page_up", "Page up", "Look back; the view stays where you leave it.", "pageup", shown=False),
    Action("page_down", "Page down", "Look on; at the end it follows again.", "pagedown", shown=False),
    Action("follow", "To the end", "Go to the end and follow the reply.", "ctrl+end", "/end"),
    Action("help", "Help", "Keys and commands as they are set now.", "f1", "/help", screen="app", opens="help"),
    Action("interrupt", "Clear, stop, quit", "Clear the prompt; stop the reply; twice on an empty prompt: quit.",
           "ctrl+c", screen="app", shown=False),
    Action("quit", "Quit", "Leave; everything is kept.", "ctrl+q", "/quit", screen="app"),
)  # fmt: skip
"""Every action, in the order of the help."""


def of_screen(screen: str) -> Iterator[Action]:
    return (action for action in ACTIONS if action.screen == screen)


def bindings(screen: str, names: Iterable[str] | None = None) -> list[BindingType]:
    """The keys of a screen, or of some of its actions."""
    wanted = None if names is None else set(names)
    return [
        Binding(action.key, action.name, action.title, id=action.name, show=False, priority=action.before)
        for action in of_screen(screen)
        if action.key and (wanted is None or action.name in wanted)
    ]


def by_slash(word: str) -> Action | None:
    """The action of a slash command."""
    return next((action for action in ACTIONS if action.slash and action.slash == word), None)
