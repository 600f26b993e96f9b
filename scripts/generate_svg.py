"""Writes docs/images/generate.svg: what `headstart generate` prints on a terminal.

python scripts/generate_svg.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

IMAGE = Path(__file__).parents[1] / "docs/images/generate.svg"


def main() -> None:
    """Run it and write the picture."""
    command = [sys.executable, "-m", "headstart", "generate"]
    environment = os.environ | {"FORCE_COLOR": "1"}
    done = subprocess.run(
        command, input="", capture_output=True, text=True, check=True, env=environment
    )
    console = Console(record=True, width=100, file=sys.stderr)
    console.print(Text("$ headstart generate"))
    console.print(Text.from_ansi(done.stdout))
    IMAGE.write_text(console.export_svg(title="headstart generate"), "utf-8")


if __name__ == "__main__":
    main()
