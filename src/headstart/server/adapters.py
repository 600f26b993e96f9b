"""GET and POST /lora-adapters: the loaded LoRA adapters and their scales."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, RootModel
from starlette.requests import Request as HttpRequest

from headstart.server.body import read_json, receive_body
from headstart.server.errors import not_supported, shorten, wrong_value
from headstart.server.limits import MAX_ENTRIES, check_length
from headstart.server.model import service_of
from headstart.server.routing import Routes
from headstart.types.errors import RequestError
from headstart.types.report import WorkerInfo

Scales = tuple[float, ...]

routes = Routes()


class AdapterScale(BaseModel):
    """An adapter's id and scale."""

    id: int
    scale: float


class AdapterScales(RootModel[list[AdapterScale]]):
    """POST /lora-adapters: a list; the scale of adapters not in it is 0."""


@routes.get("/lora-adapters", answer="a list with `id`, `path` and `scale` of each adapter")
async def list_adapters(http: HttpRequest) -> list[dict[str, Any]]:
    """List the adapters with the scales of requests without `lora`."""
    service = service_of(http)
    scales = service.adapter_scales or loaded_scales(service.info)
    return [
        {"id": index, **adapter, "scale": scale}
        for index, (adapter, scale) in enumerate(zip(service.info.adapters, scales, strict=True))
    ]


@routes.post("/lora-adapters", body=AdapterScales, answer="`success`: true")
async def set_adapters(http: HttpRequest) -> dict[str, bool]:
    """Set the scales of later requests without `lora`."""
    service = service_of(http)
    wanted = read_json(await receive_body(http))
    if not isinstance(wanted, list):
        raise RequestError("Request body must be an array")
    service.adapter_scales = read_scales(wanted, service.info)
    return {"success": True}


def loaded_scales(info: WorkerInfo) -> Scales:
    """The scales of the command line."""
    return tuple(float(adapter["scale"]) for adapter in info.adapters)


def request_scales(lora: Any, default: Scales | None, info: WorkerInfo) -> Scales:
    """The scales of a request with this field; () stands for those of the command line.

    Raises:
        HeadstartError: the field has the wrong form, or names an unknown adapter.
    """
    if lora is not None and not isinstance(lora, list):
        raise not_supported(f'lora is {shorten(lora)} but must be [{{"id": 0, "scale": 0.5}}, ...]')
    scales = read_scales(lora, info) if lora else default
    return () if scales is None or scales == loaded_scales(info) else scales


def adapter_key(scales: Scales, info: WorkerInfo) -> str:
    """Part of the namespace that separates caches and drafts by scales; empty without adapters."""
    if not info.adapters:
        return ""
    return " lora " + ",".join(f"{scale:g}" for scale in scales or loaded_scales(info))


def described_scales(scales: Scales, info: WorkerInfo) -> list[dict[str, Any]]:
    """Scales in the form of the field `lora`."""
    return [{"id": i, "scale": scale} for i, scale in enumerate(scales or loaded_scales(info))]


def read_scales(entries: Sequence[Any], info: WorkerInfo) -> Scales:
    """A scale for each adapter; 0 for those not named.

    Raises:
        HeadstartError: an entry has the wrong form, or names an unknown adapter.
    """
    check_length("lora", entries, MAX_ENTRIES)
    scales = [0.0] * len(info.adapters)
    for index, entry in enumerate(entries):
        number, scale = _read(f"lora.{index}", entry)
        if 0 <= number < len(scales):
            scales[number] = scale
        elif scale:
            there = (
                f"the adapters are 0 to {len(scales) - 1}"
                if scales
                else "this server has no adapters; start it with --lora"
            )
            raise not_supported(f"lora.{index}.id is {number} but {there}")
    return tuple(scales)


def _read(where: str, entry: Any) -> tuple[int, float]:
    if not isinstance(entry, Mapping):
        raise not_supported(f"{where} is {shorten(entry)} but must be an object with id and scale")
    number, scale = entry.get("id", -1), entry.get("scale", 0.0)
    if isinstance(number, bool) or not isinstance(number, int):
        raise wrong_value(f"{where}.id", number, "a whole number")
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not math.isfinite(scale):
        raise wrong_value(f"{where}.scale", scale, "a number")
    return number, float(scale)
