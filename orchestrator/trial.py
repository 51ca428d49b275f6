"""One trial's life: boot one arm, prove it is in force, measure its blocks, leave nothing behind.

A proof boot has the same life with other steps: it measures no block and looks at the parts of a
proof instead.

Knows the ports only; Tune drives it from ``study``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

from orchestrator.core.capacity import check_capacity
from orchestrator.core.checks import Expectations
from orchestrator.core.failures import Failure, FailureKind, failure_of
from orchestrator.core.fingerprint import Fingerprint, StudyInputs, trial_fingerprint
from orchestrator.core.journal import Entry
from orchestrator.core.node_health import (
    NodeNeeds,
    floor_breach,
    judge_for_boot,
    page_cache_in_the_way,
)
from orchestrator.core.node_state import Fitness, NodeState
from orchestrator.core.scaling import check_scaling
from orchestrator.core.space import is_other_build, not_in_force
from orchestrator.core.types import (
    Arm,
    Block,
    Boot,
    BootStatus,
    Cell,
    EngineFacts,
    Invalid,
    Proof,
    ProofPart,
)
from orchestrator.errors import InfeasibleArm, TransientError
from orchestrator.measurement import BlockOrder, Instruments, measure_block
from orchestrator.memory_guard import LOOK_S, MemoryGuard
from orchestrator.node_wait import await_node, end_engine
from orchestrator.ports import Clock, Engine, LoadClient, LoadRequest, Node, Prover
from orchestrator.trial_endings import engine_failure, marked, status_of
from orchestrator.trial_log import TrialLog
from orchestrator.trial_text import boot_params, summarize


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """What one trial has to do."""

    trial_id: str
    arm: Arm
    replicate: int
    cells: tuple[Cell, ...]
    blocks_per_cell: int
    model: str
    """Served model name."""
    seed: int
    """The study's seed; order of cells and prompts follow from it and the replicate."""
    ignores_eos: bool = True
    allows_cache: bool = False
    """Whether prompts may come from the prefix cache."""
    needs_timing: bool = True
    """Whether the blocks' wall time counts; under a board model only their acceptance does, and a
    laptop that is busy with other things is no reason to lose it."""
    needs: NodeNeeds = field(default_factory=NodeNeeds)
    """What the node must offer."""
    memory_look_s: float = LOOK_S
    """Between two looks at the node's memory while the engine boots or is loaded."""
    proof: tuple[ProofPart, ...] = ()
    """Parts of a proof boot; empty for a boot that measures ``cells``."""
    inputs: StudyInputs | None = None
    """What the fingerprint holds besides what the engine says; None takes no fingerprint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPorts:
    """The world outside of one trial."""

    engine: Engine
    load: LoadClient
    log: TrialLog
    node: Node
    clock: Clock
    prover: Prover | None = None
    """Only of a proof boot."""


class Trial:
    """Runs one ``TrialSpec`` step by step; every ending goes through ``finish``."""

    def __init__(self, spec: TrialSpec, ports: TrialPorts, emit: Callable[[str], None]) -> None:
        self._spec = spec
        self._ports = ports
        self._emit = emit
        self._facts: EngineFacts | None = None
        self._blocks: list[Block] = []
        self._findings: dict[str, dict[str, object]] = {}
        self._notes: list[str] = []
        self._next = 0
        self._resolved: dict[str, object] = {}
        self._fingerprint: Fingerprint | None = None
        self._has_begun = False
        self._status: BootStatus | None = None
        self._reason = ""
        self._failure: Failure | None = None
        self._node = ports.node.snapshot()
        self._plan = () if spec.proof else plan_blocks(spec)

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to measure."""
        return self._status is not None

    def setup(self) -> None:
        """Boot the engine and prove that the arm is in force; a failure ends the trial."""
        spec = self._spec
        self._tell(params=trial_params(spec, self._node.node_id))
        self._node = await_node(
            self._node,
            self._ports.node,
            self._ports.clock,
            needs=spec.needs,
            told=lambda why: self._emit(f"waits for its node: {why}"),
        )
        node = judge_for_boot(self._node, spec.needs)
        if node.fitness is Fitness.UNFIT:
            self._fail(Failure(FailureKind.NODE_UNFIT, f"the node is unfit: {node.reason}"))
            return
        if node.fitness is Fitness.DEGRADED:
            self._notes.append(f"node degraded: {node.reason}")
        self._has_begun = True
        booted = self._boot()
        if isinstance(booted, Failure):
            self._fail(booted)
            return
        facts = booted
        # It is long and goes to the tracker once, not with every copy of the record.
        self._resolved = facts.resolved_config
        if spec.inputs is not None:
            self._fingerprint = trial_fingerprint(facts, self._node, spec.inputs)
        self._facts = replace(facts, resolved_config={})
        problem = not_in_force(spec.arm, self._facts)
        if problem is not None:
            is_other = is_other_build(spec.arm, self._facts)
            kind = FailureKind.WRONG_BUILD if is_other else FailureKind.NOT_IN_FORCE
            self._fail(Failure(kind, problem))
        capacity = check_capacity(self._facts)
        if capacity is not None:
            self._notes.append(capacity)

    def _boot(self) -> EngineFacts | Failure:
        engine, needs = self._ports.engine, self._spec.needs
        with self._guard() as guard:
            booted: EngineFacts | Failure
            try:
                booted = engine.start(self._spec.arm, self._emit)
            except (InfeasibleArm, TransientError) as error:
                booted = failure_of(error)
        if guard.breach is not None:
            return Failure(FailureKind.MEMORY_FLOOR, f"ended while it booted: {guard.breach}")
        if isinstance(booted, Failure) and booted.kind is FailureKind.STARTUP_CHECK:
            return replace(booted, advice=page_cache_in_the_way(self._node, needs) or "")
        return booted

    def _guard(self) -> MemoryGuard:
        spec, ports = self._spec, self._ports
        return MemoryGuard(ports.node, ports.engine, spec.needs, look_s=spec.memory_look_s)

    def step(self) -> str:
        """Measure the next block, or look at the next part, and return one sentence about it."""
        return self._prove_next() if self._spec.proof else self._measure_next()

    def _measure_next(self) -> str:
        """Measure the next block.

        A window that cannot be trusted costs its block, which is kept and says why. An engine that
        died, hangs or was restarted ends the trial, and so does memory under the floor, before the
        board hangs with everything on it.
        """
        index, cell = self._next, self._plan[self._next]
        self._next += 1
        with self._guard() as guard:
            block = self._measure(index, cell)
        failure = self._ending(block, guard.breach)
        if failure is not None:
            block = marked(block, failure)
        self._blocks.append(block)
        self._tell(block=block)
        if failure is not None:
            self._fail(failure)
            return self._reason
        if self._next == len(self._plan):
            self._close()
        return summarize(block)

    def _prove_next(self) -> str:
        """Look at the next part of the proof.

        A part that cannot be looked at leaves a note, and the others have their turn: what is not
        shown is no failure of the boot. An engine that died is.
        """
        assert self._facts is not None
        assert self._ports.prover is not None
        part = self._spec.proof[self._next]
        self._next += 1
        with self._guard() as guard:
            try:
                finding = self._ports.prover.prove(part, self._facts)
            except TransientError as error:
                sentence = f"{part}: {error}"
                self._notes.append(sentence)
            else:
                sentence = f"{part}: {finding.sentence}"
                self._findings[part] = finding.record
        failure = self._failure_of_engine(f"while {part} was looked at", guard.breach)
        if failure is not None:
            self._fail(failure)
            return self._reason
        if self._next == len(self._spec.proof):
            self._end(BootStatus.OK, "; ".join(self._notes))
        return sentence

    def finish(self) -> Boot:
        """End the engine, return the boot's record and tell it.

        A trial that is ended early, before all its steps are done, is a failed boot. What the
        engine leaves behind stands in the record and does not change how the boot ended.
        """
        if self._status is None:
            self._fail(Failure(FailureKind.CUT_SHORT, "ended before all blocks were measured"))
        assert self._status is not None
        engine = self._ports.engine
        log_tail, serve_message = engine.log_tail(), engine.serve_message()
        states = self._end_engine()
        boot = Boot(
            trial_id=self._spec.trial_id,
            arm=self._spec.arm,
            replicate=self._spec.replicate,
            node_id=self._node.node_id,
            status=self._status,
            reason=self._reason,
            facts=self._facts,
            blocks=tuple(self._blocks),
            failure=None if self._failure is None else self._failure.kind,
            cause="" if self._failure is None else self._failure.cause,
            fingerprint=None if self._fingerprint is None else self._fingerprint.digest,
            sections={} if self._fingerprint is None else self._fingerprint.sections,
            proof=self._proof(),
        )
        artifacts = {
            "engine_log_tail.txt": log_tail,
            "serve_message.txt": serve_message,
            "node.json": json.dumps(
                {name: asdict(state) for name, state in states.items()}, indent=1
            ),
            "resolved_config.json": json.dumps(self._resolved, indent=1, default=str),
        }
        if self._fingerprint is not None:
            artifacts["fingerprint.json"] = json.dumps(self._fingerprint.to_dict(), indent=1)
        if boot.proof is not None:
            artifacts["proof.json"] = json.dumps(asdict(boot.proof), indent=1)
        self._tell(boot=boot, artifacts=artifacts)
        return boot

    def _end_engine(self) -> dict[str, NodeState]:
        """End the engine; return the node's states, and note what the engine leaves behind."""
        ports, states = self._ports, {"before": self._node, "after": self._ports.node.snapshot()}
        if self._has_begun:
            states["ended"], left = end_engine(
                ports.engine, ports.node, ports.clock, before=self._node, needs=self._spec.needs
            )
            self._reason = "; ".join(filter(None, (self._reason, left)))
        return states

    def _proof(self) -> Proof | None:
        if not self._spec.proof:
            return None
        return Proof(findings=self._findings, notes=tuple(self._notes))

    def cleanup(self) -> None:
        """End the engine if it still runs; its memory is the next boot's to wait for."""
        try:
            self._ports.engine.stop()
        finally:
            if self._ports.prover is not None:
                self._ports.prover.close()

    def _tell(
        self,
        *,
        params: dict[str, object] | None = None,
        block: Block | None = None,
        boot: Boot | None = None,
        artifacts: dict[str, str] | None = None,
    ) -> None:
        self._ports.log.tell(
            Entry(
                trial_id=self._spec.trial_id,
                params=params,
                block=block,
                boot=boot,
                artifacts=artifacts or {},
            )
        )

    def _end(self, status: BootStatus, reason: str) -> None:
        self._status = status
        self._reason = reason

    def _fail(self, failure: Failure) -> None:
        self._failure = failure
        self._end(status_of(failure.kind), failure.sentence)

    def _close(self) -> None:
        """Judge the boot when all blocks had their turn."""
        if self._spec.needs_timing:
            self._blocks = list(check_scaling(self._blocks))
        bad = [f"{b.cell.key}: {b.invalid_reason}" for b in self._blocks if not b.is_valid]
        if len(bad) == len(self._plan):
            self._fail(Failure(FailureKind.NO_VALID_BLOCK, f"no valid block; {bad[0]}"))
        else:
            self._end(BootStatus.OK, "; ".join([*self._notes, *bad]))

    def _measure(self, index: int, cell: Cell) -> Block:
        assert self._facts is not None
        spec, ports = self._spec, self._ports
        order = BlockOrder(
            boot_id=self._facts.boot_id,
            index=index,
            request=LoadRequest(
                base_url=self._facts.base_url,
                model=spec.model,
                cell=cell,
                seed=block_seed(spec, cell, self._plan[:index].count(cell)),
            ),
            expected=Expectations(arm=spec.arm, allows_cache=spec.allows_cache),
            ignores_eos=spec.ignores_eos,
        )
        instruments = Instruments(
            load=ports.load,
            metrics_text=ports.engine.metrics_text,
            node=ports.node,
            needs=spec.needs,
            own_pids=ports.engine.pids,
        )
        return measure_block(order, instruments).block

    def _ending(self, block: Block, breach: str | None) -> Failure | None:
        """Return why the boot cannot go on after a block, or None where it can."""
        breach = breach or floor_breach(block.node_states, self._spec.needs)
        is_silent = any(item.kind is Invalid.SILENT for item in block.invalid)
        is_suspect = is_silent or block.num_lost_streams > 0
        return self._failure_of_engine(f"in cell {block.cell.key}", breach, is_suspect=is_suspect)

    def _failure_of_engine(
        self, place: str, breach: str | None, *, is_suspect: bool = False
    ) -> Failure | None:
        assert self._facts is not None
        if breach is not None:
            return Failure(FailureKind.MEMORY_FLOOR, f"ended {place}: {breach}")
        engine, boot_id = self._ports.engine, self._facts.boot_id
        return engine_failure(engine, boot_id, place, is_suspect=is_suspect)


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
    return {
        **boot_params(spec.arm, spec.replicate, trial_id=spec.trial_id),
        "node": node_id,
        "cell_order": "" if spec.proof else " ".join(cell.key for cell in plan_blocks(spec)),
        **({"proof": " ".join(spec.proof)} if spec.proof else {}),
    }
