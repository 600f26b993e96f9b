"""Texts that differ are counted under all that a way and a model are."""

from __future__ import annotations

from benchmarks.lib.quantized import texts_table

WAY = "suffix 16, 8 slots, cached prompts"
REPORT = {
    "ways": {"off, 8 slots, cached prompts": 4, WAY: 6},
    "differences": [{"way": WAY, "kind": "near tie"}, {"way": WAY, "kind": "different"}],
}


def test_a_text_counts_for_its_model_its_format_its_prompts_and_its_speculator() -> None:
    table = texts_table({"heads-window-Q8_0": REPORT, "demo-F16": REPORT})
    assert table.splitlines()[2:] == [
        "| all | 20 | 2 | 2 |",
        "| Q8_0 | 10 | 1 | 1 |",
        "| heads-window | 10 | 1 | 1 |",
        "| cached prompts | 20 | 2 | 2 |",
        "| off, 8 slots | 8 | 0 | 0 |",
        "| suffix | 12 | 2 | 2 |",
        "| F16 | 10 | 1 | 1 |",
        "| demo | 10 | 1 | 1 |",
    ]
