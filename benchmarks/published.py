"""Published measurements that the project carries, with our figure for each."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from backend.estimate.memory.megatron import pipeline_memory
from backend.estimate.memory.stage import Trained
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.estimate.plan import Plan
from backend.job.model import parse_model
from backend.job.traits import MEGATRON_LM_MEMORY
from benchmarks.shapes import DATA

GIB = 2**30
FUSED_LOSS = replace(MEGATRON_LM_MEMORY, logits_forward_bytes=2, logits_backward_bytes=2)
"""Transformer Engine's fused cross entropy works in place on the 16-bit logits; SimuMax and Megatron-Bridge run it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One layout: what was measured and what was predicted, GiB of the allocator by stage."""

    model: str
    layout: str
    latent_attention: bool
    measured_gib: tuple[float, ...]
    ours_gib: tuple[float, ...]
    simumax_gib: float
    """SimuMax's own prediction of the worst stage, as published."""
    rule_gib: float
    """The rule of thumb: 18 bytes a parameter over TP x PP, nothing else."""

    @property
    def error(self) -> float:
        """Ours on the worst stage, relative."""
        return max(self.ours_gib) / max(self.measured_gib) - 1

    @property
    def stage_errors(self) -> tuple[float, ...]:
        """Ours on each stage, relative."""
        return tuple(ours / real - 1 for ours, real in zip(self.ours_gib, self.measured_gib, strict=True))


def b200_runs() -> Iterator[Measurement]:
    """SimuMax's B200 runs of Megatron-LM, through the estimate's inner types."""
    published = json.loads((DATA / "simumax_b200.json").read_text())
    for row in published["rows"]:
        shape = parse_model(published["shapes"][row["model"]])
        layers = model_layers(shape)
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
