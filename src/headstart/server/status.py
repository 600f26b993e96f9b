"""/health, /v1/models, /props, /slots: the model, settings and state; actions on slots."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import uuid
import zlib
from pathlib import Path
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from headstart.config import ServerConfig
from headstart.server.adapters import adapter_key, request_scales
from headstart.server.answer_numbers import draft_counts, generation_settings
from headstart.server.body import Body, read_body
from headstart.server.errors import ApiError, shorten, wrong_value
from headstart.server.event_stream import single_event
from headstart.server.media import MARKER
from headstart.server.ollama import ollama_model
from headstart.server.routing import Routes
from headstart.server.schemas import SlotBody
from headstart.server.service import Service, service_of
from headstart.server.tool_use import describe
from headstart.structures.tenants import caller_of
from headstart.types import ModelInfo
from headstart.types.errors import CapacityError, EngineError, QuotaError
from headstart.types.report import SlotReport, SpeculatorReport, WorkerReport
from headstart.types.request import Request, SlotAction

routes = Routes()


@routes.get("/health", "/v1/health", answer="`status`: ok")
async def health(http: HttpRequest) -> dict[str, Any]:
    """Answer ok, or 503 with the reason while requests cannot be answered."""
    is_trusted = caller_of(http.scope).is_trusted
    if reason := service_of(http).why_not_ready(with_details=is_trusted):
        raise CapacityError(reason)
    return {"status": "ok"}


@routes.get("/v1/models", "/models", answer="`data`: a list with the model")
async def models(http: HttpRequest) -> dict[str, Any]:
    """List the one model."""
    service = service_of(http)
    can = ["completion", *["multimodal"] * bool(service.info.modalities)]
    ollama = ollama_model(service) | {"type": "model", "capabilities": can}
    ollama |= {"tags": list(service.served.tags), "description": "", "parameters": ""}
    return {"object": "list", "data": [model_entry(service)], "models": [ollama]}


@routes.get("/v1/models/{model_id:path}", "/models/{model_id:path}", answer="the model")
async def model(http: HttpRequest) -> dict[str, Any]:
    """Describe the model."""
    service = service_of(http)
    wanted, alias = http.path_params["model_id"], service.served.alias
    if wanted not in (alias, *service.served.aliases, service.info.target.path):
        raise ApiError(404, f"there is no model {shorten(wanted)} here, only {alias!r}")
    return model_entry(service)


@routes.get("/props", answer="an object; see docs/api.md")
async def props(http: HttpRequest) -> dict[str, Any]:
    """Describe the server: model, template, defaults, speculation."""
    service = service_of(http)
    report = await service.worker.report()
    served, info, config = service.served, service.info, service.config
    defaults = generation_settings(
        Request(request_id="", prompt=(), sampling=served.defaults.sampling), info.speculation
    )
    seed = served.defaults.seed
    return {
        "default_generation_settings": {
            "params": defaults | {"seed": 2**32 - 1 if seed is None else seed},
            "n_ctx": info.context_size,
        },
        "total_slots": info.num_slots,
        "model_alias": served.alias,
        "model_path": info.target.path,
        "model_ftype": info.target.file_type,
        "modalities": {
            "vision": "image" in info.modalities,
            "video": False,
            "audio": "audio" in info.modalities,
        },
        "media_marker": MARKER,
        "ui": config.page,
        "ui_settings": {},
        "endpoint_slots": config.slots,
        "endpoint_props": config.props,
        "endpoint_metrics": config.metrics,
        "chat_template": served.template.source,
        "chat_template_caps": dataclasses.asdict(served.template.capabilities),
        "chat_format": describe(served.answer_format),
        "chat_template_is_fallback": served.template.is_fallback,
        "bos_token": served.template.bos_token,
        "eos_token": served.template.eos_token,
        "build_info": info.system,
        "is_sleeping": service.worker.status == "sleeping",
        "cors_proxy_enabled": served.config.tools.ui_mcp_proxy,
        "target_model": _facts(info.target),
        "draft_model": _facts(info.draft) if info.draft else None,
        "settings": list(served.settings),
        "prompts_on_disk": dataclasses.asdict(report.disk),
        "speculation": dict(info.speculation) | speculation_state(report),
    }


@routes.post("/props", body=Body, answer="`success`: true")
async def change_props(http: HttpRequest) -> dict[str, Any]:
    """Answer like llama-server, which has no changeable properties either."""
    if not service_of(http).config.props:
        raise ApiError(501, "this server does not take changes; start it with --props")
    return {"success": True}


@routes.get("/slots", answer="a list, one object per slot")
async def slots(http: HttpRequest) -> list[dict[str, Any]]:
    """List the slots; with ?fail_on_no_slot=1 answer 503 when all are busy."""
    service = service_of(http)
    if not service.config.slots:
        raise ApiError(501, "this server was started with --no-slots")
    report = await service.worker.report()
    if http.query_params.get("fail_on_no_slot") and all(
        slot.is_processing for slot in report.slots
    ):
        raise CapacityError("no slot available")
    return [slot_state(slot, service) for slot in report.slots]


@routes.post("/slots/{id_slot}", body=SlotBody, answer="what was saved, restored or erased")
async def act_on_slot(http: HttpRequest) -> dict[str, Any]:
    """Save, restore or erase an idle slot's prompt."""
    service, tenant = service_of(http), caller_of(http.scope).tenant
    folder = _slot_folder(http)
    action = http.query_params.get("action", "")
    if action not in ("save", "restore", "erase"):
        raise wrong_value("action", action, "save, restore or erase")
    slot_id = _slot_id(http.path_params["id_slot"], service.info.num_slots)
    name = "" if action == "erase" else _check_name((await read_body(http, SlotBody)).filename)
    adapters = request_scales(None, service.adapter_scales.get(tenant), service.info)
    command = SlotAction(
        uuid.uuid4().hex,
        action,
        slot_id,
        str(folder / name) if name else "",
        tenant + adapter_key(adapters, service.info),
        adapters,
    )
    # one action per tenant at a time: many at once would delay the engine's steps, and saves could
    # exceed a quota
    lock = service.slot_actions.setdefault(tenant, asyncio.Lock())
    has_to_wait = lock.locked()
    async with lock:
        if has_to_wait and await http.is_disconnected():  # do nothing for disconnected clients
            raise ClientDisconnect
        if action == "save":
            await asyncio.to_thread(_make_room, folder, name, service.config)
        done = await single_event(service.worker, command)
    return _slot_answer(command, name, *done)


