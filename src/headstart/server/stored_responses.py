"""Responses of OpenAI's responses API, kept in memory so that later requests can continue them.

The least recently used are dropped first.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any

import orjson

Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response, the items that it answered, and the items of the conversation before them.

    All but the response is weighed before the answer, off the event loop.
    """

    response: dict[str, Any]
    input_items: list[Item]
    history: list[Item]
    given_bytes: int = 0  # of `input_items` and `history`; of JSON, as all bytes here
    rest_bytes: int = 0  # of the response without its output
    conversation_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        size = self.given_bytes + len(orjson.dumps(self.response["output"]))
        object.__setattr__(self, "conversation_bytes", size)

    @property
    def num_bytes(self) -> int:
        return self.conversation_bytes + self.rest_bytes

    @property
    def conversation(self) -> list[Item]:
        """All items, including the answer; without instructions."""
        return [*self.history, *self.input_items, *self.response["output"]]


def json_bytes(value: Any) -> int:
    """Roughly the size of a value's JSON. Writing it would block all threads while images are
    copied.
    """
    match value:
        case dict():
            return 8 + sum(json_bytes(name) + json_bytes(one) for name, one in value.items())
        case list():
            return 8 + sum(map(json_bytes, value))
        case str():
            return len(value if value.isascii() else value.encode()) + 4
    return 8


class ResponseStore:
    """Responses by tenant and id. Thread-safe.

    A tenant over its limit loses its own oldest responses. If all together are over theirs, the
    largest tenant does.
    """

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        """The limits are per tenant; bytes are of JSON."""
        self._max_responses, self._max_bytes = max_responses, max_bytes
        # by tenant and id, the least recently used first
        self._stored: OrderedDict[tuple[str, str], StoredResponse] = OrderedDict()
        self._numbers, self._sizes = Counter[str](), Counter[str]()  # by tenant; of JSON
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, tenant: str, stored: StoredResponse) -> None:
        """Store a response, unless it alone exceeds the limit."""
        numbers, sizes = self._numbers, self._sizes
        tenants = 4  # total limit, in tenants' limits
        with self._lock:
            self.drop(tenant, stored.response["id"])
            self._stored[tenant, stored.response["id"]] = stored
            numbers[tenant] += 1
            sizes[tenant] += stored.num_bytes
            while numbers[tenant] > self._max_responses or sizes[tenant] > self._max_bytes:
                self._drop_oldest(tenant)
            while len(self) > tenants * self._max_responses:
                self._drop_oldest(max(numbers, key=numbers.__getitem__))
            while sizes.total() > tenants * self._max_bytes:
                self._drop_oldest(max(sizes, key=sizes.__getitem__))

    def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """The response, unless it was dropped."""
        with self._lock:
            if (tenant, response_id) not in self._stored:
                return None
            self._stored.move_to_end((tenant, response_id))
            return self._stored[tenant, response_id]

    def drop(self, tenant: str, response_id: str) -> None:
        """Drop a response, if it is there."""
        with self._lock:
            stored = self._stored.pop((tenant, response_id), None)
            if stored is not None:
                self._numbers[tenant] -= 1
                self._sizes[tenant] -= stored.num_bytes
                if not self._numbers[tenant]:
                    del self._numbers[tenant], self._sizes[tenant]

    def _drop_oldest(self, tenant: str) -> None:
        self.drop(*next(name for name in self._stored if name[0] == tenant))
