"""Everything that can be done in the app, once: keys, palette, slash commands and help are made of these rows.

A feature that is not in the table does not exist. ``name`` is the id under which a key may be set anew, and the method
``action_<name>`` of the screen that the row belongs to (``app``: of the app itself, from every screen).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

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

    @property
    def method(self) -> str:
        """What its owner calls it: names are of the whole app, methods of a screen."""
        return self.name.removeprefix(f"{self.screen}_")


SCREENS: dict[str, str] = {
    "help": "edgeinfer.app.screens.help:HelpScreen",
    "models": "edgeinfer.app.screens.models:ModelsScreen",
    "chats": "edgeinfer.app.screens.chats:ChatsScreen",
    "tree": "edgeinfer.app.screens.tree:TreeScreen",
    "settings": "edgeinfer.app.screens.settings:SettingsScreen",
}
"""Screens by name; each is imported when it is opened, so that the app itself starts at once."""


def _picker(screen: str, pick: Action) -> tuple[Action, ...]:
    """The rows that every screen with a list has: Enter, Esc and the keys that move."""
    return (
        replace(pick, screen=screen),
        Action(f"{screen}_back", "Back", "Back to the conversation.", "escape", screen=screen),
        Action(f"{screen}_up", "Up", "The row above.", "up", screen=screen, shown=False),
        Action(f"{screen}_down", "Down", "The row below.", "down", screen=screen, shown=False),
        Action(f"{screen}_page_up", "Page up", "A screen of rows up.", "pageup", screen=screen, shown=False),
        Action(f"{screen}_page_down", "Page down", "A screen of rows down.", "pagedown", screen=screen, shown=False),
    )


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
    Action("model", "Switch model", "Go on with another model, by name or path.", slash="/model", takes="NAME"),
    Action("rename", "Rename", "Give this conversation another title.", slash="/rename", takes="TITLE"),
    Action("system", "System prompt", "Set it for this conversation, or show it.", slash="/system", takes="[TEXT]"),
    Action("export", "Export", "Write it to a Markdown and a JSON file.", slash="/export", takes="[FILE]"),
    Action("import", "Import", "Add chats of ChatGPT, llm or edgeinfer.", slash="/import", takes="FILE"),
    Action("reload", "Reload the model", "Load the model anew, with another context if you name one.",
           slash="/reload", takes="[TOKENS]"),
    Action("template", "Chat template", "Load it anew with another one: chatml, raw, or one of its file by name.",
           slash="/template", takes="NAME"),
    Action("earlier", "Earlier message", "Choose the message before.", "ctrl+up", shown=False),
    Action("later", "Later message", "Choose the message after.", "ctrl+down", shown=False),
    Action("page_up", "Page up", "Look back; the view stays where you leave it.", "pageup", shown=False),
    Action("page_down", "Page down", "Look on; at the end it follows again.", "pagedown", shown=False),
    Action("follow", "To the end", "Go to the end and follow the reply.", "ctrl+end", "/end"),
    Action("models", "Models", "What is here and what fits; fetch, delete, switch.", "f3", "/models",
           screen="app", opens="models", before=False),
    Action("chats", "Chats", "Search, open, rename, pin, delete, export and import.", "ctrl+o", "/chats",
           screen="app", opens="chats", before=False),
    Action("tree", "Tree", "Every branch of this conversation, and the tokens each reused.", "ctrl+t", "/tree",
           screen="app", opens="tree", before=False),
    Action("settings", "Settings", "System prompt, presets, sampling, theme and keys.", "f10", "/settings",
           screen="app", opens="settings", before=False),
    Action("help", "Help", "Keys and commands as they are set now.", "f1", "/help", screen="app", opens="help"),
    Action("interrupt", "Clear, stop, quit", "Clear the prompt; stop the reply; twice on an empty prompt: quit.",
           "ctrl+c", screen="app", shown=False),
    Action("quit", "Quit", "Leave; everything is kept.", "ctrl+q", "/quit", screen="app"),
    *_picker("models", Action("models_pick", "Use", "Use the model, or fetch it first.", "enter")),
    Action("models_stop", "Stop", "Stop the pull; what arrived is kept.", "f6", screen="models"),
    Action("models_delete", "Delete", "Delete the model; it can be undone until the app ends.", "f8", screen="models"),
    Action("models_undo", "Undo", "Bring back what was deleted last.", "f9", screen="models"),
    *_picker("chats", Action("chats_pick", "Open", "Open the conversation, where the words were found.", "enter")),
    Action("chats_rename", "Rename", "Give the conversation another title.", "f2", screen="chats"),
    Action("chats_pin", "Pin", "Keep the conversation on top, or no longer.", "f4", screen="chats"),
    Action("chats_export", "Export", "Write the conversation to a Markdown and a JSON file.", "f5", screen="chats"),
    Action("chats_import", "Import", "Add the conversations of ChatGPT, llm or edgeinfer from a file.", "f6",
           screen="chats"),
    Action("chats_delete", "Delete", "Delete the conversation; it can be undone for a week.", "f8", screen="chats"),
    Action("chats_undo", "Undo", "Bring back what was deleted last.", "f9", screen="chats"),
    *_picker("tree", Action("tree_pick", "Go to", "Show the newest branch through the message.", "enter")),
    *_picker("settings", Action("settings_pick", "Change", "Change the setting; it is written to its file.", "enter")),
    Action("settings_reset", "Reset", "Take the setting out of its file.", "f8", screen="settings"),
)  # fmt: skip
"""Every action, in the order of the help."""


def of_screen(screen: str) -> Iterator[Action]:
    return (action for action in ACTIONS if action.screen == screen)


def bindings(screen: str, names: Iterable[str] | None = None) -> list[BindingType]:
    """The keys of a screen, or of some of its actions."""
    wanted = None if names is None else set(names)
    return [
        Binding(action.key, _call(action), action.title, id=action.name, show=False, priority=action.before)
        for action in of_screen(screen)
        if action.key and (wanted is None or action.name in wanted)
    ]


def _call(action: Action) -> str:
    return f"open_screen({action.opens!r})" if action.opens else action.method


def by_slash(word: str) -> Action | None:
    """The action of a slash command."""
    return next((action for action in ACTIONS if action.slash and action.slash == word), None)