def _slot_folder(http: HttpRequest) -> Path:
    """The folder of the tenant that sent the request: --slot-save-path if there is only one.

    Raises:
        ApiError: there is no --slot-save-path.
    """
    folder = service_of(http).config.slot_save_path
    if folder is None:
        raise ApiError(501, "slot actions need a folder; start with --slot-save-path FOLDER")
    caller = caller_of(http.scope)
    return Path(folder, caller.tenant if caller.has_tenants else "")


def _check_name(name: str | None) -> str:
    """Check that the name stays inside the folder."""
    if name is None or not re.fullmatch(r"[\w. +@-]{1,200}", name) or name.startswith("."):
        raise wrong_value("filename", name, "letters, digits, spaces and . _ + @ - alone")
    return name


def _make_room(folder: Path, name: str, config: ServerConfig) -> None:
    """Make the folder of a tenant, and check that the tenant may save a file of this name.

    Raises:
        QuotaError: the others take too much.
        EngineError: the folder cannot be created or read.
    """
    try:
        if folder != Path(config.slot_save_path or ""):
            folder.mkdir(mode=0o700, exist_ok=True)
        others = [one for one in folder.glob("*") if one.name != name and one.is_file()]
        num_bytes = sum(max(one.stat().st_size, 2**20) for one in others)
    except OSError as error:
        raise EngineError(f"the folder for slot files cannot be used: {error}") from error
    if num_bytes >= config.tenant_slot_files_mb * 2**20:
        raise QuotaError(
            "slot files",
            f"your other slot files take {num_bytes >> 20} MiB and may take "
            f"{config.tenant_slot_files_mb}; save over a larger one, or start with a larger "
            "--tenant-slot-files-mb",
            retry_after=0,
        )


