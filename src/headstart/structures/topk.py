"""Exact top-k of a long float array, much faster than a full partition."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def top_k(
    values: NDArray[np.float32], k: int, gap: float | None = None
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Indices and values of the min(k, size) largest entries, best first, ties by index. Only the
    best one if it is more than `gap` above all others.

    The values are arranged in columns. The k largest column maxima are k of the entries, so no
    entry below the smallest of them is in the top k, and few others reach it: they are collected
    from the columns whose maximum does. NaNs come last; a number that shares a column with one may
    be missed.
    """
    size = len(values)
    # from here on, more columns cost more than taller ones
    height = 64 if size >= 65_536 else 32
    width = size // height
    # for few values a plain partition is as fast
    if size < 4096 or 2 * k > width:
        return _first(*_plain(values, min(k, size)), gap)
    body = height * width
    columns = values[:body].reshape(height, width)
    maxima = np.maximum.reduce(columns, axis=0)
    if gap is not None and (lonely := _lonely(columns, maxima, values[body:], gap)) is not None:
        return lonely
    bound = _lower_bound(maxima, k)
    chosen = (maxima >= bound).nonzero()[0]
    num_chosen = len(chosen)
    candidates = columns.take(chosen, axis=1).ravel()
    found = (candidates >= bound).nonzero()[0]  # by ascending index
    if not num_chosen or len(found) < k:  # a NaN hides the other values of its column
        return _plain(values, k)
    if len(found) > 8 * k:  # many are equal, and only the first of them count: no need to sort all
        found = np.delete(found, (candidates[found] == bound).nonzero()[0][k:])
    scores, rows = candidates[found], found // num_chosen
    ids = rows * width + chosen[found - rows * num_chosen]
    if body < size and (more := (values[body:] >= bound).nonzero()[0] + body).size:
        ids, scores = np.concatenate((ids, more)), np.concatenate((scores, values[more]))
    order = (-scores).argsort(kind="stable")[:k]
    return _first(ids[order], scores[order], gap)


def _lower_bound(maxima: NDArray[np.float32], k: int) -> np.float32:
    """A bound reached by k of the column maxima, and few others.

    With many columns the method is applied again: the k largest group maxima are k of the entries,
    too, at the price of a few more columns.
    """
    size = 8  # columns of a group
    num_groups = len(maxima) // size
    if num_groups >= 2 * k:
        groups = maxima[: num_groups * size].reshape(size, num_groups)
        maxima = np.maximum.reduce(groups, axis=0)
    least: np.float32 = np.partition(maxima, len(maxima) - k)[len(maxima) - k]
    return least


def _first(
    ids: NDArray[np.intp], scores: NDArray[np.float32], gap: float | None
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Only the best entry if it is more than `gap` above the second, else all."""
    if gap is None or len(ids) < 2 or not scores[1] < scores[0] - gap:
        return ids, scores
    return ids[:1], scores[:1]


def _lonely(
    columns: NDArray[np.float32],
    maxima: NDArray[np.float32],
    rest: NDArray[np.float32],
    gap: float,
) -> tuple[NDArray[np.intp], NDArray[np.float32]] | None:
    """The best entry if it is more than `gap` above all others.

    This takes a fraction of the time of the top k, and most tokens of a text are that certain.
    """
    column, width = int(maxima.argmax()), len(maxima)
    bound = maxima[column] - gap
    if len((maxima >= bound).nonzero()[0]) != 1:  # a NaN compares as false
        return None
    rows = (columns[:, column] >= bound).nonzero()[0]
    if len(rows) != 1 or (len(rest) and (rest >= bound).any()):
        return None
    row = int(rows[0])
    return np.array((row * width + column,)), columns[row, column : column + 1]


def _plain(values: NDArray[np.float32], k: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    ids = (values >= np.partition(values, len(values) - k)[len(values) - k]).nonzero()[0]
    if len(ids) < k:
        ids = np.arange(len(values))
    ids = ids[(-values[ids]).argsort(kind="stable")[:k]]
    return ids, values[ids]
