"""Why a boot has no score: the kinds, the class of each, and what may be done about it.

The class says what the race does with a boot of that kind. Evidence tells the kinds apart: the
engine's log, its exit status, counters of the kernel, the word of Ray, and what the trial saw.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.errors import InfeasibleArm, TransientError


class FailureClass(StrEnum):
    """What the race does with a failed boot."""

    INFEASIBLE = "infeasible"
    """The arm cannot run here: it gets no more boots."""
    TRANSIENT = "transient"
    """The arm gets another boot, up to the race's limit of failed ones (``race.MAX_RETRIES``)."""
    MEASUREMENT = "measurement"
    """The boot keeps the blocks that it has and gets no score; it counts as a failed one."""
    CONFIGURATION = "configuration"
    """No arm can run as the study is set up: the study ends with exit status 2."""


class FailureKind(StrEnum):
    """What ended a boot. Values are stored; those of an engine are its supervisor's own."""

    BAD_ARGUMENTS = "bad_arguments"
    """The engine refused its arguments or configuration; ``core.refusals`` tells whose they are."""
    NOT_IN_FORCE = "not_in_force"
    """The engine came up with something else than the arm asks for."""
    WRONG_BUILD = "wrong_build"
    """Another version of the engine answers than ``engine.build`` says."""
    STARTUP_CHECK = "startup_check"
    """The engine looked at the free memory when it started, and wanted more."""
    KV_CACHE = "kv_cache"
    """With weights and activations in place too little memory was left for the KV cache."""
    OUT_OF_MEMORY = "out_of_memory"
    """An allocation failed while the engine loaded, profiled or captured its graphs."""
    OOM_FIRST_REQUEST = "oom_first_request"
    """The engine said that it is healthy and ran out of memory in the readiness completion."""
    OOM_UNDER_LOAD = "oom_under_load"
    """It served, and an allocation failed under load."""
    OOM_KILLED = "oom_killed"
    """The kernel's out-of-memory killer ended a process of it."""
    RAY_OOM = "ray_oom"
    """Ray's memory monitor ended its replica."""
    MEMORY_FLOOR = "memory_floor"
    """The trial ended it, because the node's memory fell below ``node.min_mem_available_gib``."""
    NODE_UNFIT = "node_unfit"
    """The node was unfit before the boot."""
    BOOT_STALLED = "boot_stalled"
    """Its log did not grow for ``engine.boot_silence_s``."""
    TIMEOUT = "timeout"
    """It was not up within ``engine.boot_timeout_s``."""
    NO_COMPLETION = "no_completion"
    """It said that it is healthy and gave no completion."""
    IDENTITY = "identity"
    """Another process answered on its port."""
    EXITED = "exited"
    """It ended before it was up, for a reason that no other kind names."""
    NO_ANSWER = "no_answer"
    """Serve or its replica failed, and nothing is known of the engine."""
    ENGINE_LOST = "engine_lost"
    """It ended after it had come up, for a reason that no other kind names."""
    ENGINE_RESTARTED = "engine_restarted"
    """Another process answers than the one that was booted."""
    ENGINE_HANGS = "engine_hangs"
    """It gave no token under load, and no completion when it was asked afterwards."""
    NO_VALID_BLOCK = "no_valid_block"
    """All blocks were measured and none can be trusted."""
    CUT_SHORT = "cut_short"
    """The trial was ended before all blocks were measured."""


_INFEASIBLE = frozenset(
    {
        FailureKind.BAD_ARGUMENTS,
        FailureKind.NOT_IN_FORCE,
        # The engine had found the memory free that it may take, so what it lacks is its own need.
        FailureKind.KV_CACHE,
        FailureKind.OUT_OF_MEMORY,
        FailureKind.OOM_FIRST_REQUEST,
    }
)
CLASSES: dict[FailureKind, FailureClass] = {
    **dict.fromkeys(FailureKind, FailureClass.TRANSIENT),
    **dict.fromkeys(_INFEASIBLE, FailureClass.INFEASIBLE),
    FailureKind.NO_VALID_BLOCK: FailureClass.MEASUREMENT,
    FailureKind.WRONG_BUILD: FailureClass.CONFIGURATION,
}
"""Of every kind. Memory that is missing at the start, or later for whatever reason, may be held by
somebody else, or come back late from the boot before: such an arm gets another boot."""

