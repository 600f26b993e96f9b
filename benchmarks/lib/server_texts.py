"""How many texts of llama-server differ from those that it writes alone without drafts."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from benchmarks.lib.quantized import FORMATS, write

from headstart.app.cli.verify import VerifyOptions, make_requests
from headstart.app.verify import TEMPERATURES
from headstart.extras.bench.client import Client, running
from headstart.extras.bench.report import table_head, table_row
from headstart.types.request import Request

SLOTS = (1, 8)
SPECULATION = ("none", "ngram-simple")
_SAMPLING = ("seed", "top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty", "ignore_eos")
Texts = list[list[int]]


def print_texts(folder: Path, names: Sequence[str], server: str, quantize: str) -> None:
    """Print a row for each model: the prompts and temperatures of `headstart verify`.

    Args:
        server: path of llama-server.
        quantize: llama.cpp's llama-quantize.
    """
    folder.mkdir(exist_ok=True)
    ways = [*product(SLOTS, SPECULATION, ("fresh", "cached"))]
    print(table_head("model", "texts a way", *(f"{n} slots, {s}, {p}" for n, s, p in ways)))
    for format_name, name in product(FORMATS, names):
        path = write(folder, name, format_name, quantize)[1]
        requests = make_requests(VerifyOptions(prompts_limit=4, tokens=400), Path(path))
        texts: list[Texts] = []
        for slots, speculation in product(SLOTS, SPECULATION):
            flags = ["-m", path, "-np", str(slots), "-c", str(1024 * slots), "-t", "1"]
            flags += ["--spec-type", speculation]
            with running([server, *flags], folder / "log") as client:
                texts += [_answer(client, slots, requests, cached=is_on) for is_on in (False, True)]
        counts = [sum(a != b for a, b in zip(texts[0], one, strict=True)) for one in texts]
        print(table_row(f"{name}-{format_name}", len(texts[0]), *counts), flush=True)


def _answer(client: Client, slots: int, requests: Sequence[Request], *, cached: bool) -> Texts:
    def ask(request: Request, temperature: float) -> list[int]:
        body = {name: getattr(request.sampling, name) for name in _SAMPLING} | {
            "prompt": request.prompt,
            "temperature": temperature,
            "n_predict": request.max_tokens,
            "cache_prompt": cached,
            "return_tokens": True,
        }
        tokens: list[int] = client.call("/completion", body)["tokens"]
        return tokens

    with ThreadPoolExecutor(slots) as pool:
        asked = [(request, temperature) for temperature in TEMPERATURES for request in requests]
        return list(pool.map(ask, *zip(*asked, strict=True)))
