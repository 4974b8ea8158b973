"""One file from a server to the disk: resumed where it stopped, checked, and named only when it is whole."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import httpx2

from edgeinfer.errors import ModelError, NetworkFailed
from edgeinfer.formats.foreign import HEAD, not_gguf
from edgeinfer.hub.model import OnProgress, Progress, Remote, silent
from edgeinfer.hub.partial import Partial, check_space, hash_file, state_of
from edgeinfer.hub.transport import Patience, TryAgain, new_client, open_url, pause, shown
from edgeinfer.units import human_bytes

_CONTENT_RANGE = re.compile(r"bytes (?:(\d{1,18})-\d{1,18}|\*)/(\d{1,18}|\*)")
_CHECK_EVERY = 64 << 20  # bytes, where the server does not say how many are to come
_Span: TypeAlias = tuple[int, int | None]


def check_head(head: bytes, remote: Remote) -> None:
    """Raises ModelError, with the name of what it is, when a file does not start as it should."""
    if not head.startswith(remote.magic, remote.magic_at):
        raise not_gguf(Path(remote.file), head, "safetensors" if remote.magic_at else "GGUF")


def probe(remote: Remote, patience: Patience) -> int | None:
    """The size of a file in bytes, None where the server does not say. Reads its first bytes and checks them."""
    attempt = 0
    with new_client(patience) as client:
        while True:
            attempt += 1
            try:
                with open_url(client, remote.url, {"Range": f"bytes=0-{HEAD - 1}"}, remote.token) as response:
                    if response.status_code == 416:
                        raise ModelError(f"{remote.file}: the file is empty")
                    check_head(_first(_pieces(response)), remote)
                    return _span(response)[1]
            except TryAgain as failure:
                pause(failure, attempt, patience)


def download(remote: Remote, target: Path, patience: Patience, on_progress: OnProgress = silent) -> str:
    """Fetches remote to target and returns its SHA-256. The caller holds the lock of the model.

    Raises NetworkFailed (exit 5; what arrived is kept), DiskLimit (exit 4; kept), CorruptFile when the SHA-256 is
    not the expected one and ModelError when it is no model (both: removed).
    """
    if remote.sha256 and target.is_file() and not target.is_symlink() and hash_file(target) == remote.sha256:
        state_of(target).unlink(missing_ok=True)  # a process that was killed had no time for it
        return remote.sha256
    with Partial(target, remote) as partial, new_client(patience) as client:
        if partial.total is not None:
            check_space(target.parent, partial.total - partial.length, remote.file)
        farthest, attempt = partial.length, 0
        while not partial.complete:
            try:
                _receive(client, partial, on_progress)
                break
            except TryAgain as failure:
                attempt = 1 if partial.length > farthest else attempt + 1
                farthest = max(farthest, partial.length)
                pause(failure, attempt, patience)
        on_progress(Progress(partial.length, partial.length, remote.file))
        return partial.finish()


def _receive(client: httpx2.Client, partial: Partial, on_progress: OnProgress) -> None:
    """One response, appended to partial; returns when the file is whole."""
    remote, headers = partial.remote, {}
    if partial.length:
        headers["Range"] = f"bytes={partial.length}-"
        if partial.validator and not partial.validator.startswith("W/"):
            headers["If-Range"] = partial.validator
    with open_url(client, remote.url, headers, remote.token) as response:
        if not _continues(response, partial):
            partial.restart()
            if response.status_code != 200:
                raise TryAgain(f"{remote.file}: the server's copy has changed, starting over", wait=0)
        pieces = _pieces(response)
        total = _span(response)[1]
        if partial.length == 0:
            first = _first(pieces)
            _check_start(partial, first, total)
            partial.begin(_validator(response), total)
            _append(partial, first, on_progress)
        for piece in pieces:
            _append(partial, piece, on_progress)
    if partial.total is not None and partial.length < partial.total:
        have, wanted = human_bytes(partial.length), human_bytes(partial.total)
        raise TryAgain(f"{remote.file}: the connection ended after {have} of {wanted}")


def _continues(response: httpx2.Response, partial: Partial) -> bool:
    """Whether the body starts where partial ends, and belongs to the same content."""
    if response.status_code == 200:
        return partial.length == 0
    start, total = _span(response)
    same_size = None in (total, partial.total) or total == partial.total
    same_content = not partial.validator or _validator(response) in ("", partial.validator)
    encoded = _encoding(response) != "identity"
    return response.status_code == 206 and start == partial.length and same_size and same_content and not encoded


def _check_start(partial: Partial, first: bytes, total: int | None) -> None:
    remote = partial.remote
    try:
        check_head(first, remote)
    except ModelError:
        partial.discard()
        raise
    if total is not None and remote.size is not None and total != remote.size:
        partial.discard()
        raise NetworkFailed(f"{shown(remote.url)}: found {total} bytes, expected {remote.size}; the file has changed")
    if total is not None:
        check_space(partial.target.parent, total, remote.file)


def _append(partial: Partial, piece: bytes, on_progress: OnProgress) -> None:
    if partial.total is not None and partial.length + len(piece) > partial.total:
        partial.discard()
        raise NetworkFailed(f"{shown(partial.remote.url)}: sent more than the expected {partial.total} bytes; removed")
    if partial.total is None and partial.length % _CHECK_EVERY < len(piece):
        check_space(partial.target.parent, len(piece), partial.remote.file)
    partial.append(piece)
    on_progress(Progress(partial.length, partial.total, partial.remote.file))


def _span(response: httpx2.Response) -> _Span:
    """Where the body starts in the file, and the file's size if the response says it (RFC 9110, 14.4)."""
    if response.status_code == 206:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
        if match is None or match[1] is None:
            return -1, None
        return int(match[1]), None if match[2] == "*" else int(match[2])
    length = response.headers.get("content-length", "")
    return 0, int(length) if length.isdigit() and _encoding(response) == "identity" else None


def _validator(response: httpx2.Response) -> str:
    return str(response.headers.get("etag") or response.headers.get("last-modified") or "")


def _encoding(response: httpx2.Response) -> str:
    return str(response.headers.get("content-encoding", "identity")).strip().lower() or "identity"


def _first(pieces: Iterator[bytes]) -> bytes:
    """Pieces joined until they tell what the file is."""
    head = b""
    for piece in pieces:
        head += piece
        if len(head) >= HEAD:
            break
    return head


def _pieces(response: httpx2.Response) -> Iterator[bytes]:
    """The body as it comes; undone if the server compressed it although it was asked not to."""
    encoding = _encoding(response)
    if encoding == "identity":
        yield from response.iter_raw()
        return
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise NetworkFailed(f"{shown(str(response.url))}: unknown content encoding {encoding!r}")
    undo = zlib.decompressobj(zlib.MAX_WBITS | 32)
    for packed in response.iter_raw():
        while packed:
            try:
                piece = undo.decompress(packed, 1 << 20)
            except zlib.error as error:
                raise NetworkFailed(f"{shown(str(response.url))}: {error}") from None
            packed = undo.unconsumed_tail
            yield piece
    if not undo.eof:
        raise TryAgain(f"{shown(str(response.url))}: the connection ended inside compressed data")
