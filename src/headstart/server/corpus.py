"""GET /corpus/digest: which texts drafts may be copied from, for load balancers.

The engine's process sends tokens, a limited number per question; they are turned into text here,
and into hashes of a sample of its passages.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from starlette.requests import Request as HttpRequest

from headstart.server.event_stream import single_event
from headstart.server.model import service_of
from headstart.server.routing import Routes
from headstart.structures.passages import PassageSet
from headstart.structures.suffix_index import SEPARATOR
from headstart.types import Vocab
from headstart.types.request import CorpusEvent, CorpusQuestion

MAX_TOKENS = 32_768  # of one question; some milliseconds of work

MAX_NAMESPACES = 64  # whose passages are kept

routes = Routes()


@dataclass(slots=True)
class ReadTexts:
    """The passages of a namespace's texts that were read so far."""

    passages: PassageSet = field(default_factory=PassageSet)
    places: tuple[int, ...] = ()  # up to where each of the corpora was read
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@routes.get("/corpus/digest", answer="`passages`: sorted hashes, base64; `window`, `shift`")
async def digest(http: HttpRequest) -> dict[str, Any]:
    """Return hashes of the passages that drafts of this API key may be copied from."""
    service, namespace = service_of(http), http.scope["headstart.namespace"]
    corpora = service.corpora
    texts = corpora.setdefault(namespace, ReadTexts())
    corpora.move_to_end(namespace)
    if len(corpora) > MAX_NAMESPACES:
        corpora.popitem(last=False)
    async with texts.lock:
        is_complete = False
        # four questions at most, the next request continues; does not wake an unloaded model
        for _ in range(4 if service.worker.status == "ready" else 0):
            name = f"corpus-{secrets.token_hex(12)}"
            question = CorpusQuestion(name, namespace, texts.places, MAX_TOKENS)
            event = await single_event(service.worker, question)
            assert isinstance(event, CorpusEvent)
            if any(now < before for now, before in zip(event.places, texts.places, strict=False)):
                texts.passages, texts.places = PassageSet(), ()  # the engine was restarted
                continue
            await service.text_threads.run(
                partial(_add, texts.passages, event, service.served.vocab), namespace
            )
            texts.places = event.places
            if is_complete := event.is_complete:
                break
        found = texts.passages.digest().to_json()
    return found | {"is_complete": is_complete}


def _add(passages: PassageSet, event: CorpusEvent, vocab: Vocab) -> None:
    """Add the texts of an event."""
    tokens = np.frombuffer(event.tokens, np.int32)
    for text in np.split(tokens, np.flatnonzero(tokens == SEPARATOR)):
        passages.add([b"".join(vocab.token_bytes(t) for t in text.tolist() if t != SEPARATOR)])
