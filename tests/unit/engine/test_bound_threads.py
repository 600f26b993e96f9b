"""Where the engine has a core for each of its threads they are bound to them, and no others are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from headstart.app import process
from headstart.app.process import has_core_each
from headstart.config import EngineConfig
from headstart.engine.machine import cores, default_threads

PROGRAM = """
import json, os, queue
from headstart.app.process import prepare_engine_process
from headstart.config import Config
before = sorted(os.sched_getaffinity(0))
prepare_engine_process(Config())
from headstart.engine import library
from headstart.engine.machine import default_threads
from headstart.structures.progress import Progress
from headstart.structures.system import low_priority_threads
found = queue.Queue()
class Shown(Progress):
    def show(self):
        found.put(os.sched_getaffinity(0))
shown = Shown()
others = [found.get(), low_priority_threads("x").submit(os.sched_getaffinity, 0).result()]
main = sorted(os.sched_getaffinity(0))
print(json.dumps([before, main, [*map(sorted, others)], default_threads()]))
"""
FOUR = [{0, 4}, {1, 5}, {2, 6}, {3, 7}]


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "cores", lambda: FOUR)
    monkeypatch.setattr(process, "default_threads", lambda: 4)
    monkeypatch.setattr(process, "allowed_cpus", lambda: set(range(8)))
    for name in ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("four")
def test_threads_that_are_as_many_as_cores_are_bound() -> None:
    config = EngineConfig()
    assert has_core_each(config)
    assert has_core_each(replace(config, threads=4))
    assert not has_core_each(replace(config, threads=3))
    assert not has_core_each(replace(config, threads_batch=8))
    assert not has_core_each(replace(config, numa="distribute"))


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize("name", ["OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"])
def test_what_the_user_set_stands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "false")
    assert not has_core_each(EngineConfig())


@pytest.mark.usefixtures("four")
def test_unknown_cores_and_a_single_one_are_not_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    for known in ([set(range(8))] * 4, [{0}]):
        monkeypatch.setattr(process, "cores", lambda known=known: known)
        monkeypatch.setattr(process, "default_threads", lambda known=known: len(known))
        assert not has_core_each(EngineConfig())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says where a thread may run")
@pytest.mark.skipif(len(cores()) < 2 or default_threads() < len(cores()), reason="too few cores")
def test_only_those_that_compute_are_bound() -> None:
    names = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    before, main, others, num_threads = json.loads(done.stdout)
    assert set(main) in cores()
    assert others == [before, before]
    assert num_threads == default_threads()
