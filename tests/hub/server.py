"""A hub on 127.0.0.1: the paths that huggingface_hub and pip ask for, from a server that misbehaves when told to."""

from __future__ import annotations

import gzip
import hashlib
import html
import io
import json
import threading
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Asked:
    """One request: what was asked, and how many bytes of a body were sent."""

    path: str
    headers: dict[str, str]
    status: int = 0
    sent: int = 0

    @property
    def start(self) -> int:
        return int(self.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")[0])


@dataclass
class Fault:
    """How one response to a file's request differs from a good one."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    drop_after: int | None = None  # bytes, then the connection is cut
    stall: float = 0.0  # seconds before the body, or before the cut
    ignore_range: bool = False
    gzip: bool = False
    extra: bytes = b""  # after the content, with a length that says so
    chunked: bool = False  # no length at all
    etag: str | None = None
    force_range: bool = False  # a 206 even though If-Range does not match
    wrong_start: int | None = None  # a 206 from another place than was asked for
    cut: int | None = None  # the body ends early, and its framing says that this is all of it


class Hub:
    """Files by path, repositories made of them, and a log. ``faults`` are used up in order by requests for files."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.wheels: dict[str, dict[str, bytes]] = {}
        self.faults: list[Fault] = []
        self.api_faults: list[int] = []
        self.log: list[Asked] = []
        self.piece = 1 << 16
        self.delay = 0.0  # seconds between pieces
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def downloads(self) -> list[Asked]:
        """Requests for the bytes of files, probes of the first few bytes left out."""
        probes = ("bytes=0-511", "bytes=0-31")
        places = ("/cdn/", "/wheels/", "/file/")
        return [ask for ask in self.log if ask.path.startswith(places) and ask.headers.get("range") not in probes]

    def add_wheel(self, project: str, members: Mapping[str, bytes], requires: tuple[str, ...] = ()) -> str:
        """A wheel ``project==1.0.0`` in the index; returns its SHA-256."""
        module = project.replace("-", "_")
        lines = ["Metadata-Version: 2.1", f"Name: {project}", "Version: 1.0.0", "License: Apache-2.0"]
        metadata = "\n".join([*lines, *(f"Requires-Dist: {text}" for text in requires), ""]).encode()
        info = f"{module}-1.0.0.dist-info"
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
            archive.writestr(f"{info}/METADATA", metadata)
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        file = f"{module}-1.0.0-py3-none-any.whl"
        self.wheels[project] = {file: packed.getvalue(), f"{file}.metadata": metadata}
        self.files[f"/wheels/{file}"] = packed.getvalue()
        self.files[f"/wheels/{file}.metadata"] = metadata
        return hashlib.sha256(packed.getvalue()).hexdigest()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        server_hub = hub

    return Handler


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_hub: Hub
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        ask = Asked(self.path, {key.lower(): value for key, value in self.headers.items()})
        self.server_hub.log.append(ask)
        parts = urlsplit(self.path)
        try:
            if parts.path.startswith("/api/models/"):
                self._api(ask, unquote(parts.path.removeprefix("/api/models/")), parse_qs(parts.query))
            elif "/resolve/" in parts.path:
                self._resolve(ask, unquote(parts.path))
            elif parts.path.startswith("/simple/"):
                self._index(ask, parts.path.split("/")[2])
            else:
                self._file(ask, unquote(parts.path))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _reply(self, ask: Asked, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        ask.status = status
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def _api(self, ask: Asked, path: str, query: dict[str, list[str]]) -> None:
        """GET /api/models/ORG/REPO[/revision/REVISION]?blobs=True, as HfApi.model_info asks for it."""
        hub = self.server_hub
        repo, _, revision = path.partition("/revision/")
        if hub.api_faults:
            self._reply(ask, hub.api_faults.pop(0), {"Retry-After": "0"})
        elif repo in hub.gated:
            self._reply(ask, 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
        elif repo not in hub.repositories:
            self._reply(ask, 404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif revision not in ("", "main", "v1", COMMIT):
            self._reply(ask, 404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
        else:
            assert query.get("blobs") == ["true"] or query.get("blobs") == ["True"], query
            files = hub.repositories[repo]
            siblings = [_sibling(name, content) for name, content in files.items()]
            said = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings, "gated": False, "tags": []}
            body = json.dumps({**said, "cardData": {"license": "mit"}}).encode()
            self._reply(ask, 200, {"Content-Type": "application/json"}, body)

    def _resolve(self, ask: Asked, path: str) -> None:
        """The hub answers with a redirect to another host, which serves the content by its hash."""
        repo, _, rest = path.lstrip("/").partition("/resolve/")
        revision, _, file = rest.partition("/")
        content = self.server_hub.repositories.get(repo, {}).get(file)
        if content is None or revision not in ("main", COMMIT):
            self._reply(ask, 404, {"X-Error-Code": "EntryNotFound"})
            return
        digest = sha256(content)
        self.server_hub.files[f"/cdn/{digest}"] = content
        location = f"http://localhost:{self.server_hub.port}/cdn/{digest}?X-Signature=secret"
        linked = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content)), "X-Repo-Commit": COMMIT}
        self._reply(ask, 302, {"Location": location, **linked})

    def _index(self, ask: Asked, project: str) -> None:
        """A project's page of the simple index, with hashes and the metadata files of PEP 658."""
        rows = self.server_hub.wheels.get(project)
        if rows is None:
            self._reply(ask, 404, {})
            return
        links = []
        for file, content in rows.items():
            if file.endswith(".whl"):
                core = html.escape(f"sha256={sha256(rows[file + '.metadata'])}")
                links.append(
                    f'<a href="/wheels/{file}#sha256={sha256(content)}" data-core-metadata="{core}">{file}</a>'
                )
        body = f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode()
        self._reply(ask, 200, {"Content-Type": "text/html"}, body)

    def _file(self, ask: Asked, path: str) -> None:
        hub = self.server_hub
        content = hub.files.get(path)
        if content is None:
            self._reply(ask, 404, {})
            return
        fault = hub.faults.pop(0) if hub.faults and not path.endswith(".metadata") else Fault()
        if fault.status:
            self._reply(ask, fault.status, fault.headers, fault.body or b"")
            return
        content = content if fault.body is None else fault.body
        etag = fault.etag if fault.etag is not None else f'"{sha256(content)[:16]}"'
        headers = {"ETag": etag} if etag else {}
        total = len(content)
        if fault.gzip:
            content, headers["Content-Encoding"] = gzip.compress(content), "gzip"
            total = len(content)
        matches = fault.force_range or ask.headers.get("if-range", etag) == etag
        ask.status = 200
        if "range" in ask.headers and matches and not fault.ignore_range:
            first, _, last = ask.headers["range"].removeprefix("bytes=").partition("-")
            start = int(first) if fault.wrong_start is None else fault.wrong_start
            stop = min(int(last or total), total - 1)
            if start >= total:
                self._reply(ask, 416, {"Content-Range": f"bytes */{total}"})
                return
            ask.status = 206
            headers["Content-Range"] = f"bytes {start}-{stop}/{total}"
            content = content[start : stop + 1]
        content = content[: fault.cut] + fault.extra
        headers |= fault.headers
        self.send_response(ask.status)
        for key, value in {"Content-Length": str(len(content)), **headers}.items():
            if not (fault.chunked and key == "Content-Length"):
                self.send_header(key, value)
        if fault.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._body(ask, content, fault)

    def _body(self, ask: Asked, content: bytes, fault: Fault) -> None:
        hub, end = self.server_hub, len(content) if fault.drop_after is None else fault.drop_after
        if fault.stall and fault.drop_after is None:
            time.sleep(fault.stall)
        for at in range(0, end, hub.piece):
            piece = content[at : min(at + hub.piece, end)]
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" if fault.chunked else piece)
            ask.sent += len(piece)
            if hub.delay:
                time.sleep(hub.delay)
        if fault.drop_after is not None:
            time.sleep(fault.stall)
            self.close_connection = True
            self.connection.close()
        elif fault.chunked:
            self.wfile.write(b"0\r\n\r\n")


def _sibling(name: str, content: bytes) -> dict[str, Any]:
    row: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": sha256(content)[:40]}
    if name.endswith((".gguf", ".safetensors")):
        row["lfs"] = {"sha256": sha256(content), "size": len(content), "pointerSize": 135}
    return row
