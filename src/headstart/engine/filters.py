"""A request's truncation and temperature as a libllama sampler chain over our candidate arrays."""

from __future__ import annotations

import ctypes
import math
from concurrent.futures import Future
from contextlib import suppress
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.engine.library import api
from headstart.engine.vocab import LlamaVocab
from headstart.structures.system import start_threads
from headstart.types.errors import NotSupportedError
from headstart.types.sampling_params import SamplingParams

_THREAD = start_threads("dry", low_priority=True)
_CANDIDATE = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])


class LlamaFilters:
    """`Filters` of one request. The final choice is not here (see sampling/)."""

    def __init__(self, vocab: LlamaVocab, context_size: int, params: SamplingParams) -> None:
        self._vocab, self._has_dry = vocab, params.has_dry
        self.decisive_gap = _decisive_gap(params)
        self._readers: list[Any] = []  # samplers that read the text
        # in order; chains of XTC alone are skipped if it is not used
        self._chains: list[tuple[Any, bool]] = []
        active = [name for name in params.samplers if name != "xtc" or params.has_xtc]
        for is_xtc, names in groupby(active, "xtc".__eq__):
            chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
            self._chains.append((chain, is_xtc))
            for name in names:
                sampler = self._sampler(name, params, context_size)
                if sampler is not None:
                    api.llama_sampler_chain_add(chain, sampler)
                    if name in ("penalties", "dry"):
                        self._readers.append(sampler)
        self._capacity = 0
        self._grow(512)

    def _sampler(self, name: str, p: SamplingParams, context_size: int) -> Any:
        """Create one libllama sampler; None if the parameters disable it."""
        if name == "penalties" and p.has_penalties:
            last_n = _window(p.repeat_last_n, context_size)
            penalties = p.repeat_penalty, p.frequency_penalty, p.presence_penalty
            return api.llama_sampler_init_penalties(self._vocab.size, last_n, *penalties)
        if name == "dry" and p.has_dry:
            return self._dry_sampler(p, context_size)
        if name == "top_n_sigma" and p.top_n_sigma > 0:
            return api.llama_sampler_init_top_n_sigma(p.top_n_sigma)
        if name == "top_k" and p.top_k > 0:
            return api.llama_sampler_init_top_k(p.top_k)
        if name == "typ_p" and p.typical_p < 1.0:
            return api.llama_sampler_init_typical(p.typical_p, p.min_keep)
        if name == "top_p" and p.top_p < 1.0:
            return api.llama_sampler_init_top_p(p.top_p, p.min_keep)
        if name == "min_p" and p.min_p > 0.0:
            return api.llama_sampler_init_min_p(p.min_p, p.min_keep)
        if name == "xtc":
            # Its own random choice is disabled: the sampler decides per position whether it applies
            return api.llama_sampler_init_xtc(1.0, p.xtc_threshold, p.min_keep, 0)
        if name == "temperature" and not p.is_greedy:
            return api.llama_sampler_init_temp_ext(
                p.temperature, p.dynatemp_range, p.dynatemp_exponent
            )
        if name == "infill":
            return self._infill_sampler()
        return None

    def _infill_sampler(self) -> Any:
        """Merges candidates with a common prefix, drops unlikely ones, ends the text early.

        Raises:
            NotSupportedError: libllama would abort with this vocabulary.
        """
        if reason := self._vocab.why_no_infill():
            raise NotSupportedError(
                f"the sampler infill cannot be used: {reason}; leave it out of samplers"
            )
        return api.llama_sampler_init_infill(self._vocab.handle)

    def _dry_sampler(self, p: SamplingParams, context_size: int) -> Any:
        """A copy of the sampler with these settings; a few of them are kept."""
        last_n = _window(p.dry_penalty_last_n, context_size)
        numbers = p.dry_multiplier, p.dry_base, p.dry_allowed_length, last_n
        breakers = [text.encode("utf-8", "replace") for text in p.dry_sequence_breakers]
        known, settings = self._vocab.dry_samplers, (*numbers, *breakers)
        with self._vocab.dry_lock:
            if (made := known.pop(settings, None)) is None:
                array = (ctypes.c_char_p * len(breakers))(*breakers)
                given = self._vocab.handle, *numbers, array, len(breakers)
                made = api.llama_sampler_init_dry(*given)
            known[settings] = made
            if len(known) > 8:
                api.llama_sampler_free(known.pop(next(iter(known))))
            return api.llama_sampler_clone(made)

    def _grow(self, capacity: int) -> None:
        self._capacity = capacity
        self._candidates = np.zeros(capacity, _CANDIDATE)
        self._array = api.llama_token_data_array()
        self._data = ctypes.cast(self._candidates.ctypes.data, ctypes.POINTER(api.llama_token_data))
        self._array.data = self._data

    def apply(
        self, ids: NDArray[np.int32], logits: NDArray[np.float32], use_xtc: bool
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        count = len(ids)
        if count > self._capacity:
            self._grow(count)
        candidates, array = self._candidates, self._array
        candidates["id"][:count] = ids
        candidates["logit"][:count] = logits
        array.size = count
        array.selected = -1
        array.sorted = count < self._vocab.size  # partial candidates come sorted by contract
        for chain, is_xtc in self._chains:
            if use_xtc or not is_xtc:
                api.llama_sampler_apply(chain, ctypes.byref(array))
        start = 0
        if use_xtc:  # XTC drops the first candidates by moving the pointer
            start = (
                ctypes.addressof(array.data.contents) - candidates.ctypes.data
            ) // _CANDIDATE.itemsize
            array.data = self._data
        kept = candidates[start : start + array.size]
        return kept["id"], kept["logit"]

    def accept(self, token: int) -> None:
        """Feed penalties and DRY. Called for emitted tokens only, so nothing is ever undone."""
        for sampler in self._readers:
            api.llama_sampler_accept(sampler, token)

    def __del__(self) -> None:
        for chain, _ in getattr(self, "_chains", ()):
            if self._has_dry:
                with suppress(RuntimeError):  # the interpreter is shutting down
                    _THREAD.submit(api.llama_sampler_free, chain)
            else:
                api.llama_sampler_free(chain)


def begin_filters(vocab: LlamaVocab, context_size: int, p: SamplingParams) -> Future[Any] | None:
    """The filters, if a thread has to make them, else None.

    It searches all tokens of the vocabulary for the breakers of DRY, which takes 20 to 60 ms per
    breaker, or copies what was found for an earlier request, which may take as long as one.
    """
    return _THREAD.submit(LlamaFilters, vocab, context_size, p) if p.has_dry else None


def _window(last_n: int, context_size: int) -> int:
    """Tokens that a sampler looks back. libllama allocates all of them, and no text is longer than
    the context.
    """
    return context_size if last_n < 0 else min(last_n, context_size)


def _decisive_gap(params: SamplingParams) -> float | None:
    """The lead of a logit that makes min_p remove all others; None if another filter changes the
    logits before, or may remove the best.
    """
    names = params.samplers
    if not 0.0 < params.min_p <= 1.0 or "min_p" not in names or params.min_keep > 1:
        return None
    if params.removes_best or "temperature" in names[: names.index("min_p")]:
        return None
    # 0.01 of a logit far exceeds the error of float32
    return 0.01 - math.log(params.min_p)
