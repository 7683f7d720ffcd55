"""Calibrations kept with their cluster: in clusters/NAME.yaml of the home folder, or in the draft's own cluster."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from app.home import named_cluster, named_clusters, with_readable_cluster
from app.private_file import write_atomically
from app.services import Services
from backend.job.cluster import Calibration, Cluster
from backend.job.job import Job
from backend.job.mapping import dump_mapping, load_mapping, parse_job, to_mapping
from backend.job.problems import Problem, ProblemsError

KEY = "calibration"


def as_mapping(calibration: Calibration) -> dict[str, Any]:
    """What the job file says of it: what is known."""
    job = Job(cluster=Cluster(gpu="any", nodes=1, gpus_per_node=1, calibration=calibration))
    return dict(to_mapping(job)["cluster"].get(KEY, {}))


def read_calibration(cluster: Any) -> Calibration:
    """The calibration in a cluster's mapping; an empty one where it cannot be read."""
    given = cluster.get(KEY) if isinstance(cluster, Mapping) else None
    job, _ = parse_job({"cluster": {"gpu": "any", "nodes": 1, "gpus_per_node": 1, KEY: given or {}}})
    return job.cluster.calibration if job else Calibration()


def cluster_of(home: Path, job: Job) -> str | None:
    """The one named cluster with the GPU and the hosts of a job; None where there is none, or more than one."""
    wanted = _hosts(to_mapping(job)["cluster"])
    found = [
        name for name, cluster in named_clusters(home)
        if wanted and cluster.get("gpu") == job.cluster.gpu and _hosts(cluster) == wanted
    ]  # fmt: skip
    return found[0] if len(found) == 1 else None


def keep_in_cluster(home: Path, name: str, calibration: Calibration) -> Path:
    """Write it into clusters/NAME.yaml, whose other lines stay as they are; the file.

    Raises ProblemsError: unknown_cluster, bad_cluster_file, calibration_other_gpu, cannot_write.
    """
    path, cluster = named_cluster(home, name)
    if not calibration.holds_for(cluster.get("gpu", "")):
        raise _other_gpu(calibration, cluster.get("gpu"))
    wanted = {**cluster, KEY: as_mapping(calibration)}
    text = _with_block(path.read_text(encoding="utf-8"), wanted[KEY])
    if load_mapping(text)[0] != wanted:
        # A file in another style than one key a line: its comments are lost, its content is not.
        text = dump_mapping(wanted)
    try:
        write_atomically(path, text, replace=True)
    except OSError as error:
        values = {"path": str(path), "reason": error.strerror}
        raise ProblemsError([Problem(code="cannot_write", field="cluster", values=values)]) from error
    return path


def known_of_draft(services: Services) -> tuple[Any, Calibration]:
    """The GPU of the draft's cluster and what was measured on it."""
    cluster = with_readable_cluster(services.draft.job_mapping(), services.home).get("cluster")
    return (cluster.get("gpu") if isinstance(cluster, Mapping) else None), read_calibration(cluster)


def keep_in_draft(services: Services, calibration: Calibration) -> None:
    """Keep it with the draft's cluster: in its file where that is a named one.

    Raises ProblemsError: calibration_other_gpu, and what keep_in_cluster raises.
    """
    name = services.draft.job_mapping().get("cluster")
    if isinstance(name, str):
        keep_in_cluster(services.home, name, calibration)
        return
    gpu, _ = known_of_draft(services)
    if not calibration.holds_for(gpu):
        raise _other_gpu(calibration, gpu)
    services.draft.edit(f"cluster.{KEY}", as_mapping(calibration))


def today(now: float) -> str:
    """The day of an epoch time, in UTC."""
    return datetime.fromtimestamp(now, UTC).date().isoformat()


def _other_gpu(calibration: Calibration, gpu: Any) -> ProblemsError:
    values = {"measured": str(calibration.gpu), "gpu": str(gpu)}
    return ProblemsError([Problem(code="calibration_other_gpu", field="cluster.calibration", values=values)])


def _with_block(text: str, block: Mapping[str, Any]) -> str:
    """The file's text with its `calibration:` lines replaced."""
    kept = re.sub(rf"^{KEY}:.*\n(?:[ \t].*\n|\n)*", "", text if text.endswith("\n") else f"{text}\n", flags=re.M)
    return kept + yaml.safe_dump({KEY: dict(block)}, sort_keys=False, allow_unicode=True)


def _hosts(cluster: Mapping[str, Any]) -> set[tuple[str, int]]:
    listed = cluster.get("hosts")
    hosts = [host for host in listed if isinstance(host, Mapping)] if isinstance(listed, list | tuple) else []
    return {(str(host.get("address")), int(host.get("port") or 22)) for host in hosts}
