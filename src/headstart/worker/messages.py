"""What goes in and out of the engine's loop; the web process imports this and not the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstart.types.report import WorkerReport
from headstart.types.request import Event, StepTokens, Work


@dataclass(frozen=True, slots=True)
class Cancel:
    """Command: stop a request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Command: end the loop."""


Command = Work | Cancel | Stop


@dataclass(frozen=True, slots=True)
class Message:
    """What the loop sends: events in order, and now and then a report."""

    events: Sequence[Event | StepTokens] = ()
    report: WorkerReport | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle without the names of the fields: there is one for every step."""
        return Message, (self.events, self.report)
