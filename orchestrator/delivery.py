"""Bring a registered version to the production route, on the real adapters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator import compose
from orchestrator.adapters.clock import SystemClock
from orchestrator.cluster import Cluster, join_ray
from orchestrator.config import StudyConfig
from orchestrator.core.cell_promises import make_cell_promises
from orchestrator.core.checks import Expectations
from orchestrator.core.codec import to_plain
from orchestrator.core.formulas import output_throughput, quantile
from orchestrator.core.node_health import NodeNeeds
from orchestrator.core.promise import Promise, make_promise, promise_gate
from orchestrator.core.promotion import Gate, soak_gate
from orchestrator.core.takeover import Kind
from orchestrator.core.types import Arm, Block, Boot, Cell
from orchestrator.errors import ConfigError, PromotionError
from orchestrator.events import Printer
from orchestrator.incumbent import require_compared
from orchestrator.measurement import BlockOrder, Instruments, measure_block
from orchestrator.ports import LoadRequest, Production, Registry, Version
from orchestrator.premises_check import gate
from orchestrator.prepare import Prepared
from orchestrator.production_stage import PromotionSettings, app_name
from orchestrator.promote import Promoter
from orchestrator.promotion_course import Course
from orchestrator.promotion_record import BOOT_TIME_TAG, CELLS_TAG, CHAMPION, Found
from orchestrator.promotion_report import format_decision, promise_line
from orchestrator.promotion_steps import Measurement
from orchestrator.version_tags import read_tag, record_of
from serve_apps.engine.spec import EngineSpec

EVIDENCE_TAG = "specpilot.promise"
"""The promise that production is held to, as JSON."""
VERIFY_TOKENS = 128
"""Of an answer of the verification, at most: a loop has to go round before it can be told.

