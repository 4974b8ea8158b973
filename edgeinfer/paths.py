"""Where things live on this machine: the only module that knows the operating system's folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import platformdirs


@dataclass(frozen=True, slots=True)
class Paths:
    """The folders edgeinfer writes to. ``root`` set (``EDGEINFER_HOME``) puts them all under one folder."""

    root: Path | None = None

    @property
    def config_file(self) -> Path:
        return (self.root or Path(platformdirs.user_config_dir("edgeinfer"))) / "config.toml"

    @property
    def measured(self) -> Path:
        """What was measured on this machine, and outputs where they are kept; all of it can be made anew."""
        return (self.root or Path(platformdirs.user_cache_dir("edgeinfer"))) / "measured"

    @property
    def kept(self) -> Path:
        """Keys and values of conversations, where they are kept; all of it can be made anew."""
        return (self.root or Path(platformdirs.user_cache_dir("edgeinfer"))) / "keys-and-values"

    @property
    def chats(self) -> Path:
        """The conversations of the chat app, one database."""
        return (self.root or Path(platformdirs.user_data_dir("edgeinfer"))) / "chats.db"

    @property
    def models(self) -> Path:
        return (self.root or Path(platformdirs.user_data_dir("edgeinfer"))) / "models"


def other_model_folders(home: Path) -> dict[str, list[Path]]:
    """Folders in which other programs keep models, by program; whether they exist or not."""
    return {
        "lm-studio": [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"],
        "ollama": [home / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")],
        "hugging-face": [home / ".cache" / "huggingface" / "hub"],
    }
