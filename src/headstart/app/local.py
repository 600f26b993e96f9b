"""Generation in this thread, for the command line: the scheduler without a worker or HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headstart.app.assemble import build_scheduler, check, find_models, load_served_model
from headstart.config import Config
from headstart.types.request import Event, Request


class LocalGenerator:
    """A loaded model and its scheduler, for one request at a time.

    Raises:
        ConfigError, ModelError: the models cannot be loaded.
    """

    def __init__(self, config: Config) -> None:
        check(config)
        models = find_models(config)
        config = replace(config, scheduler=replace(config.scheduler, parallel=1))
        served = load_served_model(config, models)
        self.vocab, self.template = served.vocab, served.template
        self._scheduler, self.info = build_scheduler(config, models)

    def generate(self, request: Request) -> Iterator[Event]:
        """Run the request; the last event is a FinishEvent or an ErrorEvent."""
        self._scheduler.submit(request)
        while self._scheduler.has_work:
            self._scheduler.step()
            yield from self._scheduler.take_events()

    def close(self) -> None:
        """Keep what was learned, free the models."""
        self._scheduler.drafting.close()
