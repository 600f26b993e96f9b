"""`headstart generate`: a prompt in, text out, coloured by who guessed each token."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headstart.app.cli.flags import read_flags
from headstart.app.cli.settings import all_settings, settings_of
from headstart.config import Config, SpeculationConfig, option
from headstart.types import DraftMode
from headstart.types.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from rich.console import Console

    from headstart.app.local import LocalGenerator
    from headstart.control.counterfactual import Counterfactual
    from headstart.types.request import Event, FinishEvent, Request

ABOUT = (
    "Continue a prompt. Tokens that a speculator guessed and the model accepted are coloured, "
    "each speculator's in its own style; the model's own are plain. The prompt comes from "
    "--prompt, --file or standard input."
)
WELL_SEEN = 0.5  # share of a text above which an estimate is not rough
PARTS = ("model", "engine", "draft_engine", "speculation")
# by speculator, in the colours of the page; other styles tell them apart without colour
STYLES = (
    "underline blue",
    "italic green",
    "bold yellow",
    "underline2 magenta",
    "italic underline cyan",
    "bold underline red",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """What to generate, and how to show it."""

    prompt: str | None = option(None, "the prompt", "-p")
    file: str | None = option(None, "file with the prompt", "-f")
    predict: int = option(
        256,
        "maximum tokens to generate; -1 until the model stops or the context is full",
        "-n",
        "--n-predict",
    )
    temp: float = option(0.8, "temperature; 0 always takes the likeliest token", "--temperature")
    top_k: int = option(40, "sample from the k likeliest tokens; 0 from all")
    top_p: float = option(
        0.95, "sample from the likeliest tokens that together have this probability"
    )
    min_p: float = option(0.05, "drop tokens less likely than this share of the likeliest")
    seed: int = option(-1, "seed of the random numbers; -1 picks a new one each time", "-s")
    chat: bool = option(True, "wrap the prompt as a user's message in the model's chat template")
    raw: bool = option(False, "continue the prompt as it is; the same as --no-chat")
    color: bool | None = option(None, "colour guessed tokens; default: on a terminal")
    verbose: bool = option(False, "show the log", "-v")


def run(argv: Sequence[str]) -> int:
    """Generate once and print the summary; return the exit code."""
    settings = [*settings_of(GenerateOptions), *all_settings(PARTS)]
    resolved, print_config = read_flags("generate", ABOUT, settings, argv)
    options = resolved.own(GenerateOptions)
    config = resolved.config()
    if print_config:
        print(resolved.describe())
        return 0
    prompt = _read_prompt(options)

    from headstart.app.local import LocalGenerator

    generator = LocalGenerator(_with_log_level(config, options))
    try:
        request = _request(generator, options, prompt)
        console = _console(options.color)
        speculators = generator.info.speculation.get("types", ())
        events = generator.generate(request)
        finish = show(events, generator.vocab.token_bytes, console, speculators)
    finally:
        generator.close()
    print(summary(finish, most_drafted(config.speculation), request.sampling.seed))
    return 0


def show(
    events: Iterable[Event],
    token_bytes: Callable[[int], bytes],
    console: Console,
    speculators: Sequence[str] = (),
) -> FinishEvent:
    """Print the text as it comes, then the legend; return the last event.

    `speculators` get their styles in this order, others as they appear.

    Raises:
        EngineError: the request failed.
    """
    from rich.text import Text

    from headstart.app.cli.step_times import StepTimes
    from headstart.text.utf8 import Utf8Decoder
    from headstart.types.request import ErrorEvent, FinishEvent, TokenEvent

    decoder = Utf8Decoder()
    counts: dict[str, int] = dict.fromkeys(speculators, 0)  # source -> tokens
    times = StepTimes()
    pending: deque[tuple[bytes, str]] = deque()  # emitted, but may still begin a stop string
    for event in events:
        if isinstance(event, TokenEvent):
            times.add(event)
            for token, source in zip(event.tokens, event.sources, strict=True):
                counts[source] = counts.get(source, 0) + 1
                pending.append((token_bytes(token), source))
            for piece, source in _take(pending, len(event.text)):
                console.print(
                    Text(decoder.feed(piece), _style(source, counts)), end="", soft_wrap=True
                )
        elif isinstance(event, ErrorEvent):
            console.print()
            raise EngineError(f"{event.error}: {event.message}")
        elif isinstance(event, FinishEvent):
            console.print(Text(decoder.finish()))
            legend = [
                Text(f"{source or 'target'} {n}", _style(source, counts))
                for source, n in counts.items()
                if n
            ]
            console.print(Text("\ntokens: ") + Text("  ").join(legend), soft_wrap=True)
            if times.num_steps:
                console.print(Text(times.describe()))
            return event
    raise EngineError("the generation ended without saying why")


def _take(pending: deque[tuple[bytes, str]], num_bytes: int) -> Iterator[tuple[bytes, str]]:
    """Remove the first `num_bytes` bytes, piece by piece with their sources."""
    while num_bytes and pending:
        piece, source = pending.popleft()
        if len(piece) > num_bytes:
            pending.appendleft((piece[num_bytes:], source))
        yield piece[:num_bytes], source
        num_bytes -= len(piece[:num_bytes])


def most_drafted(config: SpeculationConfig) -> int | None:
    """Most draft tokens a step; None where control chooses."""
    if config.mode is DraftMode.OFF or config.spec_type == "none":
        return 0
    return config.draft_max if config.mode is DraftMode.AUTO else config.longest_draft(config.mode)


def summary(finish: FinishEvent, draft_max: int | None, seed: int) -> str:
    """The lines that llama.cpp's speculative example ends with; without `draft_max` control chose
    the lengths.
    """
    stats = finish.stats
    num_encoded = stats.num_prompt - stats.num_cached
    accept = (
        f"{100 * stats.drafts.num_accepted / stats.drafts.num_drafted:.3f}%"
        if stats.drafts.num_drafted
        else "-"
    )
    lines = [
        "",
        _speed("encoded", num_encoded, stats.prompt_seconds),
        _speed("decoded", stats.num_emitted, stats.generation_seconds),
        "",
        f"n_draft   = {'auto' if draft_max is None else draft_max}",
        f"n_predict = {stats.num_emitted}",
        f"n_drafted = {stats.drafts.num_drafted}",
        f"n_accept  = {stats.drafts.num_accepted}",
        f"accept    = {accept}",
        f"length    = {stats.acceptance_length:.2f} tokens a step",
        f"seed      = {seed}",
        f"stopped   : {finish.reason}",
    ]
    lines += [
        f"no draft  : {reason} ({steps} steps)" for reason, steps in stats.drafts.reasons.items()
    ]
    if stats.counterfactual is not None:
        lines += ["", *what_if(stats.counterfactual)]
    return "\n".join(lines)


def what_if(told: Counterfactual) -> list[str]:
    """A table of what each speculator alone would have given on this text."""
    speeds = told.describe()
    lines = ["what each speculator alone would have given, in tokens/s:"]
    for name, one in speeds["speculators"].items():
        error = "" if one["error"] is None else f" +- {one['error']:.1f}"
        rough = "" if one["share_seen"] >= WELL_SEEN else ", rough: seldom asked"
        lines.append(
            f"  {name:14} {one['tokens_per_second']:8.1f}{error} ({one['speedup']:.2f} x off) with "
            f"{one['best_length']} draft tokens, {one['hindsight']['tokens_per_second']:.1f} in "
            f"hindsight{rough}"
        )
    for name in ("hindsight", "off"):
        lines.append(f"  {name:14} {speeds[name]['tokens_per_second']:8.1f}")
    return lines


def _speed(verb: str, count: int, seconds: float) -> str:
    speed = count / seconds if seconds else 0.0
    return f"{verb} {count:4d} tokens in {seconds:8.3f} seconds, speed: {speed:8.3f} t/s"


def _style(source: str, seen: dict[str, int]) -> str:
    """The colour of a speculator; the target's own tokens are plain."""
    speculators = [name for name in seen if name]
    return STYLES[speculators.index(source) % len(STYLES)] if source else ""


