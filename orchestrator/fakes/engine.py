"""An engine in memory that says of itself what a real one says."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.core.failures import Failure, FailureKind, boot_error
from orchestrator.core.types import Arm, EngineFacts
from orchestrator.errors import TransientError
from orchestrator.fakes.board import BootFault, FakeBoard, Faults, RunningEngine

MAX_MODEL_LEN = 32_768
WEIGHTS_BYTES = 8 * 2**30
_FAILURES = {
    BootFault.INFEASIBLE: Failure(
        FailureKind.OUT_OF_MEMORY, "the engine process ended", "CUDA out of memory at boot"
    ),
    BootFault.TRANSIENT: Failure(FailureKind.EXITED, "the engine process ended with status 1"),
    BootFault.REFUSED: Failure(
        FailureKind.BAD_ARGUMENTS,
        "the engine process ended with status 2",
        "vllm: error: unrecognized arguments: --nonsense",
    ),
    BootFault.STARTUP_CHECK: Failure(
        FailureKind.STARTUP_CHECK,
        "the engine process ended with status 1",
        "Free memory on device cuda:0 is less than desired GPU memory utilization",
    ),
}
KV_TOKENS_PER_DRAFT_TOKEN = 4_000
"""What each drafted position takes from the KV cache's capacity."""


class FakeEngine:
    """Boots arms on a ``FakeBoard``; implements ``ports.Engine``."""

    def __init__(self, board: FakeBoard) -> None:
        self._board = board
        self._asked: Arm | None = None
        self._log: list[str] = []
        self._message = ""

    def start(self, arm: Arm, on_progress: Callable[[str], None]) -> EngineFacts:
        """Boot the arm in virtual time.

        Raises:
            InfeasibleArm: The arm's fault says so.
            TransientError: The arm's fault says so.
        """
        board = self._board
        number = board.count_boot(arm)
        self._asked = arm
        self._log = [f"booting {arm.key}, boot {number}"]
        on_progress(self._log[-1])
        faults = board.faults_of(arm)
        if faults.boot is not None and _fails(faults, number):
            board.clock.sleep(board.boot_time_s / 4)
            self._log.append(f"boot failed: {faults.boot}")
            failure = _FAILURES[faults.boot]
            self._message = f"the deployment failed to start: {failure.reason}"
            raise boot_error(failure)
        board.clock.sleep(board.boot_time_s)
        engine = board.power_on(arm, number)
        self._log.append(f"ready, boot id {engine.boot_id}")
        on_progress(self._log[-1])
        return self._facts_of(engine)

    def facts(self) -> EngineFacts:
        """Ask the running engine again.

        Raises:
            TransientError: No engine answers.
        """
        return self._facts_of(self._board.engine())

    def metrics_text(self) -> str:
        """Return the engine's Prometheus exposition.

        Raises:
            TransientError: No engine answers.
        """
        return exposition(self._board.engine(), kv_cache_tokens=self._kv_cache_tokens())

    def pids(self) -> frozenset[int]:
        """Return the process of the boot; empty when there is none."""
        try:
            return frozenset({self._board.engine().pid})
        except TransientError:
            return frozenset()

    def log_tail(self) -> str:
        """Return the last lines of the engine's log."""
        return "\n".join(self._log)

    def serve_message(self) -> str:
        """Return what the deployment of a boot that failed would say."""
        return self._message

    def probe(self) -> str | None:
        """Return what is wrong with the running engine's completions."""
        try:
            return "no completion came" if self._board.engine().hangs else None
        except TransientError as error:
            return str(error)

    def post_mortem(self) -> Failure | None:
        """Return the evidence that the arm's fault leaves."""
        return None if self._asked is None else self._board.faults_of(self._asked).death

    def kill(self) -> None:
        """End the engine's process."""
        self._board.kill()

    def stop(self) -> None:
        """End the boot; safe to call twice."""
        self._board.power_off()

    def _kv_cache_tokens(self) -> int:
        depth = self._asked.num_speculative_tokens if self._asked else 0
        return self._board.kv_cache_tokens - KV_TOKENS_PER_DRAFT_TOKEN * depth

    def _facts_of(self, engine: RunningEngine) -> EngineFacts:
        arm = engine.arm
        speculates = not arm.is_baseline
        kv_cache_tokens = self._kv_cache_tokens()
        return EngineFacts(
            boot_id=engine.boot_id,
            pid=engine.pid,
            base_url=self._board.base_url,
            engine_version=arm.engine_build,
            model_runner="v2",
            num_speculative_tokens=arm.num_speculative_tokens if speculates else None,
            draft_sample_method=arm.draft_sample_method,
            rejection_sample_method=arm.rejection_sample_method,
            draft_architecture="DFlash2DraftModel" if speculates else None,
            kv_cache_tokens=kv_cache_tokens,
            kv_max_concurrency=kv_cache_tokens / MAX_MODEL_LEN,
            max_model_len=MAX_MODEL_LEN,
            boot_time_s=self._board.boot_time_s,
            weights_bytes=WEIGHTS_BYTES,
            log_path="",
        )


def exposition(engine: RunningEngine, *, kv_cache_tokens: int) -> str:
    """Return counters as vLLM publishes them, ``_created`` twins included."""
    counters = engine.counters
    rows: list[tuple[str, str, int]] = [
        ("generation_tokens", "", counters.generation_tokens),
        ("prompt_tokens", "", counters.prompt_tokens),
    ]
    if not engine.arm.is_baseline:
        rows += [
            ("spec_decode_num_drafts", "", counters.num_drafts),
            ("spec_decode_num_draft_tokens", "", counters.num_draft_tokens),
            ("spec_decode_num_accepted_tokens", "", counters.num_accepted_tokens),
        ]
        rows += [
            ("spec_decode_num_accepted_tokens_per_pos", f',position="{position}"', value)
            for position, value in enumerate(counters.accepted_per_pos)
        ]
    labels = 'engine="0",model_name="specpilot"'
    concurrency = kv_cache_tokens / MAX_MODEL_LEN
    lines = [
        "# HELP vllm:num_requests_running Number of requests in model execution batches.",
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{{{labels}}} {float(engine.num_running)}",
        "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig",
        "# TYPE vllm:cache_config_info gauge",
        f'vllm:cache_config_info{{kv_cache_size_tokens="{kv_cache_tokens}",'
        f'kv_cache_max_concurrency="{concurrency:.4f}",engine="0"}} 1.0',
    ]
    lines += [
        "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.",
        "# TYPE process_start_time_seconds gauge",
        # Another process has another start; the board counts them.
        f"process_start_time_seconds {1.7e9 + engine.pid}",
    ]
    described: set[str] = set()
    for name, more, value in rows:
        if name not in described:
            described.add(name)
            lines += [f"# HELP vllm:{name}_total vLLM.", f"# TYPE vllm:{name}_total counter"]
        lines.append(f"vllm:{name}_total{{{labels}{more}}} {float(value)}")
        lines.append(f"vllm:{name}_created{{{labels}{more}}} 1.7e+09")
    return "\n".join(lines) + "\n"


def _fails(faults: Faults, number: int) -> bool:
    return faults.failing_boots is None or number < faults.failing_boots
