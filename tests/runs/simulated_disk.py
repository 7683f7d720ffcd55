"""The shared disk of a simulated cluster. Ranks write their checkpoints to it, one after the other."""

import posixpath
from collections.abc import Iterable
from typing import Any

SAVE_STEPS = 20
STEPS_A_SECOND = 2
RANK_0_WRITES = ("trainer_state.json", "scheduler.pt", "model.safetensors", "optimizer.pt")


class Disk:
    """Folder of a run's results -> step -> the files of its checkpoint."""

    def __init__(self, ranks: int) -> None:
        self.whole = {*RANK_0_WRITES, *(f"rng_state_{rank}.pth" for rank in range(ranks))}
        self.results: dict[str, dict[int, set[str]]] = {}
        self.complaints: list[str] = []
        """Loads that would fail with a real trainer, and loads of a checkpoint that nobody chose."""

    def save(self, folder: str, rank: int, step: int, *, at_once: bool) -> None:
        """Write a rank's part of the checkpoint that is due after a step. A gang that breaks up meanwhile leaves half a
        checkpoint. With `at_once`, the run ends in order and saves at its present step."""
        due = step if at_once else (step - STEPS_A_SECOND * (rank + 1)) // SAVE_STEPS * SAVE_STEPS
        if due > 0:
            files = self.results.setdefault(folder, {}).setdefault(due, set())
            files.update([f"rng_state_{rank}.pth"], RANK_0_WRITES if rank == 0 else ())

    def load(self, folder: str, checkpoint: str | None) -> int:
        """Return the step after which a rank of a new attempt starts. Engines resume from the newest folder."""
        step = int(posixpath.basename(checkpoint).removeprefix("checkpoint-")) if checkpoint else 0
        checkpoints = self.results.get(folder, {})
        if step and checkpoints.get(step) != self.whole:
            self.complaints.append(f"{checkpoint} is not complete: {sorted(checkpoints.get(step, ()))}")
        if any(other > step for other in checkpoints):
            self.complaints.append(f"begun at {step} although there is {sorted(checkpoints)}")
        return step

    def look(self, folder: str) -> dict[str, Any]:
        """Return the answer of checkpoint_files.py."""
        checkpoints = self.results.get(folder, {})
        return {
            "folder": folder,
            "checkpoints": {step: {"files": sorted(files), "damaged": []} for step, files in checkpoints.items()},
        }

    def set_aside(self, folder: str, steps: Iterable[int]) -> dict[str, Any]:
        """Rename a checkpoint as checkpoint_files.py does."""
        checkpoints = self.results.get(folder, {})
        return {"moved": [step for step in steps if checkpoints.pop(step, None) is not None]}
