"""What is wrong with an answer to `propose`, in words that say how to mend it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headstart.types import Draft

_LONGEST = 60  # characters of a value in a message


def listed(drafts: Iterable[Draft], num_requests: int) -> Sequence[Draft]:
    """The drafts of one call, one for each request.

    Raises:
        TypeError, ValueError: there is another number of them, or they are no list.
    """
    if not isinstance(drafts, list):
        if not isinstance(drafts, Iterable) or isinstance(drafts, Draft | dict | str):
            raise TypeError(
                f"propose returned {_shown(drafts)} but must return a list of Draft, one per "
                "request"
            )
        drafts = list(drafts)
    if len(drafts) != num_requests:
        raise ValueError(
            f"propose returned {len(drafts)} drafts for {num_requests} requests; return one per "
            "request, in the same order, and Draft() where there is no draft"
        )
    return drafts


def explained(draft: object, error: Exception) -> Exception:
    """The error of a draft that cannot be used, or a clearer one."""
    if not isinstance(draft, Draft):
        return TypeError(
            f"propose returned {_shown(draft)} where a Draft was expected; return Draft() where "
            "there is no draft"
        )
    if not isinstance(error, TypeError) or not isinstance(draft.reason, str):
        return error
    for name, kind in (("tokens", "ints"), ("confidence", "floats, one per token, or nothing")):
        value = getattr(draft, name)
        if not hasattr(value, "__getitem__") or not hasattr(value, "__len__"):
            return TypeError(f"Draft.{name} is {_shown(value)} but must be a list of {kind}")
    return TypeError(f"{error}: {_shown(draft)} needs ints as tokens and floats as confidence")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
