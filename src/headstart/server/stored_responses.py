"""Responses of OpenAI's responses API, kept in memory so that later requests can continue them.

The least recently used are dropped first.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Any

import orjson

Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response, the items that it answered, and the items of the conversation before them."""

    response: dict[str, Any]
    input_items: list[Item]
    history: list[Item]

    @property
    def conversation(self) -> list[Item]:
        """All items, including the answer; without instructions."""
        return [*self.history, *self.input_items, *self.response["output"]]


class ResponseStore:
    """Responses by tenant and id. Thread-safe.

    A tenant over its limit loses its own oldest responses. If all together are over theirs, the
    largest tenant does.
    """

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        """The limits are per tenant; bytes are of JSON."""
        self._max_responses, self._max_bytes = max_responses, max_bytes
        # by tenant and id, with bytes; the least recently used first
        self._stored: OrderedDict[tuple[str, str], tuple[StoredResponse, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, tenant: str, stored: StoredResponse) -> None:
        """Store a response, unless it alone exceeds the limit."""
        own = len(orjson.dumps([stored.response, stored.input_items, stored.history]))
        tenants = 4  # total limit, in tenants' limits
        with self._lock:
            self._stored[tenant, stored.response["id"]] = stored, own
            numbers, sizes = Counter[str](), Counter[str]()  # by tenant
            for (name, _), (_, size) in self._stored.items():
                numbers[name] += 1
                sizes[name] += size

            def drop_oldest(tenant: str) -> None:
                oldest = next(name for name in self._stored if name[0] == tenant)
                numbers[tenant] -= 1
                sizes[tenant] -= self._stored.pop(oldest)[1]

            while numbers[tenant] > self._max_responses or sizes[tenant] > self._max_bytes:
                drop_oldest(tenant)
            while numbers.total() > tenants * self._max_responses:
                drop_oldest(max(numbers, key=numbers.__getitem__))
            while sizes.total() > tenants * self._max_bytes:
                drop_oldest(max(sizes, key=sizes.__getitem__))

    def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """The response, unless it was dropped."""
        with self._lock:
            if (tenant, response_id) not in self._stored:
                return None
            self._stored.move_to_end((tenant, response_id))
            return self._stored[tenant, response_id][0]

    def drop(self, tenant: str, response_id: str) -> None:
        """Drop a response, if it is there."""
        with self._lock:
            self._stored.pop((tenant, response_id), None)
