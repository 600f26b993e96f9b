"""Processors and memory: containers, efficiency cores and caches count, and threads are bound."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from headstart.app import process
from headstart.app.process import has_core_each
from headstart.config import EngineConfig
from headstart.engine.context import was_asynchronous
from headstart.engine.machine import available_memory, cores, cpu_quota, default_threads


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def processors(folder: Path, siblings: list[str], capacities: list[int] | None = None) -> Path:
    for cpu, pair in enumerate(siblings):
        write(folder / f"cpu{cpu}" / "topology" / "thread_siblings_list", pair + "\n")
        if capacities:
            write(folder / f"cpu{cpu}" / "cpu_capacity", f"{capacities[cpu]}\n")
    return folder


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


PAIRS = ["0,4", "1,5", "2,6", "3,7"] * 2


@pytest.mark.usefixtures("eight")
def test_siblings_count_once(tmp_path: Path) -> None:
    assert default_threads(processors(tmp_path / "cpus", PAIRS), tmp_path / "none") == 4


@pytest.mark.usefixtures("eight")
def test_efficiency_cores_are_left_out(tmp_path: Path) -> None:
    alone = [str(cpu) for cpu in range(8)]
    cpus = processors(tmp_path / "cpus", alone, [1024, 1000] + [400] * 6)
    assert default_threads(cpus, tmp_path / "none") == 2


@pytest.mark.usefixtures("eight")
@pytest.mark.parametrize(
    ("line", "expected"), [("max 100000", 4), ("150000 100000", 2), ("20000 100000", 1)]
)
def test_a_container_gets_no_more_threads_than_it_pays_for(tmp_path, line, expected) -> None:
    write(tmp_path / "groups" / "cpu.max", line + "\n")
    cpus = processors(tmp_path / "cpus", PAIRS)
    assert default_threads(cpus, tmp_path / "groups") == expected


def test_the_older_kind_of_quota_is_read(tmp_path: Path) -> None:
    write(tmp_path / "cpu" / "cpu.cfs_quota_us", "250000\n")
    write(tmp_path / "cpu" / "cpu.cfs_period_us", "100000\n")
    assert cpu_quota(tmp_path) == 2.5
    write(tmp_path / "cpu" / "cpu.cfs_quota_us", "-1\n")
    assert cpu_quota(tmp_path) is None


def test_the_page_cache_is_available_memory(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    write(meminfo, "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 700 kB\n")
    assert available_memory(meminfo, tmp_path / "none") == 700 * 1024


def test_a_container_s_limit_bounds_memory_but_for_its_page_cache(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    write(meminfo, "MemAvailable: 700 kB\n")
    write(tmp_path / "groups" / "memory.max", "400000\n")
    write(tmp_path / "groups" / "memory.current", "300000\n")
    write(tmp_path / "groups" / "memory.stat", "anon 100000\ninactive_file 50000\n")
    assert available_memory(meminfo, tmp_path / "groups") == 150000
    write(tmp_path / "groups" / "memory.max", "max\n")
    assert available_memory(meminfo, tmp_path / "groups") == 700 * 1024


def judged(decode_ms: float, wait_ms: float, aside_ms: float = 0.0, *, before: bool) -> bool:
    return was_asynchronous(decode_ms, aside_ms, wait_ms, before=before)


@pytest.mark.parametrize("before", [False, True])
def test_a_device_is_waited_for_behind_llama_decode_and_the_processor_in_it(before: bool) -> None:
    assert judged(0.6, 7.0, before=before)
    assert judged(0.6, 4.0, aside_ms=3.0, before=before)
    assert not judged(7.0, 0.002, before=before)
    assert not judged(0.2, 0.004, before=before)
    assert not judged(7.0, 0.002, aside_ms=0.5, before=before)


@pytest.mark.parametrize("before", [False, True])
def test_a_device_that_finished_while_the_caller_was_busy_proves_nothing(before: bool) -> None:
    assert judged(0.6, 0.002, aside_ms=3.0, before=before) is before


PROGRAM = """
import json, os, queue
from headstart.app.process import prepare_engine_process
from headstart.config import Config
before = sorted(os.sched_getaffinity(0))
prepare_engine_process(Config())
from headstart.engine import library
from headstart.engine.machine import default_threads
from headstart.structures.progress import Progress
from headstart.structures.system import start_threads
found = queue.Queue()
class Shown(Progress):
    def show(self):
        found.put(os.sched_getaffinity(0))
shown = Shown()
others = [found.get(), start_threads("x").submit(os.sched_getaffinity, 0).result()]
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
