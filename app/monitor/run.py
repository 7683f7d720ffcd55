"""One run for the browser: its head, its progress and its nodes."""

from collections.abc import Mapping
from typing import Any

from app.monitor.runs import labels
from app.text import render_problem
from app.text.alike import as_one, by_likeness
from app.text.causes import other_causes, sign_of, versions_of
from app.text.preparation import preparing_words
from app.text.scheduler import scheduler_words
from backend.job.problems import Problem
from backend.runs.api import DERIVED, WATCHED, is_saving, stuck_words, warning_key
from backend.runs.records import NodeSnapshot, Preparing, RunSnapshot
from backend.runs.states import RunState


def head(run: RunSnapshot, lang: str) -> dict[str, Any]:
    """Return the values above the charts that seldom change: state, attempts, cause of a failure, proof of a stop."""
    saving = run.state is RunState.STOPPING and is_saving(run.events)
    return {
        "name": run.name,
        "labels": labels(run.labels),
        "state": run.state.value,
        "is_final": run.state.is_final,
        "is_saving": saving,
        "can_save": run.state is RunState.RUNNING and run.engine not in DERIVED,
        "can_stop": not run.state.is_final and (run.state is not RunState.STOPPING or saving),
        "is_watched": run.engine == WATCHED,
        "is_derived": run.engine in DERIVED,
        "can_resume": run.state.can_resume and run.engine not in DERIVED,
        "can_delete": run.state.is_final,
        "can_continue": run.state.is_final and run.engine not in (WATCHED, *DERIVED),
        "is_waiting": run.state is RunState.QUEUED,
        "queue_place": run.queue_place,
        "not_before": run.not_before,
        "scheduler": None if run.scheduler is None else scheduler_words(lang, run.scheduler),
        "checkpoint": run.checkpoint_step,
        "source": run.source,
        "restarts": [run.restarts, run.restarts_allowed],
        "engine": run.engine,
        "attempt": run.attempt,
        "created": run.created,
        "started": run.created if run.engine == WATCHED else run.started,
        "elapsed": None if run.elapsed is None else [round(run.elapsed.done_s, 1), run.elapsed.since],
        "ended": run.ended,
        "nodes": len(run.nodes),
        "cause": None if run.cause is None else _cause(run, run.cause, lang),
        "warnings": [
            {**render_problem(lang, as_one(some)), "keys": [warning_key(warning) for warning in some]}
            for some in by_likeness(run.warnings)
        ],
        "proof": _proof(run),
    }


def progress(run: RunSnapshot, lang: str) -> dict[str, Any]:
    """Return the values that change with every step: progress, speed and the newest loss."""
    return {
        "step": run.step,
        "total": run.total_steps,
        "preparing": None if run.preparing is None else _preparing(run.preparing, lang),
        "eta_s": None if run.standstill else _rounded(run.eta_s, 1),
        "step_s": _rounded(run.step_s, 4),
        "tokens_per_s": _rounded(run.tokens_per_s, 1),
        "loss": run.loss,
    }


def nodes(run: RunSnapshot) -> list[dict[str, Any]]:
    """Return one row per node, by rank. `heard`: time of its newest heartbeat, by the server's clock."""
    return [
        {
            "rank": node.rank,
            "address": node.address,
            "state": node.state,
            "heard": None if node.heartbeat_age_s is None else round(run.looked_at - node.heartbeat_age_s),
            "load": node.host.get("load1"),
            "memory": [node.host.get("memory_used_mib"), node.host.get("memory_total_mib")],
            "disk_free": node.host.get("disk_free_mib"),
            "members": node.members,
            "gpus": [_gpu(gpu) for gpu in node.gpus],
            "stuck": [stuck_words([process]) for process in node.stuck],
            "exit": None if node.exit is None else {key: node.exit.get(key) for key in ("code", "signal", "reason")},
            "left": node.processes_left,
            "gpu_mib": _gpu_memory_held(node),
        }
        for node in run.nodes
    ]


def _preparing(preparing: Preparing, lang: str) -> dict[str, Any]:
    share = preparing.done / preparing.total if preparing.total else 0.0
    return {"text": preparing_words(preparing, lang), "share": round(share, 3)}


def _cause(run: RunSnapshot, problem: Problem, lang: str) -> dict[str, Any]:
    shown = render_problem(lang, problem)
    return {
        "message": shown["message"],
        "fix": shown["fix"],
        "node": problem.node,
        "rank": problem.values.get("rank"),
        "file": problem.values.get("file"),
        "source": problem.values.get("source") or problem.values.get("file"),
        "lines": str(problem.values.get("lines") or ""),
        "evidence": str(problem.values.get("line") or ""),
        "versions": versions_of(problem),
        "of_rank": problem.values.get("of_rank"),
        "is_certain": problem.values.get("is_certain", True) is not False,
        "sign": sign_of(problem, lang),
        "others": [{key: other[key] for key in ("message", "sign", "fix")} for other in other_causes(problem, lang)],
        "last": None if run.last_step_at is None or run.ended is None else [run.step, run.last_step_at, run.ended],
    }


def _proof(run: RunSnapshot) -> dict[str, int] | None:
    """Return how many nodes proved that no process of the run is left on them. None before the end of the run."""
    if not run.state.is_final or not run.nodes or run.state is RunState.UNWATCHED:
        return None
    left = [node.processes_left for node in run.nodes]
    return {"proved": sum(count == 0 for count in left), "nodes": len(left), "left": sum(count or 0 for count in left)}


def _gpu_memory_held(node: NodeSnapshot) -> int | None:
    """Return by how many MiB the use of the node's GPUs grew from before to after the run. None if not checked."""
    gpus = (node.exit or {}).get("gpus")
    return None if not gpus else round(sum(max(0.0, after - before) for _, before, after in gpus))


def _gpu(gpu: Mapping[str, Any]) -> list[Any]:
    keys = ("index", "utilization", "memory_used_mib", "memory_total_mib", "power_w", "temperature_c")
    return [gpu.get(key) for key in keys]


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
