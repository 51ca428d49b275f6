"""The proof boots of a study: which is next, and what came of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core.codec import to_plain
from orchestrator.core.proof import MAX_CHOICES, next_proof, proof_arms
from orchestrator.core.proof_gates import ProofDemands, Proofs
from orchestrator.core.race_state import Choice, RaceQuestion
from orchestrator.core.types import Arm, Boot


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedProofs:
    """The state of a build's proof boots as it is kept."""

    ended: tuple[Boot, ...] = ()
    lost: tuple[Arm, ...] = ()
    cut: tuple[Arm, ...] = ()


class ProofBoots:
    """Keeps the proof boots that ended, were lost and are under way.

    Args:
        question: Of the race.
        demands: What is asked of them.
        raced: Returns the boots that were measured so far.
    """

    def __init__(
        self,
        question: RaceQuestion,
        demands: ProofDemands,
        raced: Callable[[], Sequence[Boot]] = tuple,
    ) -> None:
        self._question = question
        self._raced = raced
        self._demands = demands
        self._ended: list[Boot] = []
        self._lost: list[Arm] = []
        self._cut: list[Arm] = []
        self._running: dict[str, Arm] = {}

    @property
    def ended(self) -> tuple[Boot, ...]:
        """Proof boots that came back, in the order of their end."""
        return tuple(self._ended)

    @property
    def lost(self) -> tuple[Arm, ...]:
        """Arms of proof boots that were lost with their process, once for each."""
        return tuple(self._lost)

    @property
    def num_running(self) -> int:
        """Proof boots under way."""
        return len(self._running)

    @property
    def set_aside(self) -> Mapping[Arm, str]:
        """Arms of the race that cannot win by what the proof boots showed, and why."""
        return self._proofs.set_aside(self._question.arms)

    @property
    def _proofs(self) -> Proofs:
        return Proofs(boots=self.ended, raced=tuple(self._raced()), demands=self._demands)

    def floor(self, arm: Arm) -> float | None:
        """Return the numeric floor that the arm's control measured, in log odds, or None."""
        return self._proofs.floor(arm)

    def start(self, trial_id: str, choice: Choice | None) -> tuple[Arm, int] | None:
        """Return the arm of the next proof boot and its number, and count it as under way."""
        question = self._question
        proved = {boot.arm for boot in self._ended if not boot.arm.is_baseline}
        is_new = choice is not None and choice.arm not in proved
        if not self._demands.any or (is_new and len(proved) >= MAX_CHOICES):
            return None
        arm = next_proof(
            proof_arms(choice, question.arms, question.reference),
            ended=self._proofs.boots,
            lost=self._lost,
            running=tuple(self._running.values()),
        )
        if arm is None:
            return None
        number = [*(boot.arm for boot in self._ended), *self._lost, *self._cut].count(arm)
        self._running[trial_id] = arm
        return arm, number

    def end(self, trial_id: str, boot: Boot | None, *, is_cut: bool = False) -> bool:
        """Record what came back; return whether it was a proof boot.

        Args:
            trial_id: Of the boot.
            boot: Its record; None when there is none.
            is_cut: Whether one without a record was ended with the study, which is no failed try.
        """
        arm = self._running.pop(trial_id, None)
        if arm is None:
            return False
        if boot is not None:
            self._ended.append(boot)
        else:
            (self._cut if is_cut else self._lost).append(arm)
        return True

    def save(self) -> dict[str, Any]:
        """Return the state as plain JSON; a boot under way ends with the driver.

        That is no failed try: its arm came up before, or it would not have been chosen.
        """
        return {
            "ended": [to_plain(boot) for boot in self._ended],
            "lost": [to_plain(arm) for arm in self._lost],
            "cut": [to_plain(arm) for arm in [*self._cut, *self._running.values()]],
        }

    def restore(self, saved: SavedProofs) -> None:
        """Go on from what ``save`` returned."""
        self._ended, self._lost = list(saved.ended), list(saved.lost)
        self._cut, self._running = list(saved.cut), {}
