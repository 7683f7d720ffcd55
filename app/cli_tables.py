"""Estimates and plans as text for a terminal."""

from collections.abc import Sequence

from app.cli_output import number, table
from app.i18n import t
from backend.estimate import Estimate
from backend.planning.enumerate import Candidate, Plans

TERMS = ("weights", "gradients", "optimizer", "activations", "logits", "workspace")
AXES = ("tensor", "pipeline", "virtual_pipeline", "context", "expert", "expert_tensor")


def estimate_text(figures: Estimate, lang: str) -> str:
    """Memory by stage and term, then the bubble and the batch; GiB a GPU."""
    head = [t(lang, "cli.estimate.stage"), t(lang, "cli.estimate.layers"), t(lang, "cli.estimate.parameters")]
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
    verdict = "cli.estimate.fits" if figures.fits else "cli.estimate.too_large"
    bubble, textbook = percent(figures.bubble_fraction), percent(figures.bubble_textbook)
    lines = [
        t(lang, "cli.estimate.title", name=figures.name),
        table(head, rows),
        t(
            lang,
            verdict,
            reserved=number(figures.reserved_gib),
            outside=number(figures.outside_gib),
            memory=number(figures.gpu_memory_gib),
        ),
        t(lang, "cli.estimate.bubble", bubble=bubble, textbook=textbook),
        t(lang, "cli.estimate.batch", data=figures.data_parallel, batch=number(figures.global_batch_size)),
        t(lang, "cli.estimate.flops", gflops=number(figures.flops_per_token / 1e9, 1)),
    ]
    if figures.host_memory_gib:
        lines.append(t(lang, "cli.estimate.host", memory=number(figures.host_memory_gib, 1)))
    return "\n".join(lines) + "\n"


def plans_text(shown: Sequence[Candidate], found: Plans, lang: str) -> str:
    """One line a plan, best first; without any, how many each rule refused."""
    if not shown:
        refused = ", ".join(f"{code} {number(count)}" for code, count in found.rejected.items())
        return t(lang, "cli.plan.none", refused=refused or "-")
    head = ["TP", "PP", "VPP", "CP", "EP", "ETP", "DP", "GA"]
    head += [t(lang, "cli.plan.memory"), t(lang, "cli.plan.bubble"), t(lang, "cli.plan.fits")]
    rows = [
        [
            *(number(axis) for axis in _axes(plan)),
            number(plan.estimate.data_parallel),
            number(plan.estimate.micro_batches),
            number(plan.estimate.reserved_gib + plan.estimate.outside_gib),
            percent(plan.estimate.bubble_fraction),
            t(lang, "cli.plan.yes" if plan.estimate.fits else "cli.plan.no"),
        ]
        for plan in shown
    ]
    return "\n".join([t(lang, "cli.plan.title", shown=len(shown), count=len(found.candidates)), table(head, rows)])


def percent(fraction: float) -> str:
    """A share with one decimal."""
    return f"{100 * fraction:.1f} %"


def _axes(plan: Candidate) -> list[int]:
    return [getattr(plan, axis) for axis in AXES]
