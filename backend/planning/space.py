"""The plans that the rules judge: every combination of sizes and choices, as numbers on axes.

Most combinations whose sizes do not divide the ranks are omitted to save time. Only the rules decide what is legal.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any, TypeVar

import numpy as np

from backend.estimate.model.model_layers import model_layers
from backend.job.job import Job, Parallel
from backend.job.model import ModelShape
from backend.job.model.operators import Activation, Attention, Norm
from backend.job.pipeline_layout import even_layers, layout_of, readable_layers
from backend.job.rules.batched import Axis, Codes, Factors, Space, as_sizes
from backend.job.traits import EngineName
from backend.planning.lazy_sort import Indices, Mask

SIZES = ("tensor", "pipeline", "virtual_pipeline", "context", "expert", "expert_tensor")
CUT = ("account_for_embedding", "account_for_loss", "pipeline_layout")
"""Keys of `parallel` that say how the layers are cut into stages."""
RECOMPUTE = ("recompute", "recompute_modules", "recompute_num_layers")
CHOSEN = tuple(f"parallel.{name}" for name in RECOMPUTE)
MICRO_BATCH = "training.micro_batch_size"
SHARDED = "parallel.distributed_optimizer"
ACCUMULATION = "training.gradient_accumulation_steps"
UNEVEN = frozenset(range(1, 5))
"""Numbers of chunks per stage for which a layout is offered if the layers have no equal chunks."""
CHEAP = ("layernorm", "moe_act", "mla_up_proj")
"""Modules that Megatron-Core recomputes by discarding outputs; its documentation pairs them (transformer_config.py)."""


def space_of(
    job: Job, shape: ModelShape, engine: EngineName, global_batch: int, beyond: Mapping[str, int] | None = None
) -> Factors:
    """Return the plans of one engine at a global batch, legal or not.

    Equal arguments give the same arrays. `beyond` is a TP or ETP, by path, that all plans have even if it is larger
    than a node.
    """
    job = replace(job, engine=engine, training=replace(job.training, global_batch_size=global_batch))
    batches = _micro_batches(global_batch, job.training.micro_batch_size)
    if not job.traits.is_megatron:
        own = job.parallel
        unsplit = replace(Parallel(), fsdp=own.fsdp, recompute=own.recompute, offload_device=own.offload_device,
                        offload_folder=own.offload_folder, offload_parameters=own.offload_parameters)  # fmt: skip
        job = replace(job, parallel=unsplit)
        return [Space(job=job, axes=axes, codes=codes) for axes, codes in _hugging_face(batches)]
    parallel = job.parallel
    factors = _megatron(
        job.world_size,
        *(_inside(job, path, beyond or {}) for path in ("parallel.tensor", "parallel.expert_tensor")),
        global_batch,
        shape.layers,
        shape.experts,
        batches,
        _own_cut(parallel, shape.layers),
        _recompute_choices(job, shape),
    )
    return [Space(job=job, axes=axes, codes=codes) for axes, codes in factors]


def _inside(job: Job, path: str, beyond: Mapping[str, int]) -> tuple[int, ...]:
    """Return the values to try of a size that stays inside a node."""
    return (beyond[path],) if path in beyond else divisors(job.cluster.gpus_per_node)


Plain = tuple[tuple[Axis, ...], tuple[Codes, ...]]
Choice = tuple[str, tuple[str, ...], int | None]
Cut = tuple[bool, bool, str | None]
"""Values of CUT."""


@lru_cache(maxsize=16)
def _hugging_face(batches: tuple[int, ...]) -> tuple[Plain, ...]:
    """Return the factors of an engine with data parallelism only, with recompute on or off."""
    recompute: tuple[Choice, ...] = (("none", (), None), ("full", (), None))
    return (
        _choice((MICRO_BATCH,), tuple((size,) for size in batches)),
        _choice(CHOSEN, recompute),
    )


@lru_cache(maxsize=8)
def _megatron(
    world: int,
    tensors: tuple[int, ...],
    expert_tensors: tuple[int, ...],
    global_batch: int,
    layers: int,
    experts: int,
    batches: tuple[int, ...],
    own_cut: Cut,
    recompute: tuple[Choice, ...],
) -> tuple[Plain, ...]:
    """Return the factors of Megatron: sizes with every micro-batch that the replicas can share, and other choices."""
    rows_with_cuts = list(_sizes(world, tensors, expert_tensors, layers, experts, own_cut))
    cuts = {cut: code for code, cut in enumerate(dict.fromkeys(cut for _, cut in rows_with_cuts))}
    sizes = np.array([(*row, cuts[cut]) for row, cut in rows_with_cuts], np.int32)
    sizes = sizes.reshape(-1, len(SIZES) + 1)  # a TP above the number of ranks leaves no row
    tensor, replicas = sizes[:, 0], world // (sizes[:, 0] * sizes[:, 1] * sizes[:, 3])
    rows, batch, sequence = (axis.ravel() for axis in np.indices((len(sizes), len(batches), 2), np.int32))
    # Sequence parallel splits what TP splits: without TP there is one choice. The smallest batch is always included.
    is_included = (np.array(batches)[batch] * replicas[rows] <= global_batch) | (batch == 0)
    is_included &= (tensor[rows] > 1) | (sequence == 0)
    rows, batch, sequence = rows[is_included], batch[is_included], sequence[is_included]
    axes, codes = [], []
    for column, name in enumerate(SIZES):
        values, code = np.unique(sizes[:, column], return_inverse=True)
        axes.append(Axis(paths=(f"parallel.{name}",), values=tuple((int(value),) for value in values)))
        codes.append(code.astype(np.int32)[rows])
    axes.append(Axis(paths=tuple(f"parallel.{name}" for name in CUT), values=tuple(cuts)))
    codes.append(sizes[:, -1][rows])
    axes.append(Axis(paths=(MICRO_BATCH,), values=tuple((size,) for size in batches)))
    axes.append(Axis(paths=("parallel.sequence",), values=((True,), (False,))))
    return (
        (tuple(axes), (*codes, batch, sequence)),
        _choice(CHOSEN, recompute),
        _choice((SHARDED,), ((True,), (False,))),
    )


Size = TypeVar("Size", int, Indices)


def has_nothing_to_shard(
    world: int, experts: int, tensor: Size, pipeline: Size, expert: Size, expert_tensor: Size
) -> bool | Mask:
    """Return whether no two ranks hold the same parameters. Then the distributed optimizer changes nothing."""
    alone: bool | Mask = tensor * pipeline == world
    return alone & (expert * expert_tensor * pipeline == world) if experts else alone


def listed_plans(space: Space, shape: ModelShape) -> Mask | None:
    """Return which plans are listed: one of two whose only difference has no effect. None if all are listed."""
    if SHARDED not in space.axis_of:
        return None
    sizes = (as_sizes(space.column(f"parallel.{name}")) for name in ("tensor", "pipeline", "expert", "expert_tensor"))
    alone = has_nothing_to_shard(space.job.world_size, shape.experts, *sizes)
    is_listed: Mask = space.column(SHARDED).astype(bool, copy=False) | ~np.asarray(alone)
    return is_listed


def _choice(paths: tuple[str, ...], values: tuple[tuple[Any, ...], ...]) -> Plain:
    return (Axis(paths=paths, values=values),), (np.arange(len(values), dtype=np.int32),)


def _micro_batches(largest: int, own_size: int) -> tuple[int, ...]:
    """Return the powers of two up to the largest micro-batch of a replica, and the job's own."""
    return tuple(sorted({2**power for power in range(max(1, largest).bit_length())} | {own_size}))


