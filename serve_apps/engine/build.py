"""What an engine runs on: its build, its machine, and the environment that changes its kernels.

Gathered beside the engine, in the replica, in plain JSON types. Nothing of the engine is imported:
its own interpreter is asked (`build_probe`), which takes 0.2 s.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from serve_apps.engine.spec import EngineSpec

IMAGE_DIGEST_VARIABLE = "SPECPILOT_IMAGE_DIGEST"
"""Set by whoever runs the container: a process cannot see the digest of its own image."""

_PROBE = Path(__file__).with_name("build_probe.py")
_PROBE_TIMEOUT_S = 60.0
_PROC = Path("/proc")

_PREFIXES = (
    *("VLLM_", "CUDA_", "NCCL_", "TORCH_", "TORCHINDUCTOR_", "TRITON_", "FLASHINFER_", "PYTORCH_"),
    *("OMP_", "CUBLAS_", "CUBLASLT_", "CUDNN_", "NVIDIA_", "KMP_", "MKL_", "CUTE_", "DG_"),
    *("GOMP_", "DNNL_", "ONEDNN_", "ATEN_", "OPENBLAS_", "MALLOC_"),
)
_NAMES = frozenset({"LD_PRELOAD", "LD_LIBRARY_PATH"})
# Of an image, and not asked of anything.
_LABELS = frozenset({"CUDA_VERSION", "NCCL_VERSION", "CUDNN_VERSION", "NVIDIA_PRODUCT_NAME"})
# Words of a name that make it a place, a log, a limit on waiting, or one device of many.
_PLACES = frozenset(
    {
        *("HOME", "HOST", "HOSTNAME", "IP", "ADDR", "PORT", "URL", "URI", "ENDPOINT", "SERVER"),
        *("IFNAME", "HCA", "ROOT", "DIR", "TMPDIR", "TIMEOUT", "LOG", "LOGS", "LOGGING", "DEBUG"),
        *("TRACE", "USAGE", "STATS", "TRACK", "RANK", "UUID", "DEVICES", "REQUIRE"),
    }
)
_SECRETS = re.compile(r"(?i)key|secret|passw|credential|auth|pwd|token(?!s_|s$|iz|_threshold)")
_KEY_LIKE = re.compile(r"\b(?:hf_|sk-|ghp_|nvapi-|github_pat_)[\w-]{8,}|://|\beyJ[\w-]{8,}\.")
_DRIVER = re.compile(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b")
# Libraries that compute, allocate or talk to the device; a folder of the system has thousands more.
_LIBRARIES = re.compile(
    r"lib(?:cu|nv|nccl|torch|c10|gomp|iomp|omp|stdc|tcmalloc|jemalloc|mimalloc|mkl|dnnl|openblas)"
)
_SETTINGS = (".json", ".yaml", ".yml", ".toml", ".py")
_READ_BYTES = 1 << 20


def build_facts(spec: EngineSpec, env: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts of a build, in JSON types; None where something cannot be found out.

    Args:
        spec: What is booted.
        env: The engine's whole environment, from which its interpreter finds its packages.
    """
    machine = os.uname()
    return {
        "launcher": spec.launcher,
        "image_digest": env.get(IMAGE_DIGEST_VARIABLE) or None,
        **_installed(spec.python or sys.executable, env.get("PYTHONPATH", "")),
        "driver": driver_version(_PROC),
        "gpus": gpu_models(_PROC),
        "kernel": machine.release,
        "machine": machine.machine,
        "environment": kernel_variables(env),
    }


