"""CPUs and main memory that this process may use, considering containers."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from headstart.structures.system import allowed_cpus

_CPUS = Path("/sys/devices/system/cpu")
_GROUPS = Path("/sys/fs/cgroup")


def default_threads(cpus: Path = _CPUS, groups: Path = _GROUPS) -> int:
    """Physical cores this process may use: fast ones, at most its container's quota.

    Siblings of one core slow each other down, and with more threads than the quota allows, all are
    paused for the rest of each period.
    """
    num_cores, quota = len(cores(cpus)), cpu_quota(groups)
    return num_cores if quota is None else max(1, min(num_cores, int(quota + 0.5)))


@cache  # the main thread may be restricted to one core later
def cores(cpus: Path = _CPUS) -> list[set[int]]:
    """The CPUs of each physical core that this process may use; fast ones only."""
    allowed = _fast(allowed_cpus() or set(range(os.cpu_count() or 1)), cpus)
    found: dict[str, set[int]] = {}
    for cpu in sorted(allowed):
        siblings = _read(cpus / f"cpu{cpu}" / "topology" / "thread_siblings_list")
        if siblings is None:  # then two per core are assumed in larger machines
            num_cores = len(allowed) // 2 if len(allowed) > 4 else len(allowed)
            return [set(allowed) for _ in range(num_cores)]
        found.setdefault(siblings, set()).add(cpu)
    return list(found.values())


def cpu_quota(groups: Path = _GROUPS) -> float | None:
    """CPUs granted to the container; None without a limit."""
    limits = []
    for folder in _group_folders(groups, "cpu"):
        if (line := _read(folder / "cpu.max")) is not None:
            quota, _, period = line.partition(" ")
        else:
            quota = _read(folder / "cpu.cfs_quota_us") or ""
            period = _read(folder / "cpu.cfs_period_us") or ""
        if quota.isdigit() and period.isdigit() and int(period):
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def available_memory(meminfo: Path = Path("/proc/meminfo"), groups: Path = _GROUPS) -> int:
    """Bytes of main memory that can be used now; page cache counts as available."""
    available = 1024 * _statistic(meminfo, "MemAvailable:")
    if not available:  # macOS
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 3 // 4
    for folder in _group_folders(groups, "memory"):
        limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes") or ""
        used = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes") or ""
        if limit.isdigit() and used.isdigit():
            cached = _statistic(folder / "memory.stat", "inactive_file")
            available = min(available, max(0, int(limit) - int(used) + cached))
    return available


def _group_folders(groups: Path, controller: str) -> list[Path]:
    """Folders that may hold this process's limits: its own group and all above it."""
    found = [groups, groups / controller]
    for line in (_read(Path("/proc/self/cgroup")) or "").splitlines():
        _, names, path = ([*line.split(":", 2), "", ""])[:3]
        base = groups / controller if controller in names.split(",") else groups
        if names == "" or controller in names.split(","):
            parts = Path(path.lstrip("/"))
            found += [base / parts, *(base / parent for parent in parts.parents)]
    return list(dict.fromkeys(found))


def _fast(allowed: set[int], cpus: Path) -> set[int]:
    """The CPUs except efficiency cores: those below 0.8 of the fastest clock rate or capacity. All
    threads wait for the slowest.
    """
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        speeds = {cpu: _read(cpus / f"cpu{cpu}" / name) or "" for cpu in allowed}
        if all(value.isdigit() for value in speeds.values()):
            most = max(int(value) for value in speeds.values())
            return {cpu for cpu, value in speeds.items() if int(value) >= 0.8 * most}
    return allowed


def _statistic(path: Path, name: str) -> int:
    for line in (_read(path) or "").splitlines():
        if line.startswith(name + " "):
            return int(line.split()[1])
    return 0


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return None
