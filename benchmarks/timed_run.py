"""A published run in the types of the time model, and its estimated time."""

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
    """Equal for rows that differ only in the plan."""
    baseline_group: str
    """Source, GPU and precision."""
    measured_s: float
    tokens: float
    """Tokens per step and GPU."""
    flops: float
    """Model FLOPs per token."""
    layers: ModelLayers
    time_context: TimeContext
    trained: Trained
    parameters: tuple[RankParameters, ...]
    adapters: bool
    layer_alone: bool
    """Whether one layer was measured, forward and backward, not a whole run."""
    flops_error: float | None
    """Relative difference of `flops` to the source's TFLOP/s over tokens/s; None if the source lacks either."""

    @property
    def plan_key(self) -> tuple[object, ...]:
        """Return the values that distinguish this plan from another one."""
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
        run = self.time_context.run
        recompute = (plan.recompute, plan.recompute_modules, run.keeps_products, run.recomputed_layers)
        return (*sizes, plan.micro_batch, *recompute)

    @property
    def mfu(self) -> float:
        """Return the measured MFU."""
        return self.flops * self.tokens / self.measured_s / self.time_context.machine.peak

    def seconds(self, efficiency: Efficiency, schedule: Schedule = iteration_time) -> float:
        """Return the estimated seconds."""
        time_context = replace(self.time_context, efficiency=efficiency)
        if self.layer_alone:
            passes = layer_passes(
                self.layers.kinds[0], time_context, load_of(time_context), weights_trained=True, inputs_need=True
            )
            back = passes.backward.total() + passes.recomputed.total()
            return float(schedule(((passes.forward.total(),),), ((back,),), 1, 1))
        step = step_time(
            self.layers,
            time_context,
            self.trained,
            self.parameters,
            adapters=self.adapters,
            schedule=schedule,
        )
        return float(step.iteration_s)
