"""GET and POST /lora-adapters: the loaded LoRA adapters and their scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import RootModel
from starlette.requests import Request as HttpRequest

from headstart.server.body import make_body, off_loop, read_json
from headstart.server.errors import not_supported
from headstart.server.routing import Routes
from headstart.server.schemas import AdapterScale, GenerationBody
from headstart.server.service import service_of
from headstart.structures.tenants import caller_of
from headstart.types.errors import RequestError
from headstart.types.report import WorkerInfo

MAX_TENANTS = 4096  # with stored scales: a proxy may name any number of them
Scales = tuple[float, ...]

routes = Routes()


class AdapterScales(RootModel[list[AdapterScale]]):
    """POST /lora-adapters: a list; the scale of adapters not in it is 0."""


@routes.get("/lora-adapters", answer="a list with `id`, `path` and `scale` of each adapter")
async def list_adapters(http: HttpRequest) -> list[dict[str, Any]]:
    """List the adapters with the scales of requests without `lora`."""
    service, tenant = service_of(http), caller_of(http.scope).tenant
    scales = service.adapter_scales.get(tenant, loaded_scales(service.info))
    return [
        {"id": index, **adapter, "scale": scale}
        for index, (adapter, scale) in enumerate(zip(service.info.adapters, scales, strict=True))
    ]


@routes.post("/lora-adapters", body=AdapterScales, answer="`success`: true")
async def set_adapters(http: HttpRequest) -> dict[str, bool]:
    """Set the scales of later requests without `lora` of the same tenant."""
    service, tenant = service_of(http), caller_of(http.scope).tenant
    data = await http.body()

    def read() -> list[AdapterScale] | None:
        wanted = read_json(data)
        if not isinstance(wanted, list):
            raise RequestError("Request body must be an array")
        return make_body(GenerationBody, {"lora": wanted}).lora

    lora = await off_loop(http, read)
    scales, by_tenant = read_scales(lora or (), service.info), service.adapter_scales
    by_tenant.pop(tenant, None)  # most recently set last
    if scales != loaded_scales(service.info):
        by_tenant[tenant] = scales
        while len(by_tenant) > MAX_TENANTS:
            del by_tenant[next(iter(by_tenant))]
    return {"success": True}


def loaded_scales(info: WorkerInfo) -> Scales:
    """The scales of the command line."""
    return tuple(float(adapter["scale"]) for adapter in info.adapters)


def request_scales(
    lora: Sequence[AdapterScale] | None, default: Scales | None, info: WorkerInfo
) -> Scales:
    """The scales of a request with this field; () means those of the command line.

    Raises:
        ApiError: the field names an unknown adapter.
    """
    scales = read_scales(lora, info) if lora else default
    return () if scales is None or scales == loaded_scales(info) else scales


def adapter_key(scales: Scales, info: WorkerInfo) -> str:
    """Part of the namespace that separates caches and drafts by scales; empty without adapters."""
    if not info.adapters:
        return ""
    return " lora " + ",".join(f"{scale}" for scale in scales or loaded_scales(info))


def described_scales(scales: Scales, info: WorkerInfo) -> list[dict[str, Any]]:
    """Scales in the form of the field `lora`."""
    return [{"id": i, "scale": scale} for i, scale in enumerate(scales or loaded_scales(info))]


def read_scales(entries: Sequence[AdapterScale], info: WorkerInfo) -> Scales:
    """A scale for each adapter; 0 for those not listed.

    Raises:
        ApiError: an entry names an unknown adapter.
    """
    scales = [0.0] * len(info.adapters)
    for index, one in enumerate(entries):
        if 0 <= one.id < len(scales):
            scales[one.id] = one.scale
        elif one.scale:
            there = (
                f"the adapters are 0 to {len(scales) - 1}"
                if scales
                else "this server has no adapters; start it with --lora"
            )
            raise not_supported(f"lora.{index}.id is {one.id} but {there}")
    return tuple(scales)
