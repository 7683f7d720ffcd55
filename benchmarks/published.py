"""Published measurements in the project, each with our estimate."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from backend.estimate.memory.megatron import pipeline_memory
from backend.estimate.memory.stage import Trained
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.estimate.plan import Plan
from backend.job.memory_traits import MEGATRON_LM_MEMORY
from backend.job.model import parse_model
from benchmarks.habits import OLD_TE_LOSS_BYTES
from benchmarks.shapes import DATA

GIB = 2**30
FUSED_LOSS = replace(
    MEGATRON_LM_MEMORY, logits_forward_bytes=OLD_TE_LOSS_BYTES, logits_backward_bytes=OLD_TE_LOSS_BYTES
)
"""Transformer Engine's fused cross entropy works in place on 16-bit logits. SimuMax and Megatron-Bridge use it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One layout: measured and predicted GiB of the allocator by stage."""

    model: str
    layout: str
    latent_attention: bool
    measured_gib: tuple[float, ...]
    ours_gib: tuple[float, ...]
    simumax_gib: float
    """SimuMax's own prediction for the worst stage, as published."""
    rule_gib: float
    """Rule of thumb: 18 bytes per parameter, divided by TP x PP."""

    @property
    def error(self) -> float:
        """Return the relative error of our estimate on the worst stage."""
        return max(self.ours_gib) / max(self.measured_gib) - 1

    @property
    def stage_errors(self) -> tuple[float, ...]:
        """Return the relative error of our estimate on each stage."""
        return tuple(ours / real - 1 for ours, real in zip(self.ours_gib, self.measured_gib, strict=True))


def b200_runs() -> Iterator[Measurement]:
    """Yield SimuMax's B200 runs of Megatron-LM, in the types of the estimate."""
    published = json.loads((DATA / "simumax_b200.json").read_text())
    for row in published["rows"]:
        shape = parse_model(published["shapes"][row["model"]])
        layers = model_layers(shape, megatron=True)
        sizes = ("tensor", "pipeline", "context", "expert", "data", "micro_batch", "micro_batches", "sequence_length")
        plan = Plan(
            **{size: row[size] for size in sizes},
            sequence_parallel=row["tensor"] > 1,
            context_a2a=row["context"] > 1,
        )
        memories = pipeline_memory(layers, plan, FUSED_LOSS, Trained())
        names = {"TP": "tensor", "PP": "pipeline", "CP": "context", "EP": "expert"}
        yield Measurement(
            model=row["model"],
            layout=" ".join(f"{name}{row[key]}" for name, key in names.items()) + f" seq {row['sequence_length']}",
            latent_attention=shape.mla is not None,
            measured_gib=tuple(row["measured_gib"]),
            ours_gib=tuple(memory.peak / GIB for memory in memories),
            simumax_gib=row["simumax_gib"],
            rule_gib=18 * model_parameters(layers) / (row["tensor"] * row["pipeline"] * row["expert"]) / GIB,
        )
