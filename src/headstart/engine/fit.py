"""Fits models into memory: tokens of context, layers on the GPU, experts and snapshots.

Only settings that the user left open are chosen. If nothing fits, the error says what to lower,
before libllama tries and aborts.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from headstart.config import LEAST_CONTEXT, MOST_CONTEXT, EngineConfig
from headstart.config.engine import fit_targets
from headstart.engine.devices import list_devices
from headstart.engine.footprint import HOST, REPACKED, Measured, Use, Uses, can_measure, measure
from headstart.engine.machine import available_memory
from headstart.engine.parameters import Limits
from headstart.types.constraint import NO_LIMIT
from headstart.types.errors import ConfigError

log = logging.getLogger(__name__)

_STEP = 256  # tokens; libllama's own granularity


@dataclass(frozen=True, slots=True)
class Part:
    """A model to load, and its requirements."""

    path: Path
    config: EngineConfig
    limits: Limits


@dataclass(frozen=True, slots=True)
class Fitted:
    """Settings that fit, and their memory use."""

    config: EngineConfig  # of the target; its context is never 0
    limits: Limits
    uses: Uses = field(default_factory=dict)  # of all models, by device
    remarks: tuple[str, ...] = ()
    free: Mapping[str, int] = field(default_factory=dict)  # bytes of each device
    usable: Mapping[str, int] = field(default_factory=dict)  # the same, minus what others need

    def describe(self) -> str:
        """One line for the log."""
        uses = (f"{_size(use.total)} of {name} ({_shown(use)})" for name, use in self.uses.items())
        return "; ".join(uses)


def by_device(uses: Uses) -> Uses:
    """Memory use by device; repacked weights are in main memory."""
    uses = dict(uses)
    if repacked := uses.pop(REPACKED, None):
        uses[HOST] = repacked + uses.get(HOST, Use())
    return uses


Measure = Callable[[Path, EngineConfig, Limits, int], Measured]


def fit(
    target: Part,
    drafters: Callable[[EngineConfig], Sequence[Part]] = lambda settings: (),
    *,
    measure: Measure = measure,
    free: Callable[[], dict[str, int]] | None = None,
) -> Fitted:
    """Choose unset settings so that target and drafters fit into free memory.

    Args:
        drafters: the draft models, given the target's settings; also further contexts of it.
        measure, free: bytes that a model takes and that each device has; for tests.

    Raises:
        ConfigError: it cannot fit; the message says what to lower.
        ModelError: libllama cannot make one of the models.
    """
    config, limits = target.config, target.limits
    if not can_measure():
        context = config.context or config.fit_ctx
        limits = replace(limits, max_draft=min(limits.max_draft, _least_snapshots(target)))
        return Fitted(replace(config, context=context), limits)
    return _Fitting(target, drafters, measure, free or free_memory).run()


def free_memory() -> dict[str, int]:
    """Free bytes of each GPU, and of main memory including the page cache."""
    free = {d.name: d.free_bytes for d in list_devices() if "GPU" in d.kind}
    return free | {HOST: available_memory()}


class _Fitting:
    """One search; `config` and `max_draft` are its current result."""

    def __init__(
        self,
        target: Part,
        drafters: Callable[[EngineConfig], Sequence[Part]],
        measure: Measure,
        free: Callable[[], dict[str, int]],
    ) -> None:
        self.target, self.drafters = target, drafters
        self._measure = cache(measure)  # each call takes 10 to 20 ms, and some are repeated
        self.facts, _ = self._measure(
            target.path,
            target.config,
            replace(target.limits, max_draft=0),
            target.config.context or 512,
        )
        self.free = free()  # after libllama was started with --numa
        num_caches = target.limits.num_sequences if target.config.exact else 1
        train = min(self.facts.train_context, MOST_CONTEXT // num_caches)
        self.is_open = target.config.context == 0
        self.config = replace(target.config, context=target.config.context or train)
        self.max_draft = target.limits.max_draft
        self.most_snapshots = 0  # of several slots, if memory is left
        self.remarks: list[str] = []
        self.copies: Uses = {}  # checkpoints of the target's sequences

    def run(self) -> Fitted:
        self._limit_snapshots()
        uses = self.uses()
        if self._excess(uses) > 0 and self.target.config.fit == "on":
            if self.is_open:
                self._shrink_context()
                uses = self.uses()
            if self._excess(uses) > 0 and len(self.free) > 1:
                self._move_to_host()
                uses = self.uses()
        self._refuse(uses)
        self._add_snapshots()
        uses = self.uses()
        left = self.free[HOST] - by_device(uses).get(HOST, Use()).total
        limits = replace(
            self.target.limits,
            max_draft=self.max_draft,
            # a quarter of the remaining main memory
            checkpoint_bytes=max(64 << 20, left // 4),
        )
        usable = {name: free - self._margin(name, free) for name, free in self.free.items()}
        return Fitted(self.config, limits, by_device(uses), tuple(self.remarks), self.free, usable)

    def uses(self, config: EngineConfig | None = None) -> Uses:
        """Memory use of all models with these settings."""
        total = dict(self.copies)
        for part in self._parts(config or self.config):
            for name, use in self._uses_of(part).items():
                total[name] = total.get(name, Use()) + use
        return total

    def _parts(self, config: EngineConfig) -> list[Part]:
        """The target, then its drafters."""
        limits = replace(self.target.limits, max_draft=self.max_draft)
        return [Part(self.target.path, config, limits), *self.drafters(config)]

    def _uses_of(self, part: Part, context: int | None = None) -> Uses:
        size = part.config.context if context is None else context
        return self._measure(part.path, part.config, part.limits, size)[1]

    def _excess(self, uses: Uses) -> int:
        """Bytes by which the fullest device exceeds its limit; 0 or less: it fits."""
        excess = []
        for name, use in by_device(uses).items():
            free = self.free.get(name, self.free[HOST])
            excess.append(use.total - (free - self._margin(name, free)))
        return max(excess, default=0)

    def _margin(self, name: str, free: int) -> int:
        """Bytes of a device to leave free."""
        config = self.target.config
        margins = fit_targets(config.fit_target)
        if len(margins) > 1:  # in the order of the GPUs; llama-server's default for the others
            gpus = (config.device or ",".join(one for one in self.free if one != HOST)).split(",")
            margins = [dict(zip(gpus, margins, strict=False)).get(name, 1024)]
        margin = margins[0] << 20
        if name != HOST:
            return min(margin, free // 10)
        # other programs need main memory too: at least an eighth of the free memory is left
        return max(min(margin, free // 4), free // 8)

    def _limit_snapshots(self) -> None:
        """Choose the requested number of recurrent snapshots, at least one, within an eighth of
        free memory; if none is requested, as many as pay and are cheap.
        """
        if not self.max_draft or not self.facts.is_recurrent:
            return
        path, limits = self.target.path, self.target.limits
        small = replace(self.config, context=512, repack=False)  # without a cache for prompts
        _, one = self._measure(path, small, replace(limits, max_draft=1), 512)
        _, none = self._measure(path, small, replace(limits, max_draft=0), 512)
        states = {name: use.cache - none.get(name, Use()).cache for name, use in one.items()}
        if sum(states.values()) <= 0:  # not with this architecture
            states = {name: use.cache for name, use in none.items()}
            self.copies = {name: Use(cache=size) for name, size in states.items()}
            return
        self.copies = {name: Use(cache=size) for name, size in states.items()}
        room = NO_LIMIT  # snapshots in an eighth of free memory
        for name, each in states.items():
            if each > 0:
                free = self.free.get(name, self.free[HOST])
                room = min(room, max(1, (free - none.get(name, Use()).total) // 8 // each))
        self.max_draft = min(self.max_draft, self._wanted_snapshots())
        most = min(self.max_draft, room)
        num = limits.num_sequences
        if num > 1 and states.get(HOST, 0) <= 0:
            self.most_snapshots = min(8, room // 2, limits.max_draft, self.config.ubatch // num - 1)
        if most < self.max_draft:
            self.remarks.append(
                f"drafts have at most {most} tokens: there is no memory for more than {most} "
                "snapshots of the recurrent layers; lower --parallel for longer ones"
            )
        self.max_draft = most

    def _add_snapshots(self) -> None:
        """Use what is left of a GPU's memory for snapshots of several slots, at least two.

        There copies cost further passes over the model, and two snapshots are worth more
        (`benchmarks.control_simulation --hybrids`).
        """
        before = self.max_draft
        for count in range(self.most_snapshots, max(1, before), -1):
            self.max_draft = count
            if self._excess(self.uses()) <= 0:
                return
        self.max_draft = before

    def _wanted_snapshots(self) -> int:
        """Default number of recurrent snapshots: as many as pay and are cheap.

        A snapshot of all slots may take as much memory as thousands of tokens of context, so
        snapshots take at most 1/20 of cache and compute memory, and few drafts are accepted beyond
        8 tokens. Fewer than 4 are worth less than copies of the state
        (`benchmarks.control_simulation --hybrids`, one slot), so then there are none.
        """
        count = _least_snapshots(self.target)
        most = self._without_weights(0) * 21 // 20
        for more in range(max(4, count + 1), 9):
            if self._without_weights(more) > most:
                break
            count = more
        return count

    def _without_weights(self, num_snapshots: int) -> int:
        """Bytes of caches and compute buffers, without a cache for prompts."""
        limits = replace(self.target.limits, max_draft=num_snapshots)
        config = replace(self.config, repack=False)
        _, uses = self._measure(self.target.path, config, limits, config.context)
        return sum(use.cache + use.compute for use in uses.values())

    def _shrink_context(self) -> None:
        """The largest context that fits, down to --fit-ctx."""
        high = self.config.context
        low = min(high, self.target.config.fit_ctx)
        # each try takes a while: steps below one hundredth are not worth it
        lengths = [high]
        while lengths[-1] > low:
            step = max(_STEP, lengths[-1] // 100 // _STEP * _STEP)
            lengths.append(max(low, lengths[-1] - step))
        words = "the context has {0.context} tokens: more do not fit into free memory"
        if not self._lower(len(lengths) - 1, words, lambda n: {"context": lengths[n]}):
            self.config = replace(self.config, context=low)

    def _move_to_host(self) -> None:
        """Move experts, or else whole layers, from the GPU to main memory: as few as needed."""
        config, facts = self.config, self.facts
        if facts.num_experts and not config.cpu_moe and not config.override_tensor:
            words = f"the experts of {{0.n_cpu_moe}} of {facts.num_layers} layers are on the CPU"
            if self._lower(facts.num_layers, words, lambda n: {"n_cpu_moe": n}):
                return
        if config.gpu_layers < 0:
            most = facts.num_layers + 1
            words = f"{{0.gpu_layers}} of {most} layers are on the GPU"
            self._lower(most, words, lambda n: {"gpu_layers": most - n})

    def _lower(self, most: int, words: str, settings: Callable[[int], dict[str, Any]]) -> bool:
        """Apply the settings of the smallest number up to `most` that fits, and note that in these
        words; returns False if none fits.
        """

        def is_too_large(number: int) -> bool:
            return self._excess(self.uses(replace(self.config, **settings(number)))) > 0

        if is_too_large(most):
            return False
        number = bisect_left(range(most), True, key=lambda number: not is_too_large(number))
        self.config = replace(self.config, **settings(number))
        self.remarks.append(words.format(self.config))
        return True

    def _refuse(self, uses: Uses) -> None:
        """Raise if libllama would fail; a mapped file may be larger than memory."""
        is_mapped = self.config.mmap and not self.config.mlock
        mapped = uses.get(HOST, Use()).weights if is_mapped else 0
        for name, use in by_device(uses).items():
            free = self.free.get(name, self.free[HOST])
            needed = use.total - mapped * (name == HOST)
            if needed > free:
                raise ConfigError(self._why_not(name, use, needed, free))
            if use.total > free:
                self.remarks.append(
                    "the weights are read from disk again and again: they and the cache take "
                    f"{_size(use.total)} of {_size(free)} that are free"
                )

    def _why_not(self, name: str, use: Use, needed: int, free: int) -> str:
        """Error for what does not fit into this device, and what to lower for the largest model."""
        target, *drafters = self._parts(self.config)
        taken = [
            (by_device(self._uses_of(part)).get(name, Use()), part)
            for part in drafters
            if part.path != target.path
        ]
        largest, part = max(taken, default=(Use(), target), key=lambda one: one[0].total)
        words = f"of {_size(free)} free in {name} "
        if 2 * largest.total <= use.total:
            now = self.config.context
            most = _most_context(
                lambda n: self.uses(replace(self.config, context=n)), name, now, free - needed
            )
            return (
                f"{target.path.name} does not fit: {words}it needs {_size(needed)} "
                f"({_shown(use)}); lower {_advice(use, self.config, most)}"
            )
        now = part.config.context
        most = _most_context(lambda n: self._uses_of(part, n), name, now, free - needed)
        own = largest.total - (largest.weights if needed < use.total else 0)  # without mapped files
        return (
            f"the draft model {part.path.name} does not fit beside {target.path.name}: {words}"
            f"they need {_size(needed)}, the draft model {_size(own)} of them "
            f"({_shown(largest)}); lower -cd ({now}{most}), or leave out -md"
        )


def _most_context(uses: Callable[[int], Uses], name: str, now: int, room: int) -> str:
    """How much context would fit if `room` bytes (below 0) are left on a device."""
    least = min(now, LEAST_CONTEXT)
    large, small = (uses(context).get(name, Use()).total for context in (now, least))
    if large <= small:
        return ""
    most = (now + int(room * (now - least) / (large - small))) // _STEP * _STEP
    return f"; {most} would fit" if most >= least else ""


def _least_snapshots(target: Part) -> int:
    """Minimum number of snapshots, if the model can have any."""
    # without copies there is no other way
    return max(target.limits.least_draft, 0 if target.config.ctx_checkpoints else 1)


def _advice(use: Use, config: EngineConfig, most: str) -> str:
    """Flags to lower, the most effective first; `most` says how much context would fit."""
    of_cache = [f"--context ({config.context}{most})", "--parallel"]
    if config.cache_type_k == "f16":
        of_cache.append("--cache-type-k and --cache-type-v (to q8_0)")
    of_compute = ["--ubatch", "--draft-max"]
    of_weights = ["--gpu-layers, or take a smaller quantization of the model"]
    sizes = ((use.cache, of_cache), (use.compute, of_compute), (use.weights, of_weights))
    ordered = sorted(sizes, key=lambda pair: -pair[0])
    return ", ".join(flag for _, flags in ordered[:2] for flag in flags)


def _shown(use: Use) -> str:
    return f"weights {_size(use.weights)}, cache {_size(use.cache)}, computing {_size(use.compute)}"


def _size(num_bytes: int) -> str:
    if num_bytes < 2**30:
        return f"{num_bytes / 2**20:.0f} MiB"
    return f"{num_bytes / 2**30:.1f} GiB"