def cache_key(build: Mapping[str, Any]) -> str:
    """Return 16 hex digits that compile caches are kept under: other builds get other caches."""
    names = ("wheel", "image_digest", "packages", "plugins", "torch_commit", "cuda", "driver")
    text = json.dumps({name: build.get(name) for name in (*names, "machine")}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def cache_variables(folder: str, build: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that put every compile cache below a folder of the build's own."""
    root = Path(folder) / cache_key(build)
    return {
        "VLLM_CACHE_ROOT": str(root / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(root / "inductor"),
        "TRITON_CACHE_DIR": str(root / "triton"),
        "FLASHINFER_WORKSPACE_BASE": str(root / "flashinfer"),
    }


def kernel_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that change graphs or kernels, without secrets and places.

    A value that names files or folders is told by what lies there, see ``path_contents``.
    """
    return {
        name: path_contents(value) if _is_path(value) else _whole(value)
        for name, value in sorted(env.items())
        if (name.startswith(_PREFIXES) or name in _NAMES)
        and name not in _LABELS
        and not _PLACES & set(name.split("_"))
        and not _is_cache_folder(name, value)
        and not (_SECRETS.search(name) or ("TOKENS" in name and not value.isdecimal()))
        and not _KEY_LIKE.search(value)
    }


def path_contents(value: str) -> str:
    """Return paths of a variable by what lies there, 16 hex digits each, in their order.

    Of a file counts its size and first MiB, of a folder its settings (``*.json`` and the like, by
    content) and its libraries that compute (by name and size). What is not there is told by a
    digest of its path, so that it equals nothing else.
    """
    parts = [part for part in re.split(r"[:, ]", value) if part]
    return ":".join(_content_of(Path(part).expanduser()) for part in parts)


def _content_of(path: Path) -> str:
    try:
        if path.is_file():
            told = _file_content(path)
        elif path.is_dir():
            files = sorted(file for file in path.iterdir() if file.is_file())
            told = json.dumps(
                [
                    (
                        file.name,
                        file.stat().st_size if _LIBRARIES.match(file.name) else _file_content(file),
                    )
                    for file in files
                    if _LIBRARIES.match(file.name) or file.suffix in _SETTINGS
                ]
            )
        else:
            return f"unread-{_short(_whole(str(path)))}"
    except OSError:
        return f"unread-{_short(_whole(str(path)))}"
    return _short(told)


def _file_content(file: Path) -> str:
    with file.open("rb") as stream:
        start = hashlib.sha256(stream.read(_READ_BYTES)).hexdigest()
    return f"{file.stat().st_size} {start}"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _whole(value: str) -> str:
    return value.encode(errors="backslashreplace").decode()


def driver_version(proc: Path) -> str | None:
    """Return the version of NVIDIA's kernel module, or None where there is none."""
    first = _read(proc / "driver" / "nvidia" / "version").partition("\n")[0]
    found = _DRIVER.search(first)
    return None if found is None else found[1]


def gpu_models(proc: Path) -> list[str] | None:
    """Return the names of the GPUs as the driver lists them, sorted, or None without a driver."""
    folder = proc / "driver" / "nvidia" / "gpus"
    texts = [_read(file) for file in folder.glob("*/information")]
    names = [re.search(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE) for text in texts]
    return sorted(name[1] for name in names if name is not None) or None


@lru_cache(maxsize=8)
def _installed_text(python: str, pythonpath: str) -> str:
    env = {"PATH": os.defpath, "PYTHONPATH": pythonpath, "PYTHONDONTWRITEBYTECODE": "1"}
    if "HOME" in os.environ:
        env["HOME"] = os.environ["HOME"]  # packages of the user
    answer = subprocess.run(
        [python, "-c", _PROBE.read_text(encoding="utf-8")],
        env={name: value for name, value in env.items() if value},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        text=True,
        timeout=_PROBE_TIMEOUT_S,
    )
    return answer.stdout


def _installed(python: str, pythonpath: str) -> dict[str, Any]:
    """Return what the interpreter says; only nulls when it does not answer, for the boot goes on.

    Asked once a process: a replica boots one build.
    """
    try:
        answer = json.loads(_installed_text(python, pythonpath))
    except (OSError, subprocess.SubprocessError, ValueError):
        answer = None
    names = ("python", "wheel", "packages", "plugins", "cuda", "hip", "torch_commit")
    told = answer if isinstance(answer, dict) else {}
    return {name: told.get(name) for name in names}


def _is_path(value: str) -> bool:
    return any(part.startswith(("/", "~", "./", "../")) for part in re.split(r"[:, ]", value))


def _is_cache_folder(name: str, value: str) -> bool:
    # VLLM_CPU_KVCACHE_SPACE and VLLM_DISABLE_COMPILE_CACHE are no folders.
    return _is_path(value) and ("CACHE" in name or "WORKSPACE" in name or "TMP" in name)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
