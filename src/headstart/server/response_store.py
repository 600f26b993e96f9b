"""Stored responses, in memory and up to limits; the least recently used are dropped first."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
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


class ResponseStore:
    """Responses by tenant and id. Thread-safe.

    A tenant that stores too much loses its own oldest. If all of them together store too much,
    the tenant that stores most does.
    """

    def __init__(self, max_responses: int = 1000, max_bytes: int = 64 << 20) -> None:
        """The limits are those of one tenant; bytes are of JSON."""
        self._max_responses, self._max_bytes = max_responses, max_bytes
        # with its size, by namespace and id, the least recently used first
        self._stored: OrderedDict[tuple[str, str], tuple[StoredResponse, int]] = OrderedDict()
        self._num_stored, self._num_bytes = Counter[str](), Counter[str]()  # by namespace
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, namespace: str, stored: StoredResponse) -> None:
        """Keep a response, unless it alone exceeds the limit."""
        # of the JSON; the objects take a few times as much
        parts = (stored.response, stored.input_items, stored.history)
        size = sum(len(orjson.dumps(part)) for part in parts)
        numbers, sizes = self._num_stored, self._num_bytes
        with self._lock:
            self.drop(namespace, stored.response["id"])
            self._stored[namespace, stored.response["id"]] = stored, size
            numbers[namespace] += 1
            sizes[namespace] += size
            while numbers[namespace] > self._max_responses or sizes[namespace] > self._max_bytes:
                self._drop_oldest(namespace)
            while len(self) > _TENANTS_WORTH * self._max_responses:
                self._drop_oldest(max(numbers, key=numbers.__getitem__))
            while sizes.total() > _TENANTS_WORTH * self._max_bytes:
                self._drop_oldest(max(sizes, key=sizes.__getitem__))

    def get(self, namespace: str, response_id: str) -> StoredResponse | None:
        """The response, unless it was dropped."""
        with self._lock:
            if (namespace, response_id) not in self._stored:
                return None
            self._stored.move_to_end((namespace, response_id))
            return self._stored[namespace, response_id][0]

    def drop(self, namespace: str, response_id: str) -> None:
        """Drop a response, if it is there."""
        with self._lock:
            _, size = self._stored.pop((namespace, response_id), (None, None))
            if size is not None:
                self._num_stored[namespace] -= 1
                self._num_bytes[namespace] -= size
                if not self._num_stored[namespace]:
                    del self._num_stored[namespace], self._num_bytes[namespace]

    def _drop_oldest(self, namespace: str) -> None:
        self.drop(*next(name for name in self._stored if name[0] == namespace))
