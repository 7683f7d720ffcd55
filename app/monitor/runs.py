"""The list of runs as the browser draws it."""

from typing import Any

from backend.jobs.records import RunSummary


def rows(runs: list[RunSummary]) -> list[dict[str, Any]]:
    """One row a run, newest first."""
    return [
        {
            "id": run.id,
            "name": run.name,
            "state": run.state.value,
            "engine": run.engine,
            "nodes": run.nodes,
            "created": run.created,
            "step": run.step,
            "total": run.total_steps,
            "loss": run.loss,
            "queue_place": run.queue_place,
            "can_resume": run.state.can_resume,
        }
        for run in runs
    ]
