"""The JSON Schema Test Suite against our constraints.

    python -m benchmarks.json_schema_suite jsonschema-4.26.0/json/tests/draft2020-12

The suite is public (https://github.com/json-schema-org/JSON-Schema-Test-Suite, MIT) and comes with
the source package of `jsonschema` on PyPI. Every case is a schema, a value, and whether the value
satisfies it. For each schema:

    refused     it was refused with a reason: nothing was silently ignored
    else, for each of its values
    right       the constraint lets the value be written exactly if the suite says it is valid
    too strict  a valid value cannot be written: some answers are excluded, none is wrong
    too lax     an invalid value can be written: the answer may break the schema

A value is written as Python writes JSON; where its keys may be in any order, each order of up to
four keys is tried. The exit code is 1 if anything is too lax that is not in `KNOWN`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headstart.sampling.grammar.compiler import Compiled
from headstart.sampling.grammar.tokens import GrammarTokens
from headstart.testing import ByteVocab
from headstart.types.constraint import Constraint, ConstraintKind
from headstart.types.errors import InvalidParameterError

RIGHT, STRICT, LAX, REFUSED = "right", "too strict", "too lax", "refused"
MAX_KEYS = 4
# (file, description of the schema): why an invalid value may be written
KNOWN = {
    (
        "ref",
        "$ref prevents a sibling $id from changing the base uri",
    ): "drafts 6 and 7 ignore what stands beside $ref; here it counts, as in later drafts",
}


def spellings(value: Any) -> Iterator[Any]:
    """The value with its keys in every order."""
    if isinstance(value, dict) and len(value) <= MAX_KEYS:
        for keys in itertools.permutations(value):
            for parts in itertools.product(*(list(spellings(value[key])) for key in keys)):
                yield dict(zip(keys, parts, strict=True))
    elif isinstance(value, list) and len(value) <= MAX_KEYS:
        yield from map(list, itertools.product(*(list(spellings(part)) for part in value)))
    else:
        yield value


def can_write(compiled: Compiled, value: Any) -> bool:
    """Whether the constraint lets this value be the whole answer."""
    for spelled in itertools.islice(spellings(value), 200):
        for ascii_only in (False, True):
            text = json.dumps(spelled, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
            if _reads(compiled, text):
                return True
    return False


def _reads(compiled: Compiled, text: bytes) -> bool:
    state = compiled.begin()
    for token in text:
        if state.is_over or not state.allows(token):
            return False
        state.read(token)
    return state.is_over or any(state.allows(token) for token in compiled.tokens.eog_ids)


def run_file(path: Path, tokens: GrammarTokens) -> Iterator[tuple[str, str, str]]:
    """(result, schema's description, case's description) of each case."""
    for group in json.loads(path.read_text("utf-8")):
        name = group["description"]
        constraint = Constraint(kind=ConstraintKind.JSON_SCHEMA, text=json.dumps(group["schema"]))
        try:
            compiled = Compiled(constraint, tokens)
        except InvalidParameterError as error:
            for _ in group["tests"]:
                yield REFUSED, name, str(error)
            continue
        for case in group["tests"]:
            if can_write(compiled, case["data"]) == case["valid"]:
                yield RIGHT, name, case["description"]
            else:
                yield STRICT if case["valid"] else LAX, name, case["description"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table by file, and every case that is not right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of the suite's files for one draft")
    parser.add_argument("--verbose", action="store_true", help="print every reason")
    options = parser.parse_args(arguments)
    tokens, total, lax = GrammarTokens(ByteVocab()), Counter[str](), 0
    results = (RIGHT, STRICT, LAX, REFUSED)
    print("| file | " + " | ".join(results) + " |")
    print("| --- |" + " ---: |" * len(results))
    for path in sorted(options.folder.glob("*.json")):
        counts = Counter[str]()
        for result, schema, case in run_file(path, tokens):
            counts[result] += 1
            is_known = (path.stem, schema) in KNOWN
            lax += result == LAX and not is_known
            if options.verbose and result != RIGHT:
                print(f"{path.stem}: {schema}: {case}: {result}", file=sys.stderr)
        total += counts
        print(f"| {path.stem} | " + " | ".join(str(counts[r]) for r in results) + " |", flush=True)
    print("| all | " + " | ".join(str(total[r]) for r in results) + " |")
    return 1 if lax else 0


if __name__ == "__main__":
    sys.exit(main())
