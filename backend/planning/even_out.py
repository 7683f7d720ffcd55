"""Moves layers between the stages of a plan until no move makes an iteration shorter.

It is not the layers that make stages unequal, but a vision tower on the first one and the output layer on the last.
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

TOLD = 0.02
"""Share of an iteration that is worth a word."""
FELT = 0.002
"""Share of an iteration that is worth another layout."""
_MOVES, _FASTEST = 64, 8
"""Layers that are moved at most, and stages that each is offered to: an edit waits for it."""

Layers = tuple[int, ...]


class Evened(NamedTuple):
    """Another way to cut the layers."""

    edits: dict[str, object]
    """Job path -> value: what choosing it writes."""
    layout: str
    faster: float
    """By how much of an iteration."""


def unequal_stages(job: Job, found: Estimate) -> list[Problem]:
    """A note where the slowest stage holds up a legal plan that a layout would make clearly faster."""
    times = [sum(both) for both in found.stage_times or ()]
    if len(times) < 2 or max(times) < (1 + TOLD) * mean(times):
        return []
    evened = evened_out(job, resolve_model(job.model), resolve_gpu(job.cluster), found)
    if evened is None or evened.faster < TOLD:
        return []
    values = {
        "stage": times.index(max(times)),
        "over": f"{100 * (max(times) / mean(times) - 1):.0f}",
        "now": _of_stages(_present(job, resolve_model(job.model)), len(times)),
        "then": _of_stages(layers_of(evened.layout), len(times)),
        "layout": evened.layout,
        "faster": f"{100 * evened.faster:.0f}",
    }
    return [Problem(code="stages_unequal", field=LAYOUT, severity="note", values=values, edit=evened.edits)]


def evened_out(job: Job, shape: ModelShape, gpu: Gpu, own: Estimate) -> Evened | None:
    """The layout of a legal plan whose iteration is the shortest that moving single layers finds.

    `own` is the plan's estimate. None where there are no stages or times, or nothing gains. What fits stays fitting.
    """
    parallel = job.parallel
    if not job.traits.is_megatron or parallel.pipeline == 1 or own.iteration_s is None:
        return None
    starts = {_present(job, shape)}
    if not parallel.pipeline_layout and (even := even_layers(shape.layers, len(*starts))):
        starts.add(even)
    found = [_followed(job, shape, gpu, start, own) for start in starts]
    figures, layers = min((one for one in found if one), key=lambda one: _seconds(one[0]), default=(own, ()))
    faster = 1 - _seconds(figures) / own.iteration_s
    if faster < FELT:
        return None
    layout = layout_of(layers)
    return Evened(edits=layout_edit(job, layout), layout=layout, faster=faster)


def _followed(job: Job, shape: ModelShape, gpu: Gpu, start: Layers, own: Estimate) -> tuple[Estimate, Layers] | None:
    """Where moves end that begin with these stages; None where these are not legal."""
    if (begun := _tried(job, shape, gpu, start, own)) is None:
        return None
    figures, layers = begun
    for _ in range(_MOVES):
        tries = (_tried(job, shape, gpu, moved, own) for moved in _moves(layers, figures))
        better = min((one for one in tries if one), key=lambda one: _seconds(one[0]), default=begun)
        if _seconds(better[0]) >= _seconds(figures):
            break
        figures, layers = better
    return figures, layers


def _of_stages(layers: Layers, stages: int) -> str:
    """`14/22`: layers of each stage."""
    return "/".join(str(sum(layers[stage::stages])) for stage in range(stages))


def _present(job: Job, shape: ModelShape) -> Layers:
    """Layers of each piece as the job cuts them."""
    parallel = job.parallel
    if parallel.pipeline_layout:
        return layers_of(parallel.pipeline_layout)
    return equal_pieces(
        shape.layers,
        parallel.pipeline * parallel.virtual_pipeline,
        with_embedding=parallel.account_for_embedding,
        with_loss=parallel.account_for_loss,
    )


def _moves(layers: Layers, figures: Estimate) -> Iterator[Layers]:
    """One layer of the slowest stage to each of the fastest: from its fullest chunk to their emptiest."""
    times, stages = [sum(both) for both in figures.stage_times or ()], len(figures.stages)
    *others, slowest = sorted(range(stages), key=lambda stage: times[stage])
    given = max(range(slowest, len(layers), stages), key=lambda piece: layers[piece])
    for stage in others[:_FASTEST]:
        taken = min(range(stage, len(layers), stages), key=lambda piece: layers[piece])
        if layers[given] > 1:
            yield tuple(count - (piece == given) + (piece == taken) for piece, count in enumerate(layers))


def _tried(job: Job, shape: ModelShape, gpu: Gpu, layers: Layers, own: Estimate) -> tuple[Estimate, Layers] | None:
    """The job with these stages; None where they are not legal, or do not fit where the job's own do."""
    changed = with_values(job, layout_edit(job, layout_of(layers)))
    if errors(check_resolved(changed, shape, gpu)):
        return None
    figures = estimate_resolved(changed, shape, gpu)
    return (figures, layers) if figures.fits or not own.fits else None


def _seconds(figures: Estimate) -> float:
    return figures.iteration_s or 0.0
