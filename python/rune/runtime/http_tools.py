"""The tool that fetches web pages: GET only, no cookies, no credentials, and nothing of this machine or its network.

A name is looked up once; the address that was checked is the one that is connected to, so that an answer of the name server
that changes in between leads nowhere. Redirects are followed by hand, each checked like the first address.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urljoin, urlsplit

from msgspec import Meta

from rune.errors import ToolError
from rune.runtime.html_text import html_text
from rune.runtime.tools import ToolContext, tool

if TYPE_CHECKING:
    import httpx

__all__ = ["BODY_BYTES_MAX", "http_get", "is_public"]

BODY_BYTES_MAX = 2_000_000
REDIRECTS_MAX = 5
CONNECT_S = 5.0
SILENCE_S = 10.0
_REDIRECTS = (301, 302, 303, 307, 308)
_HEADERS = {"User-Agent": "rune", "Accept": "text/*, application/json, */*;q=0.1", "Accept-Encoding": "identity"}


@tool(approval=True, default_on=False, timeout=30, needs="http")
def http_get(
    context: ToolContext,
    url: Annotated[str, Meta(max_length=2000, description="address that begins with http:// or https://")],
) -> str:
    """Fetches a page of the web and gives its text."""
    import httpx

    from rune.transports.http_policy import Cancel

    deadline = time.monotonic() + context.seconds
    cancel = Cancel(context.stop)
    limits = httpx.Timeout(CONNECT_S, read=SILENCE_S)
    with cancel.watching(), httpx.Client(trust_env=False, timeout=limits, follow_redirects=False) as client:
        for _ in range(REDIRECTS_MAX + 1):
            context.check()
            request = _request(client, url, context.services.http_hosts)
            request.extensions["trace"] = cancel.trace
            try:
                response = client.send(request, stream=True)
            except httpx.HTTPError as exc:
                context.check()
                raise ToolError(f"{url} cannot be fetched: {type(exc).__name__}: {str(exc)[:200]}") from exc
            try:
                onward = response.headers.get("location")
                if response.status_code not in _REDIRECTS or not onward:
                    return _text(response, url, _body(response, context, deadline))
            finally:
                response.close()
            url = urljoin(url, onward)
    raise ToolError(f"more than {REDIRECTS_MAX} redirects, the last one to {url[:200]}")


def _request(client: httpx.Client, url: str, allowed: frozenset[str]) -> httpx.Request:
    """The request for a URL, to the address that its host has now. Raises ToolError for one that may not be asked."""
    import httpx

    try:
        parts = urlsplit(url.strip())
        port = parts.port or (443 if parts.scheme == "https" else 80)
        parsed = httpx.URL(url.strip())
    except (ValueError, httpx.InvalidURL) as exc:
        raise ToolError(f"{url[:200]!r} is no address: {exc}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not parsed.host:
        raise ToolError(f"{url[:200]!r} cannot be fetched: only http:// and https:// addresses can")
    if parts.username is not None or parts.password is not None:
        raise ToolError("addresses with a user name or a password are not fetched")
    host = parsed.raw_host.decode("ascii")
    trusted = bool({host.lower(), f"{host.lower()}:{port}"} & allowed)
    address = _address(host, port, trusted)
    headers = {**_HEADERS, "Host": parsed.netloc.decode("ascii")}
    request = client.build_request("GET", parsed.copy_with(host=address, fragment=None), headers=headers)
    if parts.scheme == "https":
        request.extensions["sni_hostname"] = host
    return request


def _address(host: str, port: int, trusted: bool) -> str:
    """An address of the host; every one that it has must be public. Raises ToolError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        raise ToolError(f"the host {host[:100]!r} is not known: {exc}") from exc
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    refused = [address for address in addresses if not is_public(address)]
    if (refused or not addresses) and not trusted:
        raise ToolError(
            f"{host[:100]} is {', '.join(refused[:3]) or 'nowhere'}, an address of this machine or its network; such are not "
            "fetched (RUNE_HTTP_HOSTS names hosts that may be)"
        )
    return addresses[0]


def is_public(address: str) -> bool:
    """Whether an IP address is one of the open internet, also when it is an IPv4 address in the clothes of IPv6."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is None and ip in _TRANSLATED:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            ip = inner
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")


def _body(response: httpx.Response, context: ToolContext, deadline: float) -> tuple[bytes, bool]:
    """The body and whether that is all of it."""
    import httpx

    if response.headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
        raise ToolError("the server sent a compressed page though it was asked not to; it was not read")
    body = bytearray()
    try:
        for piece in response.iter_raw(1 << 16):
            context.check()
            if time.monotonic() >= deadline:
                raise ToolError(f"the page did not come within {context.seconds:g} s")
            body += piece
            if len(body) > BODY_BYTES_MAX:
                return bytes(body[:BODY_BYTES_MAX]), False
    except httpx.HTTPError as exc:
        context.check()
        raise ToolError(f"the page broke off: {type(exc).__name__}") from exc
    return bytes(body), True


def _text(response: httpx.Response, url: str, body: tuple[bytes, bool]) -> str:
    data, whole = body
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    readable = kind.startswith("text/") or kind.endswith(("json", "xml", "javascript", "yaml")) or not kind
    if not readable or b"\0" in data[:8192]:
        raise ToolError(f"{url} is {kind or 'binary'} ({len(data):,} bytes), not text")
    try:
        text = data.decode(response.charset_encoding or "utf-8", "replace")
    except LookupError:
        text = data.decode("utf-8", "replace")
    if "html" in kind:
        text = html_text(text)
    notes = [f"HTTP {response.status_code}"] if not response.is_success else []
    if not whole:
        notes.append(f"only the first {BODY_BYTES_MAX:,} bytes")
    head = f"[{', '.join([url, *notes])}]"
    return f"{head}\n{text.strip() or '(the page has no text)'}"
