"""A shorter boot: the engine core is forked from the server instead of importing all again.

vLLM's CPU platform insists on "spawn", for workers that must set OpenMP up before torch is
loaded. Here OpenMP has one thread, set in the environment, and the only child is the engine
core, so that "fork", vLLM's own default elsewhere, saves the second import of torch and vLLM.
"""

import os
from typing import Any

START_METHOD_VARIABLE = "SPECPILOT_CPU_START_METHOD"
_VLLM_VARIABLE = "VLLM_WORKER_MULTIPROC_METHOD"


def apply_start_method(platform: Any) -> None:
    """Make the platform leave the start method at the one asked for in the environment.

    Args:
        platform: vLLM's CPU platform class; its config check sets "spawn" as a side effect.
    """
    method = os.environ.get(START_METHOD_VARIABLE)
    if method is None or getattr(platform, "specpilot_start_method", None) == method:
        return
    original = platform.check_and_update_config

    def check_and_update_config(vllm_config: Any) -> None:
        original(vllm_config)
        os.environ[_VLLM_VARIABLE] = method

    platform.check_and_update_config = staticmethod(check_and_update_config)
    platform.specpilot_start_method = method
