"""Plans in words, for the page and for the command line: names, why the best is best, why another is not."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.text import render_problem, t
from app.text.errors import time_error_words
from backend.engines import ENGINES
from backend.estimate import Estimate, may_not_fit, over_gpu_gib, over_host_memory
from backend.job.batch import planned_batch
from backend.job.job import Job, Parallel
from backend.job.problems import Problem
from backend.planning import (
    Cost,
    Plans,
    Strategy,
    WhyNot,
    cost,
    enumerate_plans,
    is_tight,
    recommended,
    smallest_nodes,
    tokens_per_s,
    why_best,
)
from backend.planning.enumerate import engines_of
from backend.planning.space import SIZES
from backend.planning.why_not import SHORT


def all_plans(job: Job) -> Plans:
    """The plans of the engines that can be launched, and of the job's own."""
    return enumerate_plans(job, [engine for engine in engines_of(job) if engine in ENGINES or engine == job.engine])


def explain(plans: Plans, lang: str) -> str:
    """Why the first plan is first, and when to take another."""
    return _joined(lang, why_words(plans, lang), *instead_words(plans, recommended(plans), lang))


def why_words(plans: Plans, lang: str) -> str:
    """Why the first plan is first, from its figures."""
    if not len(plans):
        return _joined(lang, t(lang, "wizard.plan.none"), *smallest_words(plans, lang), *_batch_words(plans, lang))
    best = plans[0].estimate
    figures = {"plan": plan_name(plan_sizes(plans[0].job)), "need": f"{need_gib(best):,.1f}",
               "gpu": f"{best.gpu_memory_gib:.1f}", "count": f"{len(plans):,}",
               "batch": plans[0].job.training.micro_batch_size}  # fmt: skip
    figures["engine"] = t(lang, f"wizard.engine.{plans[0].job.engine}")
    further = (*_host_words(plans[0].job, best, lang), *smallest_words(plans, lang), *_batch_words(plans, lang))
    if not best.fits:
        key = "wizard.plan.no_fit" if over_gpu_gib(best) else "wizard.plan.no_fit.host"
        return _joined(lang, t(lang, key, **figures), *further)
    if best.tokens_per_s_per_gpu is None:
        return _joined(lang, t(lang, "wizard.plan.best_untimed", **figures), *further)
    fastest = t(lang, "wizard.plan.best", speed=f"{rounded(best.tokens_per_s_per_gpu):,}", **figures)
    error = time_error_words(plans[0].job, best, lang)
    return _joined(lang, fastest, *_sentences(plans, lang), *further, *error)


def _joined(lang: str, *sentences: str) -> str:
    return ("" if lang == "zh" else " ").join(sentences)


def instead_words(plans: Plans, rank: int | None, lang: str) -> Iterable[str]:
    """That the fastest plan leaves next to nothing of the GPU, and which one to take instead: the recommended one."""
    if not plans.fitting or not is_tight(plans, 0):
        return
    best = plans[0].estimate
    full = percent((need_gib(best) or 0.0) / best.gpu_memory_gib)
    if not rank:
        yield t(lang, "wizard.plan.tight.only", full=full)
        return
    other = plans[rank]
    figures = {"need": f"{need_gib(other.estimate):,.1f}", "slower": percent(cost(plans, rank).slower or 0.0)}
    batch = other.job.training.micro_batch_size
    yield t(lang, "wizard.plan.tight", full=full, plan=_named(other.job, lang), batch=batch, **figures)


def _batch_words(plans: Plans, lang: str) -> Iterable[str]:
    """What batch the plans are of, while the job's own sizes allow none."""
    if not plans.job.global_batch:
        yield t(lang, "wizard.plan.batch", batch=f"{plans.global_batch:,}")


def _host_words(job: Job, found: Estimate, lang: str) -> Iterable[str]:
    """What an offloading plan needs of a node's memory, which no GPU shows."""
    if found.host_memory_gib:
        needs, has = f"{found.host_memory_gib:,.1f}", job.cluster.host_memory_gib
        outcome = "unknown" if has is None else "exceeded" if over_host_memory(job, found) else "held"
        yield t(lang, f"wizard.plan.host.{outcome}", needs=needs, has="" if has is None else f"{has:,.1f}")


