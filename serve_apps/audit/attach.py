"""Wraps the sampling of vLLM's V2 model runner where it is as known: 0.28 to 0.33.

Three functions are wrapped, found by name and checked by signature. `GPUModelRunner.sample` says
which requests a step samples for, warm-up excluded, and how many tokens each got;
`rejection_sample` and `gumbel_sample`, in the modules that call them, see the distributions. The
wrapped functions run first and unchanged; what the audit computes consumes no random numbers.
"""

# mypy: disable-error-code="import-untyped,import-not-found"

import importlib
import inspect
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from serve_apps.audit.nulls import BLOCK, STANDARD, Verification
from serve_apps.audit.recorder import Recorder, Source
from serve_apps.audit.records import DEFAULT_LIMIT_ROWS, write_note

_LOGGER = logging.getLogger(__name__)

_GPU = "vllm.v1.worker.gpu"
RUNNER, SAMPLER = f"{_GPU}.model_runner", f"{_GPU}.sample.sampler"
REJECTION = f"{_GPU}.spec_decode.rejection_sampler"

_VERIFIED = (
    *("target_logits", "draft_logits", "draft_sampled", "cu_num_logits", "pos", "idx_mapping"),
    *("expanded_idx_mapping", "expanded_local_pos", "temperature", "seed"),
)
# An argument that none of the versions read has may change the rule; then no null is known.
_OPTIONS = frozenset(
    {
        *("num_speculative_steps", "synthetic_conditional_rates", "use_fp64"),
        *("use_block_verification", "contexts", "watermarking", "watermarking_skip_mask"),
        *("watermark_key", "fly_window_size", "fly_entropy_threshold", "fly_entropy_top_k"),
    }
)
_DRAWN = ("logits", "expanded_idx_mapping", "temperature", "seed", "pos", "apply_temperature")
_SAMPLE = ("self", "hidden_states", "input_batch", "grammar_output")
_WARMUP_IDS = ("_warmup_", "_v2_mixed_warmup")


def attach(folder: Path, *, limit_rows: int | None = None) -> None:
    """Wrap the engine's sampling in this process, or write down why that cannot be done.

    Args:
        folder: Where records and notes go; made if missing.
        limit_rows: Rows that are written at most.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fault = find_fault()
    if fault is not None:
        _LOGGER.warning("specpilot audit: cannot attach: %s", fault)
        write_note(folder / f"audit-{os.getpid()}.json", attached=False, why=fault)
        return
    recorder = Recorder(folder, limit_rows=limit_rows or DEFAULT_LIMIT_ROWS)
    runner = importlib.import_module(RUNNER).GPUModelRunner
    if getattr(runner, "specpilot_audit", None) is not None:
        return
    rejection: Any = importlib.import_module(REJECTION)
    sampler: Any = importlib.import_module(SAMPLER)
    rejection.rejection_sample = verified(rejection.rejection_sample, recorder)
    sampler.gumbel_sample = drawn(sampler.gumbel_sample, recorder)
    runner.sample = sampled(runner.sample, recorder)
    runner.specpilot_audit = recorder


def find_fault() -> str | None:
    """Return why this build's sampling cannot be wrapped, in one clause; None where it can."""
    for module, path, leading, others in (
        (RUNNER, ("GPUModelRunner", "sample"), _SAMPLE, frozenset[str]()),
        (REJECTION, ("rejection_sample",), _VERIFIED, _OPTIONS),
        (SAMPLER, ("gumbel_sample",), _DRAWN, None),
    ):
        name = f"{module}.{'.'.join(path)}"
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError:
            return f"this build has no {module}"
        for part in path:
            found = getattr(found, part, None)
        if found is None:
            return f"this build has no {name}"
        fault = signature_fault(found, leading, others)
        if fault is not None:
            return f"{name} {fault}"
    return None


def signature_fault(
    function: Callable[..., Any], leading: Sequence[str], others: frozenset[str] | None
) -> str | None:
    """Return how a function's parameters differ from those known; None where they do not.

    Args:
        function: As the build has it.
        leading: Names of its first parameters, in order.
        others: Names that may follow; None if any may.
    """
    names = tuple(inspect.signature(function).parameters)
    if names[: len(leading)] != tuple(leading):
        return f"takes ({', '.join(names)}), not ({', '.join(leading)}, ...)"
    strange = [] if others is None else [n for n in names[len(leading) :] if n not in others]
    return f"takes {', '.join(strange)}, which is not known here" if strange else None


def sampled(original: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    """Wrap `GPUModelRunner.sample`: a step begins, its observations are made, it ends."""

    def sample(runner: Any, hidden_states: Any, input_batch: Any, *rest: Any, **more: Any) -> Any:
        real = not any(str(name).startswith(_WARMUP_IDS) for name in input_batch.req_ids)
        if not (real and recorder.begin(lambda: source_of(runner))):
            return original(runner, hidden_states, input_batch, *rest, **more)
        result = original(runner, hidden_states, input_batch, *rest, **more)
        recorder.end(input_batch.idx_mapping_np, num_sampled=result[1])
        return result

    return sample


def verified(original: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    """Wrap `rejection_sample`."""
    signature = inspect.signature(original)

    def rejection_sample(*args: Any, **more: Any) -> Any:
        tokens, counts = original(*args, **more)
        if recorder.recording:
            given = signature.bind(*args, **more).arguments
            if given.get("contexts") is not None:
                recorder.refuse("tokens are watermarked, and so no draws from the target")
            else:
                recorder.add_verification(verification(given, tokens, counts))
        return tokens, counts

    return rejection_sample


def verification(given: dict[str, Any], tokens: Any, counts: Any) -> Verification:
    """Return what `rejection_sample` was given, under the rule that it followed."""
    rule = BLOCK if given.get("use_block_verification") else STANDARD
    if given.get("synthetic_conditional_rates") is not None:
        rule = "synthetic"
    elif given.get("fly_window_size"):
        rule = "fly"
    return Verification(
        target_logits=given["target_logits"],
        draft_logits=given["draft_logits"],
        draft_sampled=given["draft_sampled"],
        cu_num_logits=given["cu_num_logits"],
        idx_mapping=given["idx_mapping"],
        temperature=given["temperature"],
        sampled=tokens,
        num_sampled=counts,
        rule=rule,
    )


def drawn(original: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    """Wrap `gumbel_sample` of steps without drafts; its logits have the temperature applied."""

    def gumbel_sample(
        logits: Any, expanded_idx_mapping: Any, temperature: Any, *rest: Any, **more: Any
    ) -> Any:
        tokens = original(logits, expanded_idx_mapping, temperature, *rest, **more)
        if recorder.recording:
            recorder.add_sampling(logits, tokens, temperature[expanded_idx_mapping])
        return tokens

    return gumbel_sample


def source_of(runner: Any) -> Source:
    """Return what a runner's records are taken from, or why its steps cannot be recorded."""
    parallel = importlib.import_module("vllm.distributed.parallel_state")
    speculative = runner.vllm_config.speculative_config
    fault = None
    if getattr(runner, "batch_sharder", None) is not None:
        fault = "a step's requests are shared out over ranks"
    return Source(
        engine_version=str(importlib.import_module("vllm").__version__),
        rejection_sample_method=speculative.rejection_sample_method if speculative else "none",
        draft_sample_method=speculative.draft_sample_method if speculative else "none",
        # All ranks of one engine draw the same tokens.
        duplicate=parallel.get_tensor_model_parallel_rank() != 0,
        fault=fault,
    )
