"""Polls the replicas: health, slots and queue."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import orjson

from headstart.gateway.balancer.fleet import Fleet, Replica
from headstart.gateway.balancer.policy import Load
from headstart.gateway.proxy import Proxy
from headstart.types.errors import BackendError

log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0  # for an answer to a poll
PATIENCE = 3  # polls in a row without an answer, before a replica counts as unhealthy


async def watch(fleet: Fleet, proxy: Proxy, poll_seconds: float) -> None:
    """Poll the replicas until cancelled."""
    while True:
        polls = [_poll(replica, proxy) for replica in fleet.replicas.values()]
        await asyncio.gather(*polls)
        await asyncio.sleep(poll_seconds)


async def _poll(replica: Replica, proxy: Proxy) -> None:
    """Read its counts, which it does not give while it loads or restarts; without them, count the
    requests that this balancer sent to it.
    """
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            status, body, headers = await proxy.get(replica.backend, "/metrics")
            started = headers.get(b"process-start-time-unix", b"").decode("latin-1")
            num_slots = replica.reported.num_slots
            is_well = status < 500 or status == 501  # 501: it gives no counts
            if is_well and replica.started_at != started:
                props_status, props, _ = await proxy.get(replica.backend, "/props")
                found = (_object(props) if props_status == 200 else {}).get("total_slots")
                num_slots = found if isinstance(found, int) and found > 0 else Load().num_slots
    except (BackendError, TimeoutError) as error:
        replica.num_silent += 1
        is_silent = replica.num_silent >= PATIENCE
        if is_silent or (isinstance(error, BackendError) and not error.was_sent):
            replica.lose(str(error) or f"no answer in {ANSWER_SECONDS:g} s")
        if is_silent:  # the requests that wait for it can still be answered elsewhere
            proxy.close_silent(replica.name, PATIENCE * ANSWER_SECONDS)
        return
    replica.num_silent = 0
    if not is_well:
        replica.lose(_message(body) or f"/metrics answers {status}")
        return
    running, waiting = requests_of(body) if status == 200 else (len(replica.flights), 0)
    if not replica.is_healthy:
        log.info("%s is healthy", replica.name)
    replica.hear(Load(num_slots=num_slots, num_running=running, num_waiting=waiting), started)


def requests_of(metrics: bytes) -> tuple[int, int]:
    """Requests that run, and that wait, in the metrics of a server."""
    found = dict(re.findall(rb"(?m)^llamacpp:requests_(processing|deferred) (\d+)", metrics))
    return int(found.get(b"processing", 0)), int(found.get(b"deferred", 0))


def _object(body: bytes) -> dict[str, Any]:
    """The JSON object in an answer; empty if there is none."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _message(body: bytes) -> str:
    """The message of an error in OpenAI's shape."""
    error = _object(body).get("error")
    return str(error.get("message", "")) if isinstance(error, dict) else ""
