"""One boot as Ray Tune runs it: a class Trainable in an actor of its own."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray import tune

from orchestrator.core.codec import from_plain, to_plain
from orchestrator.core.types import Arm
from orchestrator.trial import Trial
from orchestrator.trial_log import TrialLog

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOrder:
    """What the study asks of one trial; crosses from the driver into the trial's actor."""

    trial_id: str
    arm: Arm
    replicate: int
    """Number of the boot among those of its arm and purpose, from 0."""
    node_id: str
    is_proof: bool = False
    """Whether the boot measures nothing and looks at the parts of a proof."""
    floor: float | None = None
    """Of a proof boot: log odds by which numerics move an event, as its control measured them."""


TrialFactory = Callable[[TrialOrder, TrialLog], Trial]


class SpecTrial(tune.Trainable):
    """One boot of one arm; a ``step()`` is one block."""

    def setup(self, config: dict[str, Any], factory: TrialFactory | None = None) -> None:
        """Boot the engine; an arm that cannot run ends the trial, it does not fail it."""
        assert factory is not None
        order = TrialOrder(
            trial_id=self.trial_id,
            arm=from_plain(Arm, config["arm"]),
            replicate=int(config["replicate"]),
            node_id=ray.get_runtime_context().get_node_id(),
            is_proof=bool(config["is_proof"]),
            floor=config["floor"],
        )
        self._log = TrialLog()
        self._trial = factory(order, self._log)
        try:
            self._trial.setup()
        except BaseException:
            self.cleanup()  # Tune does not call it for a trial whose setup raised
            raise

    def step(self) -> dict[str, Any]:
        """Measure one block, or report how the trial ended."""
        text = "" if self._trial.ended else self._trial.step()
        result: dict[str, Any] = {"text": text}
        if self._trial.ended:
            # As text: Tune flattens nested results on their way to the searcher.
            result |= {"boot": json.dumps(to_plain(self._trial.finish())), "done": True}
        return result | {"told": json.dumps([to_plain(entry) for entry in self._log.take()])}

    def cleanup(self) -> None:
        """End the engine; its own failure must not hide how the trial ended."""
        try:
            self._trial.cleanup()
        except Exception:  # Ray's and the engine's have no common class
            logger.exception("cleanup of trial %s failed", self.trial_id)
