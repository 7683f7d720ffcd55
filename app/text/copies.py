"""Text of a copy between nodes, for the page and the command line."""

from app.text import t
from backend.job.job import Job
from backend.runs.api import Missing


def copy_words(job: Job, missing: Missing, lang: str) -> str:
    """Return one line: what is copied, from which node, and to which nodes."""
    hosts = job.cluster.hosts
    what = [
        t(lang, f"copy.{name}", path=path)
        for name, path, ranks in (
            ("model", job.model.path, missing.model),
            ("data", job.training.dataset_dir, missing.data),
        )
        if ranks
    ]
    nodes = ", ".join(hosts[rank].name for rank in missing.ranks)
    return t(lang, "copy.what", what=t(lang, "copy.and").join(what), source=hosts[0].name, nodes=nodes)
