"""One Ray for all tests of the cluster: two CPUs, the smallest object store, no dashboard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from headstart.extras.cluster import deploy

STORE_BYTES = 80 * 2**20  # Ray's minimum is 75 MiB


@pytest.fixture(scope="session")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))  # the token goes there
        patch.setenv("RAY_SERVE_LOG_TO_STDERR", "0")
        deploy.secure(os.environ)
        ray = pytest.importorskip("ray", reason="Ray is not installed: run make test-cluster")
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            log_to_driver=False,
            logging_level="ERROR",
        )
        yield ray
        from ray import serve

        serve.shutdown()
        ray.shutdown()
