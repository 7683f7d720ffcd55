"""Which plans are worth asking the rules about: every combination of sizes and choices, as numbers on axes.

Sizes that cannot divide what they must are left out here only to keep the number down; legality is the rules' alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from backend.estimate.model.layers import Activation, Attention, LayerKind, Norm
from backend.estimate.model.model_layers import model_layers
from backend.job.job import Job, Parallel
from backend.job.model import ModelShape
from backend.job.pipeline_layout import even_layers, layout_of, readable_layers
from backend.job.rules.batched import Axis, Codes, Factors, Space
from backend.job.traits import EngineName

SIZES = ("tensor", "pipeline", "virtual_pipeline", "context", "expert", "expert_tensor")
CUT = ("account_for_embedding", "account_for_loss", "pipeline_layout")
"""How the layers are cut into stages."""
RECOMPUTE = ("recompute", "recompute_modules", "recompute_num_layers")
CHOSEN = tuple(f"parallel.{name}" for name in RECOMPUTE)
MICRO_BATCH = "training.micro_batch_size"
SHARDED = "parallel.distributed_optimizer"
ACCUMULATION = "training.gradient_accumulation_steps"
Array = npt.NDArray[Any]
UNEVEN = frozenset(range(1, 5))
"""Chunks a stage that layouts are offered for, where the layers cannot be cut into so many equal ones."""
CHEAP = ("layernorm", "moe_act", "mla_up_proj")
"""Modules that Megatron-Core recomputes by discarding outputs: what its documentation pairs (transformer_config.py)."""


def space_of(
    job: Job, shape: ModelShape, engine: EngineName, wanted: int, beyond: Mapping[str, int] | None = None
) -> Factors:
    """The plans of one engine at the wanted global batch, legal or not; the same arrays for the same question.

    `beyond`: TP or ETP, by path, that all plans are to have though they may be larger than a node.
    """
    job = replace(job, engine=engine, training=replace(job.training, global_batch_size=wanted))
    batches = _micro_batches(wanted, job.training.micro_batch_size)
    if not job.traits.is_megatron:
        own = job.parallel
        plain = replace(Parallel(), fsdp=own.fsdp, recompute=own.recompute, offload_device=own.offload_device,
                        offload_folder=own.offload_folder)  # fmt: skip
        job = replace(job, parallel=plain)
        return [Space(job=job, axes=axes, codes=codes) for axes, codes in _hugging_face(batches)]
    parallel = job.parallel
    factors = _megatron(
        job.world_size,
        *(_inside(job, path, beyond or {}) for path in ("parallel.tensor", "parallel.expert_tensor")),
        wanted,
        shape.layers,
        shape.experts,
        batches,
        _own_cut(parallel, shape.layers),
        _recompute_choices(job, shape),
    )
    return [Space(job=job, axes=axes, codes=codes) for axes, codes in factors]


def _inside(job: Job, path: str, beyond: Mapping[str, int]) -> tuple[int, ...]:
    """The sizes to try of what is kept inside a node."""
    return (beyond[path],) if path in beyond else divisors(job.cluster.gpus_per_node)


Plain = tuple[tuple[Axis, ...], tuple[Codes, ...]]
Choice = tuple[str, tuple[str, ...], int | None]
Cut = tuple[bool, bool, str | None]
"""Values of CUT."""


@lru_cache(maxsize=16)
def _hugging_face(batches: tuple[int, ...]) -> tuple[Plain, ...]:
    """Data parallelism alone; recompute on or off."""
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
    wanted: int,
    layers: int,
    experts: int,
    batches: tuple[int, ...],
    own_cut: Cut,
    recompute: tuple[Choice, ...],
) -> tuple[Plain, ...]:
    """Rows of sizes with every micro-batch that their copies can share; and every other choice."""
    found = list(_sizes(world, tensors, expert_tensors, layers, experts, own_cut))
    cuts = {cut: code for code, cut in enumerate(dict.fromkeys(cut for _, cut in found))}
    sizes = np.array([(*row, cuts[cut]) for row, cut in found], np.int32)
    sizes = sizes.reshape(-1, len(SIZES) + 1)  # TP of more than all ranks leaves none
    tensor, copies = sizes[:, 0], world // (sizes[:, 0] * sizes[:, 1] * sizes[:, 3])
    rows, batch, sequence = (axis.ravel() for axis in np.indices((len(sizes), len(batches), 2), np.int32))
    # Sequence parallel splits what TP splits: without TP there is one choice. The smallest batch is always asked about.
    is_asked = (np.array(batches)[batch] * copies[rows] <= wanted) | (batch == 0)
    is_asked &= (tensor[rows] > 1) | (sequence == 0)
    rows, batch, sequence = rows[is_asked], batch[is_asked], sequence[is_asked]
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


def has_nothing_to_shard(world: int, experts: int, tensor: Any, pipeline: Any, expert: Any, expert_tensor: Any) -> Any:
    """Whether no two ranks hold the same parameters: then the distributed optimizer changes nothing."""
    alone = tensor * pipeline == world
    return alone & (expert * expert_tensor * pipeline == world) if experts else alone


def offered(space: Space, shape: ModelShape) -> Array | None:
    """Which plans are worth listing: of two that differ in what has no effect one; None where all are."""
    if SHARDED not in space.place:
        return None
    sizes = (space.column(f"parallel.{name}") for name in ("tensor", "pipeline", "expert", "expert_tensor"))
    alone = has_nothing_to_shard(space.job.world_size, shape.experts, *sizes)
    found: Array = space.column(SHARDED) | ~alone
    return found


def _choice(paths: tuple[str, ...], values: tuple[tuple[Any, ...], ...]) -> Plain:
    """Any of the values."""
    return (Axis(paths=paths, values=values),), (np.arange(len(values), dtype=np.int32),)


def _micro_batches(most: int, own: int) -> tuple[int, ...]:
    """Powers of two up to the most that one copy of the model can take, and the job's own."""
    return tuple(sorted({2**power for power in range(max(1, most).bit_length())} | {own}))


