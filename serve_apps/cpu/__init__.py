"""vLLM's V2 model runner on a CPU: Triton's interpreter, mended, behind a backend named "cpu".

`environment()` is what an engine process needs in order to run this way. This module imports
the standard library only, so that a supervisor can read it in any venv.
"""

_ENVIRONMENT = {
    "TRITON_INTERPRET": "1",
    # Two cores carry two processes of the engine; more OpenMP threads than one only spin.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # The worker lives in the engine core's process, and that one is forked from the server:
    # one import of torch and vLLM per boot instead of three. See boot.py.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "SPECPILOT_CPU_START_METHOD": "fork",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def environment(*, kv_cache_gib: int | None = 1) -> dict[str, str]:
    """Return the environment variables that make an engine run the V2 runner on the CPU.

    Args:
        kv_cache_gib: Size of the KV cache in GiB, which wins over `--kv-cache-memory-bytes`;
            None leaves the size to that flag. One of the two is needed: vLLM would otherwise
            take most of the machine's memory, after a profiling run.
    """
    chosen = dict(_ENVIRONMENT)
    if kv_cache_gib is not None:
        chosen["VLLM_CPU_KVCACHE_SPACE"] = str(kv_cache_gib)
    return chosen
