"""One trial's life: boot one arm, prove it is in force, measure its blocks, leave nothing behind.

Knows the ports only; Tune drives it from ``study``.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from orchestrator.core.checks import check_block
from orchestrator.core.exposition import delta, parse_counters
from orchestrator.core.formulas import acceptance_length, output_throughput
from orchestrator.core.space import not_in_force
from orchestrator.core.types import (
    Arm,
    Block,
    Boot,
    BootStatus,
    Cell,
    CounterSnapshot,
    EngineFacts,
    LoadResult,
)
from orchestrator.errors import InfeasibleArm, MeasurementError, TransientError
from orchestrator.load.sanity import garbage_reason
from orchestrator.ports import Clock, Engine, LoadClient, LoadHooks, LoadRequest, Node, Tracker

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """What one trial has to do."""

    trial_id: str
    study_run_id: str
    arm: Arm
    replicate: int
    cells: tuple[Cell, ...]
    blocks_per_cell: int
    model: str
    """Served model name."""
    seed: int
    """The study's seed; order of cells and prompts follow from it and the replicate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPorts:
    """The world outside of one trial."""

    engine: Engine
    load: LoadClient
    tracker: Tracker
    node: Node
    clock: Clock


class Trial:
    """Runs one ``TrialSpec`` step by step; every ending goes through ``finish``."""

    def __init__(self, spec: TrialSpec, ports: TrialPorts, emit: Callable[[str], None]) -> None:
        self._spec = spec
        self._ports = ports
        self._emit = emit
        self._facts: EngineFacts | None = None
        self._blocks: list[Block] = []
        self._lost: list[str] = []
        self._next = 0
        self._resolved: dict[str, object] = {}
        self._status: BootStatus | None = None
        self._reason = ""
        self._run_id: str | None = None
        self._node = ports.node.snapshot()
        self._plan = plan_blocks(spec)

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to measure."""
        return self._status is not None

    def setup(self) -> None:
        """Boot the engine and prove that the arm is in force; a failure ends the trial."""
        spec, ports = self._spec, self._ports
        self._open_run()
        try:
            facts = ports.engine.start(spec.arm, self._emit)
        except InfeasibleArm as error:
            self._end(BootStatus.INFEASIBLE, str(error))
            return
        except TransientError as error:
            self._end(BootStatus.FAILED, str(error))
            return
        # It is long and goes to the tracker once, not with every copy of the record.
        self._resolved = facts.resolved_config
        self._facts = replace(facts, resolved_config={})
        problem = not_in_force(spec.arm, self._facts)
        if problem is not None:
            self._end(BootStatus.NOT_IN_FORCE, problem)

    def step(self) -> str:
        """Measure the next block and return one sentence about it.

        A window that cannot be trusted costs its block; an engine that died ends the trial.
        """
        index, cell = self._next, self._plan[self._next]
        self._next += 1
        try:
            block = self._measure(index, cell)
        except TransientError as error:
            self._end(BootStatus.FAILED, f"engine lost in cell {cell.key}: {error}")
            return self._reason
        except MeasurementError as error:
            self._lost.append(f"{cell.key}: {error}")
            text = f"{cell.key}: not measured, {error}"
        else:
            self._blocks.append(block)
            self._track(lambda run_id: self._ports.tracker.log_block(run_id, block))
            text = summarize(block)
        if self._next == len(self._plan):
            self._close()
        return text

    def finish(self) -> Boot:
        """Return the boot's record and end its tracking run.

        A trial that is ended early, before all blocks are measured, is a failed boot.
        """
        if self._status is None:
            self._end(BootStatus.FAILED, "ended before all blocks were measured")
        assert self._status is not None
        boot = Boot(
            trial_id=self._spec.trial_id,
            arm=self._spec.arm,
            replicate=self._spec.replicate,
            node_id=self._node.node_id,
            status=self._status,
            reason=self._reason,
            facts=self._facts,
            blocks=tuple(self._blocks),
            run_id=self._run_id,
        )
        artifacts = {
            "engine_log_tail.txt": self._ports.engine.log_tail(),
            "node.json": json.dumps(
                {"before": asdict(self._node), "after": asdict(self._ports.node.snapshot())},
                indent=1,
            ),
            "resolved_config.json": json.dumps(self._resolved, indent=1, default=str),
        }
        self._track(lambda run_id: self._ports.tracker.close_trial(run_id, boot, artifacts))
        return boot

    def cleanup(self) -> None:
        """End the engine and wait until nothing of it is left."""
        self._ports.engine.stop()

    def _open_run(self) -> None:
        spec = self._spec
        params = trial_params(spec, self._node.node_id)
        try:
            self._run_id = self._ports.tracker.open_trial(spec.study_run_id, spec.trial_id, params)
        except TransientError as error:
            logger.warning("trial %s: not tracked: %s", spec.trial_id, error)

    def _track(self, call: Callable[[str], None]) -> None:
        """Call the tracker; a measured boot never fails because of logging."""
        if self._run_id is None:
            return
        try:
            call(self._run_id)
        except TransientError as error:
            logger.warning("trial %s: not tracked: %s", self._spec.trial_id, error)

    def _end(self, status: BootStatus, reason: str) -> None:
        self._status = status
        self._reason = reason

    def _close(self) -> None:
        """Judge the boot when all blocks had their turn."""
        bad = [f"{b.cell.key}: {b.invalid_reason}" for b in self._blocks if b.invalid_reason]
        notes = [*self._lost, *bad]
        if len(notes) == len(self._plan):
            self._end(BootStatus.FAILED, f"no valid block; {notes[0]}")
        else:
            self._end(BootStatus.OK, "; ".join(notes))

    def _measure(self, index: int, cell: Cell) -> Block:
        assert self._facts is not None
        window = _CounterWindow(self._ports.engine)
        hooks = LoadHooks(on_window_start=window.open, on_window_end=window.close)
        request = LoadRequest(
            base_url=self._facts.base_url,
            model=self._spec.model,
            cell=cell,
            seed=block_seed(self._spec, cell, self._plan[:index].count(cell)),
        )
        try:
            result = self._ports.load.run(request, hooks)
            counters = window.delta()
        finally:
            # An engine that died under the load is the news, whatever the load said.
            if self._ports.engine.facts().boot_id != self._facts.boot_id:
                raise TransientError("the engine was restarted inside the block")
        block = self._block(index, cell, result, counters)
        texts = tuple(record.text for record in result.records)
        reason = check_block(block, self._spec.arm) or garbage_reason(texts)
        return replace(block, invalid_reason=reason)

    def _block(
        self, index: int, cell: Cell, result: LoadResult, counters: CounterSnapshot
    ) -> Block:
        assert self._facts is not None
        done = [record for record in result.records if record.error is None]
        return Block(
            block_id=f"{self._facts.boot_id}/{cell.key}/{index}",
            boot_id=self._facts.boot_id,
            index=index,
            cell=cell,
            duration_s=result.duration_s,
            counters=counters,
            output_tokens=result.output_tokens,
            num_requests=len(result.records),
            num_failed=result.num_failed,
            ttft_s=tuple(r.ttft_s for r in done if r.ttft_s is not None),
            tpot_s=tuple(r.tpot_s for r in done if r.tpot_s is not None),
            finish_reasons=dict(result.finish_reasons),
        )


class _CounterWindow:
    """The engine's counters at both edges of a block."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._edges: list[CounterSnapshot] = []

    def open(self) -> None:
        self._edges = [parse_counters(self._engine.metrics_text())]

    def close(self) -> None:
        self._edges.append(parse_counters(self._engine.metrics_text()))

    def delta(self) -> CounterSnapshot:
        if len(self._edges) != 2:
            raise MeasurementError("the engine's counters were not read at both edges")
        return delta(self._edges[0], self._edges[1])


