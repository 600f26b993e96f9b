"""For all tests: nothing learned is kept, examples have no time limit, Ctrl-C reaches what they
start, and libllama's threads sleep instead of spinning.

Two OpenMP threads that spin starve each other as soon as anything else uses the machine's cores: a
step of the demo model then takes a hundred times as long.
"""

from __future__ import annotations

import os
import signal
import tempfile

from hypothesis import settings

settings.register_profile("busy", deadline=None)  # other programs may have the machine
settings.load_profile("busy")

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ["HEADSTART_CACHE"] = tempfile.mkdtemp(prefix="headstart-test-")

# a shell that starts the tests in the background has them, and all that they start, ignore it
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