def smallest_words(plans: Plans, lang: str) -> Iterable[str]:
    """Where GPUs differ in memory: whose decides, and what training without these nodes would give."""
    found = smallest_nodes(plans.job, plans)
    if found is None:
        return
    values: dict[str, Any] = {"nodes": ", ".join(found.nodes), "least": f"{found.least_gib:.1f}",
                              "others": f"{found.others_gib:.1f}", "count": found.others}  # fmt: skip
    yield t(lang, "wizard.plan.smallest", **values)
    if found.without is None:
        yield t(lang, "wizard.plan.smallest.no_plan", **values)
        return
    rates = [one and tokens_per_s(one) for one in (found.without, found.best)]
    speed, best = (f"{rounded(rate):,}" if rate else "–" for rate in rates)
    outcome = "only" if found.best is None else "helps" if found.helps else "slower"
    plan = _named(found.without.job, lang)
    yield t(lang, f"wizard.plan.smallest.{outcome}", plan=plan, speed=speed, best=best, **values)


def _named(job: Job, lang: str) -> str:
    return f"{t(lang, f'wizard.engine.{job.engine}')} {plan_name(plan_sizes(job))}"


def _sentences(plans: Plans, lang: str) -> Iterable[str]:
    """What the best plan's time goes to, then what other sizes would cost."""
    others = []
    for sentence in why_best(plans):
        values = dict(sentence.values)
        if sentence.code == "spends":
            yield spends_words(values["parts"], lang)
            continue
        if values["axis"] == "mbs":
            values["axis"] = t(lang, "why.micro_batch")
        if "over_gib" in values:
            values["over_gib"] = f"{values['over_gib']:,.1f}"
        else:
            values |= {"slower": percent(values["slower"]), "part": part_name(lang, values["part"])}
        others.append(t(lang, f"why.{sentence.code}", **values))
    if others:
        yield t(lang, "why.others", others=t(lang, "why.or").join(others))


def spends_words(parts: Iterable[tuple[str, float]], lang: str) -> str:
    """What an iteration's time goes to: parts and their shares, the largest first."""
    each = [t(lang, "why.part", share=percent(share), part=part_name(lang, name)) for name, share in parts]
    return t(lang, "why.spends", parts=t(lang, "why.and").join(each))


def rounded(value: float) -> int:
    """To three figures: more would be a promise."""
    return int(float(f"{value:.3g}"))


def part_name(lang: str, part: str) -> str:
    """A part of an iteration, in words."""
    return t(lang, f"advice.part.{part}")


def percent(share: float) -> str:
    """A share in percent, with a decimal where it is small."""
    return f"{100 * share:.1f}%" if abs(share) < 0.1 else f"{100 * share:.0f}%"


def why_not_words(found: WhyNot, plans: Plans, lang: str) -> str:
    """The rules that refuse it, or what the best such plan costs against the best of all."""
    told = [problem_words(lang, problem) for problem in found.problems]
    if found.best is None or found.cost is None:
        return _joined(lang, *told, *_instead(found, lang))
    figures = found.best.estimate
    values = {
        "plan": plan_name(plan_sizes(found.best.job)),
        "batch": found.best.job.training.micro_batch_size,
        "rank": "" if found.rank is None else f"{found.rank + 1:,}",
        "count": f"{len(plans):,}",
        "need": f"{need_gib(figures):,.1f}",
        "gpu": f"{figures.gpu_memory_gib:.1f}",
        "over": f"{found.cost.over_gib:,.1f}",
        "host": f"{figures.host_memory_gib:,.1f}",
        "node": f"{found.best.job.cluster.host_memory_gib or 0.0:.1f}",
    }
    if found.rank is None:
        return _joined(lang, t(lang, "why_not.apart", **values), *told, _apart(found.cost, values, lang))
    if found.rank == 0 and figures.fits:
        return t(lang, "why_not.best", **values)
    if found.cost.over_gib:
        return t(lang, "why_not.too_large", **values)
    if found.cost.over_host_gib:
        return t(lang, "why_not.host_too_large", **values)
    if found.cost.slower is None or found.cost.part is None:
        return t(lang, "why_not.untimed", **values)
    slower, part = percent(found.cost.slower), part_name(lang, found.cost.part)
    return t(lang, "why_not.slower", **values, slower=slower, part=part)


def _instead(found: WhyNot, lang: str) -> Iterable[str]:
    """What is legal in place of the sizes that were asked about."""
    choices = []
    for path, sizes in found.legal.items():
        others = t(lang, "why.and").join(
            f"{SHORT[other]} = {size}" for other, size in found.sizes.items() if other != path
        )
        values = {"name": SHORT[path], "sizes": t(lang, "why.and").join(map(str, sizes)), "others": others}
        choices.append(t(lang, "why_not.legal.with" if others else "why_not.legal.one", **values))
    if choices:
        yield t(lang, "why_not.legal", choices=t(lang, "why.or").join(choices))
    if found.nearest:
        yield t(lang, "why_not.nearest", plan=plan_in_full(found.nearest.job, lang))


