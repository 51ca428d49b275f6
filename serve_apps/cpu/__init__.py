"""vLLM's V2 model runner on a CPU: Triton's interpreter, mended, behind a backend named "cpu".

`environment()` is what an engine process needs in order to run this way. This module imports
the standard library only, so that a supervisor can read it in any venv.
"""

_ENVIRONMENT = {
    "TRITON_INTERPRET": "1",
    # Two cores carry three processes of the engine; more OpenMP threads than one only spin.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Whole GiB. An explicit size also skips the profiling run at boot.
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def environment() -> dict[str, str]:
    """Return the environment variables that make an engine run the V2 runner on the CPU."""
    return dict(_ENVIRONMENT)
