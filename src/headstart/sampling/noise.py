"""Counter-based randomness: every random number is a hash of (seed, position, token id).

There is no generator state to restore when drafts are rejected, and a token's noise does not depend
on the caller, the time or the batch.

Source: the mixing function is splitmix64, Steele, Lea, Flood 2014,
https://doi.org/10.1145/2660193.2660195
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_M1, _M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_UNIT = 2.0**-53
# for `_uniform_many`, called once per token: creating a numpy scalar takes 0.1 microseconds
_NUMBERS = tuple(map(np.uint64, (_GOLDEN, 30, _M1, 27, _M2, 31, 11)))


def _mix(x: int) -> int:
    x &= _MASK
    x = ((x ^ (x >> 30)) * _M1) & _MASK
    x = ((x ^ (x >> 27)) * _M2) & _MASK
    return x ^ (x >> 31)


def _key(seed: int, position: int) -> int:
    return _mix(_mix(seed * _GOLDEN + 1) + position * _GOLDEN)


def gumbel(seed: int, position: int, ids: NDArray[np.int32]) -> NDArray[np.float64]:
    """Gumbel(0, 1) noise g(seed, position, id) for each id: -log(-log u), u in (0, 1).

    argmax(log p + g) is an exact sample of p (Gumbel-max).
    """
    key = _key(seed, position)
    # for few numbers plain Python is faster than numpy
    u = _uniform_few(key, ids.tolist()) if len(ids) <= 8 else _uniform_many(key, ids)
    noise: NDArray[np.float64] = -np.log(-np.log(u))
    return noise


def _uniform_few(key: int, ids: list[int]) -> NDArray[np.float64]:
    return np.array([((_mix(key + i * _GOLDEN) >> 11) + 0.5) * _UNIT for i in ids])


def _uniform_many(key: int, ids: NDArray[np.int32]) -> NDArray[np.float64]:
    golden, by_30, m1, by_27, m2, by_31, by_11 = _NUMBERS
    x = ids.astype(np.uint64)
    x *= golden
    x += np.uint64(key)
    x ^= x >> by_30
    x *= m1
    x ^= x >> by_27
    x *= m2
    x ^= x >> by_31
    x >>= by_11
    u = x.astype(np.float64)
    u += 0.5
    u *= _UNIT
    return u


def uniform(seed: int, position: int, salt: int) -> float:
    """A number in (0, 1) for decisions not tied to one token; `salt` names the decision."""
    return ((_mix(_key(seed, position) ^ _mix(~salt)) >> 11) + 0.5) * _UNIT