Of six answers of an engine that loops one could be told at 32 tokens, four at 64, five at 160."""
MEASURE_TRIES = 3
"""Blocks through the production path until one is valid: in a study a lost block is one of many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What a promotion works with."""

    prepared: Prepared
    registry: Registry
    production: Production
    printer: Printer

    def promote(
        self, version: Version, *, kind: Kind = "promote", allow_outage: bool = False
    ) -> None:
        """Promote a version, held to its promise on the way, or go on with its promotion.

        Raises:
            ConfigError: It cannot begin; nothing was changed but what an earlier one had left.
            PromotionError: It failed; production is as it was, unless the error says otherwise.
        """
        course = self.course(version, kind=kind, allow_outage=allow_outage)
        self.carry_out(course, allow_outage=allow_outage)

    def course(self, version: Version, *, kind: Kind, allow_outage: bool) -> Course:
        """Return what ``promote`` would come to now; reads only.

        Raises:
            ConfigError: A tag of the registry was written by somebody else.
        """
        may_stop = self._may_stop(allow_outage=allow_outage)
        return self._promoter().course(version, kind=kind, allow_outage=may_stop)

    def carry_out(self, course: Course, *, allow_outage: bool) -> None:
        """Do what was decided.

        Raises:
            ConfigError: It cannot begin; nothing was changed but what an earlier one had left.
            PromotionError: It failed; production is as it was, unless the error says otherwise.
        """
        may_stop = self._may_stop(allow_outage=allow_outage)
        done = self._promoter().carry_out(
            course,
            measure=self._measure,
            soak=self._soak if self.prepared.config.policy.soak_s > 0 else None,
            allow_outage=may_stop,
        )
        if done.verified_throughput is not None:
            self.printer.say(
                f"through the production path: {done.verified_throughput:.1f} output tokens/s at "
                f"{heaviest(self.prepared.config).streams} streams, wall speed of this machine"
            )

    def reapply(self, champion: Version) -> None:
        """Declare the champion again, from the registry alone.

        Raises:
            PromotionError: It did not come up.
        """
        self._promoter().reapply(champion)

    def sync(self) -> None:
        """Bring production back to the champion, from the registry alone.

        Raises:
            ConfigError: There is no champion.
            PromotionError: It did not come up, or does not answer.
        """
        self._promoter().sync(self.prepared.config.tracking.registered_model)

    def settle(self) -> None:
        """Put right what a promotion that was killed left in production.

        Raises:
            PromotionError: What it left does not end.
        """
        self._promoter().settle(self.prepared.config.tracking.registered_model)

    def cut_off(self) -> Found | None:
        """Return a promotion that was killed and not yet gone on with."""
        return self._promoter().cut_off(self.prepared.config.tracking.registered_model)

    def decision(self, version: Version, *, kind: Kind, allow_outage: bool) -> list[str]:
        """Return what a promotion would do and why, line by line; changes nothing."""
        policy = self.prepared.config.policy
        course = self.course(version, kind=kind, allow_outage=allow_outage)
        outset = course.outset
        has_outage = outset is not None and outset.has_outage
        try:
            promise = read_promise(version)
            promised = promise_line(promise)
        except ConfigError:  # the reason why it cannot begin, unless it is the champion
            promise, promised = None, "  promise: it cannot be read"
        return format_decision(
            course,
            promise=promised,
            premises=gate(version, self.prepared),
            outage=self._promoter().outage_words(version, kind) if has_outage else None,
            settings={
                "policy.promote": policy.promote,
                "policy.approval": policy.approval,
                "policy.allow_outage": self._may_stop(allow_outage=allow_outage),
                "policy.soak_s": policy.soak_s,
                "policy.canary_share": policy.canary_share,
                "policy.canary_s": policy.canary_s,
                "policy.canary_requests": policy.canary_requests,
                "policy.promise_confidence": promise and promise.confidence,
                "policy.promise_tolerance": policy.promise_tolerance,
            },
        )

    def serves(self, version: Version) -> bool:
        """Return whether production carries this version's traffic now."""
        return self._promoter().serves(version)

    def _admit(self, version: Version) -> None:
        """Refuse a version that promises nothing, or whose evidence says nothing of today.

        Raises:
            ConfigError: So it is, or that cannot be told here.
        """
        admit(version)
        require_standing(version, gate(version, self.prepared))
        champion = self.registry.by_alias(version.model_name, CHAMPION)
        require_compared(version, champion, self.prepared.config)

    def _may_stop(self, *, allow_outage: bool) -> bool:
        return allow_outage or self.prepared.config.policy.allow_outage

    def _promoter(self) -> Promoter:
        config = self.prepared.config
        prompts = tuple(prompt.full_text for prompt in self.prepared.workload.prompts[:8])
        return Promoter(
            self.registry,
            self.production,
            SystemClock(),
            promotion_settings(config, prompts),
            self.printer.say,
            lambda: join_ray(config).num_trial_nodes,
            self._admit,
        )

    def _measure(self, version: Version) -> Measurement:
        """Measure one block through the production route and hold it against the promise.

        Raises:
            PromotionError: The route does not carry the load.
        """
        promise, config = held_to(version), self.prepared.config
        block = self._valid_block(version, promise)
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
        kept = promise_gate(promise, block, promise_tolerance=config.policy.promise_tolerance)
        return Measurement(throughput=throughput, gate=kept)

    def _soak(self, version: Version) -> Gate:
        """Load the version with as many requests as it may run."""
        promise, config = held_to(version), self.prepared.config
        cell = replace(promise.cell, streams=compose.full_concurrency(config), request_rate=0.0)
        load = replace(config.load, block_s=config.policy.soak_s, block_tokens=None)
        return soak_gate(self._block(version, promise, replace(config, load=load), cell))

    def _valid_block(self, version: Version, promise: Promise) -> Block:
        """Return the first block that counts, else the last; what it came to is not looked at."""
        for _ in range(MEASURE_TRIES - 1):
            block = self._block(version, promise, self.prepared.config, promise.cell)
            if block.is_valid or block.num_failed:
                return block
            self.printer.say(f"measuring again: {block.invalid_reason}")
        return self._block(version, promise, self.prepared.config, promise.cell)

    def _block(self, version: Version, promise: Promise, config: StudyConfig, cell: Cell) -> Block:
        app = app_name(config.production.name, version.version)
        request = LoadRequest(
            base_url=self.production.url,
            model=config.engine.served_model_name,
            cell=cell,
            # Another one each time: a second measurement must not find its prompts in the cache.
            seed=config.seed + round(SystemClock().utc_s()) % 2**30,
            headers=self.production.pin(app),
        )
        order = BlockOrder(
            boot_id="production",
            index=0,
            request=request,
            expected=Expectations(arm=promise.arm, allows_cache=not config.load.salt),
            ignores_eos=config.load.ignore_eos,
        )
        instruments = Instruments(
            load=compose.load_client(config, self.prepared.workload),
            metrics_text=lambda: self.production.metrics_text(app),
            # Production's node may be another than this one.
            node=None,
            needs=NodeNeeds(),
        )
        return measure_block(order, instruments).block


