"""What an answer was made of, so that it can be made again: hashes of weights, template and prompt, and the request.

A receipt is JSON. It holds the prompt as token ids and the answer as token ids, so it is as private as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from edgeinfer.backends.base import ModelInfo
from edgeinfer.errors import BadInput
from edgeinfer.generation.request import Request
from edgeinfer.generation.wire import pack_request, unpack_request
from edgeinfer.types import Reply

VERSION = 1
_PACKAGES = ("edgeinfer", "mlx", "llama-cpp-python")
_MOST_TOKENS = 1 << 24


@dataclass(frozen=True, slots=True)
class Receipt:
    """model: what ``load`` takes. weights: the SHA-256 of each file. made_with: what else may change a token."""

    model: str
    weights: tuple[str, ...]
    template: str  # SHA-256
    prompt: str  # SHA-256 of the ids
    request: Mapping[str, Any]  # with the seed that was used
    load: Mapping[str, Any]  # backend, context, threads
    made_with: Mapping[str, str]
    ids: tuple[int, ...]
    finish_reason: str
    version: int = VERSION

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


@dataclass(frozen=True, slots=True)
class Replayed:
    """``difference``: the first place of the answer with another token, None where all are the same. ``expected`` and
    ``found`` are the tokens there, None past an end. ``changes``: what was otherwise when the receipt was made."""

    difference: int | None
    expected: int | None
    found: int | None
    changes: tuple[str, ...]
    reply: Reply

    @property
    def identical(self) -> bool:
        return self.difference is None


def make(
    model: str, weights: Sequence[str], template: str, request: Request, info: ModelInfo, threads: int, reply: Reply
) -> Receipt:
    ids = [int(token) for token in request.ids]
    seeded = replace(request, ids=ids, params=replace(request.params, seed=reply.seed))
    return Receipt(
        model=model,
        weights=tuple(weights),
        template=_hash(template),
        prompt=_hash(json.dumps(ids)),
        request=pack_request(seeded),
        load={"backend": info.backend, "context": info.context, "threads": threads},
        made_with=surroundings(info),
        ids=reply.ids,
        finish_reason=reply.finish_reason,
    )


def surroundings(info: ModelInfo) -> dict[str, str]:
    """What an answer depends on besides the weights and the request."""
    found = {"kernels": info.kernels, "device": info.device, "quantization": info.quantization}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def parse(text: str, name: str = "receipt") -> Receipt:
    """Raises BadInput for what is no receipt, is of another version, or was changed by hand."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise BadInput(f"{name}: no JSON; expected a receipt that edgeinfer wrote") from None
    if not isinstance(values, dict) or values.get("version") != VERSION:
        found = values.get("version") if isinstance(values, dict) else type(values).__name__
        raise BadInput(f"{name}: version {found!r:.20}, expected a receipt of version {VERSION}")
    try:
        receipt = Receipt(**{**values, "ids": tuple(values["ids"]), "weights": tuple(values["weights"])})
        request = request_of(receipt)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise BadInput(f"{name}: not a whole receipt ({error!r:.80})") from None
    ids = (*receipt.ids, *request.ids)
    if len(ids) > _MOST_TOKENS or any(type(token) is not int for token in ids):
        raise BadInput(f"{name}: ids are whole numbers, {_MOST_TOKENS:,} at most")
    if receipt.prompt != _hash(json.dumps(list(request.ids))):
        raise BadInput(f"{name}: the prompt's ids do not have its hash; the receipt was changed")
    return receipt


def request_of(receipt: Receipt) -> Request:
    return unpack_request(receipt.request)


def compared(receipt: Receipt, reply: Reply, changes: Sequence[str]) -> Replayed:
    place = next(
        (place for place, pair in enumerate(zip(receipt.ids, reply.ids, strict=False)) if pair[0] != pair[1]),
        min(len(receipt.ids), len(reply.ids)),
    )
    if place == len(receipt.ids) == len(reply.ids):
        return Replayed(None, None, None, tuple(changes), reply)
    expected, found = (ids[place] if place < len(ids) else None for ids in (receipt.ids, reply.ids))
    return Replayed(place, expected, found, tuple(changes), reply)


def changes(receipt: Receipt, weights: Sequence[str], template: str, info: ModelInfo) -> list[str]:
    """What is not as it was when the receipt was made, one line each."""
    now = surroundings(info)
    lines = []
    if tuple(weights) != receipt.weights:
        lines.append("the weights have another SHA-256")
    if _hash(template) != receipt.template:
        lines.append("the chat template is another one")
    for name in sorted(now.keys() | receipt.made_with.keys()):
        then = receipt.made_with.get(name, "nothing")
        if now.get(name, "nothing") != then:
            lines.append(f"{name}: {now.get(name, 'nothing')}, then {then}")
    return lines


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
