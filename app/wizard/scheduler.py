"""The choice between SSH nodes and Slurm in the draft, which keeps the values of both."""

from collections.abc import Mapping
from typing import Any

from backend.job.problems import Problem

FIELD = "cluster.scheduler"
KIND = f"{FIELD}.kind"
ADDRESS = f"{FIELD}.login.address"


def kind_of(scheduler: Any) -> Any:
    """Return the kind of the draft's scheduler; None for SSH nodes. A job file need not name the kind."""
    return scheduler.get("kind", "slurm") if isinstance(scheduler, Mapping) else None


def read_scheduler(cluster: dict[str, Any], problems: list[Problem]) -> None:
    """Remove what the draft keeps of the other choice, so that the job has hosts or a scheduler.

    A job file that names both is not corrected: its hosts are a list, not the form of the page.
    """
    scheduler = cluster.get("scheduler")
    if not isinstance(scheduler, Mapping):
        return
    if kind_of(scheduler) is None:
        del cluster["scheduler"]
        return
    if isinstance(cluster.get("hosts"), Mapping):
        del cluster["hosts"]
    login = scheduler.get("login")
    if login is None or (isinstance(login, Mapping) and not login.get("address")):
        problems.append(Problem(code="needed_for_launch", field=ADDRESS))
        del cluster["scheduler"]
