"""How a trial ends early: what became of its engine, and what that makes of boot and block."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.failures import CLASSES, Failure, FailureClass, FailureKind
from orchestrator.core.types import Block, BootStatus, Invalid, Invalidity
from orchestrator.errors import TransientError
from orchestrator.ports import Engine

_NOT_IN_FORCE = frozenset({FailureKind.NOT_IN_FORCE, FailureKind.WRONG_BUILD})


def engine_failure(
    engine: Engine, boot_id: str, place: str, *, is_suspect: bool = False
) -> Failure | None:
    """Return what became of a boot's engine, or None while it is the same process and answers.

    Args:
        engine: The engine.
        boot_id: Of the boot that came up.
        place: What was being done, as in "in cell c1_t0".
        is_suspect: Whether its health is in doubt, so that it has to give a completion: a health
            check can say that all is well while every completion hangs.
    """
    try:
        now = engine.facts().boot_id
    except TransientError as error:
        return _by_evidence(engine, FailureKind.ENGINE_LOST, f"engine lost {place}", str(error))
    if now != boot_id:
        seen = "the engine was restarted inside the block"
        return _by_evidence(engine, FailureKind.ENGINE_RESTARTED, f"engine lost {place}", seen)
    problem = engine.probe() if is_suspect else None
    if problem is not None:
        return _by_evidence(engine, FailureKind.ENGINE_HANGS, f"engine hangs {place}", problem)
    return None


def _by_evidence(engine: Engine, kind: FailureKind, what: str, seen: str) -> Failure:
    """Return the failure that the evidence names, else what the trial has seen of it."""
    found = engine.post_mortem()
    if found is None:
        return Failure(kind, f"{what}: {seen}")
    words = seen if kind is FailureKind.ENGINE_RESTARTED else found.reason
    return replace(found, reason=f"{what}: {words}")


def status_of(kind: FailureKind) -> BootStatus:
    """Return the status of a boot that ended so."""
    if kind in _NOT_IN_FORCE:
        return BootStatus.NOT_IN_FORCE
    if CLASSES[kind] is FailureClass.INFEASIBLE:
        return BootStatus.INFEASIBLE
    return BootStatus.FAILED


def marked(block: Block, failure: Failure) -> Block:
    """Return the block in which a boot ended, with that as its first reason to be invalid."""
    kind = Invalid.RESTARTED
    if failure.kind is FailureKind.MEMORY_FLOOR:
        kind = Invalid.NODE
    elif failure.kind is FailureKind.ENGINE_HANGS:
        kind = Invalid.SILENT
    others = [item for item in block.invalid if item.kind is not kind]
    first = Invalidity(kind=kind, detail=failure.reason)
    return replace(block, invalid=(first, *others))
