"""kill -9 at random moments: the next pull goes on, and the file is right in the end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from edgeinfer.hub.sources import find, resolve
from edgeinfer.paths import Paths
from edgeinfer.settings import Settings
from tests.hub.server import Hub, sha256

KILLS = 50 if os.environ.get("CI") else 20
PULLER = """
import os, sys
from pathlib import Path
from edgeinfer.hub.sources import resolve
from edgeinfer.paths import Paths
from edgeinfer.settings import Settings

url = sys.argv[1]
for line in sys.stdin:  # forked from a process that has imported everything, so that a kill costs milliseconds
    pid = os.fork()
    if pid == 0:
        resolve(url, Settings(paths=Paths(Path(line.strip()))))
        os._exit(0)
    print(pid, flush=True)
    sys.stdin.readline()  # until then the process, or what is left of it, keeps its id
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


def test_kills_end_with_the_right_file(hub: Hub, tmp_path: Path, payload: bytes) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}, {KILLS} kills")
    choose = random.Random(seed)
    content = payload * 4
    hub.files["/file/m.gguf"] = content
    hub.piece, hub.delay = 1 << 14, 0.004  # half a second for the whole file
    url = f"{hub.url}/file/m.gguf#sha256={sha256(content)}"
    command = [sys.executable, "-c", PULLER, url]
    kills = homes = 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as puller:
        assert puller.stdin is not None
        assert puller.stdout is not None
        while kills < KILLS:
            home = tmp_path / str(homes)
            asked = len(hub.downloads())
            puller.stdin.write(f"{home}\n")
            puller.stdin.flush()
            pid = int(puller.stdout.readline())
            if choose.random() < 0.8:
                _wait_for_bytes(hub, asked)
            time.sleep(choose.uniform(0, 0.15))
            os.kill(pid, signal.SIGKILL)
            puller.stdin.write("\n")
            puller.stdin.flush()
            status = int(puller.stdout.readline())
            assert status in (0, -signal.SIGKILL)
            if status == 0 or find(url, Settings(paths=Paths(home))) is not None:
                _check(home, url, content)
                homes += 1
            kills += status != 0
    last = tmp_path / str(homes)
    resolve(url, Settings(paths=Paths(last)))
    _check(last, url, content)
    sent = sum(ask.sent for ask in hub.downloads())
    wasted = sent - (homes + 1) * len(content)
    print(f"{homes + 1} files, {wasted / kills:.0f} bytes fetched twice a kill")
    assert wasted <= kills * 8 * hub.piece  # what the server had sent and the killed process had not written yet


def _wait_for_bytes(hub: Hub, asked: int) -> None:
    """Until a download after the first ``asked`` ones has begun, or three seconds."""
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline and not any(ask.sent for ask in hub.downloads()[asked:]):
        time.sleep(0.002)


def _check(home: Path, url: str, content: bytes) -> None:
    model = find(url, Settings(paths=Paths(home)))
    assert model is not None
    assert sha256(model.path.read_bytes()) == sha256(content)
    assert sorted(path.name for path in model.path.parent.iterdir()) == ["m.gguf", "model.json"]
