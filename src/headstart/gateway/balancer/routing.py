"""Passes one request to a replica and relays the answer: order, retries, updated estimates.

A request may be retried elsewhere until the first piece of its answer has arrived; from then on
pieces pass unchanged, while facts are extracted from them.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Receive, Scope, Send

from headstart.gateway.balancer.conversation import Asked, read, timings_of
from headstart.gateway.balancer.fleet import Fleet, Flight
from headstart.gateway.balancer.options import RoutingOptions
from headstart.gateway.proxy import Proxy
from headstart.gateway.upstream import Connection
from headstart.server.body import off_loop
from headstart.server.errors import UNKNOWN_RESPONSE, ApiError
from headstart.server.threads import unless_left
from headstart.structures.tenants import caller_of
from headstart.types.errors import BackendError, CapacityError
from headstart.types.request import UNKNOWN_ANSWER

log = logging.getLogger(__name__)

# paths of what one replica has: a stored response, or a running answer
_OF_ONE = re.compile(r"(?:/v1)?/(?:responses/(?!input_tokens$)[^/]+|chat/completions/control$)")


class Routing:
    """ASGI app: passes each request to a replica of a fleet.

    Args:
        tenant_header: names the tenant to replicas, which then get their own key instead of the
            client's; empty: they get the client's key.
    """

    def __init__(
        self,
        fleet: Fleet,
        proxy: Proxy,
        options: RoutingOptions,
        tenant_header: str = "",
    ) -> None:
        self._fleet, self._proxy, self._options = fleet, proxy, options
        self._tenant_header = tenant_header

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = HttpRequest(scope, receive)
        body, tenant = await http.body(), caller_of(scope).tenant
        asked = Asked()
        if found := _OF_ONE.match(scope["path"]):
            asked = Asked(needs=found[0])
        elif http.method == "POST":
            asked = await off_loop(http, partial(read, body, tenant), tenant)
        if asked.text and self._fleet.is_full(self._options.max_waiting):
            raise self._overload()
        end = bytearray()

        def note(piece: bytes) -> None:
            end.extend(piece)
            del end[: -(2**18)]  # the timings are at the end

        async def open(receive: Receive, lease: ExitStack) -> Connection:
            flight, answer = await self._open(http, asked, receive)
            lease.callback(self._finish, flight, answer, end)
            return answer

        await self._proxy.answer(http, send, open, note, stream=asked.stream)

    def _finish(self, flight: Flight, answer: Connection, end: bytearray) -> None:
        self._fleet.finish(flight, timings_of(bytes(end)) if answer.status == 200 else None)

    async def _open(
        self, http: HttpRequest, asked: Asked, receive: Receive
    ) -> tuple[Flight, Connection]:
        """An answer that has begun, from the best replica that gives one."""
        scope, body, replicas = http.scope, await http.body(), self._fleet.order(asked)
        failure: BackendError | None = None
        may_crash = 1  # a request that ends one server may end them all
        is_busy = False
        # an unhealthy replica may have a stored response
        is_sure = all(one.is_healthy for one in self._fleet.replicas.values())
        num_tries = len(replicas) if asked.needs else 1 + self._options.retries
        for replica in replicas[:num_tries]:
            flight = self._fleet.start(replica, asked)
            own = replica.backend.headers
            named = {**own, self._tenant_header: caller_of(scope).tenant}
            headers = named if self._tenant_header else _key_headers(scope) or own
            opening = self._proxy.open(replace(replica.backend, headers=headers), scope, body)
            try:
                answer = await unless_left(receive, opening)
            except BackendError as error:
                replica.fail(flight)
                failure = error
                log.warning("%s; %s", error, "trying another" if len(replicas) > 1 else "giving up")
                if not error.was_sent:
                    replica.lose(str(error))
                    continue
                if (http.method == "POST" and not asked.text) or not may_crash:
                    break  # what was done must not be done twice
                may_crash -= 1
                continue
            except BaseException:
                replica.fail(flight)
                raise
            # a healthy replica answers 503 if its queue is full or its engine restarts
            is_busy |= answer.status == 503
            # then another may have the response; what the last one answers holds for all
            is_last = replica is replicas[-1] and is_sure and not is_busy and failure is None
            is_elsewhere = bool(asked.needs) and _is_unknown(answer) and not is_last
            if answer.status != 503 and not is_elsewhere:
                flight.has_begun = True
                return flight, answer
            if is_elsewhere:
                self._fleet.finish(flight, None)
            else:
                replica.fail(flight)
            self._proxy.give_back(answer)
        if is_busy and failure is None:
            raise self._overload()
        missing = " that has this response" if replicas else ""
        raise failure or CapacityError(f"no backend{missing} is healthy; try again later")

    def _overload(self) -> ApiError:
        seconds = min(60, max(1, math.ceil(self._fleet.wait_seconds())))
        return ApiError(
            429,
            f"all backends are busy and {self._options.max_waiting} requests or more wait at each; "
            f"try again in {seconds} s",
            retry_after=seconds,
        )


def _is_unknown(answer: Connection) -> bool:
    """Whether a replica says that it does not have the stored response, or the running answer."""
    piece = answer.first_piece
    says_so = answer.status == 400 and UNKNOWN_RESPONSE.encode() in piece
    return answer.status == 404 or says_so or UNKNOWN_ANSWER.encode() in piece


def _key_headers(scope: Scope) -> dict[str, str]:
    return {
        name.decode(): value.decode("latin-1")
        for name, value in scope["headers"]
        if name in (b"authorization", b"x-api-key")
    }


def by_backends_keys(app: ASGIApp) -> ASGIApp:
    """ASGI middleware: without keys here, a key that only the backends know names the tenant."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (key := _key_headers(scope)):
            caller = caller_of(scope)
            tenant = hashlib.sha256("\0".join(key.values()).encode()).hexdigest()[:16]
            scope["headstart.caller"] = replace(caller, tenant=caller.tenant or tenant)
        await app(scope, receive, send)

    return answer
