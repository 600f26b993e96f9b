"""Paths of the embedded demo models; see README.md in this folder."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from headstart.types.errors import ModelError

TARGET = "demo-target"
DRAFT = "demo-draft"  # of the target's vocabulary
DRAFT_OTHER = "demo-draft-other"  # of a vocabulary trained apart
# a request that the demo target answers without a slip, mostly from drafts
PROMPT = """Rename `data` to `buffer`:
```python
def write(self, data):
    self.file.write(data)
    return len(data)
```"""


def path(name: str) -> Path:
    """Return the GGUF file of an embedded model.

    Raises:
        ModelError: the package was installed without its data files.
    """
    file = Path(str(files(__name__).joinpath(f"{name}.gguf")))
    if not file.is_file():
        raise ModelError(
            f"the embedded model {file} is missing; install headstart again or name a model with -m"
        )
    return file