def plan_blocks(spec: TrialSpec) -> tuple[Cell, ...]:
    """Return the cells of the boot's blocks in their order.

    The order is random per replicate and the same for all arms: each round visits every cell.
    """
    rng = random.Random(f"{spec.seed}/order/{spec.replicate}")
    order: list[Cell] = []
    for _ in range(spec.blocks_per_cell):
        cells = list(spec.cells)
        rng.shuffle(cells)
        order += cells
    return tuple(order)


def block_seed(spec: TrialSpec, cell: Cell, repeat: int) -> int:
    """Return the seed of a block's prompts and samples: equal for all arms, so that blocks pair."""
    rng = random.Random(f"{spec.seed}/load/{spec.replicate}/{cell.key}/{repeat}")
    return rng.randrange(2**31)


def trial_params(spec: TrialSpec, node_id: str) -> dict[str, object]:
    """Return the flat parameters by which boots are compared in the tracking UI."""
    arm = spec.arm
    return {
        "arm": arm.label,
        "num_speculative_tokens": arm.num_speculative_tokens,
        "draft_sample_method": arm.draft_sample_method or "none",
        "rejection_sample_method": arm.rejection_sample_method or "none",
        "engine_version": arm.engine_build,
        "replicate": spec.replicate,
        "node": node_id,
        "trial_id": spec.trial_id,
        "cell_order": " ".join(cell.key for cell in plan_blocks(spec)),
    }


def summarize(block: Block) -> str:
    """Return one sentence about a measured block."""
    if block.invalid_reason is not None:
        return f"{block.cell.key}: not valid, {block.invalid_reason}"
    throughput = output_throughput(block.output_tokens, block.duration_s)
    speed = "no tokens" if throughput is None else f"{throughput:.1f} tok/s"
    length = acceptance_length(block.counters)
    drafting = "" if length is None else f", {length:.2f} tokens a step"
    return f"{block.cell.key}: {speed}{drafting}"
