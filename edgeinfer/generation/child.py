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

from edgeinfer.converted.opening import open_model
from edgeinfer.generation.engine import Engine
from edgeinfer.generation.heartbeat import Output, Pulse
from edgeinfer.generation.opening import Opening
from edgeinfer.generation.wire import pack_error, pack_event, pack_info, unpack_request
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


def main(output: Output, pulse: Pulse, opening: str) -> None:
    """Serves the model of an ``Opening``, given as JSON."""
    wanted = Opening.from_json(opening)
    with open_model(Path(wanted.path)) as gguf:
        tokenizer = Tokenizer.from_gguf(gguf.metadata, gguf.path, gguf.field_offset)
    serve(lambda: wanted.engine(tokenizer, pulse), output)


def serve(open_engine: Callable[[], Engine], output: Output) -> None:
    """Serves until stdin ends."""
    try:
        engine = open_engine()
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
