"""Every legal plan of a job at its micro-batch and global batch, each with its estimate."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from backend.estimate import Estimate, estimate_resolved
from backend.job.job import Job, Parallel, Training
from backend.job.model import ModelShape
from backend.job.presets import Gpu, resolve_gpu, resolve_model
from backend.job.problems import Problem, errors
from backend.job.rules import check_resolved


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One plan: its parallel sizes, and the edit of the job that chooses it."""

    tensor: int
    pipeline: int
    virtual_pipeline: int
    context: int
    expert: int
    expert_tensor: int
    micro_batch_size: int
    edits: Mapping[str, object]
    """Job path -> value; keeps the global batch."""
    warnings: tuple[Problem, ...]
    """What the rules say about a legal plan."""
    estimate: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class Plans:
    """The legal plans, best first, and how many others each rule refused."""

    candidates: tuple[Candidate, ...]
    rejected: Mapping[str, int]


def candidates(job: Job) -> list[Candidate]:
    """Every legal plan of the job's engine: those that fit first, then by bubble, then by memory.

    Raises ProblemsError as estimate does: unknown GPU or model, estimate_not_modelled.
    """
    return list(enumerate_plans(job).candidates)


def enumerate_plans(job: Job) -> Plans:
    """`candidates`, with the count of refused plans by the code of the first rule that refused each.

    TP is tried within a node only, CP at the job's own size, ETP at 1 and at TP. Without a wanted global batch
    (training.global_batch_size) the one of the job's present plan is kept.
    """
    shape, gpu = resolve_model(job.model), resolve_gpu(job.cluster)
    wanted = job.training.global_batch_size or job.global_batch
    found: list[Candidate] = []
    rejected: Counter[str] = Counter()
    trainings: dict[int, Training] = {}
    for parallel in _grid(job, shape):
        tried = replace(job, parallel=parallel)
        copies = tried.data_parallel
        if copies not in trainings:
            trainings[copies] = _training(job, copies, wanted)
        tried = replace(tried, training=trainings[copies])
        problems = check_resolved(tried, shape, gpu, plan_only=True)
        refusals = errors(problems)
        if tried.global_batch != wanted and not refusals:
            refusals = [Problem(code="global_batch_not_divisible")]
        if refusals:
            rejected[refusals[0].code] += 1
        else:
            found.append(_candidate(job, tried, shape, gpu, problems))
    return Plans(candidates=tuple(sorted(found, key=_rank)), rejected=dict(rejected))


def _grid(job: Job, shape: ModelShape) -> Iterator[Parallel]:
    """Parallel sizes worth asking the rules about; each size divides what it must divide by itself."""
    if not job.traits.is_megatron:
        yield job.parallel
        return
    world, context = job.world_size, job.parallel.context
    layers = shape.layers + job.parallel.account_for_embedding + job.parallel.account_for_loss
    for tensor in _divisors(job.cluster.gpus_per_node):
        for pipeline in _divisors(layers):
            if world % (tensor * pipeline * context):
                continue
            for expert, expert_tensor in _expert_sizes(shape, world // pipeline, tensor):
                for virtual in _divisors(layers // pipeline) if pipeline > 1 else (1,):
                    yield replace(
                        job.parallel,
                        tensor=tensor,
                        pipeline=pipeline,
                        virtual_pipeline=virtual,
                        expert=expert,
                        expert_tensor=expert_tensor,
                    )


def _expert_sizes(shape: ModelShape, ranks: int, tensor: int) -> Iterator[tuple[int, int]]:
    if not shape.experts:
        yield 1, 1
        return
    for expert_tensor in sorted({1, tensor}):
        for expert in _divisors(shape.experts):
            if ranks % (expert * expert_tensor) == 0:
                yield expert, expert_tensor


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _training(job: Job, copies: int, wanted: int) -> Training:
    """The job's training with the accumulation that makes the wanted global batch with so many replicas."""
    if job.training.global_batch_size is not None:
        return job.training
    micro_batches = max(1, wanted // max(1, job.training.micro_batch_size * copies))
    return replace(job.training, gradient_accumulation_steps=micro_batches)


def _candidate(job: Job, tried: Job, shape: ModelShape, gpu: Gpu, problems: list[Problem]) -> Candidate:
    parallel = tried.parallel
    sizes = {
        "tensor": parallel.tensor,
        "pipeline": parallel.pipeline,
        "virtual_pipeline": parallel.virtual_pipeline,
        "context": parallel.context,
        "expert": parallel.expert,
        "expert_tensor": parallel.expert_tensor,
    }
    edits: dict[str, object] = {f"parallel.{name}": size for name, size in sizes.items()}
    if job.training.global_batch_size is None:
        edits["training.gradient_accumulation_steps"] = tried.training.gradient_accumulation_steps
    return Candidate(
        **sizes,
        micro_batch_size=tried.training.micro_batch_size,
        edits=edits,
        warnings=tuple(problems),
        estimate=estimate_resolved(tried, shape, gpu),
    )


def _rank(candidate: Candidate) -> tuple[bool, float, float]:
    found = candidate.estimate
    return (not found.fits, round(found.bubble_fraction, 6), found.peak_gib)
