"""``hf:`` sources: huggingface_hub says what there is, with sizes and hashes; our own downloader fetches the bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx2

from edgeinfer.errors import ModelNotFound, NetworkFailed
from edgeinfer.hub.model import Plan, Quant, Remote
from edgeinfer.hub.names import check_inside, check_plain, choose, folder_files, plain_file, variants
from edgeinfer.hub.transport import Patience, TryAgain, pause

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo


def plan(repo: str, selector: str, revision: str, name: str, source: str, patience: Patience) -> Plan:
    """What to fetch from a repository. ``selector`` is a quantization, a file or empty; ``name`` may be empty."""
    from huggingface_hub import get_token

    info = _model_info(repo, revision, patience)
    files = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    sizes = {path: sibling.size or 0 for path, sibling in files.items()}
    commit = info.sha or revision or "main"

    def remote(path: str, file: str, magic: bytes = b"GGUF", magic_at: int = 0) -> Remote:
        check_inside(path)
        large = files[path].lfs
        return Remote(
            url=f"{_endpoint()}/{repo}/resolve/{quote(commit, safe='')}/{quote(path)}",
            file=file,
            size=files[path].size,
            sha256=large.sha256 if large else "",
            magic=magic,
            magic_at=magic_at,
            token=get_token() or "",
        )

    found = variants(sizes)
    card = info.card_data
    if not found and not selector and (parts := folder_files(sizes)):
        for path in parts:
            check_plain(path)
        weights = [path for path in parts if path.endswith(".safetensors")]
        return Plan(
            name=name or repo.rpartition("/")[2],
            source=source,
            origin=f"hf:{repo}@{commit}",
            downloads=tuple(remote(path, path, *((b"{", 8) if path in weights else (b"", 0))) for path in parts),
            revision=commit,
            license=str(card.get("license") or "") if card else "",
            weight_bytes=sum(sizes[path] for path in weights) or None,
            folder=True,
        )
    chosen = choose(found, selector, f"hf:{repo}")
    downloads = [remote(path, plain_file(path)) for path in chosen.files]
    return Plan(
        name=name or chosen.name,
        source=source,
        origin=f"hf:{repo}:{chosen.files[0]}@{commit}",
        downloads=tuple(downloads),
        quant=chosen.quant,
        revision=commit,
        license=str(card.get("license") or "") if card else "",
        weight_bytes=chosen.size or None,
        quants=tuple(
            Quant(one.quant or one.name, one.files[0], one.size, one is chosen)
            for one in sorted(found, key=lambda each: each.size)
            if not one.missing
        ),
    )


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def _model_info(repo: str, revision: str, patience: Patience) -> ModelInfo:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    api = HfApi(endpoint=_endpoint())
    attempt = 0
    while True:
        attempt += 1
        try:
            return api.model_info(repo, revision=revision or None, files_metadata=True, timeout=patience.stall)
        except GatedRepoError:
            where = f"{_endpoint()}/{repo}"
            raise NetworkFailed(f"hf:{repo} is gated: accept its licence at {where} and run `hf auth login`") from None
        except RepositoryNotFoundError:
            hint = "check the name, or run `hf auth login` if it is private"
            raise ModelNotFound(f"hf:{repo}: no such repository on {_endpoint()}; {hint}") from None
        except RevisionNotFoundError:
            raise ModelNotFound(f"hf:{repo} has no revision {revision!r}") from None
        except HfHubHTTPError as error:
            status = error.response.status_code
            said = f"hf:{repo}: {_endpoint()} answered with status {status}"
            if status != 429 and status < 500:
                raise NetworkFailed(said) from None
            pause(TryAgain(said), attempt, patience)
        except httpx2.TransportError as error:
            pause(TryAgain(f"hf:{repo}: {_endpoint()}: {error or type(error).__name__}"), attempt, patience)
        except (ValueError, KeyError) as error:
            raise NetworkFailed(f"hf:{repo}: {_endpoint()} sent something else than model metadata: {error}") from None
