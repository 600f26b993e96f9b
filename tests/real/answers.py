"""Answers of real models, and whether they are the same with every way of speculating."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

from tests.harness import Answer, play

from headstart.app import assemble, demo, exact
from headstart.app.assemble import Models, build_scheduler
from headstart.config import Config, EngineConfig, SchedulerConfig, SpeculationConfig
from headstart.engine.context import LlamaEngine
from headstart.engine.footprint import REPACKED, can_measure, uses_of
from headstart.engine.model import Model
from headstart.scheduler.scheduler import Scheduler
from headstart.scheduler.widths import LENGTH, WIDE, WidthComparison
from headstart.types import DraftMode
from headstart.types.request import Request
from headstart.types.sampling_params import SamplingParams
from headstart.types.widths import WidthClasses

OPTIONS = {"ngram-simple": {"size_n": 3}}  # the default of 12 hardly drafts in texts so short
CONTEXT = 512  # tokens of one request
TEMPERATURES = (0.0, 0.8, 1.5)


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to serve. `types` may be "off" or "auto"; `length` limits the draft of a step."""

    types: str = "off"
    length: int = 16
    num_slots: int = 1
    context: int = CONTEXT
    exact: bool = True

    def config(self) -> Config:
        spec = self.types if self.types in ("off", "auto") else "fixed"
        types = None if spec != "fixed" else self.types
        return Config(
            # One thread: with two, a busy machine makes them wait for each other.
            engine=EngineConfig(
                context=self.context, exact=self.exact, threads=1, gpu_layers=0, batch=512
            ),
            scheduler=SchedulerConfig(parallel=self.num_slots, max_queue=10_000),
            speculation=SpeculationConfig(
                spec=spec,
                spec_type=types,
                draft_max=self.length,
                spec_state="none",
                options={
                    name: OPTIONS[name] for name in (types or "").split(",") if name in OPTIONS
                },
            ),
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """A setting against no speculation at one slot."""

    setting: Setting
    different: tuple[str, ...]
    num_drafted: int
    num_accepted: int


def open_setting(setting: Setting, models: Models | None = None) -> Scheduler:
    """Load the models (the embedded pair by default) as a setting wants them."""
    models = models or Models(demo.path(demo.TARGET), demo.path(demo.DRAFT), is_demo=True)
    return open_config(setting.config(), models)


def open_config(config: Config, models: Models) -> Scheduler:
    """Load the models; widths are compared once for all tests, decodes timed for auto only."""
    is_priced = config.speculation.mode is DraftMode.AUTO  # else no step asks for what it costs
    warm_up = assemble._warm_up if is_priced else Mock()
    with comparing_once(), patch.object(assemble, "_warm_up", warm_up):
        return build_scheduler(config, models)[0]


_compare, _run = exact._compare, WidthComparison.run
_known = dict[object, tuple[int, Any, WidthClasses]]()


def comparing_once() -> Any:
    """Compares the widths of a model once: many tests open the same few, and it takes seconds.

    Engines of fewer sequences have what was found with more: one sees no neighbours.
    """

    def compare(engine: LlamaEngine) -> tuple[Any, WidthClasses]:
        if WidthComparison.run is not _run:
            return _compare(engine)  # as a test has it
        params, most = engine.params, min(engine.max_outputs, engine.max_batch_tokens, max(WIDE))
        key = (
            blake2b(engine.model.path.read_bytes()).digest(), str(engine.adapters.describe()),
            engine.is_reference, can_measure() and REPACKED in uses_of(engine.handle), most,
            params.type_k, params.type_v, params.flash_attn_type, engine.cache_kind,
            engine.max_padding, min(engine.context_size, LENGTH + max(WIDE)),
        )  # fmt: skip
        if key not in _known or _known[key][0] < engine.num_sequences:
            comparison, classes = _compare(engine)
            # without its engine, which would be kept
            _known[key] = engine.num_sequences, SimpleNamespace(rows=comparison.rows), classes
        return _known[key][1:]

    return patch.object(exact, "_compare", compare)


def make_requests(num: int, temperature: float, *, max_tokens: int = 48) -> list[Request]:
    """Prompts cut from this package's source: chats and free text, many with a common prefix."""
    vocab = Model(demo.path(demo.TARGET)).vocab
    files = sorted(Path(demo.__file__).parents[2].rglob("*.py"))
    requests = []
    for index in range(num):
        lines = files[index % len(files)].read_text(encoding="utf-8").splitlines()
        start = 7 * (index // len(files)) % max(1, len(lines) - 12)
        code = "\n".join(lines[start : start + 12])[:400]
        chat = f"<|im_start|>user\nRepeat this code.\n```python\n{code}\n```<|im_end|>\n"
        text = chat + "<|im_start|>assistant\n" if index % 2 else code
        prompt = tuple(vocab.tokenize(text, add_special=True, parse_special=True))
        varied = _VARIATIONS[index % len(_VARIATIONS)]
        sampling = SamplingParams(temperature=temperature, seed=index, **varied)
        requests.append(
            Request(request_id=f"{index}", prompt=prompt, sampling=sampling, max_tokens=max_tokens)
        )
    return requests


_VARIATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"repeat_penalty": 1.1, "presence_penalty": 0.2},
    {"dry_multiplier": 0.8},
    {"xtc_probability": 0.5},
)  # sampling parameters that prompts take in turn


def at_each_temperature(make: Callable[[float], Sequence[Request]]) -> list[Request]:
    """These requests at each temperature, so that a model is opened once for all of them."""
    return [
        replace(request, request_id=f"{temperature} {request.request_id}")
        for temperature in TEMPERATURES
        for request in make(temperature)
    ]


def different(expected: dict[str, Answer], got: dict[str, Answer]) -> tuple[str, ...]:
    """Ids of the requests whose answers are not the same."""
    return tuple(
        name for name, one in expected.items() if name not in got or _key(got[name]) != _key(one)
    )


def _key(answer: Answer) -> tuple[object, ...]:
    """What must be equal."""
    if answer.end is None:
        return (str(answer.error),)
    return (answer.tokens, answer.logprobs, answer.end.reason, answer.end.truncated)


def compare(
    requests: Sequence[Request], settings: Sequence[Setting], models: Models | None = None
) -> Iterator[Comparison]:
    """Answer the requests with every setting; the first answers are those without speculation at
    one slot.
    """
    expected = dict[str, Answer]()
    # most slots first, whose comparison of widths serves the others
    for setting in sorted(settings, key=lambda one: -one.num_slots):
        scheduler = open_setting(setting, models)
        plain = Setting(context=setting.context)
        expected = expected or play(open_setting(plain), requests)
        wrong = different(expected, play(scheduler, requests))
        failures = tuple(s.failure for s in scheduler.drafting.speculators.values() if s.failure)
        yield Comparison(
            setting,
            (*wrong, *failures),
            scheduler.outcomes.total.drafts.num_drafted,
            scheduler.outcomes.total.drafts.num_accepted,
        )
