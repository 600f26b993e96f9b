"""How tenants share limited resources.

The scheduler's queue and stores: when there is no room, the tenant with the most gives up some of
its own. A single tenant may fill everything, and still others are not shut out.

Connections, and whatever else waits: no tenant holds more than is left for all others
(`may_take`). So one gets half, two a third each, and there is always room for a newcomer.
Source: Choudhury and Hahne 1998, "Dynamic queue length thresholds for shared-memory packet
switches", https://doi.org/10.1109/90.664262 (with alpha = 1).
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent an HTTP request."""

    tenant: str = ""  # hash of the API key, or of the tenant named by a proxy; empty without keys
    is_trusted: bool = False  # sent a key, or none is required
    has_tenants: bool = False  # whether there are other tenants


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """The sender of the request of this ASGI scope, as the server's `Guard` set it."""
    caller: Caller = scope["headstart.caller"]
    return caller


def namespace_of_key(key: bytes) -> str:
    """Hash of an API key; never the key itself."""
    return hashlib.sha256(key).hexdigest()[:16]


def namespace_of_tenant(name: str) -> str:
    """Hash of a tenant named by a proxy, whose key may change."""
    return namespace_of_key(b"tenant\0" + name.encode())


def namespaces_of(names: Iterable[str]) -> frozenset[str]:
    """Hashes of these names as keys or tenants; routers pass such hashes to their models."""
    names = [
        made for one in names for made in (namespace_of_key(one.encode()), namespace_of_tenant(one))
    ]
    return frozenset([*names, *map(namespace_of_tenant, names)])


def tenant_of(namespace: str) -> str:
    """The tenant of a namespace; the rest of that names adapters."""
    return namespace.partition(" ")[0]


def namespace_id(namespace: str) -> bytes:
    """16 bytes that identify a namespace without revealing it; zeros for the public one."""
    return hashlib.blake2b(namespace.encode(), digest_size=16).digest() if namespace else bytes(16)


def may_take(held: Counter[str], tenant: str, places: int, number: int = 1) -> bool:
    """Whether a tenant may take so many more of `places` and leave as many to the others."""
    return held[tenant] + 2 * (number - 1) < places - held.total()


@contextmanager
def counted(held: Counter[str], tenant: str, number: int = 1) -> Iterator[None]:
    """Count what a tenant holds while the context lasts."""
    held[tenant] += number
    try:
        yield
    finally:
        held[tenant] -= number
        if not held[tenant]:
            del held[tenant]


def in_turns(items: Iterable[Item], tenant: Callable[[Item], str]) -> list[Item]:
    """The first item of each tenant, then the second of each ..."""
    ranks: Counter[str] = Counter()
    placed: list[tuple[int, Item]] = []
    for item in items:
        ranks[tenant(item)] += 1
        placed.append((ranks[tenant(item)], item))
    return [item for _, item in sorted(placed, key=itemgetter(0))]


class TenantQueue(Generic[Item]):
    """A queue of items that serves tenants in turn."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Item]] = OrderedDict()  # the next tenant first

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, tenant: str, item: Item) -> None:
        self._waiting.setdefault(tenant, deque()).append(item)

    def take(self, busy: Collection[str] = ()) -> Item | None:
        """The oldest item of the next tenant that is not busy."""
        tenant = next((one for one in self._waiting if one not in busy), None)
        if tenant is None:
            return None
        items = self._waiting.pop(tenant)
        item = items.popleft()
        if items:
            self._waiting[tenant] = items
        return item

    def remove(self, tenant: str, item: Item) -> None:
        items = self._waiting.get(tenant, deque())
        if item in items:
            items.remove(item)
        if not items:
            self._waiting.pop(tenant, None)
