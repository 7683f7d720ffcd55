"""What a scheduler says of a run's job, in words."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.text import t
from backend.runs.api import Partition


def scheduler_words(lang: str, detail: Mapping[str, Any]) -> str:
    """Return the job, its state, and why it waits, its place in the queue and its expected start, or its nodes."""
    return t(lang, "scheduler.job", job=detail.get("job"), state=detail.get("state")) + more_words(lang, detail)


def more_words(lang: str, detail: Mapping[str, Any]) -> str:
    """Return what follows the state of a job."""
    names: tuple[str, ...] = ("nodes", "reason")
    if detail.get("state") == "PENDING":
        names = ("reason", "position", "start")
    elif detail.get("state") in ("RUNNING", "COMPLETED"):
        names = ("nodes",)
    values = {name: detail.get(name) for name in ("reason", "position", "partition", "start", "nodes")}
    return "".join(t(lang, f"scheduler.{name}", **values) for name in names if values[name])


PARTITION_COLUMNS = ("name", "state", "limit", "nodes", "cpus", "memory", "gres", "features")


def partition_table(partitions: Sequence[Partition], lang: str) -> dict[str, Any]:
    """Return a row for each kind of node in each partition. A name is a button that chooses the partition."""
    return {
        "head": [t(lang, f"scheduler.partition.{name}") for name in PARTITION_COLUMNS],
        "rows": [_partition_row(partition, lang) for partition in partitions],
        "edits": [{"cluster.scheduler.partition": partition.name} for partition in partitions],
    }


def _partition_row(partition: Partition, lang: str) -> list[str]:
    memory = partition.memory_mib.rstrip("+")
    gib = f"{int(memory) / 1024:.0f}{partition.memory_mib[len(memory) :]}" if memory.isdigit() else "\N{EN DASH}"
    state = "default" if partition.is_up and partition.is_default else "up" if partition.is_up else "down"
    return [
        partition.name,
        t(lang, f"scheduler.partition.{state}"),
        partition.time_limit,
        f"{partition.idle} / {partition.nodes}",
        partition.cpus,
        gib,
        partition.gres or "\N{EN DASH}",
        partition.features or "\N{EN DASH}",
    ]
