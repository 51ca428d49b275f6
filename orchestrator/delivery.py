"""Bring a registered version to the production route, on the real adapters."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator import compose
from orchestrator.adapters.clock import SystemClock
from orchestrator.cluster import Cluster
from orchestrator.core.types import Cell
from orchestrator.errors import MeasurementError, PromotionError
from orchestrator.events import Printer
from orchestrator.ports import LoadHooks, LoadRequest, Production, Registry, Version
from orchestrator.prepare import Prepared
from orchestrator.promote import CHAMPION, Promoter, PromotionSettings, app_name

THROUGHPUT_TAG = "specpilot.production_output_throughput"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What a promotion works with."""

    prepared: Prepared
    registry: Registry
    production: Production
    printer: Printer

    def promote(self, version: Version) -> None:
        """Promote a version and measure it once more through the production path.

        Raises:
            PromotionError: Production is as it was before.
        """
        done = self._promoter().promote(version, self._measure)
        if done.verified_throughput is None:
            return
        self.registry.set_tag(
            version.model_name, version.version, THROUGHPUT_TAG, f"{done.verified_throughput:.2f}"
        )
        self.printer.say(
            f"through the production path: {done.verified_throughput:.1f} output tokens/s at "
            f"{self._cell().streams} streams, wall speed of this machine"
        )

    def reapply(self, champion: Version) -> None:
        """Declare the champion again, from the registry alone.

        Raises:
            PromotionError: It did not come up.
        """
        self._promoter().reapply(champion)

    def settle(self) -> None:
        """Put right what a promotion that was killed left in production.

        Raises:
            PromotionError: What it left does not end.
        """
        name = self.prepared.config.tracking.registered_model
        self._promoter().settle(name, self.registry.by_alias(name, CHAMPION))

    def serves(self, version: Version) -> bool:
        """Return whether production carries this version's traffic now."""
        state = self.production.state()
        app = app_name(self.prepared.config.production.name, version.version)
        return (
            state.router_status == "RUNNING"
            and state.engines.get(app) == "RUNNING"
            and state.weights.get(app, 0.0) > 0
        )

    def _promoter(self) -> Promoter:
        config = self.prepared.config
        settings = PromotionSettings(
            name=config.production.name,
            deadline_s=config.production.deadline_s,
            verify_requests=config.production.verify_requests,
            verify_prompts=tuple(prompt.text for prompt in self.prepared.workload.prompts[:8]),
            verify_max_tokens=min(32, config.load.max_tokens),
        )
        return Promoter(self.registry, self.production, SystemClock(), settings, self.printer.say)

    def _cell(self) -> Cell:
        load = self.prepared.config.load
        return Cell(streams=max(load.streams), temperature=max(load.temperatures))

    def _measure(self) -> float:
        """Return output tokens / s of one block through the production route."""
        config = self.prepared.config
        request = LoadRequest(
            base_url=self.production.url,
            model=config.engine.served_model_name,
            cell=self._cell(),
            seed=config.seed,
        )
        # Production's counters are not read through its route.
        hooks = LoadHooks(on_window_start=lambda: None, on_window_end=lambda: None)
        try:
            result = compose.load_client(config, self.prepared.workload).run(request, hooks)
        except MeasurementError as error:
            raise PromotionError(f"the production route does not carry load: {error}") from error
        if result.num_failed:
            raise PromotionError(f"{result.num_failed} requests of the production route failed")
        return result.output_tokens / result.duration_s


def delivery(
    prepared: Prepared, cluster: Cluster, registry: Registry, printer: Printer
) -> Delivery:
    """Return the promotion's tools on the cluster that this process joined."""
    return Delivery(
        prepared=prepared,
        registry=registry,
        production=compose.production(prepared.config, cluster.dashboard_url),
        printer=printer,
    )
