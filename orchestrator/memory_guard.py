"""Ends an engine before its node runs out of memory, while a trial is busy booting or loading it.

A board with unified memory kills no process when it runs out: it hangs as a whole, with the trial.
So nobody waits for the end of a block, and the engine gets no grace.
"""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Self

from orchestrator.core.node_health import NodeNeeds, below_floor
from orchestrator.ports import Engine, Node

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""Between two looks where nothing else is asked for; one takes less than a millisecond."""


class MemoryGuard:
    """Looks at the available memory from a thread of its own; without a floor it does nothing.

    A context manager: it looks from the entry to the exit. An engine may start after a kill, so
    that each look under the floor kills again.

    Args:
        node: Where the memory is.
        engine: What is killed at a breach.
        needs: The floor.
        look_s: Seconds between two looks.
    """

    def __init__(
        self, node: Node, engine: Engine, needs: NodeNeeds, *, look_s: float = LOOK_S
    ) -> None:
        self._node = node
        self._engine = engine
        self._needs = needs
        self._look_s = look_s
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.breach: str | None = None
        """What was seen when the engine was first killed; None while the floor holds."""

    def __enter__(self) -> Self:
        """Begin to look."""
        if self._needs.min_mem_available_bytes is not None:
            self._thread = threading.Thread(target=self._watch, daemon=True, name="memory-guard")
            self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Look no more; a kill under way is waited for."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self._look_s):
            try:
                self._look()
            except Exception:  # whatever it is, the thread must look again
                logger.exception("the node's memory cannot be guarded")

    def _look(self) -> None:
        breach = below_floor(self._node.memory_available(), self._needs)
        if breach is not None:
            self.breach = self.breach or breach
            logger.warning("the engine is killed: %s", breach)
            self._engine.kill()
