"""JSON of a schema against the same request without a constraint and without speculation.

    python -m benchmarks.structured --models models/

One server with its defaults and a draft model answers every prompt in four ways, in turn, each time
another first: with the schema and speculation as the server decides (`schema`), with the schema and
speculation off (`schema, off`), without a schema and off (`free, off`), without a schema and
speculation as the server decides (`free`). A text without a schema is as long as the one with it.
Prompts are read before the clock starts. The rate is tokens per second of all users together; the
ratio is that of medians over the groups.

Goals: `schema` at least 1.5 times `free, off` at one user and 1.2 at eight, and never below 0.97.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from benchmarks.lib.measure import inflated_models
from benchmarks.lib.serving import Answer, complete_all, running
from benchmarks.lib.workloads import Prompt, make_prompts

GOALS = {1: 1.5, 8: 1.2}
FLOOR = 0.97
TEXT = {"type": "string", "minLength": 4, "maxLength": 24}
SCHEMAS: Mapping[str, Any] = {
    "records": {
        "type": "array",
        "minItems": 4,
        "maxItems": 4,
        "items": {
            "type": "object",
            "properties": {
                "name": TEXT,
                "favourite_toy": TEXT,
                "age_in_years": {"type": "integer", "minimum": 1, "maximum": 12},
                "is_happy": {"type": "boolean"},
            },
            "required": ["name", "favourite_toy", "age_in_years", "is_happy"],
            "additionalProperties": False,
        },
    },
    "story": {
        "type": "object",
        "properties": {
            "title": TEXT,
            "first_sentence": {"type": "string", "minLength": 40, "maxLength": 160},
            "second_sentence": {"type": "string", "minLength": 40, "maxLength": 160},
            "mood": {"enum": ["happy", "sad", "exciting"]},
        },
        "required": ["title", "first_sentence", "second_sentence", "mood"],
        "additionalProperties": False,
    },
}
OFF = {"speculative.mode": "off"}
WAYS = ("schema", "schema, off", "free, off", "free")


def bodies(
    way: str, schema: Any, prompts: Sequence[Prompt], lengths: Sequence[int], temperature: float
) -> list[dict[str, Any]]:
    """Requests for the native endpoint; a free text has the length of the constrained one."""
    return [
        {
            "prompt": prompt.text,
            "temperature": temperature,
            "seed": 1 + slot,
            "id_slot": slot,
            "cache_prompt": True,
            "n_predict": length,
        }
        | ({"json_schema": schema} if way.startswith("schema") else {"ignore_eos": True})
        | (OFF if way.endswith("off") else {})
        for slot, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]


def rate(port: int, requests: Sequence[Mapping[str, Any]]) -> tuple[float, list[Answer]]:
    """Tokens per second of a group whose prompts are in the cache."""
    complete_all(port, [request | {"n_predict": 0} for request in map(dict, requests)])
    started = time.monotonic()
    answers = complete_all(port, requests)
    seconds = max(answer.last for answer in answers) - started
    return sum(len(answer.tokens) for answer in answers) / seconds, answers


def measure(port: int, users: int, options: argparse.Namespace) -> dict[str, Any]:
    """Rates by schema and temperature, then by way: one of each group."""
    results: dict[str, Any] = {}
    for name, schema in SCHEMAS.items():
        for temperature in options.temperatures:
            rates: dict[str, list[float]] = {way: [] for way in WAYS}
            drafted = accepted = 0
            prompts = make_prompts("continue", users * options.groups, 17)
            for group in range(options.groups):
                texts = prompts[group * users : (group + 1) * users]
                limits = [options.tokens] * users
                # once unmeasured: how long the constrained texts are
                wanted = bodies("schema", schema, texts, limits, temperature)
                lengths = [len(answer.tokens) for answer in complete_all(port, wanted)]
                for way in WAYS[group % 4 :] + WAYS[: group % 4]:
                    speed, answers = rate(port, bodies(way, schema, texts, lengths, temperature))
                    rates[way].append(speed)
                    if way == "schema":
                        drafted += sum(a.timings.get("draft_n", 0) for a in answers)
                        accepted += sum(a.timings.get("draft_n_accepted", 0) for a in answers)
            results[f"{name} {temperature:g}"] = rates | {"drafts": [drafted, accepted]}
            print(f"{users} users, {name} {temperature:g}: done", file=sys.stderr, flush=True)
    return results


def print_table(users: int, results: Mapping[str, Any]) -> None:
    """A line per schema and temperature, with the goals."""
    print(
        f"\n| users {users} | free, off tokens/s | free | schema, off | schema | goal | accepted |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, rates in results.items():
        base = statistics.median(rates["free, off"])
        ratios = {way: statistics.median(rates[way]) / base for way in WAYS}
        goal = GOALS.get(users, FLOOR)
        best = ratios["schema"]
        verdict = "ok" if best >= goal else "MISSED" if best >= FLOOR else "BELOW 0.97"
        drafted, accepted = rates["drafts"]
        print(
            f"| {name} | {base:.2f} | {ratios['free']:.2f} | {ratios['schema, off']:.2f} | "
            f"{best:.2f} | {goal} {verdict} | {accepted} of {drafted} |",
            flush=True,
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=Path, default=Path("models"), help="inflated models")
    parser.add_argument("--target", default="1b-q8", help="preset of inflate.py, or a GGUF file")
    parser.add_argument("--draft", default="", help="likewise; none: text speculators only")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--users", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--groups", type=int, default=4, help="texts per user")
    parser.add_argument("--tokens", type=int, default=160, help="longest answer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path, help="JSON file")
    options = parser.parse_args()
    target, *draft = inflated_models(options.models, *filter(None, (options.target, options.draft)))
    found: dict[str, Any] = {}
    for users in options.users:
        command = [
            *(sys.executable, "-m", "headstart", "serve", "-m", str(target), "-np", str(users)),
            *("-c", str(1024 * users), "-t", str(options.threads)),
            *(("-md", str(draft[0])) if draft else ()),
        ]
        with tempfile.TemporaryDirectory() as folder:
            state = ("--spec-state", str(Path(folder) / "state.json"))
            with running([*command, *state], Path(folder) / "server.log") as port:
                found[str(users)] = measure(port, users, options)
        print_table(users, found[str(users)])
        if options.output:
            options.output.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
