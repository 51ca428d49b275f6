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
    NO_GO = 3
    """It was done, and nothing is to be promoted on what came of it. Of a study: nothing was. Of
    ``premises``: something is stale. Of ``decide``: there is no winner. Of the commands that judge
    an output or a build: they cannot tell."""
    INTERRUPTED = 130
    """By Ctrl-C, SIGTERM, a hang-up or `ray job stop`: what a shell makes of SIGINT, 128 + 2."""
