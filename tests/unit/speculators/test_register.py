"""A class that cannot be a speculator is refused when it is registered, with what to mend."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from tests.states import DRAFT_LAYERS, FakeDraftContext

from headstart.app import demo
from headstart.app.cli.serve import COMMAND
from headstart.app.model_files import Models, choose_speculators
from headstart.app.speculation import ANY, make_speculator, remarks_on, wanted_types, wants_heads
from headstart.config import Config, EngineConfig, SpeculationConfig
from headstart.speculators import SPECULATORS, Speculator, register
from headstart.speculators.base_states import StateSpeculator
from headstart.speculators.draft_model import DraftModelSpeculator
from headstart.speculators.suffix import SuffixSpeculator
from headstart.types import Draft, DraftRequest
from headstart.types.errors import ConfigError


class Proposing(Speculator):
    """Drafts nothing."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft() for _ in requests]


class Plain:
    """No dataclass."""

    n = 3


@dataclass
class Bare:
    """Without a default."""

    n: int


@dataclass
class Size:
    """As it should be."""

    n: int = 3


@dataclass
class Odd:
    """Of a type that no flag has."""

    n: tuple[int, ...] = ()


@dataclass
class Many:
    """Of a type that begins with one that flags have."""

    n: list[int] = None  # type: ignore[assignment]


