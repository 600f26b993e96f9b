"""What of a cluster is not Ray: how many replicas, what they start with, what may be set."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from headstart.app.cli.command import PageRequested
from headstart.extras.cluster import command as cluster
from headstart.extras.cluster import deploy
from headstart.extras.cluster.command import ClusterOptions
from headstart.extras.cluster.scaling import REQUESTS, ScalingPolicy
from headstart.types.errors import ConfigError


@pytest.mark.parametrize(
    ("requests", "wanted"), [((), 1), ((0, 0), 1), ((4, 4), 2), ((5, 4), 3), ((31,), 8)]
)
def test_there_are_as_many_replicas_as_requests_need(requests, wanted):
    loads = {REQUESTS: dict(enumerate(requests))}
    assert ScalingPolicy(4.0)(SimpleNamespace(aggregated_metrics=loads)) == (wanted, {})


def test_before_any_replica_has_reported_there_shall_be_one():
    assert ScalingPolicy(4.0)(SimpleNamespace(aggregated_metrics=None)) == (1, {})


@pytest.mark.parametrize("wrong", ["--min-replicas=3 --max-replicas=2", "--target-requests=0"])
def test_what_cannot_work_is_refused_with_the_flag(wrong):
    with pytest.raises(ConfigError, match="--"):
        cluster.COMMAND(wrong.split())


def test_ray_asks_for_a_token_and_reports_nothing(caplog):
    environment: dict[str, str] = {}
    deploy.secure(environment)
    assert environment == {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
    assert not caplog.records
    deploy.secure({"RAY_AUTH_MODE": "disabled"})
    assert "run programs" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--", "--no-such-flag"], "--no-such-flag"),
        (["-m", "x.gguf"], "-m"),
        (["model.gguf"], "after --"),
        (["--", "--parallel", "many"], "--parallel"),
    ],
)
def test_wrong_flags_are_told_before_anything_starts(arguments, named):
    with pytest.raises(ConfigError, match=named):
        cluster.COMMAND(arguments)


def test_help_says_where_flags_of_replicas_go():
    with pytest.raises(PageRequested, match=r"-- \[flags of headstart serve\]"):
        cluster.COMMAND(["--help"])


def test_without_ray_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(os, "environ", {})
    with pytest.raises(ConfigError, match=r"headstart\[cluster\]"):
        deploy.connect(ClusterOptions())
