"""Synthetic texts and machines for `control_simulation`: what is guessed, what rows cost."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.lib.curves import CostCurve

TILE = 8


def tiled(milliseconds: Sequence[float], num_tiles: int = 20) -> CostCurve:
    """A curve of kernels that compute TILE rows at once, from what the first TILE widths take."""
    whole = milliseconds[-1]
    points = {
        tile * TILE + rows: tile * whole + ms
        for tile in range(num_tiles)
        for rows, ms in enumerate(milliseconds, 1)
    }
    return CostCurve(points)


CURVES = {  # milliseconds of a step by rows
    "cpu": CostCurve.parse("1:49,2:70,4:113,8:180,16:300,32:637,64:1200"),
    "gpu": CostCurve.parse("1:10,8:10.8,12:11.4,13:17,16:17.5,32:19,33:26,64:30"),
    "moe": CostCurve.parse("1:20,2:29,4:41,8:57,16:76,32:98,64:130"),
}
# Measured on two cores with several sequences and their outputs, for 1 to 8 rows.
TILED_CURVES = {
    "q4_0": tiled((14, 23, 36, 21, 32, 43, 53, 39)),
    "q8_0": tiled((28, 65, 76, 83, 112, 122, 126, 91)),
    "iq4": tiled((23, 39, 52, 67, 82, 98, 112, 63)),
}


@dataclass(frozen=True)
class Place:
    """One token of a text: is it guessed, with what score, and is there a draft here at all?"""

    is_guessed: bool
    confidence: float
    has_draft: bool
    is_copied: bool = False
    chance: float = 0.0  # that it is guessed, given the state of the text


@dataclass(frozen=True)
class Kind:
    """A text that copies or not: the chance of a right guess in each state, and of a change."""

    copied: float = 0.95
    novel: float = 0.1
    leave: float = 0.03
    enter: float = 0.05
    drafts_novel: float = 0.5  # share of novel places where a (mostly wrong) draft is offered
    halves: tuple[float, float] | None = None  # instead: acceptance of each half, same scores

    def survival(self, place: Place, longest: int) -> list[float]:
        """Chance that a draft made here survives, knowing the state here and how states change."""
        if self.halves is not None:
            return [place.chance ** (i + 1) for i in range(longest)]
        copied, novel, survival = float(place.is_copied), float(not place.is_copied), []
        for _ in range(longest):
            copied, novel = copied * self.copied, novel * self.novel
            survival.append(copied + novel)
            copied, novel = (
                copied * (1.0 - self.leave) + novel * self.enter,
                copied * self.leave + novel * (1.0 - self.enter),
            )
        return survival


def make_text(kind: Kind, rng: random.Random, length: int) -> list[Place]:
    """A text with match lengths as scores: places guessed in a row before, plus noise."""
    places, run, copying = [], rng.randint(1, 4), rng.random() < 0.5
    for i in range(length):
        copying = rng.random() >= kind.leave if copying else rng.random() < kind.enter
        chance = kind.copied if copying else kind.novel
        has_draft = copying or rng.random() < kind.drafts_novel
        score = float(max(1, min(64, run)))
        if kind.halves is not None:
            chance, has_draft, score = kind.halves[2 * i // length], True, float(rng.randint(2, 8))
        is_guessed = rng.random() < chance
        places.append(Place(is_guessed, score, has_draft, copying, chance))
        run = run + 1 if is_guessed else rng.randint(0, 3)
    return places


def make_model_text(kind: Kind, rng: random.Random, length: int) -> list[Place]:
    """A text with probabilities as scores, as a draft model gives them: informative, a little too
    sure.
    """
    places, copying = [], rng.random() < 0.5
    for i in range(length):
        copying = rng.random() >= kind.leave if copying else rng.random() < kind.enter
        chance = kind.copied if copying else kind.novel
        if kind.halves is not None:
            chance = kind.halves[2 * i // length]
        sharp = rng.betavariate(6 * chance + 0.05, 6 * (1 - chance) + 0.05)
        places.append(Place(rng.random() < sharp, min(0.999, sharp**0.8), has_draft=True))
    return places


WORKLOADS: dict[str, Callable[[int], Kind]] = {
    "mixed": lambda _: Kind(),
    "edit": lambda _: Kind(copied=0.97, leave=0.02, enter=0.2),
    "nothing": lambda _: Kind(copied=0.03, novel=0.02, drafts_novel=1.0),
    "low": lambda _: Kind(halves=(0.4, 0.4)),
    "medium": lambda _: Kind(halves=(0.7, 0.7)),
    "halves": lambda _: Kind(halves=(0.95, 0.05)),
    "per-slot": lambda slot: Kind(halves=((0.96, 0.05, 0.6, 0.3)[slot % 4],) * 2),
    "looping": lambda _: Kind(halves=(0.995, 0.995)),
}


def expert_curve(alike: float, num_experts: int = 32, num_used: int = 4) -> CostCurve:
    """Milliseconds by rows of a mixture of experts: a step reads the weights of all experts that
    its rows wake.

    alike: 0: each row chooses its experts by itself; 1: all rows wake the same ones.
    """
    points = {}
    for rows in range(1, 129):
        choices = 1.0 + (rows - 1) * (1.0 - alike)
        woken = num_experts * (1.0 - (1.0 - num_used / num_experts) ** choices)
        points[rows] = 7.0 + 13.0 * woken / num_used + 0.35 * (rows - 1)
    return CostCurve(points)


# How much alike the rows of a text wake experts; a warm-up's rows are not alike at all.
EXPERT_CURVES = {f"experts-{alike:g}": expert_curve(alike) for alike in (0.0, 0.2, 0.6)}
