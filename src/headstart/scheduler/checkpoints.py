"""Where reading a prompt pauses for a checkpoint, on engines that cannot cut a sequence anywhere.

The next request of a conversation shares a prefix with this one, and differs from where a message
was edited or where the thoughts of the last turn are left out. Both lie where messages begin and
end: at control tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headstart.types.media import chunk_begin

_LEAST = 16  # tokens; shorter prefixes are read faster than they are restored
_TAIL = 64  # tokens of a prompt among which the markers of the answer's beginning are looked for
_BEFORE_END = 4  # tokens, where no marker is found: what is appended may merge with the last ones


def choose_pauses(
    tokens: Sequence[int], num_cached: int, is_control: Callable[[int], bool], min_step: int
) -> list[int]:
    """Lengths of the prompt, after `num_cached`, that are worth a checkpoint, in order.

    The end of the first message, for conversations that begin alike; the last marker, before which
    the next turn has the same text; and others at least `min_step` tokens apart, at markers where
    there are any.
    """
    controls = {token for token in set(tokens) if token >= 0 and is_control(token)}
    markers = [p for p, token in enumerate(tokens) if token in controls and p >= _LEAST]
    end = len(tokens) - _BEFORE_END
    always = {*markers[:1], end}
    if markers and markers[-1] >= len(tokens) - _TAIL:
        # What follows the last marker may be long: what the turn is called, an empty thought.
        is_long = end - markers[-1] >= _BEFORE_END
        end = end if is_long else markers[-1]
        always = {*markers[:1], markers[-1], end}
    pauses, last = [], 0
    for position in [*(p for p in markers if p < end), end]:
        while position - last >= 2 * min_step:
            last += min_step
            pauses.append(last)
        if position - last >= min_step or position in always:
            pauses.append(position)
            last = position
    pauses = [chunk_begin(tokens, pause) for pause in pauses]
    return [pause for pause in pauses if pause > max(num_cached, _LEAST - 1)]
