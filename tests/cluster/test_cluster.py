"""Replicas and gateways on Ray Serve, with the embedded model: what users see of what happens."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from headstart.config import ServerConfig
from headstart.extras.cluster import deploy
from headstart.extras.cluster.command import ClusterOptions

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]

ARGUMENTS = ("--context", "4096", "--threads", "1", "-np", "2")
# without drafts, so that streams still run while the replicas are asked what they do
LONG: dict[str, Any] = {
    "max_tokens": 1500,
    "ignore_eos": True,
    "stream": True,
    "speculative": {"n_max": 0},
}
SHORT = {"prompt": "def f(x):\n", "max_tokens": 2}
OPTIONS = ClusterOptions(
    min_replicas=2,
    max_replicas=2,
    target_requests=2.0,
    scale_up_seconds=1.0,
    scale_down_seconds=2.0,
    drain_seconds=150,
    max_waiting=3,
    health_seconds=0.3,
)


def pid_of(replica: dict[str, Any]) -> int:
    """The process of a replica's server, which leads a group."""
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            is_its = replica["key"].encode() in (place / "environ").read_bytes()
            if is_its and os.getpgid(int(place.name)) == int(place.name):
                return int(place.name)
    raise AssertionError(f"no process has the key of {replica['name']}")


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(0.2)
    raise AssertionError(f"never happened: {what}")


class Cluster:
    """The application as it is deployed now."""

    def __init__(self, ray: Any) -> None:
        from ray import serve
        from ray.serve.config import HTTPOptions

        self.ray, self._serve = ray, serve
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        self._server = ServerConfig(port=port)
        serve.start(http_options=HTTPOptions(host="127.0.0.1", port=port))
        self.url = f"http://127.0.0.1:{port}"

    def apply(self, options: ClusterOptions) -> None:
        app = deploy.application(options, self._server, ARGUMENTS)
        self._serve.run(app, name=deploy.APPLICATION, route_prefix="/")
        wait_for(lambda: len(self.replicas()) >= options.min_replicas, "the replicas run")
        wait_for(self.reaches_all, "the gateway knows all replicas")

    def replicas(self) -> list[dict[str, Any]]:
        handle = self._serve.get_deployment_handle(deploy.REPLICAS, deploy.APPLICATION)
        try:
            found: list[dict[str, Any]] = handle.broadcast("describe").results(timeout_s=10)
        except Exception:  # one of them ends just now
            return []
        return found

    def reaches_all(self) -> bool:
        """Send four requests at the same time; whether every replica has answered one by now."""
        bodies = [
            SHORT | {"prompt": f"{i}", "max_tokens": 60, "ignore_eos": True} for i in range(4)
        ]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self.post, bodies))
        return bool(self.answered()) and min(self.answered().values()) > 0

    def client(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=120, trust_env=False)

    def get(self, path: str) -> httpx2.Response:
        with self.client() as client:
            return client.get(path)

    def post(self, body: dict[str, Any]) -> httpx2.Response:
        with self.client() as client:
            return client.post("/v1/completions", json=body)

    def busy(self) -> Counter[str]:
        """Requests that run, by the name of the replica."""
        return self._metric("llamacpp:requests_processing")

    def answered(self) -> Counter[str]:
        """Tokens that were generated, by the name of the replica."""
        return self._metric("llamacpp:tokens_predicted_total")

    def speculation(self, replica: dict[str, Any]) -> dict[str, Any]:
        """What a replica says of its speculation."""
        found: dict[str, Any] = self._ask(replica, "/props").json()["speculation"]
        return found

    def _ask(self, replica: dict[str, Any], path: str) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {replica['key']}"}
        return httpx2.get(f"{replica['url']}{path}", headers=headers, trust_env=False)

    def _metric(self, wanted: str) -> Counter[str]:
        result: Counter[str] = Counter()
        for one in self.replicas():
            text = self._ask(one, "/metrics").text
            (value,) = [
                line.split()[1] for line in text.splitlines() if line.startswith(f"{wanted} ")
            ]
            result[one["name"]] = int(float(value))
        return result


@pytest.fixture(scope="module")
def cluster(ray: Any) -> Cluster:
    cluster = Cluster(ray)
    cluster.apply(OPTIONS)
    return cluster


class Streams:
    """Long streams at the same time, each with a prompt of its own; what came of each."""

    def __init__(self, cluster: Cluster, count: int) -> None:
        self._cluster = cluster
        self.last: dict[int, dict[str, Any]] = {}
        self.begun = [threading.Event() for _ in range(count)]
        self._threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(count)]
        for thread in self._threads:
            thread.start()
        assert all(one.wait(60) for one in self.begun)

    def _ask(self, i: int) -> None:
        body = LONG | {"prompt": f"def f_{i}(x):\n"}
        try:
            with (
                self._cluster.client() as client,
                client.stream("POST", "/v1/completions", json=body) as response,
            ):
                for line in response.iter_lines():
                    if line.startswith("data: {"):
                        self.last[i] = json.loads(line[6:])
                        self.begun[i].set()
        except httpx2.HTTPError as error:
            self.last[i] = {"cut": str(error)}

    def end(self) -> tuple[int, list[dict[str, Any]]]:
        """How many were whole, and the last events of those that were not."""
        for thread in self._threads:
            thread.join(120)
        ends = self.last.values()
        whole = [
            one for one in ends if one.get("timings", {}).get("predicted_n") == LONG["max_tokens"]
        ]
        return len(whole), [one for one in ends if one not in whole]


