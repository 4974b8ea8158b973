"""HTTP as a downloader wants it: https only, redirects checked, secrets kept to their host, failures told apart."""

from __future__ import annotations

import email.utils
import ipaddress
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

import httpx2

from edgeinfer.errors import NetworkFailed

MAX_REDIRECTS = 10
_REDIRECTS = (301, 302, 303, 307, 308)
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class Patience:
    """When to give up. Seconds; ``attempts`` in a row that brought nothing new."""

    attempts: int = 6
    connect: float = 15.0
    stall: float = 30.0  # without a byte
    backoff: float = 0.5  # doubled at each attempt
    longest_wait: float = 120.0


class TryAgain(Exception):
    """A failure that may pass. ``wait`` is what the server asked for, in seconds."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


def new_client(patience: Patience) -> httpx2.Client:
    """A client that follows no redirect by itself. Proxies and certificates come from the usual variables."""
    timeout = httpx2.Timeout(patience.stall, connect=patience.connect)
    try:
        return httpx2.Client(timeout=timeout, follow_redirects=False, headers={"Accept-Encoding": "identity"})
    except OSError as error:  # ssl.SSLError is one too
        raise NetworkFailed(f"certificates cannot be read: {error}; check SSL_CERT_FILE and SSL_CERT_DIR") from None


def pause(failure: TryAgain, attempt: int, patience: Patience) -> None:
    """Waits before the next attempt, or raises NetworkFailed when there should be none."""
    wait = failure.wait if failure.wait is not None else patience.backoff * 2 ** (attempt - 1)
    if attempt >= patience.attempts:
        raise NetworkFailed(f"{failure}; gave up after {attempt} attempts; run the same command again to go on")
    if wait > patience.longest_wait:
        raise NetworkFailed(f"{failure}; the server asks to wait {wait:.0f} s; try again then")
    time.sleep(wait)


def is_url(text: str) -> bool:
    """Whether text names a host, and a port that there can be."""
    try:
        parts = urlsplit(text)
        return text.isprintable() and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def shown(url: str) -> str:
    """A URL for messages: without a query, which may hold a signature, and without a password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"


@contextmanager
def open_url(client: httpx2.Client, url: str, headers: Mapping[str, str], token: str = "") -> Iterator[httpx2.Response]:
    """A GET whose body is still unread, redirects followed. Raises TryAgain or NetworkFailed.

    Statuses 200, 206 and 416 are handed to the caller.
    """
    home = _place(url)
    for _ in range(MAX_REDIRECTS + 1):
        _check_scheme(url)
        secret = {"Authorization": f"Bearer {token}"} if token and _place(url) == home else {}
        try:
            with client.stream("GET", url, headers={**headers, **secret}) as response:
                if response.status_code not in _REDIRECTS:
                    _check_status(response, url)
                    yield response
                    return
                url = _next_place(url, response)
        except httpx2.InvalidURL as error:
            raise NetworkFailed(f"{shown(url)}: {error}") from None
        except httpx2.TransportError as error:
            raise TryAgain(f"{urlsplit(url).hostname}: {_reason(error)}") from None
    raise NetworkFailed(f"{shown(url)}: more than {MAX_REDIRECTS} redirects")


def _place(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _next_place(url: str, response: httpx2.Response) -> str:
    location = response.headers.get("location", "")
    try:
        target = urljoin(url, location)
    except ValueError:
        target = ""
    if not is_url(target) or urlsplit(target).scheme not in ("https", urlsplit(url).scheme):
        place = location.partition("?")[0][:80]
        raise NetworkFailed(f"{shown(url)} redirects to {place!r}; only https is followed")
    return target


def _check_scheme(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.hostname or "")):
        return
    raise NetworkFailed(f"{shown(url)}: only https is allowed")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_status(response: httpx2.Response, url: str) -> None:
    status = response.status_code
    if status in (200, 206, 416):
        return
    said = f"{shown(url)}: status {status} {response.reason_phrase}".rstrip()
    if status in _TRANSIENT:
        raise TryAgain(said, _retry_after(response.headers.get("retry-after", "")))
    if status in (401, 403):
        raise NetworkFailed(f"{said}; if the model is gated, accept its licence on its page and run `hf auth login`")
    raise NetworkFailed(said)


def _retry_after(value: str) -> float | None:
    """Seconds from a Retry-After header: a number, or a date (RFC 9110, 10.2.3)."""
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _reason(error: httpx2.TransportError) -> str:
    if isinstance(error, httpx2.ReadTimeout):
        return "the server sent nothing for too long"
    if isinstance(error, httpx2.ConnectTimeout):
        return "no answer to the connection"
    return str(error) or type(error).__name__
