"""Texts about plans, for the page and the command line: names, the reasons of the best plan and of other plans."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.text import render_problem, t
from app.text.intervals import range_words, time_error_words
from backend.engines import ENGINES
from backend.estimate import Estimate, is_close, over_gpu_gib, over_host_memory
from backend.job.batch import planned_batch
from backend.job.job import Job, Parallel
from backend.job.problems import Problem, errors
from backend.job.rules import check_resolved
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
    tight_and_faster,
    tokens_per_s,
    warned_engines,
    why_best,
)
from backend.planning.enumerate import engines_of
from backend.planning.space import SIZES
from backend.planning.why_not import SHORT


def all_plans(job: Job) -> Plans:
    """Return the plans of all engines that can be launched, and of the job's own engine."""
    return enumerate_plans(job, [engine for engine in engines_of(job) if engine in ENGINES or engine == job.engine])


def explain(plans: Plans, lang: str) -> str:
    """Return why the recommended plan is recommended, and which faster plans may not fit."""
    return _joined(lang, why_words(plans, lang), *doubtful_words(plans, recommended(plans), lang))


def why_words(plans: Plans, lang: str) -> str:
    """Return why the recommended plan is recommended, with its figures. If no plan fits, it is the first one."""
    rank = recommended(plans)
    if rank is None:
        return _none_words(plans, lang)
    chosen = plans[rank]
    best = chosen.estimate
    figures = {"plan": plan_name(plan_sizes(chosen.job)), "need": need_words(best, lang),
               "gpu": f"{best.gpu_memory_gib:.1f}", "count": f"{len(plans):,}",
               "batch": chosen.job.training.micro_batch_size}  # fmt: skip
    figures["engine"] = t(lang, f"wizard.engine.{chosen.job.engine}")
    further = (*_warned_words(plans, lang), *_host_words(chosen.job, best, lang), *smallest_words(plans, lang),
               *_batch_words(plans, lang))  # fmt: skip
    if not best.fits:
        key = "wizard.plan.no_fit" if over_gpu_gib(best) else "wizard.plan.no_fit.host"
        return _joined(lang, t(lang, key, **figures), *further)
    may_not_fit = ".close" if is_tight(plans, rank) else ""
    if best.tokens_per_s_per_gpu is None:
        why = t(lang, untimed_key(chosen.job))
        return _joined(lang, t(lang, f"wizard.plan.best_untimed{may_not_fit}", why=why, **figures), *further)
    speed = f"{rounded(best.tokens_per_s_per_gpu):,}"
    fastest = t(lang, f"wizard.plan.best{may_not_fit}", speed=speed, **figures)
    error = time_error_words(chosen.job, best, lang)
    return _joined(lang, fastest, *_sentences(plans, rank, lang), *further, *error)


def _none_words(plans: Plans, lang: str) -> str:
    """Return why no plan is legal. No batch and no number of GPUs helps if a rule refuses the engine."""
    for problem in errors(check_resolved(plans.job, plans.shape, plans.gpu)):
        if problem.field == "engine":
            return _joined(lang, t(lang, "wizard.plan.none.engine"), render_problem(lang, problem)["message"])
    return _joined(lang, t(lang, "wizard.plan.none"), *smallest_words(plans, lang), *_batch_words(plans, lang))


def untimed_key(job: Job) -> str:
    """Return the key of the text that says why the time of a job without figures of time is not estimated."""
    return "wizard.untimed.grpo" if job.training.stage == "grpo" else "wizard.untimed.speed"


def _joined(lang: str, *sentences: str) -> str:
    return ("" if lang == "zh" else " ").join(sentences)


def doubtful_words(plans: Plans, rank: int | None, lang: str) -> Iterable[str]:
    """Yield the faster plans that may not fit, or a warning if the recommended plan, which has this rank, may not."""
    if rank is None or rank >= plans.fitting:
        return
    if is_tight(plans, rank):
        chosen = plans[rank].estimate
        yield t(lang, "wizard.plan.close", full=percent((need_gib(chosen) or 0.0) / chosen.gpu_memory_gib))
        return
    count = tight_and_faster(plans, rank)
    if not count:
        return
    first, slower = plans[plans.surely_fitting], cost(plans, rank, plans.surely_fitting).slower
    figures = {"count": f"{count:,}", "plan": _name_with_engine(first.job, lang),
               "need": need_words(first.estimate, lang), "gpu": f"{first.estimate.gpu_memory_gib:.1f}",
               "batch": first.job.training.micro_batch_size}  # fmt: skip
    if slower is None:
        yield t(lang, "wizard.plan.doubtful.untimed", **figures)
    else:
        yield t(lang, "wizard.plan.doubtful", faster=percent(1 / (1 - slower) - 1), **figures)


def _warned_words(plans: Plans, lang: str) -> Iterable[str]:
    """Yield which engines' plans come later because a rule warns of the engine or refuses it."""
    engines = warned_engines(plans)
    if 0 < len(engines) < len(plans.spaces):
        yield t(lang, "wizard.plan.warned", engines=", ".join(t(lang, f"wizard.engine.{name}") for name in engines))


