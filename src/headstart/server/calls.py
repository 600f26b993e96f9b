"""Starts a call: its id, its tenant, its choices."""

from __future__ import annotations

import secrets

from starlette.requests import Request as HttpRequest

from headstart.server.dialect import Choice
from headstart.server.model import Service
from headstart.server.prompts import Prompt
from headstart.server.schemas import GenerationBody
from headstart.server.translate import Call, make_requests
from headstart.types.errors import NotSupportedError


def new_call(
    http: HttpRequest, service: Service, prefix: str, *, stop: tuple[str, ...] = ()
) -> Call:
    """Name a call and note who asks.

    Raises:
        NotSupportedError: the model generates no text.
    """
    if service.info.why_no_text:
        raise NotSupportedError(service.info.why_no_text)
    return Call(
        id=f"{prefix}-{secrets.token_hex(12)}",
        created=int(service.clock()),
        fingerprint=service.fingerprint,
        namespace=http.scope["headstart.namespace"],
        model=service.served,
        info=service.info,
        stop=stop,
        adapter_scales=service.adapter_scales,
    )


def make_choices(
    body: GenerationBody, prompts: list[Prompt], call: Call, num_logprobs: int | None
) -> list[Choice]:
    """Choices in the API's order: all of the first prompt, then all of the next."""
    requests = make_requests(body, prompts, call, num_logprobs)
    per_prompt = len(requests) // len(prompts)
    return [Choice(i, request, prompts[i // per_prompt]) for i, request in enumerate(requests)]
