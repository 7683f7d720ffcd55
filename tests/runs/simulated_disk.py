"""The disk that the machines of a simulated cluster share: checkpoints that ranks write one after the other."""

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
        """What a trainer could not have loaded, or would have loaded unasked."""

    def save(self, folder: str, rank: int, step: int, *, at_once: bool) -> None:
        """A rank has taken this step: write its part of what is due. Rank after rank, so that a gang that breaks up
        meanwhile leaves half a checkpoint; `at_once`: it ends in order, and saves where it is."""
        due = step if at_once else (step - STEPS_A_SECOND * (rank + 1)) // SAVE_STEPS * SAVE_STEPS
        if due > 0:
            files = self.results.setdefault(folder, {}).setdefault(due, set())
            files.update([f"rng_state_{rank}.pth"], RANK_0_WRITES if rank == 0 else ())

    def load(self, folder: str, checkpoint: str | None) -> int:
        """The step that a rank of a new attempt begins after. Engines go on from the newest folder that there is."""
        step = int(posixpath.basename(checkpoint).removeprefix("checkpoint-")) if checkpoint else 0
        found = self.results.get(folder, {})
        if step and found.get(step) != self.whole:
            self.complaints.append(f"{checkpoint} is not complete: {sorted(found.get(step, ()))}")
        if any(other > step for other in found):
            self.complaints.append(f"begun at {step} although there is {sorted(found)}")
        return step

    def look(self, folder: str) -> dict[str, Any]:
        """As checkpoint_files.py answers."""
        found = self.results.get(folder, {})
        return {
            "folder": folder,
            "checkpoints": {step: {"files": sorted(files), "damaged": []} for step, files in found.items()},
        }

    def set_aside(self, folder: str, steps: Iterable[int]) -> dict[str, Any]:
        """As checkpoint_files.py does."""
        found = self.results.get(folder, {})
        return {"moved": [step for step in steps if found.pop(step, None) is not None]}
