"""Exact top-k of a long float array, an order of magnitude faster than a partition of all of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GROUP = 64  # entries per column
_SMALL = 4096  # below this a plain partition is as fast


def top_k_ids(values: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """Indices of the k largest entries, in no particular order.

    The values are laid out in columns of 64. An entry of the top k lies in one of the k columns
    with the largest maxima (else k other columns would each hold a larger entry), so only those
    k * 64 entries have to be partitioned. Ties at the border are broken arbitrarily but always
    the same way for the same values.
    """
    size = len(values)
    if k >= size:
        return np.arange(size)
    width = size // _GROUP
    if size < _SMALL or k * 2 >= width:
        return np.argpartition(values, size - k)[size - k :]
    maxima = values[: width * _GROUP].reshape(_GROUP, width).max(axis=0)
    columns = np.argpartition(maxima, width - k)[width - k :]
    candidates = (columns[:, None] + np.arange(0, width * _GROUP, width)).ravel()
    if width * _GROUP < size:
        candidates = np.concatenate((candidates, np.arange(width * _GROUP, size)))
    best = np.argpartition(values[candidates], len(candidates) - k)[len(candidates) - k :]
    return candidates[best]
