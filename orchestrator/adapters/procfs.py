"""What Linux tells of the machine in ``/proc``; a value that the kernel does not list is None."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

KIB = 1024


def read_text(path: Path) -> str:
    """Return the file's text; empty when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def parse_meminfo(text: str) -> dict[str, int]:
    """Return the sizes in ``/proc/meminfo`` in bytes, by the kernel's names."""
    sizes: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        number, _, unit = value.strip().partition(" ")
        if number.isdigit():
            sizes[name.strip()] = int(number) * (KIB if unit == "kB" else 1)
    return sizes


def page_cache_bytes(memory: Mapping[str, int]) -> int | None:
    """Return the bytes of page cache that the kernel gives back when memory is asked for.

    Formula: Cached - Shmem + Buffers + SReclaimable. Cached counts shared memory and tmpfs, which
    cannot be dropped; Buffers and the reclaimable slab can, and ``drop_caches`` frees all three.

    Args:
        memory: Sizes as ``parse_meminfo`` gives them; a part that a kernel does not list is left
            out of the sum.

    Returns:
        Bytes, or None when the kernel does not list Cached.
    """
    cached = memory.get("Cached")
    if cached is None:
        return None
    files = max(0, cached - memory.get("Shmem", 0))
    return files + memory.get("Buffers", 0) + memory.get("SReclaimable", 0)


def swap_used_bytes(memory: Mapping[str, int]) -> int | None:
    """Return the bytes of swap in use: 0 without swap, None when the kernel does not tell."""
    total, free = memory.get("SwapTotal"), memory.get("SwapFree")
    return None if total is None or free is None else total - free


def parse_load_average(text: str) -> float | None:
    """Return the load of the last minute from ``/proc/loadavg``, None when it is not there."""
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return None


def count_cores(text: str) -> int | None:
    """Return the cores that are online from ``/proc/stat``, None when it lists none.

    Not what this process may use (``sched_getaffinity``): the load average is the whole machine's.
    """
    names = (line.partition(" ")[0] for line in text.splitlines())
    return sum(name[:3] == "cpu" and name[3:].isdigit() for name in names) or None


def process_name(pid: int, proc: Path) -> str | None:
    """Return the first word of a process's command line, else its short name, else None."""
    command = read_text(proc / str(pid) / "cmdline").partition("\0")[0].strip()
    return command or read_text(proc / str(pid) / "comm").strip() or None
