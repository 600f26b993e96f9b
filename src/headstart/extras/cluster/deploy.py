"""Puts gateways and replicas on a Ray cluster, and takes them away again."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import MutableMapping, Sequence
from typing import Any

from headstart.config import ServerConfig
from headstart.extras.cluster.command import ClusterOptions
from headstart.types.errors import ConfigError

log = logging.getLogger(__name__)

APPLICATION, REPLICAS, GATEWAY = "headstart", "Replica", "Gateway"


def secure(environment: MutableMapping[str, str]) -> None:
    """Make Ray require a token and send no usage statistics; call it before importing ray."""
    environment.setdefault("RAY_AUTH_MODE", "token")
    environment.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if environment["RAY_AUTH_MODE"] != "token":
        log.warning(
            "RAY_AUTH_MODE is %r: whoever reaches Ray's ports can run programs on all machines of "
            "the cluster; unset it to have Ray ask for a token",
            environment["RAY_AUTH_MODE"],
        )


def application(options: ClusterOptions, server: ServerConfig, arguments: Sequence[str]) -> Any:
    """The Serve application."""
    from ray import serve
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

    from headstart.extras.cluster.gateway import GatewayActor
    from headstart.extras.cluster.replica import ReplicaActor

    many = 100_000  # requests at once, which we limit ourselves
    policy = AutoscalingPolicy(
        policy_function="headstart.extras.cluster.scaling:ScalingPolicy",
        policy_kwargs={"target_requests": options.target_requests},
    )
    replicas = serve.deployment(
        name=REPLICAS,
        autoscaling_config=AutoscalingConfig(
            min_replicas=options.min_replicas,
            max_replicas=options.max_replicas,
            upscale_delay_s=options.scale_up_seconds,
            downscale_delay_s=options.scale_down_seconds,
            metrics_interval_s=1.0,
            look_back_period_s=max(2.0, options.scale_up_seconds),
            policy=policy,
        ),
        ray_actor_options={"num_cpus": options.replica_cpus, "num_gpus": options.replica_gpus},
        max_ongoing_requests=many,
        graceful_shutdown_timeout_s=options.drain_seconds + 60.0,  # and the time to stop
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=2.0,
    )(ReplicaActor)
    gateway = serve.deployment(
        name=GATEWAY,
        num_replicas=options.gateways,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=many,
        graceful_shutdown_timeout_s=options.drain_seconds,
        health_check_period_s=2.0,
    )(serve.ingress()(GatewayActor))
    replica = replicas.bind(tuple(arguments), options.drain_seconds)
    return gateway.bind(server, options, replica)


def connect(options: ClusterOptions) -> None:
    """Join the Ray cluster, or start one on this machine.

    Raises:
        ConfigError: Ray is not installed, or there is no such cluster.
    """
    secure(os.environ)
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "headstart cluster needs Ray; install it with: pip install 'headstart[cluster]'"
        ) from None
    try:
        if options.ray_address:
            ray.init(address=options.ray_address, log_to_driver=False)
        else:
            ray.init(include_dashboard=False, log_to_driver=False)
    except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
        raise ConfigError(f"the Ray cluster cannot be used: {error}") from error


def run(options: ClusterOptions, server: ServerConfig, arguments: Sequence[str]) -> None:
    """Serve until stopped; answers in flight are ended first.

    Raises:
        ConfigError: Ray cannot be used.
    """
    connect(options)
    import ray
    from ray import serve
    from ray.serve.config import HTTPOptions

    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        serve.start(http_options=HTTPOptions(host=server.host, port=server.port))
        serve.run(application(options, server, arguments), name=APPLICATION, route_prefix="/")
        url = f"http://{server.host}:{server.port}"
        print(f"Headstart listens on {url}. Ray starts replicas as they are needed.", flush=True)
        stopped.wait()
    finally:
        serve.delete(APPLICATION)
        if not options.ray_address:
            serve.shutdown()
        ray.shutdown()
