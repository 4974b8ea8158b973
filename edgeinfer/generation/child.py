"""The far end of an isolated engine: a process that loads a model, answers requests and says that it lives.

Requests come in as JSON lines on stdin, events go out as JSON lines. The end of stdin, which is also the end of the
parent, ends the process.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgeinfer.backends import Choice, open_draft
from edgeinfer.backends.base import Backend
from edgeinfer.converted.opening import open_model
from edgeinfer.generation.engine import Engine
from edgeinfer.generation.heartbeat import Output, Pulse
from edgeinfer.generation.wire import pack_error, pack_event, pack_info, unpack_request
from edgeinfer.settings import load_settings
from edgeinfer.speculation.sources import shared_by
from edgeinfer.speculation.speculation import Shared
from edgeinfer.tokenizer.vocabulary import Tokenizer
from edgeinfer.types import Event, Finished

CLOSE_SECONDS = 5.0


class RemoteOutlet:
    """The events of one request, sent to the parent; paused and cancelled from there."""

    def __init__(self, number: int, output: Output, drop: Callable[[int], object]) -> None:
        self.submitted = time.perf_counter()
        self.cancelled = False
        self.ready = True
        self._number = number
        self._output = output
        self._drop = drop

    def put(self, event: Event) -> None:
        if isinstance(event, Finished):
            self._drop(self._number)
        self._output.send({"id": self._number, "event": pack_event(event)})

    def fail(self, error: BaseException) -> None:
        self._output.send({"id": self._number, "error": pack_error(error)})


def main(
    output: Output, pulse: Pulse, path: str, backend: str, context: str, threads: str, kv: str, *draft: str
) -> None:
    """Serves the model of a GGUF file. ``draft``: path and backend of a second model, where there is one."""
    file = Path(path)
    with open_model(file) as gguf:
        tokenizer = Tokenizer.from_gguf(gguf.metadata, gguf.path, gguf.field_offset)
    choice = Choice(backend, "")
    settings = load_settings()
    kept = settings.paths.kept if settings.keep_kv else None
    speculate = shared_by(settings, open_draft(int(threads), *draft) if draft else None)
    serve(lambda: choice.load(file, int(context), int(threads), kv, kept), tokenizer, output, pulse, speculate)


def serve(
    open_backend: Callable[[], Backend],
    tokenizer: Tokenizer,
    output: Output,
    pulse: Pulse,
    speculate: Callable[[Backend], Shared] | None = None,
) -> None:
    """Serves until stdin ends."""
    try:
        engine = Engine(open_backend, tokenizer, speculate, pulse)
    except BaseException as error:  # raised again in the parent
        output.send({"failed": pack_error(error)})
        return
    output.send({"ready": pack_info(engine.info)})
    outlets: dict[int, RemoteOutlet] = {}
    for line in sys.stdin.buffer:
        _obey(json.loads(line), engine, output, outlets)
    threading.Thread(target=_give_up, daemon=True).start()
    engine.close()


def _obey(message: dict[str, Any], engine: Engine, output: Output, outlets: dict[int, RemoteOutlet]) -> None:
    number = message["id"]
    if "request" in message:
        outlet = outlets[number] = RemoteOutlet(number, output, outlets.pop)
        engine.serve(unpack_request(message["request"]), outlet)
        return
    known = outlets.get(number)
    if known is not None:
        known.cancelled = known.cancelled or message["cancelled"]
        known.ready = message["ready"]
        engine.wake()


def _give_up() -> None:
    """Ends the process where a step that hangs keeps it from ending."""
    time.sleep(CLOSE_SECONDS)
    os._exit(1)