def _sizes(
    world: int,
    tensors: tuple[int, ...],
    expert_tensors: tuple[int, ...],
    layers: int,
    experts: int,
    own: Cut,
) -> Iterator[tuple[tuple[int, ...], Cut]]:
    """TP, PP, VPP, CP, EP, ETP, and how the layers are cut: all whose products divide the ranks."""
    for tensor in tensors:
        for pipeline in divisors(world // tensor):
            stages = list(_stages(layers, pipeline, own))
            for expert, expert_tensor in _expert_sizes(expert_tensors, experts, world // pipeline):
                for context in divisors(world // (tensor * pipeline)):
                    for virtual, cut in stages:
                        yield (tensor, pipeline, virtual, context, expert, expert_tensor), cut


def _stages(layers: int, pipeline: int, own: Cut) -> Iterator[tuple[int, Cut]]:
    """Ways to cut the layers: chunks a stage; what counts as a layer, or a layout where the chunks are not equal."""
    *accounts, layout = own
    if pipeline == 1:
        yield 1, (own[0], own[1], None)
        return
    equal = set()
    for embedding, loss in product((False, True), repeat=2):
        each, rest = divmod(layers + embedding + loss, pipeline)
        if rest == 0 and each:
            equal |= (chunks := set(divisors(each)))
            yield from ((virtual, (embedding, loss, None)) for virtual in sorted(chunks))
        elif [embedding, loss] == accounts:
            yield 1, (embedding, loss, None)
    pieces = readable_layers(layout)
    if pieces and len(pieces) % pipeline == 0:
        yield len(pieces) // pipeline, (False, False, layout)
    for virtual in sorted(UNEVEN - equal):
        found = even_layers(layers, pipeline * virtual)
        if found and found != pieces:
            yield virtual, (False, False, layout_of(found))


def _own_cut(parallel: Parallel, layers: int) -> Cut:
    """The job's own way to cut the layers, as far as it is not among those that are offered anyway."""
    accounts, layout = (parallel.account_for_embedding, parallel.account_for_loss), parallel.pipeline_layout
    own = (parallel.virtual_pipeline, (False, False, layout))
    is_offered = layout and own in _stages(layers, parallel.pipeline, (False, False, None))
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
    """None, each module that the model has alone, the cheap ones together, full, and the job's own choice."""
    modules = _modules(shape)
    cheap = tuple(module for module in CHEAP if module in modules)
    sets = [(module,) for module in modules] + ([cheap] if cheap else [])
    every: list[Choice] = [("none", (), None), *(("selective", chosen, None) for chosen in sets)]
    return tuple(dict.fromkeys([*every, ("full", (), None), recompute_of(job)]))


def recompute_of(job: Job) -> Choice:
    """A job's recompute as far as it takes effect: megatron-core takes core_attn where no module is named."""
    parallel = job.parallel
    if not job.traits.is_megatron or job.recompute == "none":
        return job.recompute, (), None
    if job.recompute == "full":
        return "full", (), parallel.recompute_num_layers
    return "selective", parallel.recompute_modules or ("core_attn",), None


@lru_cache(maxsize=64)
def _modules(shape: ModelShape) -> tuple[str, ...]:
    """What selective recompute can name and the model has (megatron-core transformer_config.py recompute_modules)."""
    layers = model_layers(shape)
    kinds: list[LayerKind] = [kind for kind in (layers.dense if layers.dense_count else None, layers.sparse) if kind]
    operators = [operator for kind in kinds for operator in kind.operators]
    found = {"core_attn"}
    for operator in operators:
        if isinstance(operator, Activation):
            found |= {operator.module, "moe_act"} if operator.module == "moe" else {operator.module}
        elif isinstance(operator, Attention) and operator.latent:
            found.add("mla_up_proj")
        elif isinstance(operator, Norm) and operator.detached:
            found.add("layernorm")
    return tuple(sorted(found))


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """In ascending order."""
    return tuple(size for size in range(1, number + 1) if number % size == 0)
