"""Tables of estimates, plans and strategies for the terminal."""

from collections.abc import Iterator, Sequence
from operator import itemgetter

from app.cli.output import number, table
from app.text import t
from app.text.intervals import hours_words, memory_error_words, time_error_words
from app.text.plans import (
    compared_words,
    explain,
    fits_words,
    need_words,
    plan_in_full,
    reason_words,
    recompute_words,
    rounded,
    spends_words,
)
from backend.estimate import TERMS, Estimate, is_close, over_gpu_gib, speed_up
from backend.job.job import Job
from backend.job.presets import resolve_gpu, resolve_model
from backend.planning import Candidate, Plans, Strategy
from backend.planning.space import CUT, SIZES


def estimate_text(job: Job, figures: Estimate, lang: str) -> str:
    """Return memory by pipeline stage and term in GiB per GPU, the bubble, the batch and, if known, the speed."""
    too_large = "too_large" if over_gpu_gib(figures) else "host_too_large"
    verdict = "near" if is_close(figures) else "fits" if figures.fits else too_large
    memory = {"reserved": figures.reserved_gib, "outside": figures.outside_gib, "memory": figures.gpu_memory_gib}
    bubble, textbook = percent(figures.bubble_fraction), percent(figures.bubble_textbook)
    lines = [
        t(lang, "cli.estimate.title", name=figures.name),
        _stage_table(figures, lang),
        t(lang, f"cli.estimate.{verdict}", **{name: number(gib) for name, gib in memory.items()}),
        *memory_error_words(job, figures, lang),
        t(lang, "cli.estimate.bubble", bubble=bubble, textbook=textbook),
        t(lang, "cli.estimate.batch", data=figures.data_parallel, batch=number(figures.global_batch_size)),
        t(lang, "cli.estimate.flops", gflops=number(figures.flops_per_token / 1e9, 1)),
        *_speed_lines(job, figures, lang),
    ]
    faster = speed_up(job, resolve_model(job.model), resolve_gpu(job.cluster)) if job.cluster.nodes > 1 else None
    if faster:
        lines.append(t(lang, "cli.estimate.speed_up", nodes=job.cluster.nodes, faster=number(faster, 1)))
    if figures.calibrated_on:
        lines.append(t(lang, "cli.estimate.calibrated", run=figures.calibrated_on))
    if figures.probed_on:
        lines.append(t(lang, "cli.estimate.benchmarked", day=figures.probed_on))
    if figures.host_memory_gib:
        lines.append(t(lang, "cli.estimate.host", memory=number(figures.host_memory_gib, 1)))
    return "\n".join(lines) + "\n"


def _stage_table(figures: Estimate, lang: str) -> str:
    """Return one row per pipeline stage. A star marks the stage with the highest peak."""
    head = [t(lang, f"cli.estimate.{column}") for column in ("stage", "layers", "parameters")]
    head += [*(t(lang, f"term.{term}") for term in TERMS), t(lang, "cli.estimate.peak")]
    rows = [
        [
            f"{stage.stage}{' *' if stage.stage == figures.peak_stage and len(figures.stages) > 1 else ''}",
            number(stage.layers),
            number(stage.parameters / 1e9, 3),
            *(number(getattr(stage, f"{term}_gib")) for term in TERMS),
            number(stage.peak_gib),
        ]
        for stage in figures.stages
    ]
    return table(head, rows)


def _speed_lines(job: Job, figures: Estimate, lang: str) -> Iterator[str]:
    if figures.time_s is None:
        return
    values = {"tflops": number(figures.model_tflops_per_gpu, 0), "seconds": f"{figures.iteration_s or 0.0:.3g}"}
    mfu = percent(figures.mfu or 0.0)
    yield t(lang, "cli.estimate.speed", speed=number(rounded(figures.tokens_per_s_per_gpu or 0.0)), mfu=mfu, **values)
    longest = sorted(figures.time_s.items(), key=itemgetter(1), reverse=True)[:3]
    yield spends_words([(name, seconds / sum(figures.time_s.values())) for name, seconds in longest], lang)
    if figures.hours:
        yield t(lang, "cli.estimate.hours", hours=number(figures.hours, 1))
    yield from time_error_words(job, figures, lang)


