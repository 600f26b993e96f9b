"""Stored responses, in memory and up to a limit; the least recently used are dropped first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import orjson

MAX_RESPONSES, MAX_BYTES = 1000, 64 << 20


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
    """Responses by tenant and id. Thread-safe."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._stored: OrderedDict[tuple[str, str], tuple[StoredResponse, int]] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, namespace: str, stored: StoredResponse) -> None:
        """Keep a response, unless it alone exceeds the limit."""
        # of the JSON; the objects take a few times as much
        parts = (stored.response, stored.input_items, stored.history)
        num_bytes = sum(len(orjson.dumps(part)) for part in parts)
        key = (namespace, stored.response["id"])
        with self._lock:
            self.drop(*key)
            self._stored[key] = (stored, num_bytes)
            self._num_bytes += num_bytes
            while len(self._stored) > self._max_responses or self._num_bytes > self._max_bytes:
                _, (_, freed) = self._stored.popitem(last=False)
                self._num_bytes -= freed

    def get(self, namespace: str, response_id: str) -> StoredResponse | None:
        """The response, unless it was dropped."""
        with self._lock:
            found = self._stored.get((namespace, response_id))
            if found is None:
                return None
            self._stored.move_to_end((namespace, response_id))
            return found[0]

    def drop(self, namespace: str, response_id: str) -> bool:
        """Drop a response; return whether it was there."""
        with self._lock:
            found = self._stored.pop((namespace, response_id), None)
            if found is not None:
                self._num_bytes -= found[1]
            return found is not None