def _batch_words(plans: Plans, lang: str) -> Iterable[str]:
    """Yield the global batch of the plans if the job's own sizes give none."""
    if not plans.job.global_batch:
        yield t(lang, "wizard.plan.batch", batch=f"{plans.global_batch:,}")


def _host_words(job: Job, estimate: Estimate, lang: str) -> Iterable[str]:
    """Yield the host memory that an offloading plan needs on each node."""
    if estimate.host_memory_gib:
        needs, has = f"{estimate.host_memory_gib:,.1f}", job.cluster.host_memory_gib
        outcome = "unknown" if has is None else "exceeded" if over_host_memory(job, estimate) else "held"
        yield t(lang, f"wizard.plan.host.{outcome}", needs=needs, has="" if has is None else f"{has:,.1f}")


def smallest_words(plans: Plans, lang: str) -> Iterable[str]:
    """Yield which nodes have the least GPU memory, and what training without them would give. Nothing if equal."""
    smallest = smallest_nodes(plans.job, plans)
    if smallest is None:
        return
    values: dict[str, Any] = {"nodes": ", ".join(smallest.nodes), "least": f"{smallest.least_gib:.1f}",
                              "others": f"{smallest.others_gib:.1f}", "count": smallest.others}  # fmt: skip
    yield t(lang, "wizard.plan.smallest", **values)
    if smallest.without is None:
        yield t(lang, "wizard.plan.smallest.no_plan", **values)
        return
    rates = [plan and tokens_per_s(plan) for plan in (smallest.without, smallest.best)]
    speed, best = (f"{rounded(rate):,}" if rate else "–" for rate in rates)
    outcome = "only" if smallest.best is None else "helps" if smallest.helps else "slower"
    plan = _name_with_engine(smallest.without.job, lang)
    yield t(lang, f"wizard.plan.smallest.{outcome}", plan=plan, speed=speed, best=best, **values)


def _name_with_engine(job: Job, lang: str) -> str:
    return f"{t(lang, f'wizard.engine.{job.engine}')} {plan_name(plan_sizes(job))}"


def _sentences(plans: Plans, rank: int, lang: str) -> Iterable[str]:
    """Yield the time of the plan of this rank by part, then the cost of other sizes."""
    costs = []
    for sentence in why_best(plans, rank):
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
        costs.append(t(lang, f"why.{sentence.code}", **values))
    if costs:
        yield t(lang, "why.others", others=t(lang, "why.or").join(costs))


def spends_words(parts: Iterable[tuple[str, float]], lang: str) -> str:
    """Return the parts of an iteration and their shares of its time, in the given order."""
    shares = [t(lang, "why.part", share=percent(share), part=part_name(lang, name)) for name, share in parts]
    return t(lang, "why.spends", parts=t(lang, "why.and").join(shares))


def rounded(value: float) -> int:
    """Return the value with three significant digits. An estimate is not more accurate."""
    return int(float(f"{value:.3g}"))


def part_name(lang: str, part: str) -> str:
    """Return the name of a part of an iteration."""
    return t(lang, f"advice.part.{part}")


def percent(share: float) -> str:
    """Return a share in percent, with one decimal below 10%."""
    return f"{100 * share:.1f}%" if abs(share) < 0.1 else f"{100 * share:.0f}%"


def why_not_words(answer: WhyNot, plans: Plans, lang: str) -> str:
    """Return the rules that these sizes break, or what their best plan costs compared with the best of all plans."""
    refusals = [problem_words(lang, problem) for problem in answer.problems]
    if answer.best is None or answer.cost is None:
        return _joined(lang, *refusals, *_legal_words(answer, lang))
    estimate = answer.best.estimate
    values = {
        "plan": plan_name(plan_sizes(answer.best.job)),
        "batch": answer.best.job.training.micro_batch_size,
        "rank": "" if answer.rank is None else f"{answer.rank + 1:,}",
        "count": f"{len(plans):,}",
        "need": need_words(estimate, lang),
        "gpu": f"{estimate.gpu_memory_gib:.1f}",
        "over": f"{answer.cost.over_gib:,.1f}",
        "host": f"{estimate.host_memory_gib:,.1f}",
        "node": f"{answer.best.job.cluster.host_memory_gib or 0.0:.1f}",
    }
    if answer.rank is None:
        return _joined(lang, t(lang, "why_not.apart", **values), *refusals, _cost_words(answer.cost, values, lang))
    if answer.rank == 0 and estimate.fits:
        return t(lang, "why_not.best", **values)
    if answer.cost.over_gib:
        return t(lang, "why_not.too_large", **values)
    if answer.cost.over_host_gib:
        return t(lang, "why_not.host_too_large", **values)
    if answer.cost.slower is None or answer.cost.part is None:
        return t(lang, "why_not.untimed", **values)
    slower, part = percent(answer.cost.slower), part_name(lang, answer.cost.part)
    return t(lang, "why_not.slower", **values, slower=slower, part=part)


