"""Drafts of models whose memory takes nothing back: the state before each is kept until its fate is
known. After a rejection the request reads again what was accepted (`Committer`), without a draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headstart.scheduler.drafting import Drafting
from headstart.scheduler.slot import ActiveRequest
from headstart.types import Engine

NO_ROOM = "no memory for the state before a draft"


def keep_states(
    generating: Sequence[ActiveRequest],
    engine: Engine,
    drafting: Drafting,
    clock: Callable[[], float],
) -> None:
    """Make every draft of this step one that can be taken back, or drop it."""
    for active in generating:
        if not active.proposal.drafts:
            continue
        started = clock()
        if engine.keep_for_draft(active.slot_id):
            drafting.controller.observe_copy(1000.0 * (clock() - started))
        else:
            drafting.drop([active], NO_ROOM)