def _sizes(
    world: int,
    tensors: tuple[int, ...],
    expert_tensors: tuple[int, ...],
    layers: int,
    experts: int,
    own_cut: Cut,
) -> Iterator[tuple[tuple[int, ...], Cut]]:
    """Yield TP, PP, VPP, CP, EP, ETP, and the cut of the layers, for all sizes whose products divide the ranks."""
    for tensor in tensors:
        for pipeline in divisors(world // tensor):
            stages = list(_stages(layers, pipeline, own_cut))
            for expert, expert_tensor in _expert_sizes(expert_tensors, experts, world // pipeline):
                for context in divisors(world // (tensor * pipeline)):
                    for virtual, cut in stages:
                        yield (tensor, pipeline, virtual, context, expert, expert_tensor), cut


def _stages(layers: int, pipeline: int, own_cut: Cut) -> Iterator[tuple[int, Cut]]:
    """Yield the ways to cut the layers: chunks per stage, and what counts as a layer, or a layout of unequal chunks."""
    *accounts, layout = own_cut
    if pipeline == 1:
        yield 1, (own_cut[0], own_cut[1], None)
        return
    equal = set()
    for embedding, loss in product((False, True), repeat=2):
        each, remainder = divmod(layers + embedding + loss, pipeline)
        if remainder == 0 and each:
            equal |= (chunks := set(divisors(each)))
            yield from ((virtual, (embedding, loss, None)) for virtual in sorted(chunks))
        elif [embedding, loss] == accounts:
            yield 1, (embedding, loss, None)
    layout_layers = readable_layers(layout)
    if layout_layers and len(layout_layers) % pipeline == 0:
        yield len(layout_layers) // pipeline, (False, False, layout)
    for virtual in sorted(UNEVEN - equal):
        even = even_layers(layers, pipeline * virtual)
        if even and even != layout_layers:
            yield virtual, (False, False, layout_of(even))


def _own_cut(parallel: Parallel, layers: int) -> Cut:
    """Return the job's own cut of the layers, or no cut if it is offered anyway."""
    accounts, layout = (parallel.account_for_embedding, parallel.account_for_loss), parallel.pipeline_layout
    cut = (parallel.virtual_pipeline, (False, False, layout))
    is_offered = layout and cut in _stages(layers, parallel.pipeline, (False, False, None))
    return (False, False, None) if is_offered else (*accounts, layout)


def _expert_sizes(expert_tensors: tuple[int, ...], experts: int, ranks: int) -> Iterator[tuple[int, int]]:
    if not experts:
        yield 1, 1
        return
    for expert_tensor in expert_tensors:
        for expert in divisors(experts):
            if ranks % (expert * expert_tensor) == 0:
                yield expert, expert_tensor


def _recompute_choices(job: Job, shape: ModelShape) -> tuple[Choice, ...]:
    """Return: none, each module of the model alone, the cheap modules together, full, and the job's own choice."""
    modules = _modules(shape)
    cheap = tuple(module for module in CHEAP if module in modules)
    sets = [(module,) for module in modules] + ([cheap] if cheap else [])
    choices: list[Choice] = [("none", (), None), *(("selective", chosen, None) for chosen in sets)]
    return tuple(dict.fromkeys([*choices, ("full", (), None), recompute_of(job)]))


def recompute_of(job: Job) -> Choice:
    """Return the recompute that takes effect. Megatron-Core uses core_attn if the job names no module."""
    parallel = job.parallel
    if not job.traits.is_megatron or job.recompute == "none":
        return job.recompute, (), None
    if job.recompute == "full":
        return "full", (), parallel.recompute_num_layers
    return "selective", parallel.recompute_modules or ("core_attn",), None


@lru_cache(maxsize=64)
def _modules(shape: ModelShape) -> tuple[str, ...]:
    """Return the model's modules that selective recompute can name (megatron-core transformer_config.py)."""
    operators = [operator for kind in model_layers(shape).kinds for operator in kind.operators]
    modules = {"core_attn"}
    for operator in operators:
        if isinstance(operator, Activation):
            modules |= {operator.module, "moe_act"} if operator.module == "moe" else {operator.module}
        elif isinstance(operator, Attention) and operator.latent:
            modules.add("mla_up_proj")
        elif isinstance(operator, Norm) and operator.detached:
            modules.add("layernorm")
    return tuple(sorted(modules))


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a number in ascending order."""
    return tuple(size for size in range(1, number + 1) if number % size == 0)
