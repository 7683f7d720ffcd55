"""A published run in the time model's own types, and how long it takes by ours."""

from dataclasses import dataclass, replace

from backend.estimate.memory.stage import RankParameters, Trained
from backend.estimate.model.layers import ModelLayers
from backend.estimate.model.load import load_of
from backend.estimate.time.efficiency import Efficiency
from backend.estimate.time.layer_time import layer_passes
from backend.estimate.time.schedule import iteration_time
from backend.estimate.time.step_time import Schedule, step_time
from backend.estimate.time.time_context import TimeContext


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """A published run, ready to be estimated."""

    source: str
    case: str
    family: str
    """dense | moe | fp8."""
    precision: str
    group: str
    """Rows that share it differ in the plan alone."""
    baseline_group: str
    """Source, GPU and precision."""
    measured_s: float
    tokens: float
    """Of a step and GPU."""
    flops: float
    """Model FLOPs of a token."""
    layers: ModelLayers
    time_context: TimeContext
    trained: Trained
    parameters: tuple[RankParameters, ...]
    adapters: bool
    layer_alone: bool
    """Not a run but one layer was measured, there and back."""
    flops_error: float | None
    """Relative, of `flops` against what the source's TFLOP/s and tokens/s say together; None where it lacks either."""

    @property
    def plan_key(self) -> tuple[object, ...]:
        """What makes the plan another one."""
        plan = self.time_context.plan
        sizes = (
            plan.sequence_parallel,
            plan.tensor,
            plan.pipeline,
            plan.virtual_pipeline,
            plan.context,
            plan.expert,
            plan.data,
        )
        return (*sizes, plan.micro_batch, plan.recompute, plan.recompute_modules)

    @property
    def mfu(self) -> float:
        """Measured."""
        return self.flops * self.tokens / self.measured_s / self.time_context.machine.peak

    def seconds(self, efficiency: Efficiency, schedule: Schedule = iteration_time) -> float:
        """Ours."""
        time_context = replace(self.time_context, efficiency=efficiency)
        if self.layer_alone:
            passes = layer_passes(
                self.layers.dense, time_context, load_of(time_context), weights_trained=True, inputs_need=True
            )
            back = passes.backward.total + passes.recomputed.total
            return float(schedule(((passes.forward.total,),), ((back,),), 1, 1))
        found = step_time(
            self.layers,
            time_context,
            self.trained,
            self.parameters,
            adapters=self.adapters,
            schedule=schedule,
        )
        return float(found.iteration_s)