def heaviest(config: StudyConfig) -> Cell:
    """Return the study's heaviest closed loop, else its first cell: the one that is promised."""
    cells = config.cells()
    closed = [cell for cell in cells if not cell.is_open_loop]
    return max(closed, key=lambda cell: (cell.streams, cell.temperature), default=cells[0])


def promise_tags(config: StudyConfig, arm: Arm, boots: Sequence[Boot]) -> dict[str, str]:
    """Return what a version that is registered promises: tags for a promotion and a watcher."""
    promise = make_promise(
        arm,
        boots,
        cells=config.cells(),
        cell=heaviest(config),
        board=config.board(),
        confidence=config.policy.promise_confidence,
    )
    cells = make_cell_promises(
        arm,
        boots,
        weights=config.weights(),
        board=config.board(),
        confidence=config.policy.promise_confidence,
        step_tolerance=config.policy.promise_tolerance,
    )
    times = [boot.facts.boot_time_s for boot in boots if boot.arm == arm and boot.facts is not None]
    boot_s = quantile(times, 0.5)
    return {
        EVIDENCE_TAG: json.dumps(to_plain(promise)),
        CELLS_TAG: json.dumps(to_plain(cells)),
        **({} if boot_s is None else {BOOT_TIME_TAG: f"{boot_s:.1f}"}),
    }


def read_promise(version: Version) -> Promise | None:
    """Return the version's promise; None where it was registered without one.

    Raises:
        ConfigError: The tag was written by somebody else.
    """
    remedy = "register it again by a study"
    return read_tag(version, EVIDENCE_TAG, record_of(Promise), noun="promise", remedy=remedy)


def admit(version: Version) -> None:
    """See that a version can be promoted, whatever production holds.

    Raises:
        ConfigError: It is held to no promise, or its configuration starts no engine.
    """
    held_to(version)
    try:
        EngineSpec.from_dict(version.config)
    except ValueError as error:
        raise ConfigError(
            f"version {version.version} of '{version.model_name}'",
            f"its config.json starts no engine: {error}",
            "put the file back into its run's artifacts, or register it again by a study",
        ) from error


def held_to(version: Version) -> Promise:
    """Return the promise that a promotion of the version is held to.

    Raises:
        ConfigError: There is none, or none that anything can be held against.
    """
    promise = read_promise(version)
    missing = "it was registered without a promise" if promise is None else promise.missing
    if promise is None or missing is not None:
        raise ConfigError(
            f"version {version.version} of '{version.model_name}'",
            f"production cannot be held to its study: {missing}",
            "register it by a study with more boots; what has served before comes back by "
            "`rollback --to`",
        )
    return promise


def require_standing(version: Version, stands: Gate) -> None:
    """See that what a version's evidence depends on is as it was.

    Raises:
        ConfigError: It is not, or that cannot be told here.
    """
    if stands.blocks:
        how = "do not hold" if stands.passed is False else "are not shown to hold"
        raise ConfigError(
            f"version {version.version} of '{version.model_name}'",
            f"its premises {how}: {stands.reason}",
            "study again, or promote it with the study file and models that it was registered with",
        )


def promotion_settings(config: StudyConfig, prompts: Sequence[str]) -> PromotionSettings:
    """Return how the study's promotions proceed."""
    policy, production, load = config.policy, config.production, config.load
    return PromotionSettings(
        name=production.name,
        deadline_s=production.deadline_s,
        verify_requests=production.verify_requests,
        verify_prompts=tuple(prompts),
        verify_max_tokens=min(VERIFY_TOKENS, load.max_tokens),
        canary_share=policy.canary_share,
        canary_s=policy.canary_s,
        canary_requests=policy.canary_requests,
        drain_s=production.drain_s,
        measure_s=1.5 * (load.block_s + policy.soak_s),
    )


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