def plans_text(shown: Sequence[Candidate], plans: Plans, lang: str) -> str:
    """Return a table of the `shown` plans and why the first is the best. Without plans: how many each rule refused."""
    if not len(plans):
        refused = ", ".join(f"{code} {number(count)}" for code, count in plans.rejected.items())
        return t(lang, "cli.plan.none", refused=refused or "-")
    columns = _columns(shown, lang)
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    title = t(lang, "cli.plan.title", shown=number(len(shown)), count=number(len(plans)))
    return "\n".join([title, explain(plans, lang), *([table(list(columns), rows)] if rows else [])])


def _columns(shown: Sequence[Candidate], lang: str) -> dict[str, list[str]]:
    """Return the cells by heading. A parallel size that is 1 in every plan has no column, except TP and PP."""
    jobs, estimates = [plan.job for plan in shown], [plan.estimate for plan in shown]
    columns = {t(lang, "cli.plan.engine"): [t(lang, f"wizard.engine.{job.engine}") for job in jobs]}
    for title, name in zip(("TP", "PP", "VPP", "CP", "EP", "ETP"), SIZES, strict=True):
        sizes = [getattr(job.parallel, name) for job in jobs]
        if name in SIZES[:2] or any(size > 1 for size in sizes):
            columns[title] = [number(size) for size in sizes]
    columns |= {
        "DP": [number(job.data_parallel) for job in jobs],
        "MBS": [number(job.training.micro_batch_size) for job in jobs],
        "GA": [number(job.accumulation) for job in jobs],
        t(lang, "cli.plan.recompute"): [recompute_words(job, lang) for job in jobs],
        t(lang, "cli.plan.memory"): [need_words(figures, lang) for figures in estimates],
        t(lang, "cli.plan.bubble"): [percent(figures.bubble_fraction) for figures in estimates],
    }
    if all(figures.iteration_s for figures in estimates):
        speeds = [rounded(figures.tokens_per_s_per_gpu or 0.0) for figures in estimates]
        columns[t(lang, "cli.plan.exposed")] = [percent(_exposed_share(figures)) for figures in estimates]
        columns[t(lang, "cli.plan.speed")] = [number(speed) for speed in speeds]
    if any(notes := [t(lang, "why.and").join(_switches(job, lang)) for job in jobs]):
        columns[t(lang, "cli.plan.notes")] = notes
    if any(figures.hours for figures in estimates):
        columns[t(lang, "cli.plan.hours")] = [hours_words(figures, lang) for figures in estimates]
    columns[t(lang, "cli.plan.fits")] = [fits_words(plan.estimate, lang) for plan in shown]
    return columns


def _switches(job: Job, lang: str) -> Iterator[str]:
    """Yield the settings of a plan that have no column of their own."""
    parallel = job.parallel
    if not job.traits.is_megatron:
        return
    if parallel.tensor > 1 and not parallel.sequence:
        yield t(lang, "wizard.plan.no_sequence")
    if not parallel.distributed_optimizer:
        yield t(lang, "wizard.plan.no_sharding")
    for name in CUT:
        if parallel.pipeline > 1 and getattr(parallel, name):
            yield t(lang, f"cli.plan.{name}", layout=parallel.pipeline_layout)


def _exposed_share(figures: Estimate) -> float:
    """Return the share of an iteration in which communication is not overlapped by computation."""
    return sum((figures.communication_s or {}).values()) / (figures.iteration_s or 1.0)


def strategies_text(job: Job, rows: Sequence[Strategy], lang: str) -> str:
    """Return a table with one row per strategy, and why it is recommended or not."""
    head = [t(lang, f"cli.strategies.{name}") for name in ("strategy", "plan")]
    head += [t(lang, f"cli.plan.{name}") for name in ("memory", "fits", "speed", "hours")]
    head.append(t(lang, "cli.strategies.reason"))
    cells = [
        [
            t(lang, f"strategy.{row.key}") + (" *" if row.recommended else ""),
            plan_in_full(row.best.job, lang) if row.best else "-",
            need_words(row.best.estimate, lang) if row.best else "-",
            fits_words(row.best.estimate, lang) if row.best else "-",
            number(rounded(row.tokens_per_s_per_gpu) if row.tokens_per_s_per_gpu else None),
            hours_words(row.best.estimate, lang) if row.hours and row.best else "-",
            reason_words(row, lang),
        ]
        for row in rows
    ]
    title = [t(lang, "cli.strategies.title", name=job.name), compared_words(job, rows, lang)]
    return "\n".join([*filter(None, title), table(head, cells, left_columns=(1, len(head) - 1))])


def percent(fraction: float) -> str:
    """Return a fraction as a percentage with one decimal."""
    return f"{100 * fraction:.1f}%"
