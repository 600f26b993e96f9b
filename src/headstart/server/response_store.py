"""Stored responses, in memory and up to limits; the least recently used are dropped first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import orjson

# The most that all tenants' responses take, as a multiple of what one tenant may keep.
_TENANTS_WORTH = 4

Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response, the items that it answered, and the items of the conversation before them."""

    response: dict[str, Any]
    input_items: list[Item]
    history: list[Item]

    @property
    def conversation(self) -> list[Item]:
        """All items, those of the answer included; without instructions."""
        return [*self.history, *self.input_items, *self.response["output"]]


class _Tenant:
    """One tenant's responses by id, the least recently used first, each with its size."""

    def __init__(self) -> None:
        self.stored: OrderedDict[str, tuple[StoredResponse, int]] = OrderedDict()
        self.num_bytes = 0

    def remove(self, response_id: str) -> None:
        self.num_bytes -= self.stored.pop(response_id)[1]


class ResponseStore:
    """Responses by tenant and id. Thread-safe.

    A tenant that stores too much loses its own oldest. If all of them together store too much,
    the tenant that stores most does.
    """

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        """The limits are those of one tenant."""
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._tenants: dict[str, _Tenant] = {}
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return sum(len(tenant.stored) for tenant in self._tenants.values())

    def put(self, namespace: str, stored: StoredResponse) -> None:
        """Keep a response, unless it alone exceeds the limit."""
        # of the JSON; the objects take a few times as much
        parts = (stored.response, stored.input_items, stored.history)
        num_bytes = sum(len(orjson.dumps(part)) for part in parts)
        response_id = stored.response["id"]
        with self._lock:
            self.drop(namespace, response_id)
            tenant = self._tenants.setdefault(namespace, _Tenant())
            tenant.stored[response_id] = (stored, num_bytes)
            tenant.num_bytes += num_bytes
            while len(tenant.stored) > self._max_responses or tenant.num_bytes > self._max_bytes:
                self._drop_oldest(namespace)
            self._limit_total()

    def get(self, namespace: str, response_id: str) -> StoredResponse | None:
        """The response, unless it was dropped."""
        with self._lock:
            tenant = self._tenants.get(namespace)
            if tenant is None or response_id not in tenant.stored:
                return None
            tenant.stored.move_to_end(response_id)
            return tenant.stored[response_id][0]

    def drop(self, namespace: str, response_id: str) -> bool:
        """Drop a response; return whether it was there."""
        with self._lock:
            tenant = self._tenants.get(namespace)
            if tenant is None or response_id not in tenant.stored:
                return False
            tenant.remove(response_id)
            if not tenant.stored:
                del self._tenants[namespace]
            return True

    def _drop_oldest(self, namespace: str) -> None:
        self.drop(namespace, next(iter(self._tenants[namespace].stored)))

    def _limit_total(self) -> None:
        """Let the tenants that store most make room for all."""
        tenants = self._tenants
        while len(self) > _TENANTS_WORTH * self._max_responses:
            self._drop_oldest(max(tenants, key=lambda name: len(tenants[name].stored)))
        while sum(one.num_bytes for one in tenants.values()) > _TENANTS_WORTH * self._max_bytes:
            self._drop_oldest(max(tenants, key=lambda name: tenants[name].num_bytes))
