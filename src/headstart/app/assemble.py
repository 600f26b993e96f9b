"""The only place where concrete classes meet: engine, scheduler, server.

Functions here are entry points: each imports the part of the world that it needs.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from headstart.app.demo import PROMPT
from headstart.app.model_files import Models as Models
from headstart.app.model_files import choose_speculators, may_have_drafter
from headstart.app.model_files import find_models as find_models
from headstart.app.process import Parent, cpus_of, prepare_engine_process
from headstart.app.speculation import ANY, remarks_on, wanted_types
from headstart.config import Config, EngineConfig
from headstart.config.fields import listed
from headstart.config.logs import start_logging
from headstart.engine.find_library import find_card, remedy
from headstart.structures.system import return_large_blocks
from headstart.types import CacheKind
from headstart.types.errors import ConfigError

if TYPE_CHECKING:
    from headstart.engine.devices import Device
    from headstart.engine.fit import Fitted
    from headstart.scheduler.scheduler import Scheduler
    from headstart.server.service import ServedModel
    from headstart.types.report import WorkerInfo

log = logging.getLogger(__name__)

WARM_UP_SECONDS = 7.0  # of the first start with a model on a machine
RPC = "headstart.extras.rpc.backend"  # imported only with --rpc


def libllama_version() -> str:
    """Version of libllama and of its binding."""
    try:
        from headstart.engine import library
    except ConfigError as error:  # none, or another one
        return str(error)
    return library.version()


def list_devices(config: EngineConfig) -> list[Device]:
    """All devices libllama can compute on, including those of `--rpc`.

    Raises:
        ConfigError, RpcWorkerError: a worker cannot be used.
    """
    from headstart.engine.devices import list_devices as devices

    if config.rpc:
        resolve_name(RPC).connect(config)
    return devices()


def check(config: Config) -> None:
    """Find mistakes before anything is downloaded or loaded.

    Raises:
        ConfigError, ModelError: settings that cannot work.
    """
    from headstart.server.constraints import default_constraint
    from headstart.text.chat_template import template_by_hand

    # the files are not there yet
    wanted_types(config.speculation, ANY if may_have_drafter(config) else None)
    cpus_of(config.engine)
    default_constraint(config.sampling)
    template_by_hand(config.server)
    if config.speculation.spec_state:
        from headstart.app.saved_control import named_file

        named_file(config, {})


def build_scheduler(
    config: Config, models: Models, *, warms_up_later: bool = False
) -> tuple[Scheduler, WorkerInfo]:
    """Load the models and create their scheduler. Runs in the engine's process.

    The cost of steps is measured here, or by the loop when it is idle.

    Raises:
        ConfigError, ModelError: something cannot be used, and why.
    """
    from headstart.app.loading import load_drafter, load_target, make_drafting
    from headstart.app.saved_control import load_control
    from headstart.app.stored_prompts import open_disk
    from headstart.engine import library
    from headstart.engine.machine import available_memory
    from headstart.scheduler.scheduler import Scheduler
    from headstart.types.report import EmbeddingInfo, WorkerInfo
    from headstart.worker.embedding import EmbeddingQueue

    log.info("loading %s", models.target)
    models = choose_speculators(config, models)
    drafter = models.drafter
    controller, file, why_fresh = load_control(config, models)
    rpc = resolve_name(RPC) if config.engine.rpc else None
    if rpc:
        rpc.connect(config.engine)
    target = load_target(config, models)
    engine, fitted, adapters = target.engine, target.fitted, target.engine.adapters
    kinds = [device.kind for device in list_devices(config.engine)]
    of_speculators = remarks_on(config.speculation)
    of_cards = remarks_on_cards(kinds, config.engine.gpu_layers)
    for remark in (*of_speculators, *fitted.remarks, *of_cards):
        log.warning("%s", remark)
    drafting_parts = load_drafter(config, models, target)
    draft = drafting_parts.get("engine") or drafting_parts.get("context")
    if rpc:
        rpc.notice_lost_workers(config.engine)
    drafting = make_drafting(config, models.types, target, drafting_parts, controller, file)
    cache_ram = min(config.scheduler.cache_ram, available_memory() // 2**21)
    limits = replace(config.scheduler, cache_ram=cache_ram)
    scheduler = Scheduler(engine, engine.model.vocab, drafting, limits)
    if target.classes is not None:
        scheduler.know_widths(target.classes)
    embedding = None
    if embedder := target.embedder:
        scheduler.embeddings = EmbeddingQueue(embedder, scheduler.counters, scheduler.clock)
        embedding = EmbeddingInfo(embedder.size, embedder.max_tokens, embedder.pooling)
    scheduler.media = scheduler.slot_actions.media = target.media
    if adapters and adapters.describe():
        scheduler.turns.use_scales = adapters.use
    if models.types or (config.scheduler.parallel > 1 and engine.padding_sequence is not None):
        _warm_up(scheduler, bool(models.types), warms_up_later=warms_up_later)
    scheduler.cache.offloading.use_disk(open_disk(config, models, target, draft))
    if config.recording.record_texts:
        recorder = resolve_name("headstart.extras.distill.recorder:TextRecorder")
        scheduler.readers.append(recorder(config.recording, models.target).read)
    info = WorkerInfo(
        target=engine.model.info(engine.context_size, engine.cache_kind.value),
        draft=draft.model.info(draft.context_size, draft.cache_kind.value) if draft else None,
        num_slots=config.scheduler.parallel,
        max_requests=config.scheduler.parallel + config.scheduler.max_queue,
        context_size=engine.context_size,
        max_batch_tokens=engine.max_batch_tokens,
        speculation=drafting.describe()
        | {"state_not_used": why_fresh}
        | {"heads": drafter.describe() if drafter and drafter.num_heads else None},
        system=f"{library.version()}; {library.system_info()}",
        embedding=embedding,
        why_no_text=engine.why_no_text,
        modalities=target.media.modalities if target.media else (),
        adapters=adapters.describe() if adapters else (),
    )
    log.info("%s", _summary(info))
    for remark in _beyond_training(info):
        log.warning("%s", remark)
    if memory := fitted.describe():
        log.info("memory: %s", memory)
    return scheduler, info


def remarks_on_cards(device_kinds: Collection[str], gpu_layers: int) -> list[str]:
    """Warnings about graphics cards that this libllama, with these kinds of device, cannot use.

    `gpu_layers` is --gpu-layers; below 0 it was not asked for.
    """
    if any("GPU" in kind for kind in device_kinds):
        return []
    found = []
    if gpu_layers > 0:
        found.append(
            f"--gpu-layers {gpu_layers} has no effect: this libllama computes on the processor only"
        )
    if card := find_card():
        name, backend = card
        lacks = f"this libllama has no {backend}"
        found.append(f"{name} is not used: {lacks}; {remedy(backend)}")
    return found


def _warm_up(scheduler: Scheduler, is_drafting: bool, *, warms_up_later: bool) -> None:
    """Find out what steps cost, or let the loop do it, which also compares widths."""
    from headstart.scheduler.warm_up import WarmUp

    seconds = WARM_UP_SECONDS if is_drafting else 3.0  # fewer widths are possible
    engine, is_cut = scheduler.engine, scheduler.engine.cache_kind is CacheKind.CUT
    compares = warms_up_later and is_cut and scheduler.widths is None
    parts = engine, scheduler.drafting, scheduler.cells, scheduler.clock, seconds
    scheduler.warm_up = WarmUp(*parts, scheduler.know_widths if compares else None)
    if not warms_up_later:
        scheduler.warm_up.go_on()


def fit_memory(config: Config, free: Mapping[str, int] | None = None) -> Fitted:
    """Memory that the configured models would take of each device; loads no weights.

    Args:
        free: bytes to count as free instead of what is, by device.

    Raises:
        ConfigError, ModelError: they cannot be found or do not fit.
    """
    from headstart.app.loading import fit_models

    check(config)
    return fit_models(config, choose_speculators(config, find_models(config)), free)


def _summary(info: WorkerInfo) -> str:
    speculation = info.speculation
    drafts = ", ".join(speculation["types"]) or "none"
    return (
        f"{info.target.name}: {info.target.num_params / 1e9:.2f} B parameters, {info.context_size} "
        "tokens of context, "
        f"{info.num_slots} slots; speculators: {drafts} ({speculation['mode']})"
        + (f"; draft model {info.draft.name}" if info.draft else "")
        + (f"; {speculation['heads']['words']}" if speculation["heads"] else "")
        + (f"; {speculation['unusable']}" if speculation["unusable"] else "")
    )


def _beyond_training(info: WorkerInfo) -> list[str]:
    """Warnings about models with which a request may have more tokens than they were trained on."""
    return [
        f"{one.name} was trained on {one.train_context_size} tokens but a request may have {most}, "
        "and text or drafts may be poor from there on; lower --context, or set --rope-scaling"
        for one in (info.target, info.draft)
        if one and (most := min(info.context_size, one.context_size)) > one.train_context_size
    ]


def load_served_model(config: Config, models: Models) -> ServedModel:
    """The target as the HTTP side needs it: vocabulary and template, no weights.

    Raises:
        ConfigError, ModelError: the file or the template cannot be used.
    """
    from headstart.engine.chat_templates import built_in_templates
    from headstart.engine.model import Model
    from headstart.server.sampling import request_defaults
    from headstart.server.service import ServedModel
    from headstart.text.chat_template import ChatTemplate, template_by_hand

    model = Model(models.target, overrides=config.engine.override_kv)
    vocab = model.vocab
    bos, eos = (
        "" if token is None else vocab.token_text(token).decode("utf-8", "replace")
        for token in (vocab.bos_id, vocab.eos_id)
    )
    source, built_in = template_by_hand(config.server) or model.chat_template, built_in_templates()
    template = ChatTemplate(source, bos_token=bos, eos_token=eos, built_in=built_in)
    if not template.shows_messages:
        log.warning(
            "the chat template of %s shows no message: name another with --chat-template-file, or "
            "one of these with --chat-template: %s",
            model.path.name,
            ", ".join(sorted(built_in)),
        )
    names = listed(config.model.alias) or (config.model.hf_repo or models.target.name,)
    served = ServedModel(
        alias=names[0],
        aliases=names[1:],
        tags=listed(config.model.tags),
        vocab=vocab,
        template=template,
        config=config,
        pair_template=model.rerank_template,
        pair_marks=vocab.pair_marks,
        defaults=request_defaults(config.sampling, model.metadata(), vocab.size),
    )
    found = served.answer_format
    said = f"as {found.calls.name}" if found.calls else f"none, {found.why_no_calls}"
    log.info("tool calls: %s", said)
    return served


def serve(config: Config, settings: Sequence[Mapping[str, Any]], parent: Parent) -> int:
    """Serve until stopped, with the engine in a separate process. Returns the exit code.

    Args:
        settings: for /props: the origin of each value of the configuration.
        parent: the router that started this server, if one did.

    Raises:
        ConfigError, ModelError: the server cannot start.
    """
    import orjson  # noqa: F401  Ctrl-C while it initializes is a segmentation fault: not later

    from headstart.app.stored_prompts import with_prompts
    from headstart.worker.client import WorkerClient
    from headstart.worker.transport import ProcessTransport

    start_logging(config.log)
    return_large_blocks()
    config = with_prompts(config)
    prepare = partial(prepare_engine_process, config)
    parent.follow()
    is_fetched = bool(config.model.hf_repo or config.model.draft_hf_repo)
    if is_fetched:  # nothing is downloaded for settings that cannot work
        check(config)
    models = find_models(config)
    build = partial(build_scheduler, config, models, warms_up_later=True)
    first = ProcessTransport(build, prepare)
    first.launch()  # loads the models while this process imports what serves them
    transports = iter([first])
    worker = WorkerClient(lambda: next(transports, None) or ProcessTransport(build, prepare))
    worker.on_change = parent.tell
    try:
        if not is_fetched:
            check(config)
        from headstart.server import listen
        from headstart.server.extra_routes import load_extras

        # a router takes its port and runs tools itself
        listen.serve(
            config.server.with_images() if models.projector else config.server,
            worker,
            lambda: replace(load_served_model(config, models), settings=settings),
            partial(_announce, parent, config, models),
            () if parent.is_there else load_extras(config.tools, os.environ),
        )
    finally:
        first.kill()  # where serving failed before it was used
    return 0


def _announce(
    parent: Parent, config: Config, models: Models, url: str, model: dict[str, Any]
) -> None:
    """Tell the router, or print, that requests can be answered."""
    if parent.is_there:
        parent.tell("loaded", url=url, model=model)
        return
    print(f"Headstart listens on {url} - open it in a browser to chat.")
    if models.is_demo:
        print("The embedded demo model renames and copies code. Serve a real one with -m FILE.")
    has_key = config.server.api_key or config.server.api_key_file
    key = ' -H "Authorization: Bearer YOUR_KEY"' if has_key else ""
    message = {"role": "user", "content": PROMPT}
    body = json.dumps({"messages": [message], "temperature": 0})
    print(f"Or try:\n\n  curl {url}/v1/chat/completions{key} -d '{body}'\n", flush=True)