def _read_prompt(options: GenerateOptions) -> str:
    if options.prompt is not None and options.file is not None:
        raise ConfigError("give --prompt or --file, not both")
    if options.prompt is not None:
        return options.prompt
    try:
        if options.file is not None:
            return Path(options.file).read_text("utf-8")
        if not sys.stdin.isatty():
            return sys.stdin.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the prompt: {error}") from None
    raise ConfigError("there is no prompt; give --prompt TEXT or --file FILE")


def _request(generator: LocalGenerator, options: GenerateOptions, prompt: str) -> Request:
    from headstart.types.request import Request
    from headstart.types.sampling_params import MAX_SEED, SamplingParams

    is_chat = options.chat and not options.raw
    text, stop = _wrap(generator, prompt) if is_chat else (prompt, ())
    tokens = generator.vocab.tokenize(text, add_special=True, parse_special=is_chat)
    if not tokens:
        raise ConfigError("the prompt is empty")
    return Request(
        request_id="generate",
        prompt=tokens,
        stop=tuple(word.encode() for word in stop),
        max_tokens=None if options.predict < 0 else options.predict,
        wants_provenance=True,
        wants_counterfactual=True,
        sampling=SamplingParams(
            temperature=options.temp,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            seed=random.randint(0, MAX_SEED) if options.seed < 0 else options.seed,
        ),
    )


def _wrap(generator: LocalGenerator, prompt: str) -> tuple[str, tuple[str, ...]]:
    """The prompt as a user's message, and the strings that end the answer."""
    template = generator.template
    text = template.render([{"role": "user", "content": prompt}])
    if generator.vocab.add_bos and template.bos_token:
        text = text.removeprefix(template.bos_token)  # tokenizing adds it
    return text, template.stop


def _console(color: bool | None) -> Console:
    from rich.console import Console

    if color is None:
        return Console(highlight=False)
    return Console(highlight=False, force_terminal=color, no_color=not color)


def _with_log_level(config: Config, options: GenerateOptions) -> Config:
    """Keep the log out of the text unless it is asked for."""
    return replace(
        config, server=replace(config.server, log_level="info" if options.verbose else "warning")
    )
