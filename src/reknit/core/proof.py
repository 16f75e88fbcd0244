"""What the ledger proves about one run, as data, as words for a person and as a dict for machines.

Made by `core.ledger.verify`; printed by `reknit ledger verify` and at the end of `reknit run`.
"""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class EpochProof:
    """One epoch of a run.

    Attributes:
        epoch: number, from 0.
        steps: committed steps of this epoch on the run's final line.
        of: steps that the epoch has.
        samples: samples in these steps.
        once: True if all steps are there and each id of the dataset was met exactly once.
        how: `counted` (every id of the epoch was generated and counted) or `order` (the data set is too large to
            count here; the order is a bijection by construction).
    """

    epoch: int
    steps: int
    of: int
    samples: int
    once: bool
    how: str = "counted"


@dataclasses.dataclass(frozen=True, slots=True)
class Proof:
    """The verdict on one run.

    Attributes:
        run: id of the run; empty when the log holds none.
        outcome: `completed`, `failed`, `stopped`, or empty while the run goes on.
        epochs: one entry an epoch that has at least one committed step.
        steps: committed steps on the final line.
        steps_in_all: steps of the whole course, 0 if unknown.
        samples: samples in the committed steps.
        rollbacks: restores after the run had committed steps.
        lost_steps: recorded steps so given up, summed; what was lost before it was recorded is not in it.
        generations: how many generations committed steps of the final line.
        computed_again: slots that were computed a second time because their first worker was lost.
        duplicates: steps that were told twice, in agreement.
        problems: what contradicts the claim, one sentence each; empty: `ok`.
        missing: what is simply not there yet, in words.
    """

    run: str = ""
    outcome: str = ""
    epochs: tuple[EpochProof, ...] = ()
    steps: int = 0
    steps_in_all: int = 0
    samples: int = 0
    rollbacks: int = 0
    lost_steps: int = 0
    generations: int = 0
    computed_again: int = 0
    duplicates: int = 0
    problems: tuple[str, ...] = ()
    missing: str = ""

    @property
    def ok(self) -> bool:
        """True if nothing speaks against the claim: every sample in exactly one committed step, once an epoch."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; `ok` included."""
        plain: dict[str, Any] = {"ok": self.ok}
        plain.update(dataclasses.asdict(self))
        plain["epochs"] = [dataclasses.asdict(epoch) for epoch in self.epochs]
        plain["problems"] = list(self.problems)
        return plain

    def text(self) -> str:
        """Return the proof in words, some lines, the verdict first."""
        if not self.run:
            return "the log holds no run"
        lines = [f"run {self.run}: {self._verdict()}"]
        lines += [f"  {line}" for line in _epoch_lines(self.epochs)]
        if self.steps:
            lines.append(
                f"  {self.steps} of {self.steps_in_all or '?'} steps, {self.samples} samples, "
                f"{_count(self.generations, 'generation')}, {_count(self.computed_again, 'slot')} computed again"
            )
        if self.rollbacks:
            lines.append(
                f"  {_count(self.rollbacks, 'rollback')} to a checkpoint: "
                f"{_count(self.lost_steps, 'recorded step')} done a second time, the first time does not count"
            )
        if self.missing:
            lines.append(f"  {self.missing}")
        lines += [f"  PROBLEM: {problem}" for problem in self.problems]
        return "\n".join(lines)

    def _verdict(self) -> str:
        if self.problems:
            return f"NOT PROVED, {_count(len(self.problems), 'problem')}"
        if not self.steps and not self.rollbacks:
            return "no step was committed, there is nothing to prove"
        if self.steps and self.steps == self.steps_in_all:
            return "every sample in exactly one committed step, once an epoch"
        return "every sample so far in exactly one committed step"


def _epoch_lines(epochs: tuple[EpochProof, ...]) -> list[str]:
    whole = [epoch for epoch in epochs if epoch.once]
    lines = []
    if len(whole) > 5:  # a hundred equal lines say less than one
        first, last = whole[0], whole[-1]
        lines.append(f"epochs {first.epoch}..{last.epoch}: {len(whole)} proved, {first.samples} samples each, once")
        epochs = tuple(epoch for epoch in epochs if not epoch.once)
    for epoch in epochs:
        how = "each id exactly once" if epoch.how == "counted" else "once each by the order's construction"
        state = how if epoch.once else "not complete"
        lines.append(f"epoch {epoch.epoch}: {epoch.steps} of {epoch.of} steps, {epoch.samples} samples, {state}")
    return lines


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
