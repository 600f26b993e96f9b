"""`headstart cluster`: replicas on Ray Serve behind one address."""

from __future__ import annotations

from dataclasses import dataclass

from headstart.app.cli.command import Command
from headstart.app.cli.main import find_command
from headstart.app.cli.resolve import Resolved
from headstart.config import option
from headstart.config.logs import start_logging
from headstart.gateway.balancer.options import RoutingOptions
from headstart.types.errors import ConfigError

# for the gateways; the replicas' flags follow --
SERVER_SETTINGS = (
    "host", "port", "api_key", "api_key_file", "allowed_hosts", "cors_origins", "max_body_mb",
    "log_level",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions(RoutingOptions):
    """Number of replicas, and the resources of each."""

    ray_address: str | None = option(
        None, "running Ray cluster, HOST:PORT or auto; without it one is started on this machine"
    )
    min_replicas: int = option(1, "replicas that are always there", least=1)
    max_replicas: int = option(1, "replicas when there is much to do", least=1)
    replica_cpus: float = option(1.0, "CPUs that Ray reserves for a replica", least=0)
    replica_gpus: float = option(0.0, "GPUs that Ray reserves for a replica, and shows it", least=0)
    gateways: int = option(1, "processes that pass requests to the replicas", least=1)
    target_requests: float = option(
        4.0,
        "requests, running and waiting, that each replica should have; more start another",
        least=0.01,
    )
    scale_up_seconds: float = option(
        10.0, "how long there must be too much before one is started", least=0
    )
    scale_down_seconds: float = option(
        300.0, "how long there must be too little before one is stopped", least=0
    )
    drain_seconds: int = option(
        600, "seconds that a replica which is stopped has to end its answers", least=0
    )

    def __post_init__(self) -> None:
        if self.max_replicas < self.min_replicas:
            raise ConfigError(
                f"--max-replicas is {self.max_replicas} but --min-replicas is {self.min_replicas}; "
                "it must be at least as many"
            )


def run(resolved: Resolved) -> int:
    """Serve until stopped; return the exit code."""
    mark, arguments = resolved.words[:1], resolved.words[1:]
    if mark not in ((), ("--",)):
        own = "flags of headstart serve"
        raise ConfigError(f"unexpected argument {mark[0]!r}; {own} come after --")
    options, config = resolved.own(ClusterOptions), resolved.config()
    find_command("serve").read(arguments).config()  # raises for wrong ones

    from headstart.extras.cluster import deploy

    start_logging(config.log)
    deploy.run(options, config.server, arguments)
    return 0


COMMAND = Command(
    name="cluster",
    about=(
        "Start replicas of a server on a Ray cluster, as many as the load needs, and pass "
        "requests to them. Flags after -- are those of headstart serve, for every replica; files "
        "that they name must be on every machine. docs/cluster.md says how to join machines, and "
        "what must not be exposed."
    ),
    options=ClusterOptions,
    takes=SERVER_SETTINGS,
    usage="[flags] -- [flags of headstart serve]",
    run=run,
)
