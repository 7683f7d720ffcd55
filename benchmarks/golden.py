"""Readings of Megatron-LM's own CI, replayed from the arguments of each case.

A row: {family, case, env, test_type, mem_allocated_bytes, mem_max_allocated_bytes, world, args: {--argument: value}}.
The readings come from the last rank, so from the last pipeline stage. Only the arguments decide which rows are not
modelled. No row is dropped for its error.
"""

import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from backend.estimate.memory.fit import kind_of_run
from backend.estimate.memory.megatron import pipeline_memory
from backend.estimate.memory.megatron_workspace import cached_gradients
from backend.estimate.memory.stage import Trained, rank_parameters, stages
from backend.estimate.memory.terms import GROUPED_BYTES, STATIC_BYTES, StageMemory
from backend.estimate.model.layers import ModelLayers, has_experts
from backend.estimate.plan import Plan
from backend.job.memory_traits import MEGATRON_LM_MEMORY, MemoryTraits
from backend.job.pipeline_layout import layers_of
from backend.job.problems import ProblemsError
from benchmarks.errors import MAXIMUM_STAGES, UNREADABLE, Result, Skip, figure, unreadable
from benchmarks.gpt_layers import VOCABULARIES, gpt_layers, number

GIB = 2.0**30
SOURCE = "Megatron-LM CI"
STATIC, PEAK = f"{SOURCE}, static bytes", f"{SOURCE}, peaks over 10 GiB"
SMALL_PEAK = f"{SOURCE}, smaller peaks"
STATIC_FP16 = f"{STATIC} in fp16"
ABOVE_STATIC = f"{SOURCE}, peak above static bytes, world size not published"

