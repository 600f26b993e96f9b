"""Settings of the load balancer; those that it shares with the server are in `ServerConfig`."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from headstart.config import option
from headstart.types.errors import ConfigError

# of `ServerConfig`; the others are about a model
SERVER_SETTINGS = (
    "host", "port", "reuse_port", "ssl_key_file", "ssl_cert_file", "api_key", "api_key_file",
    "allowed_hosts", "cors_origins", "max_connections", "max_body_mb", "timeout",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingOptions:
    """Options of every program that passes requests to several servers."""

    retries: int = option(
        2, "further servers that a request is tried at before its first token", least=0
    )
    max_waiting: int = option(
        64,
        "requests that may wait at each server before new ones get 429 with Retry-After",
        least=0,
    )
    health_seconds: float = option(
        1.0, "seconds between two looks at the servers' state", least=0.01
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerOptions(RoutingOptions):
    """Addresses of the replicas, and retries."""

    backend: str | None = option(
        None,
        "address of a server that answers, as http://10.0.0.2:8080; may be given again",
        separator=",",
    )
    backend_api_key: str | None = option(
        None,
        "key that the router itself sends to backends, to ask for their state; clients' own keys "
        "are passed on. Default: the first of --api-key",
        is_secret=True,
    )
    drain_seconds: int = option(
        60,
        "seconds that answers in flight have after SIGTERM or Ctrl-C; new requests get none",
        least=0,
    )

    def __post_init__(self) -> None:
        self.urls()

    def urls(self) -> dict[str, str]:
        """The backends' addresses, without a slash at their ends, by their names: without scheme
        and password.

        Raises:
            ConfigError: one is not an address, or is named twice.
        """
        found: dict[str, str] = {}
        parts = (part.strip().rstrip("/") for part in (self.backend or "").split(","))
        for url in filter(None, parts):
            try:
                address = urlsplit(url)
                is_known = address.scheme in ("http", "https") and address.port != 0
                is_address = is_known and bool(address.hostname) and not address.query
            except ValueError:  # of brackets and ports
                is_address = False
            if not is_address:
                raise ConfigError(
                    f"--backend is {url!r} but must be an address as http://10.0.0.2:8080"
                )
            name = address.netloc.rpartition("@")[2] + address.path
            if name in found:
                raise ConfigError(f"--backend {name} was given twice")
            found[name] = url
        return found
