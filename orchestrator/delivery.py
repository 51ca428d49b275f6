"""Bring a registered version to the production route, on the real adapters."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator import compose
from orchestrator.adapters.clock import SystemClock
from orchestrator.cluster import Cluster
from orchestrator.core.checks import Expectations
from orchestrator.core.formulas import output_throughput
from orchestrator.core.node_health import NodeNeeds
from orchestrator.core.types import Cell
from orchestrator.errors import PromotionError
from orchestrator.events import Printer
from orchestrator.measurement import BlockOrder, Instruments, measure_block
from orchestrator.ports import LoadRequest, Production, Registry, Version
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
            verify_prompts=tuple(prompt.full_text for prompt in self.prepared.workload.prompts[:8]),
            verify_max_tokens=min(32, config.load.max_tokens),
        )
        return Promoter(self.registry, self.production, SystemClock(), settings, self.printer.say)

    def _cell(self) -> Cell:
        """Return the study's heaviest closed loop, else its first cell."""
        cells = self.prepared.config.cells()
        closed = [cell for cell in cells if not cell.is_open_loop]
        return max(closed, key=lambda cell: (cell.streams, cell.temperature), default=cells[0])

    def _measure(self) -> float:
        """Return output tokens / s of one block through the production route."""
        config = self.prepared.config
        request = LoadRequest(
            base_url=self.production.url,
            model=config.engine.served_model_name,
            cell=self._cell(),
            seed=config.seed,
        )
        order = BlockOrder(
            boot_id="production",
            index=0,
            request=request,
            expected=Expectations(needs_counters=False, allows_cache=True),
            ignores_eos=config.load.ignore_eos,
        )
        instruments = Instruments(
            load=compose.load_client(config, self.prepared.workload),
            # Production's counters are not read through its route, and its node may be another.
            metrics_text=None,
            node=None,
            needs=NodeNeeds(),
        )
        block = measure_block(order, instruments).block
        throughput = output_throughput(block.output_tokens, block.duration_s)
        if not block.is_valid or throughput is None:
            raise PromotionError(
                f"the production route does not carry load: {block.invalid_reason}"
            )
        if block.num_failed:
            raise PromotionError(
                f"{block.num_failed} requests of the production route failed: "
                f"{next(iter(block.errors))}"
            )
        return throughput


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
