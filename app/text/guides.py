"""What guides claim of their plans beside our figures, for the page and for the command line."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from app.cli.output import number, table
from app.text import t
from app.text.plans import percent, rounded
from backend.job.job import Job
from backend.planning import Plans, guides


def guide_rows(job: Job, plans: Plans) -> list[dict[str, Any]]:
    """The guides' plans for this case, as (least, most), beside our figures; `rank` is a plan's place, from 0.

    If the engine trains something wrongly with the plan, `rank` is None and `wrong` is the problem; the page shows the
    figures of such a plan but does not offer it. Empty if the job is not the guides' case.
    """
    found, modelled = [], {space.job.engine for space in plans.spaces}
    for one in guides(job):
        claim, figures, rank = one.claim, one.estimate, plans.rank_of(one.job)
        if figures is None or (rank is None and (one.wrong is None or one.job.engine not in modelled)):
            continue
        claims = {"memory_gb": claim.memory_gb, "speed": claim.tokens_per_s_per_gpu,
                  "bubble": claim.bubble_fraction, "speed_up": claim.speed_up}  # fmt: skip
        ours = {"memory_gib": figures.reserved_gib + figures.outside_gib,
                "speed": figures.tokens_per_s_per_gpu,
                "bubble": figures.bubble_fraction, "speed_up": one.speed_up}  # fmt: skip
        wrong = one.wrong and one.wrong.code
        found.append({"name": claim.name, "rank": rank, "wrong": wrong, "claims": claims, "ours": ours})
    return found


def guides_text(rows: Sequence[Mapping[str, Any]], lang: str) -> str:
    """The same as a table for a terminal."""
    columns = ("plan", "memory", "ours", "speed", "ours", "bubble", "ours", "speed_up", "ours")
    head = [t(lang, f"wizard.guide.{name}") for name in columns]
    lines = []
    for row in rows:
        claims, ours = row["claims"], row["ours"]
        lines.append([
            row["name"],
            _claimed(claims["memory_gb"], lambda gb: f"{gb:g} GB"), f"{number(ours['memory_gib'], 1)} GiB",
            _claimed(claims["speed"], _speed), _speed(ours["speed"]),
            _claimed(claims["bubble"], percent), percent(ours["bubble"]),
            _claimed(claims["speed_up"], _times), _times(ours["speed_up"]),
        ])  # fmt: skip
    wrong = ", ".join(row["name"] for row in rows if row["wrong"])
    after = [t(lang, "wizard.guide.wrong.plans", plans=wrong)] if wrong else []
    return "\n".join([t(lang, "wizard.guide.caption"), table(head, lines), *after])


def _claimed(values: Iterable[float] | None, words: Callable[[float], str]) -> str:
    return "–".join(dict.fromkeys(map(words, values))) if values else "-"


def _speed(tokens_per_s: float | None) -> str:
    return number(rounded(tokens_per_s) if tokens_per_s else None)


def _times(value: float | None) -> str:
    return f"{value:.1f}×" if value else "-"
