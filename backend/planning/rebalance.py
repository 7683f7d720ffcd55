"""Rebalancing of a plan's layers across its pipeline stages: layers move until no move shortens an iteration.

Stages are unequal because the first one holds a vision tower and the last one holds the output layer.
"""

from collections.abc import Iterator
from statistics import mean
from typing import NamedTuple

from backend.estimate import Estimate, estimate_resolved
from backend.estimate.time.schedule import equal_pieces
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.model import ModelShape
from backend.job.pipeline_layout import even_layers, layers_of, layout_of
from backend.job.presets import Gpu, resolve_gpu, resolve_model
from backend.job.problems import Problem, errors
from backend.job.rules import check_resolved
from backend.job.rules.stages import LAYOUT, layout_edit

MIN_GAIN_NOTED = 0.02
"""Share of an iteration that a layout must save for a note."""
MIN_GAIN = 0.002
"""Share of an iteration that a layout must save at all."""
_MAX_MOVES, _MAX_RECEIVERS = 64, 8
"""Limits on the layers that are moved and on the stages tried for each: the user waits for the result of an edit."""

_FITS = ("fits", "close", "too_large", None)
"""Values of Estimate.fit, the surest first."""

Layers = tuple[int, ...]


class Rebalanced(NamedTuple):
    """A layout that makes a job's iteration shorter."""

    edits: dict[str, object]
    """Job path -> value: the edits that select the layout."""
    layout: str
    faster: float
    """Share of an iteration that the layout saves."""


def unequal_stages(job: Job, own: Estimate) -> list[Problem]:
    """Return a note if a layout would make the iteration of a legal plan clearly shorter.

    `own` is the plan's estimate.
    """
    times = [sum(seconds) for seconds in own.stage_times or ()]
    if len(times) < 2 or max(times) < (1 + MIN_GAIN_NOTED) * mean(times):
        return []
    rebalanced = rebalance(job, resolve_model(job.model), resolve_gpu(job.cluster), own)
    if rebalanced is None or rebalanced.faster < MIN_GAIN_NOTED:
        return []
    values = {
        "stage": times.index(max(times)),
        "over": f"{100 * (max(times) / mean(times) - 1):.0f}",
        "now": _layers_per_stage(_current_layers(job, resolve_model(job.model)), len(times)),
        "then": _layers_per_stage(layers_of(rebalanced.layout), len(times)),
        "layout": rebalanced.layout,
        "faster": f"{100 * rebalanced.faster:.0f}",
    }
    return [Problem(code="stages_unequal", field=LAYOUT, severity="note", values=values, edit=rebalanced.edits)]


def rebalance(job: Job, shape: ModelShape, gpu: Gpu, own: Estimate) -> Rebalanced | None:
    """Return the layout with the shortest iteration that moving single layers finds for a legal plan.

    `own` is the plan's estimate. Returns None if the plan has no stages or no times, or if no layout gains enough. If
    the plan fits, the layout fits too.
    """
    parallel = job.parallel
    if not job.traits.is_megatron or parallel.pipeline == 1 or own.iteration_s is None:
        return None
    starts = {_current_layers(job, shape)}
    if not parallel.pipeline_layout and (even := even_layers(shape.layers, len(*starts))):
        starts.add(even)
    results = [_descend(job, shape, gpu, start, own) for start in starts]
    estimate, layers = min((result for result in results if result), key=_seconds, default=(own, ()))
    faster = 1 - (estimate.iteration_s or 0.0) / own.iteration_s
    if faster < MIN_GAIN:
        return None
    layout = layout_of(layers)
    return Rebalanced(edits=layout_edit(job, layout), layout=layout, faster=faster)


def _descend(job: Job, shape: ModelShape, gpu: Gpu, start: Layers, own: Estimate) -> tuple[Estimate, Layers] | None:
    """Return the layers that moves from `start` lead to; None if `start` is not legal."""
    if (best := _estimated(job, shape, gpu, start, own)) is None:
        return None
    for _ in range(_MAX_MOVES):
        moved = (_estimated(job, shape, gpu, layers, own) for layers in _moves(best[1], best[0]))
        shortest = min((result for result in moved if result), key=_seconds, default=best)
        if _seconds(shortest) >= _seconds(best):
            break
        best = shortest
    return best


def _layers_per_stage(layers: Layers, stages: int) -> str:
    """Return the layers of each stage as `14/22`."""
    return "/".join(str(sum(layers[stage::stages])) for stage in range(stages))


def _current_layers(job: Job, shape: ModelShape) -> Layers:
    """Return the layers of each piece as the job cuts them."""
    parallel = job.parallel
    if parallel.pipeline_layout:
        return layers_of(parallel.pipeline_layout)
    return equal_pieces(
        shape.layers,
        parallel.pipeline * parallel.virtual_pipeline,
        with_embedding=parallel.account_for_embedding,
        with_loss=parallel.account_for_loss,
    )


def _moves(layers: Layers, estimate: Estimate) -> Iterator[Layers]:
    """Move one layer of the slowest stage to each of the fastest: from its largest chunk to their smallest."""
    times, stages = [sum(seconds) for seconds in estimate.stage_times or ()], len(estimate.stages)
    *other_stages, slowest = sorted(range(stages), key=lambda stage: times[stage])
    giver = max(range(slowest, len(layers), stages), key=lambda piece: layers[piece])
    for stage in other_stages[:_MAX_RECEIVERS]:
        receiver = min(range(stage, len(layers), stages), key=lambda piece: layers[piece])
        if layers[giver] > 1:
            yield tuple(count - (piece == giver) + (piece == receiver) for piece, count in enumerate(layers))


def _estimated(job: Job, shape: ModelShape, gpu: Gpu, layers: Layers, own: Estimate) -> tuple[Estimate, Layers] | None:
    """Estimate the job with these layers. Return None if they are not legal, or fit less surely."""
    changed = with_values(job, layout_edit(job, layout_of(layers)))
    if errors(check_resolved(changed, shape, gpu)):
        return None
    estimate = estimate_resolved(changed, shape, gpu)
    return (estimate, layers) if _FITS.index(estimate.fit) <= _FITS.index(own.fit) else None


def _seconds(result: tuple[Estimate, Layers]) -> float:
    return result[0].iteration_s or 0.0
