"""The stand-in engine as a process of its own, ended with all that it started."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from serve_apps.engine.spec import FAKE_LAUNCHER, EngineSpec
from serve_apps.engine.supervisor import EngineProcess

MODEL = "served"
MAX_MODEL_LEN = 1024
_TIMES = ("STEP_S", "STEP_PER_DRAFT_S", "STEP_PER_STREAM_S", "PREFILL_PER_TOKEN_S")
QUICK = dict.fromkeys(_TIMES, "0")
"""Knobs of a stand-in that takes no time."""
SPECULATION = {"method": "dflash", "model": "/models/draft", "num_speculative_tokens": 4}


@contextmanager
def booted(
    logs: Path, *, speculates: bool, knobs: Mapping[str, str] | None = None, max_logprobs: int = -1
) -> Iterator[str]:
    """Boot one and yield its address.

    Args:
        logs: Folder of its log.
        speculates: Whether it has a draft.
        knobs: Values by name without the prefix.
        max_logprobs: As vLLM's argument.
    """
    spec = EngineSpec(
        model="/models/target",
        served_model_name=MODEL,
        log_path=str(logs / "{boot_id}.log"),
        launcher=FAKE_LAUNCHER,
        speculative_config=SPECULATION if speculates else None,
        args={"max_model_len": MAX_MODEL_LEN, "max_num_seqs": 16, "max_logprobs": max_logprobs},
        env={f"SPECPILOT_FAKE_{name}": value for name, value in {**QUICK, **(knobs or {})}.items()},
        boot_timeout_s=30.0,
        stop_timeout_s=1.0,
    )
    engine = EngineProcess(spec)
    engine.start()
    with asyncio.Runner() as runner:
        try:
            runner.run(engine.wait_ready())
            yield engine.facts().base_url
        finally:
            runner.run(engine.close())
