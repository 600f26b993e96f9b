"""Takes one request to a replica and its answer back: order, retries, what is learned of both.

A request may be tried elsewhere until the first piece of its answer has come; from then on its
pieces pass untouched, and the text is read beside them.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from headstart.gateway.balancer.balancer import Fleet
from headstart.gateway.balancer.conversation import AnswerText, Asked, read
from headstart.gateway.balancer.replica import Flight, Replica
from headstart.gateway.router.proxy import (
    Backend,
    ProxiedAnswer,
    ProxiedRequest,
    Proxy,
    read_body,
    relay,
    unless_gone,
)
from headstart.server.errors import ApiError
from headstart.types.errors import BackendError, CapacityError

log = logging.getLogger(__name__)

STORED = re.compile(r"(?:/v1)?/responses/([^/]+)")  # GET, DELETE and what follows them
KEY_HEADERS = (b"authorization", b"x-api-key")
BUSY = 503  # of a replica that is healthy: its queue is full, or its engine restarts
MAX_RETRY_AFTER = 60  # seconds; nobody knows more about a queue

Answered = Callable[[Replica, str, Mapping[str, str]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingLimits:
    """How often to try, and how many may wait."""

    retries: int = 2  # further replicas that are asked after the first
    max_waiting: int = 64  # requests without a slot, at each replica
    passes_keys: bool = True  # a client's API key goes to the replica, else the replica's own
    # in which replicas are told whose request it is, where they do not see clients' keys
    tenant_header: str = ""


class Routing:
    """Sends requests to the replicas of a fleet."""

    def __init__(
        self,
        fleet: Fleet,
        proxy: Proxy,
        limits: RoutingLimits,
        answered: Answered = lambda replica, namespace, headers: None,
    ) -> None:
        """`answered` hears which replica served which tenant, and with which key."""
        self.fleet = fleet
        self._proxy = proxy
        self._limits = limits
        self._answered = answered

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request.

        Raises:
            ApiError, BackendError, ClientGoneError: there is no answer, or no end of it.
        """
        body = await read_body(receive)
        request = ProxiedRequest.of(scope, body)
        key = _key_headers(request)
        namespace = scope.get("headstart.namespace", "")
        if self._limits.passes_keys:
            namespace = namespace or _namespace(key)
        asked = read(body, namespace) if request.method == "POST" else Asked()
        if found := STORED.match(scope["path"]):
            asked = Asked(needs=found[1])
        if asked.text and self.fleet.is_full(self._limits.max_waiting):
            raise self._overload()
        replica, number, answer = await self._open(request, asked, namespace, receive)
        text = AnswerText(is_stream=answer.is_event_stream or _is_lines(answer))
        try:
            tap = text.add if asked.text and answer.status == 200 else None
            await relay(answer, receive, send, tap)
        finally:
            text.end()
            learned = text.as_turn(asked) if answer.status == 200 else b""
            self.fleet.finish(replica, number, learned, text.timings)
            if text.stored_id:
                self.fleet.own(text.stored_id, replica)
            if asked.text and answer.status == 200:
                self._answered(replica, namespace, self._headers(replica, key, namespace))

    async def _open(
        self, request: ProxiedRequest, asked: Asked, namespace: str, receive: Receive
    ) -> tuple[Replica, int, ProxiedAnswer]:
        """An answer that has begun, from the best replica that gives one."""
        replicas = self.fleet.order(asked, namespace)
        failure: Exception | None = None
        may_crash = 1  # a request that ends one server may end them all
        is_busy = bool(replicas)
        # a stored response that was made through another router: whoever has it answers
        is_lost = asked.needs and not self.fleet.knows_owner(asked)
        elsewhere = replicas[:-1] if is_lost else []
        num_tries = len(replicas) if is_lost else 1 + self._limits.retries
        for replica in replicas[:num_tries]:
            number, flight = self.fleet.start(replica, asked)
            backend = Backend(
                name=replica.name,
                url=replica.url,
                headers=self._headers(replica, _key_headers(request), namespace),
            )
            try:
                answer = await self._begin(backend, request, flight, receive)
            except BackendError as error:
                self.fleet.fail(replica, number)
                is_busy, failure = False, error
                log.warning("%s; %s", error, "trying another" if len(replicas) > 1 else "giving up")
                if not error.was_sent:
                    replica.lose(str(error))
                elif request.method == "POST" and not asked.text:
                    break  # it may have done what must not be done twice
                elif not may_crash:
                    break
                else:
                    may_crash -= 1
                continue
            except BaseException:
                self.fleet.fail(replica, number)
                raise
            is_elsewhere = answer.status in (400, 404) and replica in elsewhere
            if answer.status != BUSY and not is_elsewhere:
                return replica, number, answer
            self.fleet.fail(replica, number)
            await answer.close()
        if is_busy:
            raise self._overload()
        raise failure or CapacityError("no backend is healthy; try again later")

    async def _begin(
        self, backend: Backend, request: ProxiedRequest, flight: Flight, receive: Receive
    ) -> ProxiedAnswer:
        opening = self._proxy.open(
            backend, request, wants_first_piece=request.method not in ("GET", "HEAD")
        )
        answer = await unless_gone(receive, opening)
        flight.has_begun = True
        return answer

    def _headers(
        self, replica: Replica, key: Mapping[str, str], namespace: str
    ) -> Mapping[str, str]:
        if self._limits.passes_keys:
            return key or replica.headers
        name = self._limits.tenant_header
        return {**replica.headers, name: namespace} if name else replica.headers

    def _overload(self) -> ApiError:
        seconds = min(MAX_RETRY_AFTER, max(1, math.ceil(self.fleet.wait_seconds())))
        return ApiError(
            429,
            f"all backends are busy and {self._limits.max_waiting} requests or more wait at each; "
            f"try again in {seconds} s",
            retry_after=seconds,
        )


def _is_lines(answer: ProxiedAnswer) -> bool:
    """Whether it is a stream of JSON lines, as Ollama's."""
    return any(name == b"content-type" and b"ndjson" in value for name, value in answer.headers)


def _key_headers(request: ProxiedRequest) -> dict[str, str]:
    return {
        name.decode(): value.decode("latin-1")
        for name, value in request.headers
        if name in KEY_HEADERS
    }


def _namespace(key: Mapping[str, str]) -> str:
    """Tells tenants apart whose keys only the backends know."""
    if not key:
        return ""
    return hashlib.sha256("\0".join(key.values()).encode()).hexdigest()[:16]