REMEDIES: dict[FailureKind, str] = {
    FailureKind.STARTUP_CHECK: (
        "less memory was free when it started than engine.args.gpu_memory_utilization asks for: "
        "end what else holds memory on this node, or lower that key"
    ),
    FailureKind.KV_CACHE: (
        "the weights leave too little for the KV cache: raise engine.args.gpu_memory_utilization "
        "or lower engine.args.max_model_len"
    ),
    FailureKind.OUT_OF_MEMORY: (
        "it ran out of memory while it loaded: lower engine.args.max_num_seqs or "
        "max_num_batched_tokens, or serve smaller weights"
    ),
    FailureKind.OOM_FIRST_REQUEST: (
        "it came up and ran out of memory in its first request, since the KV cache had taken the "
        "rest: lower engine.args.gpu_memory_utilization"
    ),
    FailureKind.OOM_UNDER_LOAD: (
        "it ran out of memory under load and could not serve it either: lower "
        "engine.args.gpu_memory_utilization or max_num_seqs"
    ),
    FailureKind.OOM_KILLED: (
        "the kernel's out-of-memory killer ended it (dmesg on the node names the process): lower "
        "engine.args.gpu_memory_utilization, and set node.min_mem_available_gib, which acts before"
    ),
    FailureKind.RAY_OOM: (
        "Ray's memory monitor ended it: start Ray on this node with "
        "RAY_memory_monitor_refresh_ms=0 (docs/operations.md, section 2)"
    ),
    FailureKind.MEMORY_FLOOR: (
        "lower engine.args.gpu_memory_utilization, or end what else takes memory on this node"
    ),
    FailureKind.BOOT_STALLED: (
        "raise engine.boot_silence_s if it was compiling, and see the end of its log"
    ),
    FailureKind.ENGINE_HANGS: "see the end of its log",
}
"""What to change, by kind; a kind whose reason says it all has none."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What ended a boot, and by what evidence."""

    kind: FailureKind
    reason: str
    """What happened, one sentence."""
    cause: str = ""
    """The line that names the root cause, from the engine's log or Ray; empty where none does."""
    advice: str = ""
    """What to change here, where more is known than the kind; empty takes that of ``REMEDIES``."""

    @property
    def sentence(self) -> str:
        """Reason, cause and what to change."""
        said = f"{self.reason}: {self.cause}" if self.cause else self.reason
        remedy = self.advice or REMEDIES.get(self.kind)
        return f"{said}; {remedy}" if remedy else said


class InfeasibleBoot(InfeasibleArm):
    """An arm cannot run here, by the failure of its boot."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure

    def __str__(self) -> str:
        return self.failure.sentence


class FailedBoot(TransientError):  # noqa: N818  named as its sibling
    """A boot failed for a reason that may pass."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure

    def __str__(self) -> str:
        return self.failure.sentence


def boot_error(failure: Failure) -> InfeasibleBoot | FailedBoot:
    """Return the error of a boot that failed, by the class of its kind."""
    if CLASSES[failure.kind] is FailureClass.INFEASIBLE:
        return InfeasibleBoot(failure)
    return FailedBoot(failure)


def failure_of(error: InfeasibleArm | TransientError) -> Failure:
    """Return what an error of a boot says of it; a plain one says no more than class and text."""
    if isinstance(error, InfeasibleBoot | FailedBoot):
        return error.failure
    is_refused = isinstance(error, InfeasibleArm)
    kind = FailureKind.BAD_ARGUMENTS if is_refused else FailureKind.NO_ANSWER
    return Failure(kind, str(error))
