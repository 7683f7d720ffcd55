"""Result of a request of a page for data, and what the requests share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.services import A, Services, ask_nodes
from app.wizard.draft_state import read
from backend.cluster.ssh.host_keys import HostKey
from backend.engines.importing import ImportLine
from backend.job.job import Job
from backend.job.problems import Problem, ProblemsError


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchResult:
    """The result of a request: edits of the draft, or problems."""

    edits: Mapping[str, Any] = field(default_factory=dict)
    note: Mapping[str, object] = field(default_factory=dict)
    """Values of the sentence `wizard.fetch.<kind>.<done>`. Empty if nothing was read."""
    done: str = "done"
    problems: tuple[Problem, ...] = ()
    lines: Sequence[ImportLine] = ()
    """The result of an import for each key."""
    host_keys: tuple[HostKey, ...] = ()
    """Keys that the user must confirm. The page then repeats the request with their fingerprints."""
    table: Callable[[str], Mapping[str, Any]] | None = None
    """language -> table of the results: titles as `head`, `rows` of texts, `edits` of the first cell of each row."""
    datasets: Callable[[str], Mapping[str, Any]] | None = None
    """language -> dataset_info.json (dataset_info.py)."""
    preview: Callable[[str], Mapping[str, Any]] | None = None
    """language -> rows of the data (data_preview.py)."""


def ask(services: Services, request: Mapping[str, Any], read_nodes: Callable[[], A]) -> A:
    """Ask the nodes. Accept the fingerprints that the user has confirmed first."""
    accepted = {str(fingerprint) for fingerprint in request.get("accept") or ()}
    return ask_nodes(services.controller, read_nodes, accepted)


def job_of(services: Services) -> Job:
    """Return the draft as a job. Raises ProblemsError if it is none yet."""
    state = read(services.draft.job_mapping(), services.home)
    if state.job is None:
        raise ProblemsError((*state.problems, *state.missing))
    return state.job