def _slot_id(text: str, num_slots: int) -> int:
    # check the length first: int() rejects thousands of digits
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) < num_slots):
        raise wrong_value("id_slot", text, f"from 0 to {num_slots - 1}")
    return int(text)


def _slot_answer(
    command: SlotAction, name: str, num_tokens: int, num_bytes: int, seconds: float
) -> dict[str, Any]:
    if command.action == "erase":
        return {"id_slot": command.slot_id, "n_erased": num_tokens}
    tokens, size = ("n_saved", "n_written")
    if command.action == "restore":
        tokens, size = "n_restored", "n_read"
    return {
        "id_slot": command.slot_id,
        "filename": name,
        tokens: num_tokens,
        size: num_bytes,
        "timings": {f"{command.action}_ms": 1000 * seconds},
    }


def model_entry(service: Service) -> dict[str, Any]:
    """The model as /v1/models lists it."""
    target = service.info.target
    return {
        "id": service.served.alias,
        "aliases": [service.served.alias, *service.served.aliases],
        "tags": list(service.served.tags),
        "object": "model",
        "created": int(service.started_at),
        "owned_by": "headstart",
        "architecture": {
            "input_modalities": ["text", *service.info.modalities],
            "output_modalities": ["text"],
        },
        "meta": {
            "vocab_type": target.vocab_type,
            "n_vocab": target.vocab_size,
            "n_ctx": service.info.context_size,
            "n_ctx_train": target.train_context_size,
            "n_embd": target.embedding_size,
            "n_params": target.num_params,
            "size": target.size_bytes,
            "ftype": target.file_type,
        },
    }


def _facts(model: ModelInfo) -> dict[str, Any]:
    names = (
        "path",
        "name",
        "architecture",
        "num_params",
        "size_bytes",
        "vocab_size",
        "num_layers",
        "memory",
    )
    return {name: getattr(model, name) for name in names}


def speculation_state(report: WorkerReport) -> dict[str, Any]:
    """Counts of speculators since the start, reasons for no draft, and control's estimates."""
    return {
        "speculators": [_speculator(one) for one in report.speculators],
        "reasons_not_drafted": dict(report.drafts.reasons),
        "control": dict(report.control),
    }


def _speculator(one: SpeculatorReport) -> dict[str, Any]:
    return {
        "name": one.name,
        "failure": one.failure,
        **draft_counts(one.stats),
        "seconds": dict(one.seconds),
        "details": dict(one.details),
    }


def slot_state(slot: SlotReport, service: Service) -> dict[str, Any]:
    """The state of a slot, under llama-server's names and Headstart's."""
    left = -1 if slot.max_tokens is None else slot.max_tokens - slot.num_emitted
    return {
        "id": slot.slot_id,
        # a number, as llama-server's clients expect
        "id_task": zlib.crc32(slot.request_id.encode()) if slot.request_id else -1,
        "request_id": slot.request_id,
        "n_ctx": service.info.context_size,
        "speculative": slot.drafts.num_drafted > 0,
        "is_processing": slot.is_processing,
        "n_prompt_tokens": slot.num_prompt,
        "n_prompt_tokens_processed": slot.num_processed - slot.num_cached,
        "n_prompt_tokens_cache": slot.num_cached,
        "n_tokens_in_cache": slot.num_in_cache,
        "next_token": [
            {"has_next_token": slot.is_processing, "n_remain": left, "n_decoded": slot.num_emitted}
        ],
        "draft_n": slot.drafts.num_drafted,
        "draft_n_accepted": slot.drafts.num_accepted,
        "by_speculator": {name: draft_counts(one) for name, one in slot.by_speculator.items()},
        "reasons_not_drafted": dict(slot.drafts.reasons),
    }
