"""The comparison with the public test suite tells right, too strict and too lax apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.json_schema_suite import LAX, REFUSED, RIGHT, STRICT, main, run_file
from tests.unit.grammar.test_state import TOKENS

PAIR = {"type": "object", "properties": {"a": {}, "b": {"type": "null"}}, "required": ["b"]}


def case(data: object, *, valid: bool) -> dict[str, object]:
    return {"description": str(data), "data": data, "valid": valid}


def write(folder: Path, *cases: dict[str, object], schema: object = PAIR) -> Path:
    path = folder / "some.json"
    path.write_text(json.dumps([{"description": "pair", "schema": schema, "tests": cases}]))
    return path


def test_each_case_gets_its_result(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        case({"b": None, "a": 1}, valid=True),  # the other order can be written
        case({"a": 1}, valid=False),
        case({"b": None, "c": 1}, valid=True),  # not listed
        case({"b": None}, valid=False),  # pretends that a value is invalid
    )
    assert [result for result, *_ in run_file(path, TOKENS)] == [RIGHT, RIGHT, STRICT, LAX]
    refused = write(tmp_path, case(1, valid=True), schema={"not": {}})
    assert [result for result, *_ in run_file(refused, TOKENS)] == [REFUSED]


def test_what_is_too_lax_fails_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, case({"b": None}, valid=False))
    assert main([str(tmp_path)]) == 1
    write(tmp_path, case({"b": None}, valid=True))
    assert main([str(tmp_path)]) == 0
    assert "| some | 1 | 0 | 0 | 0 |" in capsys.readouterr().out