@contextmanager
def crowd(cluster: Cluster) -> Iterator[list[int]]:
    """Four clients that ask again and again; the statuses of what they got."""
    statuses: list[int] = []
    stopped = threading.Event()

    def ask() -> None:
        with cluster.client() as client:
            while not stopped.is_set():
                body = SHORT | {"max_tokens": 200, "ignore_eos": True}
                statuses.append(client.post("/v1/completions", json=body).status_code)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


def test_streams_are_whole_and_both_replicas_work(cluster: Cluster) -> None:
    before = cluster.answered()
    assert Streams(cluster, 4).end() == (4, [])
    after = cluster.answered()
    assert all(after[name] >= before[name] + LONG["max_tokens"] for name in before)


def test_overload_is_429_and_the_others_are_answered(cluster: Cluster) -> None:
    """Two replicas with two slots, where three may wait: ten requests."""

    def ask(i: int) -> httpx2.Response:
        return cluster.post(SHORT | {"prompt": f"{i}", "max_tokens": 200, "ignore_eos": True})

    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(ask, range(24)))
    statuses = Counter(one.status_code for one in answers)
    assert set(statuses) == {200, 429}
    assert statuses[200] >= 8  # what the gateway knows of a replica may be one look old
    refused = next(one for one in answers if one.status_code == 429)
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["type"] == "rate_limit_error"


def test_a_killed_replica_ends_its_own_streams_only_and_is_replaced(cluster: Cluster) -> None:
    before = {one["name"]: one for one in cluster.replicas()}
    streams = Streams(cluster, 4)
    busy = cluster.busy()
    victim = max(busy, key=lambda name: busy[name])
    os.killpg(pid_of(before[victim]), signal.SIGKILL)
    num_whole, broken = streams.end()
    # it has two slots, and some of its streams may have come to their end before
    assert 1 <= len(broken) <= 2
    assert num_whole == 4 - len(broken)
    assert all(one["error"]["code"] in (500, 502) and one["error"]["message"] for one in broken)
    assert cluster.post(SHORT).status_code == 200
    after = wait_for(
        lambda: (
            found
            if len(found := cluster.replicas()) == 2
            and victim not in {one["name"] for one in found}
            else None
        ),
        "another replica runs",
    )
    assert {one["name"] for one in after} & before.keys()


def test_scaling_down_loses_no_token_and_what_was_learned_stays(cluster: Cluster) -> None:
    wait_for(cluster.reaches_all, "the gateway knows the replica that was started last")
    streams = Streams(cluster, 4)
    # replicas report every quarter of a second what runs
    wait_for(lambda: min(cluster.busy().values()) >= 1, "both replicas report their streams")
    cluster.apply(replace(OPTIONS, min_replicas=1, max_replicas=2))
    wait_for(lambda: len(cluster.replicas()) == 1, "Ray stops one replica")
    assert streams.end() == (4, [])
    (kept,) = cluster.replicas()
    learned = cluster.speculation(kept)["state"]
    assert Path(learned).stat().st_size > 1000, "of the replica that was stopped"

    with crowd(cluster) as statuses:
        found = wait_for(
            lambda: found if len(found := cluster.replicas()) == 2 else None,
            "Ray starts another replica",
        )
    assert set(statuses) <= {200, 429}
    (new,) = (one for one in found if one["name"] != kept["name"])
    begun = cluster.speculation(new)
    assert (begun["state"], begun["state_not_used"]) == (learned, ""), "it began with that"


def test_a_killed_gateway_comes_back_and_replicas_are_not_touched(cluster: Cluster) -> None:
    before = {pid_of(one) for one in cluster.replicas()}
    streams = Streams(cluster, 1)
    names = cluster.ray.util.list_named_actors(all_namespaces=True)
    gateways = [one for one in names if f"#{deploy.GATEWAY}#" in one["name"]]
    assert gateways
    for one in gateways:
        cluster.ray.kill(cluster.ray.get_actor(one["name"], namespace=one["namespace"]))
    streams.end()
    wait_for(lambda: cluster.get("/health").status_code == 200, "another gateway answers")
    assert cluster.post(SHORT).status_code == 200
    assert before & {pid_of(one) for one in cluster.replicas()}


def test_nobody_without_a_key_gives_orders_to_the_gateway(cluster: Cluster) -> None:
    assert cluster.get("/router/backends").status_code == 403
    (one, *_) = cluster.replicas()
    assert httpx2.get(f"{one['url']}/slots", trust_env=False).status_code == 401
