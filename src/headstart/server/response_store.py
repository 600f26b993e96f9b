"""Responses that were kept, in memory and up to a bound: the longest unused ones go first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

MAX_RESPONSES, MAX_BYTES = 1000, 64 << 20


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response, what it answered, and the conversation that it ends."""

    response: dict[str, Any]
    input_items: Sequence[dict[str, Any]]
    messages: Sequence[dict[str, Any]]  # of chat, the answer included, without instructions


class ResponseStore:
    """By tenant and id: nobody sees what another key's requests left. Thread-safe."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._stored: OrderedDict[tuple[str, str], tuple[StoredResponse, int]] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, namespace: str, stored: StoredResponse) -> None:
        """Keep a response; one that alone is larger than the bound is not kept."""
        # the texts; what Python needs for them is a few times as much
        parts = (stored.response, stored.input_items, stored.messages)
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
        """A response that is still kept."""
        with self._lock:
            found = self._stored.get((namespace, response_id))
            if found is None:
                return None
            self._stored.move_to_end((namespace, response_id))
            return found[0]

    def drop(self, namespace: str, response_id: str) -> bool:
        """Forget a response; whether it was there."""
        with self._lock:
            found = self._stored.pop((namespace, response_id), None)
            if found is not None:
                self._num_bytes -= found[1]
            return found is not None
