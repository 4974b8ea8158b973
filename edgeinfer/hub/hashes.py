"""SHA-256 of model files, computed once: a file with the same size and time is not read again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgeinfer.hub.partial import hash_file, read_json, write_json

_KEPT = 200  # files


def hashes(files: Sequence[Path], cache: Path) -> list[str]:
    """The SHA-256 of each file; ``cache`` remembers them and may be lost at any time."""
    try:
        known = read_json(cache)
    except (OSError, ValueError):
        known = {}
    known = known if isinstance(known, dict) else {}
    found = []
    for file in files:
        status = file.stat()
        key = f"{file.resolve()}:{status.st_size}:{status.st_mtime_ns}:{status.st_ino}"
        digest = known.pop(key, None)
        known[key] = digest if isinstance(digest, str) and len(digest) == 64 else hash_file(file)
        found.append(known[key])
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_json(cache, dict(list(known.items())[-_KEPT:]))
    except OSError:
        pass  # a read-only home only costs the time to hash again
    return found
