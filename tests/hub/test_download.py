"""One file over a bad line: whatever the server does, the file is right in the end or there is one clear error."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections import namedtuple
from pathlib import Path

import httpx2
import pytest

from edgeinfer.errors import BadInput, CorruptFile, DiskLimit, EdgeInferError, ModelError, NetworkFailed
from edgeinfer.hub import partial as partial_module
from edgeinfer.hub.download import download, probe
from edgeinfer.hub.model import Progress, Remote
from edgeinfer.hub.transport import Patience, open_url
from tests.hub.server import Fault, Hub, sha256

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def remote(hub: Hub, payload: bytes) -> Remote:
    hub.files["/file/m.gguf"] = payload
    return Remote(f"{hub.url}/file/m.gguf", "m.gguf", len(payload), sha256(payload))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "store" / "m.gguf"


def left(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir())


def test_a_file_arrives_with_its_hash_and_its_progress(
    remote: Remote, target: Path, patience: Patience, payload: bytes
) -> None:
    seen: list[Progress] = []
    assert download(remote, target, patience, seen.append) == sha256(payload)
    assert target.read_bytes() == payload
    assert left(target) == ["m.gguf"]
    done = [progress.done for progress in seen]
    assert done == sorted(done)
    assert seen[-1] == Progress(len(payload), len(payload), "m.gguf")


def test_what_is_there_already_is_not_asked_for(hub: Hub, remote: Remote, target: Path, patience: Patience) -> None:
    download(remote, target, patience)
    asked = len(hub.log)
    target.with_name("m.gguf.part.json").touch()  # as a process leaves it that is killed after naming the file
    download(remote, target, patience)
    assert len(hub.log) == asked
    assert left(target) == ["m.gguf"]


OTHER = b"GGUF" + bytes(500_000)
CURES = {
    "drop at a byte": [Fault(drop_after=123_457)],
    "drop again and again": [Fault(drop_after=100_000), Fault(drop_after=1), Fault(drop_after=200_000)],
    "drop before any byte": [Fault(drop_after=0)],
    "stall": [Fault(drop_after=70_000, stall=1.0)],
    "stall before the body": [Fault(stall=1.0)],
    "short body": [Fault(drop_after=400_000)],
    "429 with Retry-After": [Fault(status=429, headers={"Retry-After": "0"})],
    "429 with nonsense": [Fault(status=429, headers={"Retry-After": "\u00b2"})],
    "503 with a date": [Fault(status=503, headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})],
    "500 in the middle": [Fault(drop_after=100_000), Fault(status=500)],
    "416 in the middle": [Fault(drop_after=100_000), Fault(status=416, headers={"Content-Range": "bytes */9"})],
    "200 in place of 206": [Fault(drop_after=100_000), Fault(ignore_range=True)],
    "another ETag": [Fault(drop_after=100_000), Fault(etag='"other"')],
    "other content in a 206": [Fault(drop_after=100_000), Fault(body=OTHER, etag='"y"', force_range=True)],
    "206 of another place": [Fault(drop_after=100_000), Fault(wrong_start=50_000)],
    "206 of another size": [Fault(drop_after=100_000), Fault(headers={"Content-Range": "bytes 100000-9/9"})],
    "206 of a size without end": [
        Fault(drop_after=100_000),
        Fault(headers={"Content-Range": f"bytes 100000-9/{'9' * 5000}"}),
    ],
    "206 without a range": [Fault(drop_after=100_000), Fault(headers={"Content-Range": "junk"})],
    "gzip": [Fault(gzip=True)],
    "gzip that drops": [Fault(gzip=True, drop_after=90_000)],
    "gzip in the middle": [Fault(drop_after=100_000), Fault(gzip=True)],
    "no length": [Fault(chunked=True)],
    "no length and a drop": [Fault(chunked=True, drop_after=70_000)],
    "no ETag": [Fault(etag="", drop_after=100_000), Fault(etag="")],
    "weak ETag": [Fault(etag='W/"a"', drop_after=100_000), Fault(etag='W/"a"')],
}


@pytest.mark.parametrize("faults", CURES.values(), ids=CURES)
def test_a_fault_that_passes_is_survived(
    hub: Hub, remote: Remote, target: Path, patience: Patience, payload: bytes, faults: list[Fault]
) -> None:
    hub.faults = list(faults)
    assert download(remote, target, patience) == sha256(payload)
    assert hub.faults == []
    assert target.read_bytes() == payload
    assert left(target) == ["m.gguf"]


FATAL = {
    "longer, with a length": (Fault(extra=b"x" * 9), NetworkFailed, "expected 500004"),
    "longer, without a length": (Fault(extra=b"x" * 9, chunked=True), NetworkFailed, "more than the expected 500004"),
    "wrong bytes": (Fault(body=OTHER), CorruptFile, "sha256"),
    "an HTML page": (Fault(body=b"<!DOCTYPE html><html>log in</html>"), ModelError, "HTML page"),
    "a Git LFS pointer": (Fault(body=b"version https://git-lfs.github.com/spec/v1\n"), ModelError, "Git LFS pointer"),
    "nothing": (Fault(body=b""), ModelError, "GGUF"),
    "401": (Fault(status=401), NetworkFailed, "hf auth login"),
    "403": (Fault(status=403), NetworkFailed, "hf auth login"),
    "404": (Fault(status=404), NetworkFailed, "404"),
    "to file:": (Fault(status=302, headers={"Location": "file:///etc/passwd"}), NetworkFailed, "only https"),
    "to plain http": (Fault(status=302, headers={"Location": "http://192.0.2.1/m"}), NetworkFailed, "only https"),
    "an hour's wait": (Fault(status=429, headers={"Retry-After": "3600"}), NetworkFailed, "3600 s"),
    "unknown encoding": (Fault(headers={"Content-Encoding": "br"}), NetworkFailed, "'br'"),
    "not gzip": (Fault(headers={"Content-Encoding": "gzip"}), NetworkFailed, "incorrect header"),
}


@pytest.mark.parametrize(("fault", "kind", "words"), FATAL.values(), ids=FATAL)
def test_a_fault_that_stays_is_one_line_and_leaves_nothing_wrong(
    hub: Hub, remote: Remote, target: Path, patience: Patience, fault: Fault, kind: type[EdgeInferError], words: str
) -> None:
    hub.faults = [fault]
    with pytest.raises(kind, match=words) as raised:
        download(remote, target, patience)
    assert "\n" not in str(raised.value)
    assert "m.gguf" not in left(target)
    hub.faults = []
    assert download(remote, target, patience) == remote.sha256


def test_a_server_that_never_recovers_is_given_up_and_resumed_later(
    hub: Hub, remote: Remote, target: Path, patience: Patience, payload: bytes
) -> None:
    hub.faults = [Fault(drop_after=200_000), *[Fault(status=503)] * 10]
    with pytest.raises(NetworkFailed, match="gave up after 4 attempts") as raised:
        download(remote, target, patience)
    assert raised.value.exit_code == 5
    assert left(target) == ["m.gguf.part", "m.gguf.part.json"]
    hub.faults = []
    download(remote, target, patience)
    assert hub.log[-1].start == 200_000
    assert target.read_bytes() == payload


def test_bytes_of_an_earlier_run_are_hashed_again(hub: Hub, remote: Remote, target: Path, patience: Patience) -> None:
    hub.faults = [Fault(drop_after=200_000), *[Fault(status=503)] * 10]
    with pytest.raises(NetworkFailed):
        download(remote, target, patience)
    part = target.with_name("m.gguf.part")
    part.write_bytes(b"GGUF" + bytes(199_996))
    hub.faults = []
    with pytest.raises(CorruptFile, match="sha256"):
        download(remote, target, patience)
    assert left(target) == []
    download(remote, target, patience)


@pytest.mark.parametrize("state", [b"", b"{", b"[]", b'{"sha256": "of another file"}', b"\xff"])
def test_a_part_without_a_good_note_starts_over(
    hub: Hub, remote: Remote, target: Path, patience: Patience, payload: bytes, state: bytes
) -> None:
    target.parent.mkdir()
    target.with_name("m.gguf.part").write_bytes(b"junk" * 9)
    target.with_name("m.gguf.part.json").write_bytes(state)
    download(remote, target, patience)
    assert hub.log[-1].start == 0
    assert target.read_bytes() == payload


def test_without_a_hash_a_validator_decides_whether_to_go_on(
    hub: Hub, remote: Remote, target: Path, patience: Patience, payload: bytes
) -> None:
    bare = Remote(remote.url, remote.file)
    hub.faults = [Fault(drop_after=200_000), *[Fault(status=503)] * 10]
    with pytest.raises(NetworkFailed):
        download(bare, target, patience)
    hub.faults = []
    hub.files["/file/m.gguf"] = changed = b"GGUF" + bytes(300_000)
    assert download(bare, target, patience) == sha256(changed)
    assert (hub.log[-1].start, hub.log[-1].status) == (200_000, 200)


def test_without_hash_and_validator_nothing_of_an_earlier_run_is_trusted(
    hub: Hub, remote: Remote, target: Path, patience: Patience
) -> None:
    bare = Remote(remote.url, remote.file)
    hub.faults = [Fault(drop_after=200_000, etag=""), *[Fault(status=503)] * 10]
    with pytest.raises(NetworkFailed):
        download(bare, target, patience)
    hub.files["/file/m.gguf"] = OTHER
    hub.faults = [Fault(etag="")]
    assert download(bare, target, patience) == sha256(OTHER)
    assert hub.log[-1].start == 0


def test_compressed_data_that_ends_early_is_asked_for_again(
    hub: Hub, remote: Remote, target: Path, patience: Patience, payload: bytes
) -> None:
    hub.faults = [Fault(gzip=True, chunked=True, cut=100_000)]
    assert download(Remote(remote.url, remote.file), target, patience) == sha256(payload)


@pytest.mark.parametrize(
    "place",
    ["http://127.0.0.1/m", "http://example.org/m", "file:///etc/passwd", "https://[::1", "https://a:99999/m"],
)
def test_https_is_never_left(place: str) -> None:
    answer = httpx2.MockTransport(lambda _: httpx2.Response(302, headers={"Location": place}))
    with (
        httpx2.Client(transport=answer) as client,
        pytest.raises(NetworkFailed, match=r"redirects to .*; only https is followed"),
        open_url(client, "https://example.org/m", {}),
    ):
        pass


def test_a_redirect_to_another_host_does_not_get_the_token(
    hub: Hub, target: Path, patience: Patience, payload: bytes
) -> None:
    hub.repositories["org/repo"] = {"m.gguf": payload}
    url = f"{hub.url}/org/repo/resolve/main/m.gguf"
    download(Remote(url, "m.gguf", len(payload), sha256(payload), token="hf_secret"), target, patience)
    first, second = hub.log
    assert first.headers["authorization"] == "Bearer hf_secret"
    assert second.path.startswith("/cdn/")
    assert "authorization" not in second.headers


def test_redirects_have_an_end(hub: Hub, remote: Remote, target: Path, patience: Patience) -> None:
    hub.faults = [Fault(status=302, headers={"Location": "/file/m.gguf"})] * 20
    with pytest.raises(NetworkFailed, match="more than 10 redirects"):
        download(remote, target, patience)


@pytest.mark.parametrize("url", ["http://192.0.2.1/m.gguf", "file:///etc/passwd", "ftp://127.0.0.1/m"])
def test_only_https_and_this_machine_are_asked(target: Path, patience: Patience, url: str) -> None:
    with pytest.raises(NetworkFailed, match="only https"):
        download(Remote(url, "m.gguf"), target, patience)


def test_no_server_is_a_network_error(target: Path, patience: Patience) -> None:
    with pytest.raises(NetworkFailed, match="gave up after 4 attempts"):
        download(Remote("http://127.0.0.1:1/m.gguf", "m.gguf"), target, patience)


def test_a_full_disk_is_seen_before_the_first_byte(
    hub: Hub, remote: Remote, target: Path, patience: Patience, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial_module.shutil, "disk_usage", lambda _: Usage(10**9, 10**9, 1000))
    with pytest.raises(DiskLimit, match="500 kB") as raised:
        download(remote, target, patience)
    assert raised.value.exit_code == 4
    assert (raised.value.needed, raised.value.available) == (500_004, 1000)
    assert hub.log == []


def test_a_disk_that_fills_up_leaves_a_part_to_go_on_with(
    hub: Hub, remote: Remote, target: Path, patience: Patience, payload: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = partial_module.Partial.append

    def full(self: partial_module.Partial, piece: bytes) -> None:
        if self.length > 0.9 * len(payload) - len(piece):
            with partial_module.disk_errors(self.path, 1):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, piece)

    with monkeypatch.context() as patch:
        patch.setattr(partial_module.Partial, "append", full)
        with pytest.raises(DiskLimit, match="the disk is full"):
            download(remote, target, patience)
    kept = target.with_name("m.gguf.part").stat().st_size
    assert kept > 0
    download(remote, target, patience)
    assert hub.log[-1].start == kept
    assert target.read_bytes() == payload


def test_a_folder_that_cannot_be_written_is_one_line(remote: Remote, tmp_path: Path, patience: Patience) -> None:
    (tmp_path / "store").write_text("a file where the folder should be")
    with pytest.raises(BadInput, match="cannot write"):
        download(remote, tmp_path / "store" / "m.gguf", patience)


def test_a_link_in_place_of_the_part_is_not_followed(remote: Remote, target: Path, patience: Patience) -> None:
    victim = target.parent.parent / "victim"
    victim.write_text("precious")
    target.parent.mkdir()
    target.with_name("m.gguf.part").symlink_to(victim)
    with pytest.raises(BadInput, match="symbolic link"):
        download(remote, target, patience)
    assert victim.read_text() == "precious"


def test_a_link_in_place_of_the_file_is_replaced_not_followed(
    remote: Remote, target: Path, patience: Patience, payload: bytes
) -> None:
    victim = target.parent.parent / "victim"
    victim.write_bytes(payload)
    target.parent.mkdir()
    target.symlink_to(victim)
    download(remote, target, patience)
    assert not target.is_symlink()
    assert victim.read_bytes() == payload


def test_probe_gives_the_size_and_refuses_what_is_no_model(hub: Hub, remote: Remote, patience: Patience) -> None:
    assert probe(remote, patience) == 500_004
    hub.faults = [Fault(ignore_range=True)]
    assert probe(remote, patience) == 500_004
    hub.faults = [Fault(status=503), Fault(chunked=True, ignore_range=True)]
    assert probe(remote, patience) is None
    hub.files["/file/m.gguf"] = b"<html>"
    with pytest.raises(ModelError, match="HTML page"):
        probe(remote, patience)
    hub.files["/file/m.gguf"] = b""
    with pytest.raises(ModelError, match="empty"):
        probe(remote, patience)


def test_certificates_come_from_the_usual_variable(
    target: Path, patience: Patience, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = tmp_path / "authority.pem"
    authority.write_text("not a certificate")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    with pytest.raises(NetworkFailed, match="SSL_CERT_FILE"):
        download(Remote("https://127.0.0.1:1/m.gguf", "m.gguf"), target, patience)


def test_two_threads_each_have_their_own_file(hub: Hub, tmp_path: Path, patience: Patience, payload: bytes) -> None:
    contents = {f"/file/{i}.gguf": payload[: 200_000 + i] for i in range(4)}
    hub.files |= contents
    digests: dict[str, str] = {}

    def one(path: str) -> None:
        content = contents[path]
        remote = Remote(hub.url + path, path[-6:], len(content), sha256(content))
        digests[path] = download(remote, tmp_path / path[-6:], patience)

    threads = [threading.Thread(target=one, args=(path,)) for path in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert digests == {path: sha256(content) for path, content in contents.items()}


def test_the_note_beside_a_part_holds_no_query(hub: Hub, remote: Remote, target: Path, patience: Patience) -> None:
    signed = Remote(remote.url + "?signature=secret", "m.gguf")
    hub.faults = [Fault(drop_after=100_000), *[Fault(status=503)] * 9]
    with pytest.raises(NetworkFailed) as raised:
        download(signed, target, patience)
    assert "secret" not in str(raised.value)
    assert "secret" not in json.dumps(json.loads(target.with_name("m.gguf.part.json").read_text()))
