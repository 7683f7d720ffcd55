"""Check that the tracker of experiments that a job reports to finds a log-in."""

from backend.cluster.preflight.readings import NodeReadings
from backend.cluster.preflight.results import CheckResult

_KEY = "WANDB_API_KEY"
_WITHOUT_LOGIN = frozenset({"offline", "disabled", "dryrun"})
"""Values of WANDB_MODE that need no log-in (https://docs.wandb.ai/guides/track/environment-variables/)."""


def check_tracker(node: NodeReadings) -> list[CheckResult]:
    """Check the log-in of wandb on the node whose rank reports.

    transformers reports from the first rank (integration_utils.py WandbCallback), ms-swift's Megatron from the last one
    (swift/megatron/callbacks/wandb.py). mcore_adapter never reports to wandb.
    """
    job = node.job
    is_mcore_adapter = job.traits.is_megatron and job.traits.environment == "llamafactory"
    reporter = job.cluster.nodes - 1 if job.traits.is_megatron else 0
    if "wandb" not in job.training.report_to or is_mcore_adapter or node.checks.rank != reporter:
        return []
    mode = job.environment.get("WANDB_MODE", "")
    if _KEY in node.secret_names or mode in _WITHOUT_LOGIN or node.paths.get("wandb", True):
        return [node.checks.ok("tracker", tracker="wandb")]
    return [node.checks.warning("tracker", "tracker_not_logged_in", "training.report_to", tracker="wandb", key=_KEY)]
