"""Where a server is, and how a client's requests to it begin."""

import ssl
from pathlib import Path
from urllib.parse import urlsplit

from fray_queue._http.protocol.limits import PROTOCOL
from fray_queue._http.protocol.tokens import token_for


class ServerAddress:
    """A server's address, checked.

    Args:
        url: `http://host:port` or `https://host:port`.
        token: None for that of a server of this user on this machine, which makes it when it starts.
        ca_file: Certificates to trust besides the system's, for `https`.
    """

    def __init__(self, url: str, token: str | None, *, ca_file: str | Path | None = None) -> None:
        parts = urlsplit(url)
        if parts.username or parts.password:
            raise ValueError("a token in a URL ends in logs: pass token=…, or set FRAY_QUEUE_TOKEN")
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or not parts.hostname.isprintable()
            or " " in parts.hostname
            or parts.path.strip("/")
            or parts.query
        ):
            raise ValueError(f"a server's address is http://host:port, got {url!r}")
        self.url, self.host = url, parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self._headers = f"Host: {_host_header(parts.hostname, parts.port)}\r\nFray-Protocol: {PROTOCOL}\r\n"
        self._token = token

    @property
    def token(self) -> str | None:
        """The token that requests carry; None where none is known yet."""
        if self._token is None:
            self._token = token_for(self.url)
        return self._token

    def head(self, method: str, path: str, *, media: str = "", key: str = "", length: int = 0) -> bytes:
        """Return the head of a request.

        Args:
            path: As it is sent: quoted.
            key: What the server knows a repetition by; a request that changes something has one.
        """
        head = f"{method} {path} HTTP/1.1\r\n{self._headers}"
        if (token := self.token) is not None:
            head += f"Authorization: Bearer {token}\r\n"
        if media:
            head += f"Content-Type: {media}\r\n"
        if method != "GET":
            head += f"Fray-Request: {key}\r\nContent-Length: {length}\r\n"
        return f"{head}\r\n".encode("ascii")


def _host_header(host: str, port: int | None) -> str:
    """Return the host of a URL, as a header has it."""
    name = host.partition("%")[0] if ":" in host else host.encode("idna").decode()
    return (f"[{name}]" if ":" in name else name) + (f":{port}" if port else "")
