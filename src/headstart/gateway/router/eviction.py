"""How much memory models may take together, and which of them would have to go for another one.

Arithmetic over bytes by device; who measures them is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from headstart.types.errors import ConfigError

Bytes = Mapping[str, int]  # by device

MAIN = "main memory"
# of a model's processes besides what its engine takes: two interpreters with what they import
PROCESS_BYTES = 300 * 2**20


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a model takes, and how it has to be started so that it takes no more."""

    needs: Bytes
    arguments: tuple[str, ...] = ()
    usable: Bytes = field(default_factory=dict)  # what was free when this was asked


class Holder(Protocol):
    """A model that may hold memory."""

    @property
    def group(self) -> str: ...

    @property
    def last_used(self) -> float: ...

    @property
    def needs(self) -> Bytes: ...

    @property
    def held(self) -> Bytes:
        """What it takes now."""


T = TypeVar("T", bound=Holder)


@dataclass(frozen=True, slots=True)
class Room:
    """What may be loaded together."""

    max_models: int = 0  # 0: any number
    budget: Bytes = field(default_factory=dict)  # none: any bytes

    def fits(self, model: Holder, others: Sequence[Holder]) -> bool:
        """Whether it can be loaded beside the others."""
        if self.max_models and len(others) >= self.max_models:
            return False
        if any(not may_stay(model, other) for other in others):
            return False
        return not self._full_devices(model, others)

    def victims(self, model: Holder, idle: Sequence[T], busy: Sequence[T]) -> list[T] | None:
        """Which of the idle models to unload so that it fits: the ones used longest ago, and none
        without need. None: all of them would not be enough.
        """
        by_age = sorted(idle, key=lambda one: one.last_used)
        if not self.fits(model, busy):
            return None
        staying = [*busy, *by_age]
        chosen: list[T] = []
        for one in by_age:
            if self.fits(model, staying):
                break
            if self._helps(one, model, staying):
                staying.remove(one)
                chosen.append(one)
        # what was chosen first may stay after all, if a later one freed enough
        for one in reversed(chosen[:-1]):
            if self.fits(model, [*staying, one]):
                staying.append(one)
                chosen.remove(one)
        return chosen

    def _helps(self, one: Holder, model: Holder, staying: Sequence[Holder]) -> bool:
        """Whether there is less to do once `one` is unloaded."""
        if not may_stay(model, one):
            return True
        if self.max_models and len(staying) >= self.max_models:
            return True
        full = self._full_devices(model, staying)
        return any(one.held.get(device, 0) for device in full)

    def _full_devices(self, model: Holder, others: Sequence[Holder]) -> list[str]:
        return [
            device
            for device, needed in model.needs.items()
            if device in self.budget
            and needed + sum(one.held.get(device, 0) for one in others) > self.budget[device]
        ]


def may_stay(one: Holder, other: Holder) -> bool:
    """Whether two models may be loaded at the same time: not if both are of groups, and of
    different ones.
    """
    return not one.group or not other.group or one.group == other.group


def parse_memory(text: str | None, flag: str = "--models-memory") -> dict[str, int]:
    """MiB by device, as a flag has them -> bytes by device.

    Raises:
        ConfigError: it has another form.
    """
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        name, has_name, number = part.rpartition("=")
        if not number.strip().isdigit() or not int(number) or (has_name and not name.strip()):
            raise ConfigError(
                f"{flag} has {part!r} but must be MiB, as 16000 or main=16000,CUDA0=22000"
            )
        device = MAIN if name.strip() in ("", "main", "CPU") else name.strip()
        found[device] = int(number) * 2**20
    return found
