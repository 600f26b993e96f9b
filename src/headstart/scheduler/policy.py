"""The drafting policy of a request: the server's settings, overridden by the request's."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from headstart.config import SpeculationConfig
from headstart.types import DraftMode
from headstart.types.errors import RequestError
from headstart.types.request import SpeculativeParams


@dataclass(frozen=True, slots=True)
class Policy:
    """Which speculators may draft for one request, and how much."""

    is_fixed: bool  # draft lengths are set by hand
    types: tuple[str, ...]  # speculators that may draft, in order of preference
    n_max: int
    n_min: int  # shorter drafts are dropped
    p_min: float
    reason: str = ""  # why nothing is drafted


def make_policy(
    params: SpeculativeParams, config: SpeculationConfig, loaded: Collection[str], unusable: str
) -> Policy:
    """Merge a request's parameters with the server's settings.

    n_min is capped at n_max, because, as in llama-server, a request may set one of them and get the
    other from the server.

    Args:
        loaded: names of the speculators, in order of preference.
        unusable: reason if no draft can be verified.

    Raises:
        RequestError: it names a speculator that is not loaded, or asks for drafts while there is
            none. `n_max` alone is accepted: clients of llama-server always send it.
    """
    _check_wishes(params, config, loaded)
    mode = params.mode or config.mode
    if params.mode is None and params.n_max and mode is DraftMode.OFF:
        mode = DraftMode.AUTO  # the server drafts on request only, and this is such a request
    limit = config.longest_draft(DraftMode.AUTO)  # the batch and the cache are sized for this
    n_max = min(limit, config.longest_draft(mode) if params.n_max is None else params.n_max)
    wanted = loaded if params.types is None else params.types
    types = tuple(dict.fromkeys(name for name in wanted if name in loaded))
    reason = unusable or ("" if loaded else "no speculator is loaded")
    if not reason and (mode is DraftMode.OFF or n_max == 0 or not types):
        is_default = params == SpeculativeParams() or not limit
        reason = "off" if is_default else "disabled by request"
    return Policy(
        mode is DraftMode.FIXED,
        types,
        n_max,
        min(n_max, config.draft_min if params.n_min is None else params.n_min),
        config.draft_p_min if params.p_min is None else params.p_min,
        reason,
    )


def _check_wishes(
    params: SpeculativeParams, config: SpeculationConfig, loaded: Collection[str]
) -> None:
    wish = f"types names {params.types[0]!r}" if params.types else ""
    if params.mode is not None and params.mode is not DraftMode.OFF:
        wish = f"mode is {params.mode.value}"
    if wish and not loaded:
        started, remedy = "--spec off", "with --spec auto"
        if config.mode is not DraftMode.OFF:
            started, remedy = "--spec-type none", "without it"
        raise RequestError(
            f"speculative.{wish} but this server was started with {started}; start it {remedy}, or "
            "leave the field out"
        )
    for name in params.types or ():
        if name not in loaded:
            raise RequestError(
                f"speculative.types names {name!r} but this server loaded "
                f"{', '.join(loaded) or 'none'}; leave it out or start with --spec-type"
            )
