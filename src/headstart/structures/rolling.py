"""A rolling hash of the last n tokens, one token at a time or over a whole array.

The key of a window t_1 .. t_n is the sum of t_j * BASE^(n + 1 - j) modulo 2^60 (two digits of a
Python int: products stay cheap). Its high bits are well mixed: the top ones address a table, and
those below tell equal addresses apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

KEY_BITS = 60
MASK = (1 << KEY_BITS) - 1
BASE = 0xE3779B97F4A7C15  # odd: multiplying by it loses nothing


def leaving_factor(n: int) -> int:
    """What a token that leaves a window of n is multiplied with: BASE^n."""
    factor: int = pow(BASE, n, MASK + 1)
    return factor


def slide(key: int, leaving: int, entering: int, factor: int) -> int:
    """Key of the window after one token left and one entered; factor = leaving_factor(n)."""
    return (key - leaving * factor + entering) * BASE & MASK


def key_of(tokens: Sequence[int]) -> int:
    """Key of one window."""
    key = 0
    for token in tokens:
        key = (key + token) * BASE & MASK
    return key


def keys_of(tokens: NDArray[np.int32], n: int) -> NDArray[np.uint64]:
    """Keys of all windows of n tokens, shape (len(tokens) - n + 1,); needs len(tokens) >= n."""
    wide = tokens.astype(np.uint64)  # -1 becomes 2^64 - 1, as the arithmetic modulo 2^64 wants
    count = len(tokens) - n + 1
    keys = np.zeros(count, np.uint64)
    base = np.uint64(BASE)
    for j in range(n):
        keys += wide[j : j + count]
        keys *= base
    return keys & np.uint64(MASK)


def salt_of(namespace: str) -> int:
    """As many bits as a key has that stand for a namespace; 0 for the public one."""
    return int.from_bytes(namespace_id(namespace)[:8], "little") & MASK


def namespace_id(namespace: str) -> bytes:
    """16 bytes that stand for a namespace and do not reveal it; zeros for the public one."""
    return blake2b(namespace.encode(), digest_size=16).digest() if namespace else bytes(16)
