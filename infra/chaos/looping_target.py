"""A copy of the tiny target that says one token again and again, or a few in a circle."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

_WEIGHTS = "model.safetensors"
_WRITES = ("self_attn.o_proj.weight", "mlp.down_proj.weight")


def looping_copy(target: Path, to: Path) -> None:
    """Copy a checkpoint, with layers that write nothing into the residual stream.

    The next token follows from the last one alone then, and a map of a vocabulary into itself runs
    into a circle: an engine serves it as fast as ever, with status 200.

    Args:
        target: Folder of a checkpoint whose layers are named as Qwen3's.
        to: Where the copy is to be; what is there is written over.

    Raises:
        OSError: The folder cannot be read or written.
    """
    shutil.copytree(target, to, dirs_exist_ok=True)
    weights = load_file(to / _WEIGHTS)
    silent = {
        name: torch.zeros_like(weight) for name, weight in weights.items() if name.endswith(_WRITES)
    }
    save_file({**weights, **silent}, to / _WEIGHTS, metadata={"format": "pt"})
