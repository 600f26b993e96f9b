"""How long drafts of some key tend to be right, learned from what was emitted after them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

_MAX_KEYS = 4096


class AdaptiveLength:
    """Per key a number of tokens from 1 to `longest`; unknown keys have `longest`.

    A miss after a tokens sets a + 1 (one more than was right, so that a key is tried
    again); a draft that was right to its end doubles it; one of which only a right part was seen
    says nothing.
    """

    __slots__ = ("_guess", "_key", "_lengths", "_longest")

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._lengths: dict[Hashable, int] = {}
        self._key: Hashable = None
        self._guess: Sequence[int] = ()

    def of(self, key: Hashable) -> int:
        return self._lengths.get(key, self._longest)

    def watch(self, key: Hashable, guess: Sequence[int]) -> None:
        """The next `learn` judges this guess; an empty one is not judged."""
        self._key, self._guess = key, guess

    def learn(self, emitted: Sequence[int]) -> None:
        """These tokens came; compare them with the guess."""
        guess = self._guess
        if not guess:
            return
        num_right = 0
        for token, guessed in zip(emitted, guess, strict=False):
            if token != guessed:
                break
            num_right += 1
        self._guess = ()
        if num_right == len(guess):
            self._set(min(self._longest, 2 * max(num_right, self.of(self._key))))
        elif num_right < len(emitted):
            self._set(min(self._longest, num_right + 1))

    def _set(self, value: int) -> None:
        if len(self._lengths) >= _MAX_KEYS and self._key not in self._lengths:
            del self._lengths[next(iter(self._lengths))]
        self._lengths[self._key] = value
