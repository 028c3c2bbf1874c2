"""Server addresses as people write them: ``OLLAMA_HOST`` by the official client's rules, and base URLs. No IO.

The rules are those of Ollama's own ``envconfig`` with what is known to go wrong put right: spaces and quotes are trimmed, an
IPv6 address may be bare, and the bind addresses 0.0.0.0 and :: become the loopback address of their family.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from urllib.parse import unquote

from rune.errors import InvalidInput

__all__ = ["ServerAddress", "is_loopback", "parse_ollama_host", "parse_url"]

OLLAMA_PORT = 11434
_SCHEME_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[A-Za-z0-9._~%:\[\]-]+\Z")


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """An address to connect to.

    ``url`` has no credentials and no trailing slash and may be shown; ``auth`` is (user, password) when the text had them;
    ``note`` says what had to be put right, or "".
    """

    url: str
    loopback: bool
    auth: tuple[str, str] | None = field(default=None, repr=False)
    note: str = ""


def parse_ollama_host(value: str | None) -> ServerAddress:
    """The address that ``OLLAMA_HOST`` means; empty or None is 127.0.0.1:11434.

    Raises:
        InvalidInput: a scheme other than http and https, or a text that is no host name.
    """
    text = (value or "").strip().strip("\"'").strip()
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "http", text
        default = OLLAMA_PORT
        if text.rstrip("/") == "ollama.com":
            scheme, default = "https", 443
    else:
        scheme = scheme.lower()
        if scheme not in _SCHEME_PORTS:
            raise InvalidInput(f"OLLAMA_HOST has the scheme {scheme!r}; write http:// or https:// or leave it out")
        default = _SCHEME_PORTS[scheme]
    return _address(scheme, rest, default, "OLLAMA_HOST")


def parse_url(value: str, what: str = "base_url") -> ServerAddress:
    """An http or https URL with its credentials taken out. Raises ``InvalidInput`` for anything else."""
    text = value.strip()
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in _SCHEME_PORTS or not rest.strip("/"):
        raise InvalidInput(f"{what} must be an address such as http://127.0.0.1:8080")
    return _address(scheme, rest, _SCHEME_PORTS[scheme], what)


def _address(scheme: str, rest: str, default: int, what: str) -> ServerAddress:
    host_port, slash, path = rest.partition("/")
    credentials, at, host_port = host_port.rpartition("@")
    auth = None
    if at:
        user, _, password = credentials.partition(":")
        auth = (unquote(user), unquote(password))
    host, port_text = _split_port(host_port)
    note = ""
    port = default
    if port_text:
        if port_text.isascii() and port_text.isdigit() and 0 < int(port_text) <= 65535:
            port = int(port_text)
        else:
            note = f"{what}: {port_text[:20]!r} is no port; {default} is used"
    host = host or "127.0.0.1"
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        if not _HOST.match(host) or any(c in host for c in "[]:"):
            # The text is not repeated: it may hold a password that was put in the wrong place.
            raise InvalidInput(f"{what} holds no host name that can be used; write host, host:port or a URL") from None
        loopback = is_loopback(host)
    else:
        if ip.is_unspecified:
            ip = ipaddress.ip_address("::1" if ip.version == 6 else "127.0.0.1")
        loopback = ip.is_loopback
        host = f"[{ip}]" if ip.version == 6 else str(ip)
    path = path.partition("?")[0].partition("#")[0].strip("/")
    shown_path = f"/{path}" if slash and path else ""
    return ServerAddress(f"{scheme}://{host}:{port}{shown_path}", loopback, auth, note)


def _split_port(host_port: str) -> tuple[str, str]:
    """Host and port text; a bare IPv6 address has no port."""
    if host_port.startswith("["):
        host, _, rest = host_port[1:].partition("]")
        return host, rest.removeprefix(":")
    if host_port.count(":") > 1:
        return host_port, ""
    host, _, port = host_port.partition(":")
    return host, port


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
