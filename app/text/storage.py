"""Texts about the sizes of runs and of the database, for the page and the command line."""

from collections.abc import Mapping

from app.text import t
from backend.engines import results_folder
from backend.job.problems import ProblemsError
from backend.runs.api import KINDS, WATCHED
from backend.runs.database import Reader

_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size_words(size: float) -> str:
    """Return a size with three digits: 1.23 GB."""
    for unit, name in _UNITS:
        if abs(size) >= 0.9995 * unit:
            figure = size / unit
            return f"{figure:.{2 if abs(figure) < 9.995 else 1 if abs(figure) < 99.95 else 0}f} {name}"
    return f"{size:.0f} B"


def kind_words(kinds: Mapping[str, int], lang: str) -> list[str]:
    """Return one line for each kind of data, with its name and size."""
    return [
        t(lang, "monitor.storage.of", kind=t(lang, f"monitor.storage.kind.{kind}"), size=size_words(kinds[kind]))
        for kind in KINDS
        if kinds[kind]
    ]


def folders_on_nodes(reader: Reader, run: str) -> list[str]:
    """Return folders on the nodes that may contain files of the run. A deletion does not touch them."""
    try:
        job = reader.job(run)
    except ProblemsError:
        return []
    if job.engine == WATCHED:
        return [job.training.output_dir or ""]
    return [results_folder(job, run), f"{job.cluster.run_root}/{run}"]
