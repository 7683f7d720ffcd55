"""Store calibrations with their cluster: in clusters/NAME.yaml of the home folder, or in the draft."""

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
    """Return the calibration as a job file writes it, without unknown values."""
    job = Job(cluster=Cluster(gpu="any", nodes=1, gpus_per_node=1, calibration=calibration))
    return dict(to_mapping(job)["cluster"].get(KEY, {}))


def read_calibration(cluster: Any) -> Calibration:
    """Return the calibration in a cluster's mapping, or an empty one if it cannot be read."""
    calibration = cluster.get(KEY) if isinstance(cluster, Mapping) else None
    job, _ = parse_job({"cluster": {"gpu": "any", "nodes": 1, "gpus_per_node": 1, KEY: calibration or {}}})
    return job.cluster.calibration if job else Calibration()


def find_cluster(home: Path, job: Job) -> str | None:
    """Return the only named cluster with the GPU and the hosts of a job; None if none or several match."""
    hosts = _hosts(to_mapping(job)["cluster"])
    names = [
        name for name, cluster in named_clusters(home)
        if hosts and cluster.get("gpu") == job.cluster.gpu and _hosts(cluster) == hosts
    ]  # fmt: skip
    return names[0] if len(names) == 1 else None


def keep_in_cluster(home: Path, name: str, calibration: Calibration) -> Path:
    """Write the calibration to clusters/NAME.yaml, keep the other lines, and return the path of the file.

    Raises ProblemsError: unknown_cluster, bad_cluster_file, calibration_other_gpu, cannot_write.
    """
    path, cluster = named_cluster(home, name)
    if not calibration.holds_for(cluster.get("gpu", "")):
        raise _other_gpu(calibration, cluster.get("gpu"))
    updated = {**cluster, KEY: as_mapping(calibration)}
    text = _with_block(path.read_text(encoding="utf-8"), updated[KEY])
    if load_mapping(text)[0] != updated:
        # The file does not have one key per line. Its content is kept, its comments are lost.
        text = dump_mapping(updated)
    try:
        write_atomically(path, text, replace=True)
    except OSError as error:
        values = {"path": str(path), "reason": error.strerror}
        raise ProblemsError([Problem(code="cannot_write", field="cluster", values=values)]) from error
    return path


def known_of_draft(services: Services) -> tuple[Any, Calibration]:
    """Return the GPU and the calibration of the draft's cluster."""
    cluster = with_readable_cluster(services.draft.job_mapping(), services.home).get("cluster")
    return (cluster.get("gpu") if isinstance(cluster, Mapping) else None), read_calibration(cluster)


def keep_in_draft(services: Services, calibration: Calibration) -> None:
    """Write the calibration to the draft's cluster, or to the file of the named cluster that the draft uses.

    Raises ProblemsError: calibration_other_gpu, and those of keep_in_cluster.
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
    """Return the UTC date of an epoch time."""
    return datetime.fromtimestamp(now, UTC).date().isoformat()


def _other_gpu(calibration: Calibration, gpu: Any) -> ProblemsError:
    values = {"measured": str(calibration.gpu), "gpu": str(gpu)}
    return ProblemsError([Problem(code="calibration_other_gpu", field="cluster.calibration", values=values)])


def _with_block(text: str, block: Mapping[str, Any]) -> str:
    """Return the file's text with its `calibration:` lines replaced."""
    other_lines = re.sub(rf"^{KEY}:.*\n(?:[ \t].*\n|\n)*", "", text if text.endswith("\n") else f"{text}\n", flags=re.M)
    return other_lines + yaml.safe_dump({KEY: dict(block)}, sort_keys=False, allow_unicode=True)


def _hosts(cluster: Mapping[str, Any]) -> set[tuple[str, int]]:
    listed = cluster.get("hosts")
    hosts = [host for host in listed if isinstance(host, Mapping)] if isinstance(listed, list | tuple) else []
    return {(str(host.get("address")), int(host.get("port") or 22)) for host in hosts}
