"""GET /corpus/digest: which texts drafts may be copied from here, for routers that choose replicas.

The engine's process gives tokens, a bounded number per request; here they become text, and the
hashes of a sample of its passages.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any

import numpy as np
from starlette.requests import Request as HttpRequest

from headstart.server.model import service_of
from headstart.server.routing import Routes
from headstart.server.single_event import single_event
from headstart.structures.passages import PassageSet
from headstart.structures.suffix_index import SEPARATOR
from headstart.types import Vocab
from headstart.types.request import CorpusEvent, CorpusQuestion

MAX_TOKENS = 32_768  # of one question: some milliseconds of text
MAX_QUESTIONS = 4  # of one request; what is left comes with the next

routes = Routes()


@routes.get("/corpus/digest", answer="`passages`: sorted hashes, base64; `window`, `shift`")
async def digest(http: HttpRequest) -> dict[str, Any]:
    """Say which passages the texts hold that this API key's drafts may be copied from."""
    service, namespace = service_of(http), http.scope["headstart.namespace"]
    texts = service.corpora.of(namespace)
    async with texts.lock:
        is_complete = False
        # a model that left memory is not woken for this: what was read of it stays
        for _ in range(MAX_QUESTIONS if service.worker.status == "ready" else 0):
            name = f"corpus-{secrets.token_hex(12)}"
            question = CorpusQuestion(name, namespace, texts.places, MAX_TOKENS)
            event = await single_event(service.worker, question)
            assert isinstance(event, CorpusEvent)
            if any(now < before for now, before in zip(event.places, texts.places, strict=False)):
                texts.passages, texts.places = PassageSet(), ()  # the engine began anew
                continue
            await service.text_threads.run(
                partial(_add, texts.passages, event, service.served.vocab)
            )
            texts.places = event.places
            if is_complete := event.is_complete:
                break
        found = texts.passages.digest().to_json()
    return found | {"is_complete": is_complete}


def _add(passages: PassageSet, event: CorpusEvent, vocab: Vocab) -> None:
    """Take the texts of an event in."""
    tokens = np.frombuffer(event.tokens, np.int32)
    for text in np.split(tokens, np.flatnonzero(tokens == SEPARATOR)):
        passages.add([b"".join(vocab.token_bytes(t) for t in text.tolist() if t != SEPARATOR)])