@dataclass
class Unknown:
    """Of a type that is imported for checkers only."""

    n: Nowhere = None  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({}, "its name is None"),
        ({"name": 3}, "its name is 3"),
        ({"name": "Two Words"}, "small letters"),
        ({"name": "a,b"}, "small letters"),
        ({"name": "none"}, "means something else"),
        ({"name": "grammar"}, "means something else"),
        ({"name": "suffix"}, "is taken by headstart.speculators.suffix"),
        ({"name": "x", "Options": Plain}, "must be a dataclass"),
        ({"name": "x", "Options": Bare}, "option n needs a default"),
        ({"name": "x", "Options": Size}, "constructor must take options"),
        (
            {"name": "x", "Options": Odd},
            r"option n has the type tuple\[int, ...\] but must be a str",
        ),
        ({"name": "x", "Options": Many}, r"option n has the type list\[int\] but must be a str"),
        ({"name": "x", "Options": Unknown}, "type that is not known here: name 'Nowhere'"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused(attributes: dict[str, Any], says: str) -> None:
    before = dict(SPECULATORS)
    with pytest.raises(ConfigError, match=says):
        register(type("Wrong", (Proposing,), attributes))
    assert before == SPECULATORS


def test_a_class_that_proposes_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not define propose"):
        register(type("Idle", (Speculator,), {"name": "idle"}))
    with pytest.raises(ConfigError, match="must be a subclass"):
        register(type("Other", (), {"name": "other"}))


@pytest.mark.parametrize("name", ["dflash", "dspark", "eagle3"])
def test_who_knows_one_constructor_knows_the_others(name: str) -> None:
    kind = SPECULATORS[name]
    assert list(inspect.signature(kind).parameters) == ["context", "layers"]
    speculator = kind(FakeDraftContext(name), DRAFT_LAYERS)  # type: ignore[call-arg]
    assert isinstance(speculator, StateSpeculator)
    assert speculator.state_layers == frozenset(DRAFT_LAYERS)
    assert speculator.drafts_with == name


@pytest.mark.parametrize(
    ("spec", "spec_type", "drafter", "names"),
    [
        (None, None, None, ("suffix",)),
        ("auto", None, "draft-model", ("suffix", "draft-model")),
        ("fixed", None, None, ("ngram-simple",)),
        ("fixed", None, "draft-model", ("draft-model",)),
        ("off", "suffix", None, ()),
        (None, "none", None, ()),
        (None, "ngram-mod, suffix,ngram-mod", None, ("ngram-mod", "suffix")),
        (None, "suffix,draft-simple", "draft-model", ("suffix", "draft-model")),
        (None, "draft-model,draft-simple", "draft-model", ("draft-model",)),
    ],
)
def test_the_defaults_and_what_is_named(spec, spec_type, drafter, names) -> None:
    config = SpeculationConfig(spec=spec, spec_type=spec_type)
    assert wanted_types(config, drafter) == names


def test_a_speculator_of_another_package_may_use_the_draft_model(monkeypatch) -> None:
    class Second(DraftModelSpeculator):
        name = "second"

    monkeypatch.setitem(SPECULATORS, "second", Second)
    config = SpeculationConfig(spec_type="second")
    pair = Models(demo.path(demo.TARGET), demo.path(demo.DRAFT), is_demo=True)
    chosen = choose_speculators(Config(speculation=config), pair)
    assert chosen.types == ("second",)
    assert chosen.drafter is not None
    with pytest.raises(ConfigError, match="names second but no draft model is given"):
        wanted_types(config, None)
    both = SpeculationConfig(spec_type="suffix,second,draft-model")
    with pytest.raises(ConfigError, match="second and draft-model, but the draft model has one"):
        wanted_types(both, "draft-model")


def test_a_constructor_that_asks_for_what_there_is_not_is_refused(monkeypatch) -> None:
    """A default value would otherwise hide that the part never comes."""

    class Curious(SuffixSpeculator):
        def __init__(self, weather: object = None) -> None:
            super().__init__()

    monkeypatch.setitem(SPECULATORS, "curious", Curious)
    with pytest.raises(ConfigError, match=r"curious asks for weather.*options, engine, vocab$"):
        make_speculator("curious", {}, {"engine": object, "vocab": object})


def test_a_constructor_that_fails_is_told_with_the_speculators_name(monkeypatch) -> None:
    class Broken(SuffixSpeculator):
        def __init__(self, options: object) -> None:
            raise KeyError("weights")

    monkeypatch.setitem(SPECULATORS, "broken", Broken)
    with pytest.raises(ConfigError, match="of speculator broken failed: KeyError: 'weights'; repa"):
        make_speculator("broken", {}, {})


@pytest.mark.parametrize(
    ("spec_type", "drafter", "says"),
    [
        ("nope", None, "'nope'; there are dflash, draft-model, dspark, eagle3"),
        ("", None, "--spec-type is '' but must name speculators"),
        (",", None, "must name speculators"),
        ("suffix,none", None, "'suffix,none' but must name speculators, or none alone"),
        ("draft-model", None, "add --draft-model FILE"),
        ("suffix", "draft-model", "does not name draft-model"),
        ("draft-simple", None, "add --draft-model FILE"),
        ("draft-eagle3", None, "names eagle3 but no draft model is given"),
        (
            "dspark,draft-model",
            "draft-model",
            "dspark and draft-model, but the draft model has one cache",
        ),
        ("suffix,draft-mtp", None, "names mtp but the model has no multi-token heads"),
        ("draft-dflash", None, "names dflash but no draft model is given"),
        ("draft-eagle3", "draft-model", "eagle3 but the draft model's file is for draft-model"),
        ("draft-model", "eagle3", "draft-model but the draft model's file is for eagle3"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(spec_type, drafter, says) -> None:
    with pytest.raises(ConfigError, match=says):
        wanted_types(SpeculationConfig(spec_type=spec_type), drafter)


def test_an_option_of_a_speculator_that_is_not_loaded_is_refused_with_the_remedy() -> None:
    """Somebody who names a lookup file without the speculator that reads it would wait for an
    effect.
    """
    options = {"ngram-cache": {"lookup_cache_static": "x"}}
    with pytest.raises(
        ConfigError, match=r"--spec-ngram-cache-lookup-cache-static.*--spec-type suffix,ngram-cache"
    ):
        wanted_types(SpeculationConfig(options=options), None)
    for spec, spec_type in ((None, "ngram-cache"), ("off", None), (None, "none")):
        wanted_types(SpeculationConfig(spec=spec, spec_type=spec_type, options=options), None)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ngram-simple", "size-n=0"),
        ("ngram-map-k", "min-hits=9"),
        ("ngram-map-k4v", "size-m=0"),
        ("ngram-mod", "n-min=5 n-max=4"),
        ("ngram-mod", "table-bits=99"),
        ("ngram-cache", "max-ngrams=0"),
        ("suffix", "corpus-tokens=-1"),
        ("suffix", "file=corpus corpus-tokens=0"),
    ],
)
def test_a_bad_value_of_an_option_is_refused_before_a_model_is_loaded(name, options) -> None:
    flags = [f"--spec-{name}-{option}" for option in options.split()]
    with pytest.raises(ConfigError, match=name):
        wanted_types(COMMAND.read([f"--spec-type={name}", *flags]).config().speculation, None)


def test_an_option_that_a_speculator_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="suffix does not take these options"):
        wanted_types(SpeculationConfig(options={"suffix": {"nope": 1}}), None)


def test_options_that_a_speculator_refuses_are_told_with_its_name(monkeypatch) -> None:
    @dataclass(frozen=True)
    class Picky:
        size: int = 1

        def __post_init__(self) -> None:
            if self.size % 2 == 0:
                raise ValueError(f"size is {self.size} but must be odd")

    monkeypatch.setattr(SPECULATORS["suffix"], "Options", Picky)
    config = SpeculationConfig(options={"suffix": {"size": 4}})
    with pytest.raises(ConfigError, match=r"suffix does not take these.*4 but must be odd"):
        wanted_types(config, None)


def test_a_length_set_by_hand_that_is_never_reached_is_told_with_the_remedy() -> None:
    options = {"ngram-mod": {"n_max": 64, "n_match": 99}, "ngram-simple": {"size_m": 17}}
    (told,) = remarks_on(SpeculationConfig(options=options))
    assert told == (
        "--spec-ngram-mod-n-max is 64 but no draft is longer than 32 tokens; raise --draft-max "
        "to 64"
    )
    assert len(remarks_on(SpeculationConfig(options=options, draft_max=64))) == 0
    assert len(remarks_on(SpeculationConfig(options=options, spec="fixed"))) == 2
    for config in (SpeculationConfig(), SpeculationConfig(options=options, spec="off")):
        assert remarks_on(config) == []


def test_heads_are_used_where_there_are_some_and_nobody_names_others() -> None:
    auto, fixed = SpeculationConfig(), SpeculationConfig(spec="fixed")
    assert wanted_types(auto, "mtp") == ("suffix", "mtp")
    assert wanted_types(fixed, "mtp") == ("mtp",)
    named = SpeculationConfig(spec_type="draft-mtp,suffix")
    assert wanted_types(named, "mtp") == wanted_types(named, ANY) == ("mtp", "suffix")


@pytest.mark.parametrize(
    ("fields", "is_wanted"),
    [
        ({}, True),
        ({"spec_type": "draft-mtp"}, True),
        ({"spec_type": "suffix"}, False),
        ({"spec_type": "none"}, False),
        ({"spec": "off"}, False),
    ],
)
def test_heads_are_loaded_only_where_somebody_would_use_them(fields, is_wanted) -> None:
    speculation = SpeculationConfig(**fields)
    assert wants_heads(Config(speculation=speculation)) is is_wanted
    assert not wants_heads(Config(engine=EngineConfig(mtp=False), speculation=speculation))
