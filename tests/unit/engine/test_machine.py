"""Processors and memory: containers, efficiency cores and the page cache are taken into account."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headstart.engine.context import NUM_DECODES, Asynchrony
from headstart.engine.machine import available_memory, cpu_quota, default_threads


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
def test_a_container_gets_no_more_threads_than_it_pays_for(
    tmp_path: Path, line: str, expected: int
) -> None:
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


def observe(
    asynchrony: Asynchrony, decode_ms: float, wait_ms: float, aside_ms: float = 0.0
) -> None:
    for _ in range(NUM_DECODES):
        asynchrony.observe(0.001 * decode_ms, 0.001 * aside_ms, 0.001 * wait_ms)


def judged(decode_ms: float, wait_ms: float, num_slow: int = 0) -> Asynchrony:
    """After decodes of which the first few take long to hand over, as a device's first ones do."""
    asynchrony = Asynchrony()
    for turn in range(NUM_DECODES):
        assert not asynchrony.is_proven
        asynchrony.observe(0.001 * (500.0 if turn < num_slow else decode_ms), 0.0, 0.001 * wait_ms)
    return asynchrony


def test_a_device_is_waited_for_behind_llama_decode() -> None:
    assert judged(0.6, 7.0).is_proven
    assert judged(0.6, 7.0, num_slow=2).is_proven


def test_the_processor_is_waited_for_in_llama_decode() -> None:
    assert not judged(7.0, 0.002).is_proven
    assert not judged(0.2, 0.004).is_proven


def test_later_decodes_overrule_the_first_ones() -> None:
    asynchrony = judged(0.6, 7.0)
    observe(asynchrony, 7.0, 0.002, aside_ms=0.5)
    assert not asynchrony.is_proven
    observe(asynchrony, 0.6, 4.0, aside_ms=3.0)
    assert asynchrony.is_proven


def test_a_device_that_finished_while_the_caller_was_busy_proves_nothing() -> None:
    for asynchrony in (judged(0.6, 7.0), judged(7.0, 0.002)):
        was_proven = asynchrony.is_proven
        observe(asynchrony, 0.6, 0.002, aside_ms=3.0)
        assert asynchrony.is_proven is was_proven
