"""What the slots hold, in files while the model is not loaded: it comes back with the model.

Written when the engine is told to stop, the slot used last first, and for a few seconds at most:
who stops it waits. What is damaged or of another model is passed over.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headstart.scheduler.host_prompts import LEAST_TOKENS
from headstart.scheduler.sequence import Cells
from headstart.structures.atomic import replace_file
from headstart.types import ContextFullError, Engine
from headstart.types.errors import EngineError, InvalidParameterError

if TYPE_CHECKING:
    from headstart.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

INDEX = "slots.json"
LONGEST_SECONDS = 5.0  # after which no further slot is written


@dataclass(frozen=True, slots=True)
class KeptSlots:
    """A folder of its own; `identity` names all that the states in it depend on."""

    folder: Path
    identity: str

    def write(self, all_cells: list[Cells], engine: Engine, clock: Callable[[], float]) -> int:
        """Write what idle slots hold; the number of slots written."""
        started, written = clock(), []
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # prompts are private
            (self.folder / INDEX).unlink(missing_ok=True)
            for cells in sorted(all_cells, key=lambda one: -one.last_used):
                name = f"slot-{cells.seq_id}.bin"
                (self.folder / name).unlink(missing_ok=True)
                if _is_worth_it(cells) and clock() - started < LONGEST_SECONDS:
                    engine.write_sequence(
                        cells.seq_id, self.folder / name, cells.tokens, cells.length
                    )
                    written.append({"file": name, "namespace": cells.namespace})
            index = {"identity": self.identity, "slots": written}
            replace_file(self.folder / INDEX, json.dumps(index).encode())
        except (OSError, EngineError) as error:
            log.warning("what the slots hold is not kept: %s", error)
            return 0
        if written:
            log.info("kept %d slots in %.1f s", len(written), clock() - started)
        return len(written)

    def restore(self, all_cells: list[Cells], engine: Engine) -> int:
        """Read it again into free slots; the number of slots that hold something now."""
        num_restored = 0
        # used last comes last, as it does among running slots
        for entry, cells in zip(reversed(self._entries()), all_cells, strict=False):
            try:
                saved = engine.read_sequence(cells.seq_id, self.folder / entry["file"])
            except (InvalidParameterError, EngineError, ContextFullError) as error:
                log.warning("a slot that was kept is not used: %s", error or "there is no room")
                continue
            cells.hold(saved.tokens)
            cells.namespace = entry["namespace"]
            num_restored += 1
        if num_restored:
            log.info("%d slots hold what they held before", num_restored)
        return num_restored

    def _entries(self) -> list[dict[str, str]]:
        try:
            index = json.loads((self.folder / INDEX).read_bytes())
            is_ours = index["identity"] == self.identity
            entries = [
                {"file": str(Path(one["file"]).name), "namespace": str(one["namespace"])}
                for one in index["slots"]
            ]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("what the slots held is not used: %s: %s", self.folder / INDEX, error)
            return []
        return entries if is_ours else []


def keep_slots(scheduler: Scheduler, place: tuple[Path, str] | None) -> None:
    """Give a scheduler's slots what was kept in this folder for this identity, and have it kept
    again.
    """
    if place is None:
        return
    scheduler.kept_slots = KeptSlots(*place)
    scheduler.kept_slots.restore(scheduler.cells, scheduler.engine)


def _is_worth_it(cells: Cells) -> bool:
    """Whether anybody may use what it holds, and gains by it."""
    is_idle = cells.user is None and cells.length >= LEAST_TOKENS
    has_image = min(cells.tokens, default=0) < 0
    return is_idle and cells.num_exact >= cells.length and not has_image