def _legal_words(answer: WhyNot, lang: str) -> Iterable[str]:
    """Yield the legal values of the requested sizes, and the nearest legal plan."""
    choices = []
    for path, sizes in answer.legal.items():
        others = t(lang, "why.and").join(
            f"{SHORT[other]} = {size}" for other, size in answer.sizes.items() if other != path
        )
        values = {"name": SHORT[path], "sizes": t(lang, "why.and").join(map(str, sizes)), "others": others}
        choices.append(t(lang, "why_not.legal.with" if others else "why_not.legal.one", **values))
    if choices:
        yield t(lang, "why_not.legal", choices=t(lang, "why.or").join(choices))
    if answer.nearest:
        yield t(lang, "why_not.nearest", plan=plan_in_full(answer.nearest.job, lang))


def _cost_words(cost: Cost, values: Mapping[str, Any], lang: str) -> str:
    """Return what a plan costs that is not among the compared plans."""
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
    """Return the global batch of the compared strategies. Empty if it is the job's own."""
    planned, batch = planned_batch(job), rows[0].global_batch
    if batch == planned:
        return ""
    return t(lang, "advice.batch", batch=f"{batch:,}", wanted=f"{planned:,}", ranks=f"{job.world_size:,}")


def reason_words(row: Strategy, lang: str) -> str:
    """Return the reason of a strategy, and the host memory that it needs."""
    host_words = _host_words(row.best.job, row.best.estimate, lang) if row.best else ()
    return _joined(lang, _reason_words(row, lang), *host_words)


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
    """Return a number of parameters as model names write it: `17.4 K`, `26.2 M`, `8.79 B`."""
    unit, size = ("B", 1e9) if parameters >= 1e9 else ("M", 1e6) if parameters >= 1e6 else ("K", 1e3)
    return f"{parameters / size:.3g} {unit}"


def fits_words(estimate: Estimate, lang: str) -> str:
    """Return whether a plan fits into memory, or that only the RAM of the nodes is too small."""
    if is_close(estimate):
        return t(lang, "cli.plan.maybe")
    if estimate.fits:
        return t(lang, "cli.plan.yes")
    return t(lang, "cli.plan.no" if over_gpu_gib(estimate) else "cli.plan.no_ram")


def recompute_words(job: Job, lang: str) -> str:
    """Return the recomputation of a job's plan, as the tables show it."""
    if job.recompute == "selective":
        return "+".join(job.parallel.recompute_modules or ("core_attn",))
    return t(lang, f"wizard.recompute.{job.recompute}")


def problem_words(lang: str, problem: Problem) -> str:
    """Return a problem and its fix in one line."""
    words = render_problem(lang, problem)
    return _joined(lang, words["message"], words["fix"]).strip()


def plan_name(sizes: Mapping[str, int]) -> str:
    """Return the short name of a plan: `TP4 PP2 VPP2 DP4`, or `DP32` where the model is not split."""
    short = {"tensor": "TP", "pipeline": "PP", "virtual_pipeline": "VPP", "context": "CP", "expert": "EP",
             "expert_tensor": "ETP"}  # fmt: skip
    is_split = any(sizes[name] > 1 for name in short)
    always = ("tensor", "pipeline") if is_split else ()
    split = [f"{word}{sizes[name]}" for name, word in short.items() if sizes[name] > 1 or name in always]
    return " ".join([*split, f"DP{sizes['data']}"])


def plan_in_full(job: Job, lang: str) -> str:
    """Return the name, micro-batch and recomputation of a plan: `TP2 PP2 DP8, micro-batch 4`."""
    words = t(lang, "wizard.strategies.plan", plan=plan_name(plan_sizes(job)), batch=job.training.micro_batch_size)
    if job.recompute == "none":
        return words
    return t(lang, "wizard.strategies.recomputed", plan=words, recompute=recompute_words(job, lang))


def plan_sizes(job: Job) -> dict[str, int]:
    """Return the parallel sizes and DP of a job's plan."""
    parallel = job.parallel if job.traits.is_megatron else Parallel()
    return {**{name: getattr(parallel, name) for name in SIZES}, "data": job.data_parallel}


def need_words(estimate: Estimate, lang: str) -> str:
    """Return the interval of the memory that the GPU with the largest need uses, or the need if it is assumed."""
    if estimate.memory_assumed:
        return t(lang, "accuracy.assumed", gib=f"{estimate.reserved_gib + estimate.outside_gib:,.1f}")
    return range_words(estimate.need_gib_low, estimate.need_gib_high, lang)


def need_gib(estimate: Estimate | None) -> float | None:
    """Return the memory that the GPU with the largest need uses, inside and outside of PyTorch's allocator."""
    return round(estimate.reserved_gib + estimate.outside_gib, 3) if estimate else None