def _apart(cost: Cost, values: Mapping[str, Any], lang: str) -> str:
    """What a plan costs that is not among those compared."""
    if cost.over_gib:
        return t(lang, "why_not.apart.too_large", **values)
    if cost.over_host_gib:
        return t(lang, "why_not.apart.host_too_large", **values)
    if cost.slower is None or cost.part is None:
        return t(lang, "why_not.apart.untimed", **values)
    outcome = "slower" if cost.slower >= 0 else "faster"
    share, part = percent(abs(cost.slower)), part_name(lang, cost.part)
    return t(lang, f"why_not.apart.{outcome}", **values, share=share, part=part)


def compared_words(job: Job, rows: Sequence[Strategy], lang: str) -> str:
    """The global batch at which strategies are compared; empty if it is the job's own."""
    wanted, batch = planned_batch(job), rows[0].global_batch
    if batch == wanted:
        return ""
    return t(lang, "advice.batch", batch=f"{batch:,}", wanted=f"{wanted:,}", ranks=f"{job.world_size:,}")


def reason_words(row: Strategy, lang: str) -> str:
    """A strategy's reason, and what of a node's memory it takes."""
    told = _reason_words(row, lang)
    return _joined(lang, told, *(_host_words(row.best.job, row.best.estimate, lang) if row.best else ()))


def _reason_words(row: Strategy, lang: str) -> str:
    if row.problem is not None:
        return problem_words(lang, row.problem)
    values = dict(row.values)
    for name in ("term_gib", "over_gib"):
        if name in values:
            values[name] = f"{values[name]:,.1f}"
    if "term" in values:
        values["term"] = t(lang, f"term.{values['term']}")
    if "part" in values:
        values["part"] = part_name(lang, values["part"])
    for name in ("share", "slower"):
        if name in values:
            values[name] = percent(values[name])
    for name in ("trained", "total"):
        if name in values:
            values[name] = count_words(values[name])
    return t(lang, f"advice.{row.reason}", **values)


def count_words(parameters: int) -> str:
    """`17.4 K`, `26.2 M`, `8.79 B`: parameters as model names say them."""
    unit, size = next((one for one in (("B", 1e9), ("M", 1e6)) if parameters >= one[1]), ("K", 1e3))
    return f"{parameters / size:.3g} {unit}"


def fits_words(job: Job, found: Estimate, lang: str) -> str:
    """Whether a plan fits; where only a node's RAM is too small, that."""
    if found.fits:
        return t(lang, "cli.plan.maybe" if may_not_fit(job, found) else "cli.plan.yes")
    return t(lang, "cli.plan.no" if over_gpu_gib(found) else "cli.plan.no_ram")


def recompute_words(job: Job, lang: str) -> str:
    """What a job's plan computes again, as the table says it."""
    if job.recompute == "selective":
        return "+".join(job.parallel.recompute_modules or ("core_attn",))
    return t(lang, f"wizard.recompute.{job.recompute}")


def problem_words(lang: str, problem: Problem) -> str:
    """What is wrong and what to do, as one line."""
    words = render_problem(lang, problem)
    return _joined(lang, words["message"], words["fix"]).strip()


def plan_name(sizes: Mapping[str, Any]) -> str:
    """`TP4 PP2 VPP2 DP4`: what is split, and DP; `DP32` where nothing is."""
    short = {"tensor": "TP", "pipeline": "PP", "virtual_pipeline": "VPP", "context": "CP", "expert": "EP",
             "expert_tensor": "ETP"}  # fmt: skip
    is_split = any(sizes[name] > 1 for name in short)
    always = ("tensor", "pipeline") if is_split else ()
    split = [f"{word}{sizes[name]}" for name, word in short.items() if sizes[name] > 1 or name in always]
    return " ".join([*split, f"DP{sizes['data']}"])


def plan_in_full(job: Job, lang: str) -> str:
    """`TP2 PP2 DP8, micro-batch 4`, and what is recomputed."""
    words = t(lang, "wizard.strategies.plan", plan=plan_name(plan_sizes(job)), batch=job.training.micro_batch_size)
    if job.recompute == "none":
        return words
    return t(lang, "wizard.strategies.recomputed", plan=words, recompute=recompute_words(job, lang))


def plan_sizes(job: Job) -> dict[str, int]:
    """The parallel sizes and DP of a job's plan."""
    parallel = job.parallel if job.traits.is_megatron else Parallel()
    return {**{name: getattr(parallel, name) for name in SIZES}, "data": job.data_parallel}


def need_gib(found: Estimate | None) -> float | None:
    """What the fullest GPU needs in all: the allocator's reserve and what lies outside it."""
    return round(found.reserved_gib + found.outside_gib, 3) if found else None
