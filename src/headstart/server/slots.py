"""POST /slots/{id_slot}?action=save|restore|erase: a slot's prompt in a file, and back."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Any

from starlette.requests import Request as HttpRequest

from headstart.server.adapters import adapter_key, request_scales
from headstart.server.body import read_body
from headstart.server.errors import ApiError
from headstart.server.event_stream import single_event
from headstart.server.model import service_of
from headstart.server.routing import Routes
from headstart.server.schemas import SlotBody
from headstart.types.errors import RequestError
from headstart.types.request import SlotAction, SlotEvent

_NAME = re.compile(r"[\w. +@-]{1,200}")

routes = Routes()


@routes.post("/slots/{id_slot:int}", body=SlotBody, answer="what was saved, restored or erased")
async def act(http: HttpRequest) -> dict[str, Any]:
    """Save, restore or erase what an idle slot keeps."""
    service = service_of(http)
    folder = service.config.slot_save_path
    if folder is None:
        raise ApiError(501, "slot actions need a folder; start with --slot-save-path FOLDER")
    action = http.query_params.get("action", "")
    if action not in ("save", "restore", "erase"):
        raise RequestError(f"action is {action!r} but must be save, restore or erase")
    slot_id = http.path_params["id_slot"]
    name = "" if action == "erase" else _file_name((await read_body(http, SlotBody)).filename)
    adapters = request_scales(None, service.adapter_scales, service.info)
    command = SlotAction(
        uuid.uuid4().hex,
        action,
        slot_id,
        str(Path(folder) / name) if name else "",
        http.scope["headstart.namespace"] + adapter_key(adapters, service.info),
        adapters,
    )
    event = await single_event(service.worker, command)
    assert isinstance(event, SlotEvent)
    return _answer(command, name, event)


def _file_name(name: str | None) -> str:
    """Check that the name stays inside of the folder."""
    if name is None or not _NAME.fullmatch(name) or name.startswith("."):
        raise RequestError(
            f"filename is {name!r} but must be letters, digits, spaces and . _ + @ - alone"
        )
    return name


def _answer(command: SlotAction, name: str, event: SlotEvent) -> dict[str, Any]:
    if command.action == "erase":
        return {"id_slot": command.slot_id, "n_erased": event.num_tokens}
    tokens, size = ("n_saved", "n_written")
    if command.action == "restore":
        tokens, size = "n_restored", "n_read"
    return {
        "id_slot": command.slot_id,
        "filename": name,
        tokens: event.num_tokens,
        size: event.num_bytes,
        "timings": {f"{command.action}_ms": 1000 * event.seconds},
    }
