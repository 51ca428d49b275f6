"""What the exit status of a command means."""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """Of the commands of a study.

    The others say in their help what 1 and 3 are of them.
    """

    DONE = 0
    FAILED = 1
    BAD_INPUT = 2
    NOTHING_PROMOTED = 3
    """Of ``premises``: something is stale, so that nothing may be promoted on it. Of ``decide``:
    there is no winner."""
    CANNOT_TELL = 3
    """The same status, of the commands that judge an output or a build."""
    INTERRUPTED = 130
    """By Ctrl-C, SIGTERM, a hang-up or `ray job stop`: what a shell makes of SIGINT, 128 + 2."""
