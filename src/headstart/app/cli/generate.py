"""`headstart generate`: a prompt in, text out, coloured by who drafted each token."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headstart.app.cli.command import Command
from headstart.app.cli.resolve import Resolved
from headstart.app.demo import PROMPT
from headstart.config import option
from headstart.config.logs import start_logging
from headstart.structures.progress import Progress
from headstart.text.utf8 import utf8_decoder
from headstart.types import DraftMode
from headstart.types.errors import ConfigError, EngineError, in_words
from headstart.types.request import (
    ErrorEvent,
    Event,
    FinishEvent,
    ProgressEvent,
    Request,
    SpeculativeParams,
    TokenEvent,
)
from headstart.types.sampling_params import MAX_SEED

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from headstart.scheduler.scheduler import Scheduler
    from headstart.server.service import ServedModel

# by speculator, in the page's colours; other styles distinguish them without colour
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
    """The prompt, and options of the output."""

    prompt: str | None = option(None, "the prompt; without one, a small task", "-p")
    file: str | None = option(None, "file with the prompt", "-f")
    chat: bool = option(True, "wrap the prompt as a user's message in the model's chat template")


def run(resolved: Resolved) -> int:
    """Generate once and print the summary; return the exit code."""
    options, config = resolved.own(GenerateOptions), resolved.config()
    prompt = _read_prompt(options)
    from rich.console import Console

    from headstart.app.assemble import build_scheduler, check, find_models, load_served_model

    if resolved.origins["log_level"] != "default":
        start_logging(config.log)
    check(config)
    models = find_models(config)
    served = load_served_model(config, models)
    request = _request(served, options, prompt)
    if resolved.origins["predict"] == "default":
        request = replace(request, max_tokens=256)
    one_slot = replace(config.scheduler, parallel=1)
    scheduler, info = build_scheduler(replace(config, scheduler=one_slot), models)
    # What steps cost is kept; not what the first texts of a new process teach, which are slow.
    scheduler.drafting.save()
    try:
        speculators = info.speculation.get("types", ())
        console = Console(highlight=False)
        if prompt is PROMPT:
            print(f"An example, as there is no --prompt TEXT or --file FILE:\n\n{PROMPT}\n")
        finish = show(_answer(scheduler, request), served.vocab.token_bytes, console, speculators)
        stats = finish.stats
        plain = None
        # in less than half a second, the first steps of a new process are what is measured
        if stats.drafts.num_accepted and 0.5 < stats.generation_seconds < 10.0:
            plain = _seconds_without_drafts(scheduler, request)
        console.print(closing(finish, plain), highlight=False, soft_wrap=True)
    finally:
        scheduler.drafting.close()
    return 0


def _answer(scheduler: Scheduler, request: Request) -> Iterator[Event]:
    """Generate; the last event is a FinishEvent or an ErrorEvent."""
    scheduler.submit(request)
    yield ProgressEvent(request.request_id, len(request.prompt), 0, 0, 0.0)
    while scheduler.has_work:
        scheduler.step()
        yield from scheduler.take_events()


def _seconds_without_drafts(scheduler: Scheduler, request: Request) -> float | None:
    """Seconds of the same answer, generated again one token at a time; None if that failed."""
    off = SpeculativeParams(mode=DraftMode.OFF)
    events = _answer(scheduler, replace(request, request_id="plain", speculative=off))
    last = deque(events, maxlen=1).pop()
    return last.stats.generation_seconds if isinstance(last, FinishEvent) else None


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

    decoder = utf8_decoder()
    counts: dict[str, int] = dict.fromkeys(speculators, 0)  # source -> tokens
    progress = Progress()
    pending: deque[tuple[bytes, str]] = deque()  # emitted, but may still begin a stop string
    for event in events:
        if isinstance(event, ProgressEvent):
            progress.tell({"prompt": f"{event.num_processed} of {event.num_prompt} tokens"})
            continue
        progress.tell({})
        if isinstance(event, TokenEvent):
            for token, source in zip(event.tokens, event.sources, strict=True):
                counts[source] = counts.get(source, 0) + 1
                pending.append((token_bytes(token), source))
            for piece, source in _take(pending, len(event.text)):
                text = Text(decoder.decode(piece), _style(source, counts))
                console.print(text, end="", soft_wrap=True)
        elif isinstance(event, ErrorEvent):
            console.print()
            raise EngineError(in_words(event.error))
        elif isinstance(event, FinishEvent):
            console.print(Text(decoder.decode(b"", final=True)))
            console.print(_legend(counts), soft_wrap=True)
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


def _legend(counts: Mapping[str, int]) -> Text:
    """Number of tokens by source, each in its style."""
    from rich.text import Text

    line = Text(f"\n{sum(counts.values())} tokens: {counts.get('', 0)} from the model")
    for source, count in counts.items():
        if source and count:
            line += Text(", ") + Text(f"{count} accepted from {source}", _style(source, counts))
    return line


def closing(finish: FinishEvent, plain_seconds: float | None) -> str:
    """Two lines: the time, with that without drafts if it was measured; and why it is not lower."""
    stats = finish.stats
    seconds, num_tokens = stats.generation_seconds, stats.num_emitted
    speed = f"{stats.num_timed / seconds:.1f}" if seconds else "-"
    time = f"{seconds:.2f} s, {speed} tokens/s"
    if plain_seconds and seconds:
        time += f"; without drafts {plain_seconds:.2f} s ({plain_seconds / seconds:.1f} x as long)"
    without = ", ".join(f"{n} {reason}" for reason, n in stats.drafts.reasons.most_common())
    steps = f"{stats.num_steps} steps for {num_tokens} tokens"
    steps += f"; without a draft: {without}" if without else "; each after the first had a draft"
    ended = "\nstopped at --predict" if finish.reason == "length" else ""
    return f"{time}\n{steps}{ended}"


def _style(source: str, seen: Mapping[str, int]) -> str:
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
        if not sys.stdin.isatty() and (piped := sys.stdin.read()):
            return piped
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the prompt: {error}") from None
    return PROMPT


def _request(served: ServedModel, options: GenerateOptions, prompt: str) -> Request:
    text, stop = _wrap(served, prompt) if options.chat else (prompt, ())
    tokens = served.vocab.tokenize(text, add_special=True, parse_special=options.chat)
    if not tokens:
        raise ConfigError("the prompt is empty")
    defaults = served.defaults
    seed = defaults.seed
    if seed is None:  # the example's answer is everybody's: the demo model slips once in sixty
        seed = 0 if prompt == PROMPT else random.randint(0, MAX_SEED)
    return Request(
        request_id="generate",
        prompt=tokens,
        stop=tuple(word.encode() for word in (*stop, *defaults.stop)),
        max_tokens=defaults.max_tokens,
        wants_progress=True,
        sampling=replace(defaults.sampling, seed=seed),
        constraint=defaults.constraint,
    )


def _wrap(served: ServedModel, prompt: str) -> tuple[str, tuple[str, ...]]:
    """The prompt as a user's message, and the strings that end the answer."""
    template = served.template
    text = template.render([{"role": "user", "content": prompt}])
    if served.vocab.add_bos and template.bos_token:
        text = text.removeprefix(template.bos_token)  # tokenizing adds it
    return text, template.stop


COMMAND = Command(
    name="generate",
    about=(
        "Continue a prompt. Tokens that a speculator drafted and the model accepted are coloured, "
        "each speculator's in its own style; the model's own are plain. The prompt comes from "
        "--prompt, --file or standard input, or is a small task. The answer has at most 256 "
        "tokens, unless --predict says otherwise. With --log-level or -v the log is shown, too."
    ),
    options=GenerateOptions,
    takes=("model", "engine", "draft_engine", "speculation", "sampling", "log"),
    run=run,
)
