"""A wheel of vLLM, unpacked as far as its kernels' sources go."""

from __future__ import annotations

import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from orchestrator.errors import ConfigError

PACKAGE = "vllm"
SUFFIXES = frozenset({".py", ".json"})
"""What an import needs. Compiled libraries stay in the wheel; what is driven is not in them."""
MAX_BYTES = 512 << 20
"""The sources of 0.33.0 take 63 MB."""
MAX_FILES = 50_000


def unpack(wheel: Path, folder: Path) -> None:
    """Write the sources of the wheel's package `vllm` below a folder.

    Args:
        wheel: Of vLLM, for whatever platform.
        folder: Exists and is empty.

    Raises:
        ConfigError: The file is no wheel of vLLM, would take more than `MAX_BYTES`, has members
            that lead out of the folder, cannot be read, or there is no room for it.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in _chosen(archive, wheel):
                target = folder / PurePosixPath(member.filename)
                target.parent.mkdir(parents=True, exist_ok=True)
                # No more is read than the size that the member states, which was added up.
                target.write_bytes(archive.read(member))
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, RuntimeError) as fault:
        problem = f"cannot be unpacked: {fault}"
        raise ConfigError(str(wheel), problem, "give a whole wheel of vLLM") from fault
    except OSError as fault:
        problem = f"cannot be unpacked into {folder}: {fault.strerror or fault}"
        remedy = "make it readable, or set TMPDIR to a folder with room"
        raise ConfigError(str(wheel), problem, remedy) from fault


def _chosen(archive: zipfile.ZipFile, wheel: Path) -> list[zipfile.ZipInfo]:
    chosen = []
    for member in archive.infolist():
        path = PurePosixPath(member.filename)
        if path.is_absolute() or ".." in path.parts or "\\" in member.filename:
            raise _untrusted(wheel, f"its member {member.filename!r} leads out of the folder")
        if path.parts[:1] != (PACKAGE,) or path.suffix not in SUFFIXES or member.is_dir():
            continue
        if stat.S_ISLNK(member.external_attr >> 16):
            raise _untrusted(wheel, f"its member {member.filename!r} is a link")
        chosen.append(member)
    if not any(member.filename == f"{PACKAGE}/__init__.py" for member in chosen):
        raise ConfigError(str(wheel), f"holds no package {PACKAGE}", "give a wheel of vLLM")
    size = sum(member.file_size for member in chosen)
    if size > MAX_BYTES or len(chosen) > MAX_FILES:
        raise ConfigError(
            str(wheel), f"its sources are {len(chosen):,} files of {size >> 20:,} MiB",
            f"at most {MAX_FILES:,} files of {MAX_BYTES >> 20} MiB are unpacked",
        )  # fmt: skip
    return chosen


def _untrusted(wheel: Path, problem: str) -> ConfigError:
    return ConfigError(str(wheel), problem, "no wheel is made like this: get it anew")
