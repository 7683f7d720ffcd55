"""What a copy between nodes is about, in words; the page and the command line say the same."""

from app.text import t
from backend.job.job import Job
from backend.runs.api import Missing


def copy_words(job: Job, missing: Missing, lang: str) -> str:
    """What is copied from where to where, as one line."""
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
