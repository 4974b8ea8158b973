"""What the user has set, once, for every command: a TOML file and a handful of environment variables.

This is the only module that reads the environment. An unknown key is an error that offers the nearest one.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from edgeinfer.errors import BadInput
from edgeinfer.paths import Paths, other_model_folders


@dataclass(frozen=True, slots=True)
class Settings:
    """One sentence a field; the names are the keys of ``config.toml``."""

    model: str = "smollm2-135m"
    """The model that answers when none is named."""
    backend: str = "auto"
    """``auto``, ``mlx`` or ``llama.cpp``."""
    context: int = 0
    """Tokens a conversation may hold; 0 lets the model and the memory decide."""
    kv: str = "auto"
    """The format of keys and values: ``auto``, ``exact``, or one such as ``k8v4``: bits of keys and of values."""
    keep_kv: bool = False
    """Whether keys and values of long prompts are kept on disk, so that they need not be computed again another day."""
    threads: int = 0
    """CPU threads; 0 takes the physical cores."""
    keep_outputs: bool = False
    """Whether answers are kept on disk, as token ids, so that later ones that repeat them are made faster."""
    models: str = ""
    """The folder that ``pull`` keeps models in; empty for the default."""
    paths: Paths = field(default_factory=Paths)
    offline: bool = False

    @property
    def models_folder(self) -> Path:
        return Path(self.models).expanduser() if self.models else self.paths.models


_MAX_CONFIG = 1 << 20  # bytes
_KINDS = {int: "a whole number, 0 or more", str: "a string", bool: "true or false"}
_KEYS = {item.name: item for item in fields(Settings) if item.name not in ("paths", "offline")}


def load_settings() -> Settings:
    """Settings from ``EDGEINFER_HOME``'s or the user's ``config.toml``, and the environment."""
    base = _from_environment()
    file = base.paths.config_file
    try:
        if not file.is_file():
            return base
        if file.stat().st_size > _MAX_CONFIG:
            raise ValueError(f"larger than {_MAX_CONFIG} bytes")
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise BadInput(f"{file}: {error}; mend the file or move it away") from None
    settings = replace(base, **{key: _checked(file, key, value) for key, value in values.items()})
    if settings.models:
        _folder(settings.models, f"{file}: models")
    return settings


def settings_or_defaults() -> Settings:
    """``load_settings`` for what opens in any case: a mistake in the file leaves the defaults, and is told later."""
    try:
        return load_settings()
    except BadInput:
        return _from_environment()


def _from_environment() -> Settings:
    root = os.environ.get("EDGEINFER_HOME")
    offline = any(
        os.environ.get(name, "").lower() in ("1", "true", "yes", "on")
        for name in ("EDGEINFER_OFFLINE", "HF_HUB_OFFLINE")
    )
    return Settings(paths=Paths(_folder(root, "EDGEINFER_HOME") if root else None), offline=offline)


def _folder(text: str, what: str) -> Path:
    """The folder that text names, whether it exists or not. Raises BadInput where no disk can have it."""
    try:
        folder = Path(text).expanduser()
        with suppress(FileNotFoundError, NotADirectoryError):
            folder.lstat()
    except (ValueError, RuntimeError, OSError) as error:  # a NUL, an unknown user, a name that is too long
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadInput(f"{what}: {text[:80]!r} cannot be a folder: {reason}") from None
    return folder


def _checked(file: Path, key: str, value: Any) -> Any:
    if key not in _KEYS:
        near = difflib.get_close_matches(key, _KEYS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(_KEYS)}"
        raise BadInput(f"{file}: unknown key {key!r}; {hint}")
    expected = type(_KEYS[key].default)
    if type(value) is not expected or (isinstance(value, int) and value < 0):
        raise BadInput(f"{file}: {key}={value!r}; expected {_KINDS[expected]}")
    return value


def simple_terminal() -> bool:
    """Whether the terminal says of itself that it cannot move its cursor."""
    return os.environ.get("TERM", "dumb") in ("", "dumb", "unknown")


def model_folders() -> dict[str, list[Path]]:
    """Folders of other programs that may hold models, with the places their own variables name first."""
    folders = other_model_folders(Path.home())
    for program, variable, suffix in (
        ("ollama", "OLLAMA_MODELS", ""),
        ("hugging-face", "HF_HOME", "hub"),
        ("hugging-face", "HF_HUB_CACHE", ""),
    ):
        if value := os.environ.get(variable):
            folders[program].insert(0, _folder(value, variable) / suffix)
    return folders
