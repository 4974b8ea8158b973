"""The child process that renders chat templates. ``sandbox.py`` starts it; nothing else imports it at run time.

A chat template is a program from a model's file. It runs here, in Jinja2's immutable sandbox, under limits of time,
output and memory, with the names that templates expect of transformers (``transformers/utils/chat_template_utils.py``).

One JSON object a line, on standard input and output:

    {"source": "...", "variables": [{...}, ...]}  ->  {"results": [{"text": "..."}, {"error": "...", "line": 3}, ...]}
"""

from __future__ import annotations

import gc
import json
import resource
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from types import FrameType
from typing import Any, BinaryIO, NoReturn, cast

from jinja2 import BaseLoader, Environment, Template, TemplateError, TemplateSyntaxError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_OUTPUT = 8 << 20  # characters
_MAX_BITS = 1 << 16  # of a whole number
_MIB = 1 << 20


class LimitReached(TemplateError):
    """A limit that the template ran into; the parent starts a fresh process after it."""


class GenerationBlock(Extension):
    """``{% generation %}`` marks what an assistant wrote, for training. Its body renders like a macro's."""

    tags = {"generation"}  # noqa: RUF012 - the type that Jinja declares

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    @staticmethod
    def _body(caller: Callable[[], str]) -> str:
        return caller()


class NoFiles(BaseLoader):
    """What ``include``, ``import`` and ``extends`` find."""

    def get_source(self, environment: Environment, template: str) -> NoReturn:
        raise SecurityError(f"a chat template may not include or import another file ({template!r})")


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Refuses, rather than renders as nothing, what the sandbox calls unsafe; and refuses arithmetic without end."""

    intercepted_binops = frozenset({"*", "**"})

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__!r} is refused")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MAX_BITS:
                raise LimitReached(f"a number of more than {_MAX_BITS} bits")
        elif operator == "*":
            count, sequence = (left, right) if isinstance(left, int) else (right, left)
            if isinstance(count, int) and hasattr(sequence, "__len__") and len(sequence) * count > MAX_OUTPUT:
                raise LimitReached(f"a value of more than {MAX_OUTPUT // _MIB} Mi items")
        return super().call_binop(context, operator, left, right)


class TemplateDict:
    """``dict`` without the attributes of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class TemplateNamespace(Namespace):
    """``namespace`` that keeps no underscore names."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace may not hold {name!r}")
        super().__setitem__(name, value)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def make_environment() -> ChatEnvironment:
    """The Jinja2 environment that chat templates are written for."""
    environment = ChatEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[GenerationBlock, "jinja2.ext.loopcontrols"],
        loader=NoFiles(),
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(
        raise_exception=_raise_exception,
        strftime_now=_strftime_now,
        dict=TemplateDict(),
        namespace=TemplateNamespace,
    )
    return environment


_ENVIRONMENT = make_environment()


@lru_cache(maxsize=8)
def _compiled(source: str) -> Template:
    return _ENVIRONMENT.from_string(source)


def render(source: str, variables: Mapping[str, Any]) -> str:
    """One rendered text; LimitReached once it is longer than ``MAX_OUTPUT`` characters."""
    template = _compiled(source)
    pieces, length = [], 0
    stream = cast(Generator[str, None, None], template.root_render_func(template.new_context(dict(variables))))
    try:
        for piece in stream:
            pieces.append(piece)
            length += len(piece)
            if length > MAX_OUTPUT:  # thrown inside, so that the traceback holds the line
                stream.throw(LimitReached(f"more than {MAX_OUTPUT // _MIB} Mi characters of output"))
    except Exception:
        _ENVIRONMENT.handle_exception()
    return "".join(pieces)


def _line_of(error: BaseException) -> int | None:
    """The innermost template line in a traceback that Jinja2 has rewritten."""
    if isinstance(error, TemplateSyntaxError):
        return error.lineno
    line, trace = None, error.__traceback__
    while trace is not None:
        if "__jinja_exception__" in trace.tb_frame.f_globals:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raises after ``seconds``, which tells the line; ends the process soon after if C code never returns."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_PROF, seconds + 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)


def answers(line: bytes, seconds: float, memory: int) -> list[dict[str, Any]]:
    """The results for one request, up to the first that reached a limit."""
    results: list[dict[str, Any]] = []
    try:
        request = json.loads(line.decode("utf-8", "surrogatepass"))
        with _time_limit(seconds):
            for variables in request["variables"]:
                results.append(_result(request["source"], variables))
    except MemoryError as error:
        results.append({"error": f"more than {memory // _MIB} MiB of memory", "line": _line_of(error), "limit": True})
    except LimitReached as error:
        results.append({"error": str(error), "line": _line_of(error), "limit": True})
    return results


def _result(source: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """One text or error. Whatever a template raises is data here: hostile ones raise anything at all."""
    try:
        return {"text": render(source, variables)}
    except (MemoryError, LimitReached):
        raise
    except Exception as error:
        return {"error": str(error) or type(error).__name__, "line": _line_of(error), "limit": False}


def _limit_memory(extra: int) -> bool:
    """Caps this process at ``extra`` bytes above what it has now; False where the system does not enforce that."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform != "linux":
        return False
    with open("/proc/self/statm", "rb") as statm:
        pages = int(statm.read().split()[0])
    limit = pages * resource.getpagesize() + extra
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return True


def serve(requests: BinaryIO, replies: BinaryIO, seconds: float, memory: int, capped: bool) -> None:
    """Answers until the parent closes its end. ``capped`` False leaves the memory for the parent to watch."""

    def out_of_time(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise LimitReached(f"more than {seconds:g} s")

    def reply(message: Mapping[str, Any]) -> None:
        text = json.dumps(message, ensure_ascii=False)
        replies.write(text.encode("utf-8", "surrogatepass") + b"\n")
        replies.flush()

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, out_of_time)
    gc.freeze()
    reply({"capped": capped and _limit_memory(memory)})
    for line in requests:
        reply({"results": answers(line, seconds, memory)})


def main(seconds: str, memory: str, capped: str) -> None:
    serve(sys.stdin.buffer, sys.stdout.buffer, float(seconds), int(memory), capped == "1")