# Checked in this order; argument -> the feature that is not modelled.
_NOT_MODELLED = {
    "--fp8-format": "fp8",
    "--use-megatron-fsdp": "Megatron FSDP",
    "--mtp-num-layers": "multi-token prediction",
    "--cuda-graph-impl": "CUDA graphs",
    "--fine-grained-activation-offloading": "activation offload",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """A row in the types of the estimate."""

    row: Mapping[str, Any]
    layers: ModelLayers
    plan: Plan
    memory: MemoryTraits
    has_world: bool
    """Whether the number of ranks is known, or nothing depends on it."""

    @property
    def last_stage(self) -> StageMemory:
        """Return our estimate of the memory of the rank that the row measures."""
        return pipeline_memory(self.layers, self.plan, self.memory, Trained())[-1]

    @property
    def static_bytes(self) -> float:
        """Return weights, gradients, optimizer and cached buffers: the memory between two iterations."""
        memory = self.last_stage
        states = memory.weights + memory.gradients + memory.optimizer
        return float(states + self._cached_bytes) + _library_bytes(self.row)

    @property
    def above_static_bytes(self) -> float:
        """Return what a step adds to the static bytes, which does not depend on the ranks that share the optimizer."""
        memory = self.last_stage
        libraries = STATIC_BYTES + (GROUPED_BYTES if _ends_with_experts(self.layers, self.plan) else 0.0)
        return float(memory.activations + memory.logits + memory.workspace - self._cached_bytes) - libraries

    @property
    def _cached_bytes(self) -> float:
        if not self.memory.cached_weight_gradients:
            return 0.0
        return float(cached_gradients(self.layers, self.plan, stages(self.layers, self.plan)[-1]))

    @property
    def rule_bytes(self) -> float:
        """Return 18 bytes per parameter of the rank."""
        stage = stages(self.layers, self.plan)[-1]
        parameters = rank_parameters(self.layers, self.plan, stage, Trained(), self.memory.vocabulary_padding)
        return float(18 * (parameters.dense + parameters.expert))


def golden_results(rows: Iterable[Mapping[str, Any]]) -> tuple[list[Result], list[Skip], dict[str, float]]:
    """Return the results (static bytes of the odd rows, all peaks), the skips, and the MiB that each environment adds.

    The constant of an environment (workspaces of its libraries) is the median residual of its even rows without fp16.
    A case is measured in several environments; its peak counts once, by the median of its errors. If the number of
    ranks is not published, only the memory above the static bytes is compared.
    """
    replays_or_skips = [replay(row) for row in rows]
    skips = [case for case in replays_or_skips if isinstance(case, Skip)]
    readable = [case for case in replays_or_skips if isinstance(case, Replay)]
    replays = [case for case in readable if case.has_world]
    constants: dict[str, float] = {}
    results: list[Result] = []
    for environment in sorted({case.row["env"] for case in replays}):
        every = [case for case in replays if case.row["env"] == environment]
        readings = [case for case in every if not _is_half(case)]
        even = [case.row["mem_allocated_bytes"] - case.static_bytes for case in readings[::2]]
        if not even:
            continue
        constant = statistics.median(even)
        constants[environment] = constant / 2**20
        results += [_static(case, constant) for case in readings[1::2]]
        results += [replace(_static(case, constant), source=STATIC_FP16) for case in every if _is_half(case)]
    results += _median_per_case(replays, _peak)
    results += _median_per_case([case for case in readable if not case.has_world], _above_static)
    return results, skips, constants


def _is_half(item: Replay) -> bool:
    return bool(item.row["args"].get("--fp16"))


def _static(item: Replay, constant: float) -> Result:
    return Result(
        source=STATIC,
        case=f"{item.row['case']} {item.row['env']}",
        measured=item.row["mem_allocated_bytes"] / GIB,
        ours=(item.static_bytes + constant) / GIB,
        baseline=item.rule_bytes / GIB,
    )


def _median_per_case(replays: list[Replay], judge: Callable[[Replay, str], Result]) -> Iterator[Result]:
    """Yield for each case the median of the errors in its environments."""
    cases: dict[tuple[str, str], list[Replay]] = {}
    for item in replays:
        cases.setdefault((item.row["case"], item.row["test_type"]), []).append(item)
    for (name, kind), items in cases.items():
        results = [judge(item, f"{name} ({kind}, {len(items)} environments)") for item in items]
        yield sorted(results, key=lambda result: result.error)[len(results) // 2]


def _peak(item: Replay, case: str) -> Result:
    is_large = item.row["mem_max_allocated_bytes"] > 10 * GIB
    return Result(
        source=PEAK if is_large else SMALL_PEAK,
        case=case,
        measured=item.row["mem_max_allocated_bytes"] / GIB,
        ours=float(item.last_stage.peak) / GIB,
        baseline=item.rule_bytes / GIB,
        family="megatron" if is_large else None,
        kind=kind_of_run(vision=False, experts=any(map(has_experts, item.layers.kinds)), adapters=False),
    )


def _above_static(item: Replay, case: str) -> Result:
    added = item.row["mem_max_allocated_bytes"] - item.row["mem_allocated_bytes"]
    return Result(source=ABOVE_STATIC, case=case, measured=added / GIB, ours=item.above_static_bytes / GIB, baseline=0)


def within_tolerance(results: Iterable[Result]) -> float:
    """Return the share of static readings within 20 MiB + 1%."""
    static = [result for result in results if result.source == STATIC]
    good = [abs(item.ours - item.measured) <= 20 / 1024 + 0.01 * item.measured for item in static]
    return sum(good) / len(good) if good else 0.0


def replay(row: Mapping[str, Any]) -> Replay | Skip:
    """Return the row in our types, or the reason to skip it."""
    try:
        outcome = _read(row)
    except UNREADABLE as error:
        outcome = unreadable(error)
    except ProblemsError as error:
        outcome = f"architecture: {error.problems[0].code}"
    if isinstance(outcome, Replay):
        return outcome
    row = row if isinstance(row, Mapping) else {}
    return Skip(source=SOURCE, case=f"{row.get('case')} {row.get('env')}", reason=outcome)


def _read(row: Mapping[str, Any]) -> Replay | str:
    """Return the row in our types, or the feature that is not modelled. Raises UNREADABLE for odd fields."""
    args = row["args"]
    for key in ("case", "env", "family", "test_type"):
        if not isinstance(row[key], str):
            return f"not published: {key}"
    reason = _refusal(row, args)
    if reason:
        return reason
    static, peak = figure(row["mem_allocated_bytes"]), figure(row["mem_max_allocated_bytes"])
    if static is None or peak is None or peak <= static:
        return "no reading"
    plan = _plan(row, args)
    if plan.pipeline * plan.virtual_pipeline > MAXIMUM_STAGES:
        return "no such pipeline"
    layers = gpt_layers(args)
    count = layers.count
    if sum(plan.pipeline_layout or ()) != count and count % (plan.pipeline * plan.virtual_pipeline):
        return "layers that do not divide over the stages"
    has_world = not args.get("--use-distributed-optimizer") or _world(row) is not None
    replayed = Replay(row=row, layers=layers, plan=plan, memory=_memory(row, args), has_world=has_world)
    return replayed if 0 < replayed.static_bytes < math.inf and replayed.above_static_bytes > 0 else "no such plan"


def _ends_with_experts(layers: ModelLayers, plan: Plan) -> bool:
    """Return whether the last stage has a layer with experts."""
    return stages(layers, plan)[-1].has_experts


def _refusal(row: Mapping[str, Any], args: Mapping[str, Any]) -> str | None:
    if row["family"] not in ("gpt", "moe", "mixtral"):
        return f"architecture: {row['family']}"
    if "grpo" in row["case"]:
        return "GRPO"
    for key, reason in _NOT_MODELLED.items():
        if args.get(key):
            return reason
    if args.get("--optimizer") not in (None, "adam"):
        return f"optimizer: {args['--optimizer']}"
    if args.get("--tokenizer-type", "GPT2BPETokenizer") not in VOCABULARIES:
        return "vocabulary not published"
    return None


def _world(row: Mapping[str, Any]) -> int | None:
    """Return the number of ranks.

    Functional tests without a published size run on one node of eight GPUs, or of four if the name says so.
    """
    if row.get("world"):
        return int(row["world"])
    if row["test_type"] == "release":
        return None
    return 4 if row["case"].endswith("_1node") else 8


def _library_bytes(row: Mapping[str, Any]) -> float:
    """Return the workspaces that differ within an environment.

    - Transformer Engine's grouped GEMM runs on four streams, each with a workspace: 32 MiB on Hopper and later, 4 MiB
      before (its cpp_extensions/gemm.py).
    - torch gives each cuBLAS handle, one for forward and one for backward, a workspace (parseChosenWorkspaceSize in
      aten/src/ATen/cuda/CublasHandlePool.cpp): 8 x 4096 KiB on Hopper, in later versions also on Blackwell; elsewhere 2
      x 4096 + 8 x 16 KiB.
    - CUBLAS_WORKSPACE_CONFIG overrides this. Deterministic runs set :4096:8, the size of Hopper. Deterministic mode
      allows neither flash attention nor a fused loss (megatron/training/arguments.py). A test that resumes on another
      layout (reshard) does not use it.
    """
    args, environment = row["args"], row["env"]
    if args.get("--transformer-impl") == "local":
        return 0.0
    ampere = "a100" in environment or environment.startswith("lts")
    total = 4.0 * (4 if ampere else 32) if args.get("--moe-grouped-gemm") else 0.0
    flash = ampere and args.get("--attention-backend") == "flash"
    free = (args.get("--cross-entropy-loss-fusion") or flash) and not args.get("--num-experts")
    if "h100" not in environment and (free or "_reshard_" in row["case"]):
        total -= 2 * (8 * 4096 - (2 * 4096 + 8 * 16)) / 1024
    return total * 2**20


def _plan(row: Mapping[str, Any], args: Mapping[str, Any]) -> Plan:
    tensor, pipeline = number(args, "--tensor-model-parallel-size"), number(args, "--pipeline-model-parallel-size")
    context = number(args, "--context-parallel-size")
    is_unfused = "local" in (args.get("--transformer-impl"), args.get("--attention-backend"))
    is_unfused = is_unfused or args.get("--attention-backend") == "unfused"
    # Without a distributed optimizer, only the number of micro-batches in flight depends on the number of replicas.
    world = _world(row) or tensor * pipeline * context
    data = max(1, world // (tensor * pipeline * context))
    micro_batch = int(args["--micro-batch-size"])
    layers = int(args["--num-layers"])
    virtual = number(args, "--num-virtual-stages-per-pipeline-rank")
    if "--num-layers-per-virtual-pipeline-stage" in args and pipeline > 1:
        virtual = layers // pipeline // int(args["--num-layers-per-virtual-pipeline-stage"])
    layout = _layout(args, layers, pipeline)
    recompute = args.get("--recompute-granularity", "none")
    modules = tuple(re.findall(r"\w+", str(args.get("--recompute-modules", "core_attn"))))
    return Plan(
        tensor=tensor,
        pipeline=pipeline,
        virtual_pipeline=len(layout) // pipeline if layout else virtual,
        pipeline_layout=layout,
        context=context,
        expert=number(args, "--expert-model-parallel-size"),
        expert_tensor=number(args, "--expert-tensor-parallel-size", tensor if args.get("--num-experts") else 1),
        data=data,
        sequence_parallel=bool(args.get("--sequence-parallel")) and tensor > 1,
        sequence_length=int(args["--seq-length"]),
        micro_batch=micro_batch,
        micro_batches=max(1, number(args, "--global-batch-size", micro_batch * data) // (micro_batch * data)),
        distributed_optimizer=bool(args.get("--use-distributed-optimizer")),
        recompute=recompute,
        recompute_modules=modules if recompute == "selective" else (),
        recompute_layers=number(args, "--recompute-num-layers"),
        attention="scores" if is_unfused else "fused",
        attention_dropout=float(args.get("--attention-dropout", 0.1)) > 0,
        context_a2a="a2a" in row["case"] and context > 1,
    )


def _layout(args: Mapping[str, Any], layers: int, pipeline: int) -> tuple[int, ...] | None:
    """Return the number of layers of each piece, or None if all pieces are equal."""
    if text := args.get("--pipeline-model-parallel-layout"):
        return layers_of(text)
    ends = [args.get(f"--decoder-{end}-pipeline-num-layers") for end in ("first", "last")]
    if ends == [None, None] or pipeline < 2:
        return None
    inner = layers - sum(int(end or 0) for end in ends)
    middle = inner // (pipeline - sum(end is not None for end in ends))
    first, last = (middle if end is None else int(end) for end in ends)
    return first, *[middle] * (pipeline - 2), last


FP16_OPTIMIZER_BYTES = 16
"""Masters, moments, and the fp32 gradients of the step, which stay until the next one begins (megatron-core 0.16.1
core/optimizer/optimizer.py _copy_model_grads_to_main_grads and zero_grad). In bf16 they are the accumulated ones."""


def _memory(row: Mapping[str, Any], args: Mapping[str, Any]) -> MemoryTraits:
    logits = 10 if args.get("--cross-entropy-loss-fusion") else 6
    half = bool(args.get("--fp16"))
    single = not half and not args.get("--bf16")
    # Each instance of the distributed optimizer holds all of it; the tests run two instances.
    instances = 2 if "multi_dist_optimizer_instances" in row["case"] else 1
    transformer_engine = args.get("--transformer-impl", "transformer_engine") == "transformer_engine"
    return replace(
        MEGATRON_LM_MEMORY,
        weight_bytes=4 if single else 2,
        gradient_bytes=2 if half or args.get("--grad-reduce-in-bf16") else 4,
        optimizer_bytes=(8 if single else FP16_OPTIMIZER_BYTES if half else 12) * instances,
        # The Transformer Engine of the long-term support images is older than the cache (2.3).
        cached_weight_gradients=transformer_engine
        and not args.get("--no-gradient-accumulation-fusion")
        and not row["env"].startswith("lts"),
        logits_forward_bytes=logits,
        logits_backward_bytes=logits,
        vocabulary_padding=number(args, "--make-vocab-size-divisible-by", 128),
    )
