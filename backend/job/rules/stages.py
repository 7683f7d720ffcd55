"""Rules of a pipeline on Megatron-Core: the cut of the layers into stages and chunks, and the schedules."""

from collections.abc import Callable

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.pipeline_layout import LayoutError, even_layers, layers_of, layout_of, readable_layers
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules import scopes
from backend.job.rules.bound import BoundRule, problem, registrar
from backend.job.unestimated import is_known

RULES: list[BoundRule] = []
rule = registrar(RULES)

LAYOUT = "parallel.pipeline_layout"
_ACCOUNTS = ("account_for_embedding", "account_for_loss")


@rule(scopes.megatron)
def layout_is_one(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core pipeline_parallel_layer_layout.py: known letters, E first, L last, and every layer in it."""
    layout = job.parallel.pipeline_layout
    if layout is None:
        return None
    edit = _other_layout(job, shape)
    try:
        layout_layers = sum(layers_of(layout))
    except LayoutError as error:
        return problem(f"pipeline_layout_{error.reason}", LAYOUT, layout=layout, edit=edit)
    if layout_layers == shape.layers:
        return None
    return problem("pipeline_layout_layers", LAYOUT, held=layout_layers, layers=shape.layers, edit=edit)


@rule(scopes.megatron)
def layout_has_the_chunks(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: the layout has a piece for every chunk of every stage."""
    layers, parallel = readable_layers(job.parallel.pipeline_layout), job.parallel
    chunks = parallel.pipeline * parallel.virtual_pipeline
    if layers is None or len(layers) == chunks:
        return None
    return problem("pipeline_layout_chunks", LAYOUT, pieces=len(layers), pipeline=parallel.pipeline,
                    virtual=parallel.virtual_pipeline, chunks=chunks, edit=_other_layout(job, shape))  # fmt: skip


@rule(scopes.megatron)
def layout_counts_nothing(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core transformer_config.py: `pipeline_model_parallel_layout cannot be set with` the accounts."""
    edit = _counting_nothing(job)
    if job.parallel.pipeline_layout is None or not edit:
        return None
    return problem("pipeline_layout_accounts", next(iter(edit)), edit=edit)


@rule(scopes.megatron)
def layers_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter: without a layout, layers (and what is counted as one) must be a multiple of PP x VPP."""
    parallel = job.parallel
    counted, chunks = counted_layers(job, shape), parallel.pipeline * parallel.virtual_pipeline
    if parallel.pipeline_layout is not None or counted % chunks == 0:
        return None
    choices: dict[str, dict[str, object]] = {}
    if layout := _even_layout(job, shape):
        choices["layout"] = layout_edit(job, layout)
    if fewer := _fewer_stages(job, shape):
        choices["sizes"] = fewer
    values = {"layers": counted, "chunks": chunks, "layout": layout or "",
              **{name: fewer.get(f"parallel.{name}", getattr(parallel, name)) for name in _SIZES}}  # fmt: skip
    return Problem(code="layers_not_divisible", field="parallel.pipeline", values=values, choices=choices)


@rule(scopes.megatron)
def interleaving_needs_stages(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: the interleaved schedule needs PP > 1."""
    if job.parallel.virtual_pipeline == 1 or job.parallel.pipeline > 1:
        return None
    return problem("virtual_without_pipeline", "parallel.virtual_pipeline",
                    edit=recut(job, {"parallel.virtual_pipeline": 1}))  # fmt: skip


@rule(scopes.megatron)
def interleaving_needs_micro_batches(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core schedules.py: with VPP at least PP micro-batches, and no remainder smaller than PP."""
    parallel, micro_batches = job.parallel, job.accumulation
    if parallel.virtual_pipeline == 1 or parallel.pipeline == 1:
        return None
    if micro_batches >= parallel.pipeline and micro_batches % parallel.pipeline == 0:
        return None
    fitting = -(-micro_batches // parallel.pipeline) * parallel.pipeline
    edit: dict[str, object] = {"training.gradient_accumulation_steps": fitting}
    if job.training.global_batch_size is not None:
        edit = recut(job, {"parallel.virtual_pipeline": 1})
    return problem("too_few_micro_batches", "training.gradient_accumulation_steps", micro_batches=micro_batches,
                    pipeline=parallel.pipeline, edit=edit)  # fmt: skip


@rule(scopes.megatron)
def deep_stack_fits_first_stage(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Qwen3-VL feeds deep-stack features to the first layers, which must all be on the first stage (chunk).

    mcore_adapter asserts one layer more (models/qwen3_vl/transformer_block.py), mcore-bridge does not.
    """
    needed = _needed_in_first_stage(job, shape)
    if needed == 0:
        return None
    parallel, layers = job.parallel, readable_layers(job.parallel.pipeline_layout)
    if layers:
        first_layers = layers[0]
    else:
        each, remainder = divmod(counted_layers(job, shape), parallel.pipeline * parallel.virtual_pipeline)
        first_layers = needed if remainder else each - parallel.account_for_embedding
    if first_layers >= needed:
        return None
    deep_stack = shape.vision.deep_stack if shape.vision else 0
    return problem("deep_stack_beyond_first_stage", "parallel.pipeline", layers=first_layers, deep=deep_stack,
                    needed=needed, edit=_other_layout(job, shape) if layers else _fewer_stages(job, shape))  # fmt: skip


def layout_edit(job: Job, layout: str) -> dict[str, object]:
    """Return the edit to a layout. Embedding and loss no longer count as layers: a layout places them itself."""
    return {LAYOUT: layout, **_counting_nothing(job)}


def _counting_nothing(job: Job) -> dict[str, object]:
    return {f"parallel.{name}": False for name in _ACCOUNTS if getattr(job.parallel, name)}


def recut(job: Job, edit: dict[str, object]) -> dict[str, object]:
    """Return an edit of the stages. It removes the layout if it changes the number of chunks."""
    is_other = any(f"parallel.{name}" in edit for name in _SIZES)
    return {**edit, LAYOUT: None} if is_other and job.parallel.pipeline_layout else edit


def equal_cut(job: Job, shape: ModelShape) -> Callable[[int, int], bool]:
    """Return whether the layers can be cut into equal (stages, chunks per stage)."""
    counted, needed = counted_layers(job, shape), _needed_in_first_stage(job, shape)
    embedding = job.parallel.account_for_embedding

    def legal(stages: int, chunks: int) -> bool:
        each, remainder = divmod(counted, stages * chunks)
        return remainder == 0 and each - embedding >= needed and (stages > 1 or chunks == 1)

    return legal


_SIZES = ("pipeline", "virtual_pipeline")


def _even_layout(job: Job, shape: ModelShape) -> str | None:
    """Return the layout whose pieces are as even as possible; None if there is none for PP x VPP."""
    layers = even_layers(shape.layers, job.parallel.pipeline * job.parallel.virtual_pipeline)
    return layout_of(layers) if layers and layers[0] >= _needed_in_first_stage(job, shape) else None


def _other_layout(job: Job, shape: ModelShape) -> dict[str, object]:
    """Return the edit to equal chunks if the layers allow them; else to a layout; else to fewer stages."""
    parallel = job.parallel
    if not is_known(shape) or equal_cut(job, shape)(parallel.pipeline, parallel.virtual_pipeline):
        return {LAYOUT: None}
    if layout := _even_layout(job, shape):
        return {LAYOUT: layout}
    return {LAYOUT: None, **_fewer_stages(job, shape)}


def counted_layers(job: Job, shape: ModelShape) -> int:
    """Return the number that is cut into equal chunks: the layers, and what counts as a layer."""
    return shape.layers + job.parallel.account_for_embedding + job.parallel.account_for_loss


def _needed_in_first_stage(job: Job, shape: ModelShape) -> int:
    """Return the layers that the first stage (chunk) needs for deep-stack features; 0 if the model has none."""
    deep_stack = shape.vision.deep_stack if shape.vision else 0
    return deep_stack and deep_stack + (job.traits.environment == "llamafactory")


def _fewer_stages(job: Job, shape: ModelShape) -> dict[str, object]:
    """Return the edit to the most stages, and then chunks, that divide the layers; empty if there are none."""
    stages, chunks = job.parallel.pipeline, job.parallel.virtual_pipeline
    ranks, legal = job.world_size, equal_cut(job, shape)
    for new_stages in range(stages, 0, -1):
        for new_chunks in range(chunks, 0, -1) if ranks % new_stages == 0 else ():
            if legal(new_stages, new_chunks):
                sizes = {"parallel.pipeline": (stages, new_stages), "parallel.virtual_pipeline": (chunks, new_chunks)}
                return {path: new for path, (present, new) in sizes.items() if new != present}
    return {}
