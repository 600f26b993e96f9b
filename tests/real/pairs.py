"""Tiny targets and what drafts for them from their hidden states: heads and draft models.

`RIGHT` are aligned (see `tests.heads`): each knows one continuation of each token, so a row that
was read with another row's state would be a wrong draft. `RANDOM` have random weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests import drafters
from tests.architectures import write_model
from tests.drafters import ALIGNED, REDUCED, SHARED
from tests.harness import play
from tests.heads import (
    CYCLE,
    HEAD_ARCHITECTURES,
    WIDTH,
    aligned,
    aligned_values,
    continuation,
    with_heads,
)
from tests.real.answers import Setting as BaseSetting
from tests.real.answers import open_setting

from headstart.app.assemble import Models
from headstart.config import Config
from headstart.scheduler.scheduler import Scheduler
from headstart.types.request import Request
from headstart.types.sampling_params import SamplingParams

_SIZES = {"embedding_length": 64, "block_count": 4}
_WINDOWS = {"attention.sliding_window_pattern": [False, True, False, True]}
_GEMMA = {"embedding_length": WIDTH, "attention.key_length": 64, "attention.value_length": 64}
_SHARED = replace(ALIGNED, own_embeddings=False, own_head=False)


class Setting(BaseSetting):
    """With a cache of F32: hybrid models and mixtures of experts may not be exact, and in
    F16 what they round differently is now and then enough to choose another token.
    """

    def config(self) -> Config:
        config = super().config()
        engine = replace(config.engine, cache_type_k="f32", cache_type_v="f32")
        return replace(config, engine=engine)


PLAIN = Setting(exact=False)


@dataclass(frozen=True, slots=True)
class Pair:
    """How a target and its draft model are written, and who drafts; heads are in the target."""

    name: str
    draft: Callable[[Path], Path] | None
    target: Callable[[Path], Path] = drafters.target
    can_be_exact: bool = True

    def models(self, folder: Path) -> Models:
        draft = None if self.draft is None else self.draft(folder / "draft.gguf")
        return Models(self.target(folder / "target.gguf"), draft, is_demo=False)

    def open(self, folder: Path, **settings: object) -> Scheduler:
        """A scheduler that drafts with it alone, four tokens at a time."""
        fields = {"types": self.name, "length": 4, "num_slots": 4, **settings}
        return open_setting(replace(PLAIN, **fields), self.models(folder))


def _with_heads(architecture: str, num_heads: int) -> Pair:
    return Pair(
        "mtp",
        None,
        partial(with_heads, architecture=architecture, num_heads=num_heads),
        architecture not in ("qwen35", "qwen35moe", "qwen3next", "nemotron_h_moe"),
    )


def _right_heads(architecture: str, num_heads: int) -> Pair:
    return Pair("mtp", None, partial(aligned, architecture=architecture, num_heads=num_heads))


def _model(architecture: str, **more: Any) -> Callable[[Path], Path]:
    return partial(write_model, architecture=architecture, **more)


_right_target = drafters.aligned_target
RIGHT = {
    "eagle3": Pair("eagle3", drafters.aligned_eagle3, _right_target),
    "eagle3 shared": Pair("eagle3", partial(drafters.aligned_eagle3, sizes=_SHARED), _right_target),
    "dflash": Pair("dflash", drafters.aligned_dflash, _right_target),
    "dspark": Pair("dspark", drafters.aligned_dspark, _right_target),
    "assistant": Pair(
        "gemma4-assistant",
        drafters.aligned_assistant,
        _model("gemma4", changes=_GEMMA, values=aligned_values),
    ),
    "eagle3 of a hybrid": Pair(
        "eagle3", drafters.aligned_eagle3, partial(_right_target, architecture="qwen35")
    ),
    # one head and several, a pre-norm and a post-norm state, windows, a hybrid, a mixture
    "heads of step35": _right_heads("step35", 1),
    "three heads of step35": _right_heads("step35", 3),
    "heads of mimo2": _right_heads("mimo2", 2),
    "heads of hy_v3": _right_heads("hy_v3", 1),
    "heads of a hybrid": _right_heads("qwen35", 1),
    "heads of glm4moe": _right_heads("glm4moe", 1),
}
RANDOM = {
    "eagle3": Pair("eagle3", drafters.eagle3),
    "eagle3 shared": Pair("eagle3", partial(drafters.eagle3, sizes=SHARED)),
    "eagle3 reduced": Pair("eagle3", partial(drafters.eagle3, sizes=REDUCED)),
    "eagle3 of a hybrid": Pair("eagle3", drafters.eagle3, _model("qwen35", changes=_SIZES), False),
    "eagle3 of a mixture": Pair("eagle3", drafters.eagle3, _model("qwen3moe", changes=_SIZES)),
    "eagle3 with windows": Pair(
        "eagle3", drafters.eagle3, _model("mimo2", changes=_SIZES | _WINDOWS)
    ),
    "dflash": Pair("dflash", drafters.dflash),
    "dflash of a hybrid": Pair("dflash", drafters.dflash, _model("qwen35", changes=_SIZES), False),
    "dspark": Pair("dspark", partial(drafters.dflash, rank=8)),
    "assistant": Pair("gemma4-assistant", drafters.assistant, _model("gemma4")),
    **{f"heads of {name}": _with_heads(name, most) for name, most in HEAD_ARCHITECTURES.items()},
}


def text_after(name: str, prompt: Sequence[int], **fields: object) -> Request:
    sampling = SamplingParams(temperature=0.8, seed=1, ignore_eos=True)
    return Request(
        request_id=name, prompt=tuple(prompt), sampling=sampling, **{"max_tokens": 17, **fields}
    )


def prompt_of(seed: int, size: int) -> list[int]:
    """Tokens that the model would not write, then a cycle of those that it would."""
    tokens = [(seed * 31 + i * i) % 250 for i in range(size)]
    return [*tokens, *continuation(tokens[-1], CYCLE)]


def ask(scheduler: Scheduler, *requests: Request) -> None:
    """Aligned models know one continuation of each token."""
    for name, result in play(scheduler, requests).items():
        request = next(r for r in requests if r.request_id == name)
        assert list(result.tokens) == continuation(request.prompt[-1], len(result.tokens))


def assert_all_right(scheduler: Scheduler, name: str) -> None:
    guarded = scheduler.drafting.speculators[name]
    assert not guarded.failure
    stats = scheduler.outcomes.total.by_speculator[name]
    assert stats.num_accepted == stats.num_drafted > 0
    details = guarded.describe()
    assert (details["missing_states"], details["lost"]) == (0, {})
