"""Decides which web pages may use the server, because browsers send requests from its network.

Without an API key a page's request must come from a page of this server or of an allowed origin,
name a known host (against DNS rebinding), and be JSON (forms can send text/plain without a
preflight request), or a form with a sound. Images, scripts or links of another site are refused
too, except a link to the page itself: browsers send no Origin then, and a GET may load a router's
model. Programs that are not browsers send neither Origin nor Sec-Fetch headers, so only the host is
checked. With an API key any page may send requests, as in llama-server.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from headstart.config import ServerConfig
from headstart.server.errors import ApiError, shorten

ANY, LOCALHOST = "*", "localhost"
FORM, SOUNDS = "multipart/form-data", "/audio/transcriptions"


class WebsitePolicy:
    """Host names and origins that may use the server.

    Args:
        has_keys: requests need an API key, which pages lack; hosts are not checked.
    """

    def __init__(self, config: ServerConfig, *, has_keys: bool) -> None:
        self._has_keys = has_keys
        own = (LOCALHOST, *_split(config.host), socket.gethostname())
        self._hosts = frozenset(map(_plain_host, (*own, *_split(config.allowed_hosts))))
        origins = config.cors_origins or (ANY if has_keys else None)
        self._origins = frozenset(_split(origins))
        self._hides_origin = ANY in self._origins and not config.cors_credentials

    def check(self, method: str, path: str, headers: Headers) -> None:
        """Check a request; preflight requests pass, because their answer names no origin.

        Raises:
            ApiError: 403 for an unknown host or page, 415 for another kind of body.
        """
        origin = headers.get("origin")
        if not self._has_keys:
            self._check_host(headers.get("host"))
            is_page = origin is not None and method != "OPTIONS"
            if is_page and not self._may_use(origin or "", headers.get("host")):
                raise ApiError(
                    403,
                    f"pages of {shorten(origin)} may not use this server; start it with "
                    "--cors-origins to let them, or with an API key",
                )
            site = headers.get("sec-fetch-site", "none")  # typed by the user
            # opened by a link or a script; users may open paths such as /metrics themselves
            opens_page = headers.get("sec-fetch-mode") == "navigate" and site != "none"
            is_foreign = origin is None and site not in ("none", "same-origin")
            if (is_foreign or opens_page) and ANY not in self._origins:
                what = (
                    "a browser opens this as a page" if opens_page else "another site asks for this"
                )
                raise ApiError(
                    403,
                    f"{what} (Sec-Fetch-Site: {shorten(site)}); ask with a program such as curl, "
                    "or start the server with --cors-origins '*' or an API key",
                )
        is_browser = origin is not None or "sec-fetch-site" in headers
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        is_json = kind == "application/json" or kind.endswith("+json")
        is_sound = kind == FORM and path.endswith(SOUNDS)
        if method == "POST" and is_browser and not is_json and not is_sound:
            raise ApiError(
                415,
                f"the content type is {shorten(kind)} but a browser must send application/json, "
                f"or {FORM} to {SOUNDS}",
            )

    def reader(self, headers: Headers) -> str | None:
        """Access-Control-Allow-Origin for a request; None for no header."""
        origin = headers.get("origin")
        if origin is None or not self._may_use(origin, headers.get("host")):
            return None
        return ANY if self._hides_origin else origin

    def _may_use(self, origin: str, host: str | None) -> bool:
        """Whether pages of this origin may send requests to this host, and read the answers."""
        if ANY in self._origins or origin in self._origins or _is_own(origin, host or ""):
            return True
        return LOCALHOST in self._origins and is_local(_host_of(origin))

    def _check_host(self, host: str | None) -> None:
        if host is None or ANY in self._hosts:  # browsers always send one
            return
        name = _host_of(f"//{host}")
        # no website can have an IP address as name, a name without a dot, or one in these domains
        # (RFC 6762, RFC 8375), in which are Docker's name of the host and a cluster's services
        domains = (".internal", ".local", ".home.arpa")
        is_private = _is_address(name) or "." not in name or name.endswith(domains)
        if name in self._hosts or is_local(name) or (name and is_private):
            return
        raise ApiError(
            403,
            f"the host name {shorten(name)} is not known here; start the server with "
            "--allowed-hosts to allow it, or with an API key",
        )


def _is_own(origin: str, host: str) -> bool:
    """Whether it is our own page, perhaps under another local name of this machine."""
    page = origin.partition("://")[2].lower()
    if page == host.lower():
        return True
    ports = {one.rpartition(":")[2] for one in (page, host)}
    return len(ports) == 1 and all(is_local(_host_of(f"//{one}")) for one in (page, host))


def _split(names: str | None) -> Iterable[str]:
    return [name.strip().rstrip("/") for name in (names or "").split(",") if name.strip()]


def _plain_host(name: str) -> str:
    return name.strip("[]").rstrip(".").lower()


def _host_of(origin: str) -> str:
    try:
        return _plain_host(urlsplit(origin).hostname or "")
    except ValueError:
        return ""


def is_local(name: str) -> bool:
    """Whether it names this machine, or is one of its loopback addresses."""
    if name == LOCALHOST or name.endswith("." + LOCALHOST):
        return True
    return _is_address(name) and ipaddress.ip_address(name).is_loopback


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
