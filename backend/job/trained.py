"""Which parts of a model a job trains: the freeze switches, as the job's engine applies them."""

from typing import NamedTuple

from backend.job.job import Job
from backend.job.model import ModelShape


class Trained(NamedTuple):
    """Which parts of a model are trained."""

    language: bool = True
    tower: bool = True
    merger: bool = True
    deep_stack: bool = True

    @property
    def vision(self) -> bool:
        """Whether any part of the vision tower is."""
        return self.tower or self.merger or self.deep_stack


def trained_parts(job: Job, shape: ModelShape) -> Trained:
    """The parts that a job trains, by the freeze rules of its engine, which differ for deep-stack mergers and pt."""
    freeze, traits = job.training.freeze, job.traits
    if not shape.vision or (job.training.stage == "pt" and not traits.freezes_in_pretraining):
        return Trained()
    return Trained(
        language=not freeze.language_model,
        tower=not freeze.vision_tower,
        merger=not freeze.projector,
        deep_stack=not {"tower": freeze.vision_tower, "projector": freeze.projector, "nothing": False}[
            traits.deep_stack_frozen_with
        ],
    )
