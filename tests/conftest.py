"""For all tests: nothing learned is kept, examples have no time limit, and libllama's threads sleep
instead of spinning.

Two OpenMP threads that spin starve each other as soon as anything else uses the machine's cores: a
step of the demo model then takes a hundred times as long.
"""

from __future__ import annotations

import os
import tempfile

from hypothesis import settings

settings.register_profile("busy", deadline=None)  # other programs may have the machine
settings.load_profile("busy")

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ["HEADSTART_CACHE"] = tempfile.mkdtemp(prefix="headstart-test-")
