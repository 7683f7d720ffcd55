"""A run's measured figures beside the predicted ones, and whether they can correct the estimates of the cluster."""

from typing import Any

from app.calibration import as_mapping, keep_in_draft, known_of_draft, today
from app.monitor.shared_answers import Shared
from app.services import Services
from app.text import render_problem
from backend.estimate import estimate
from backend.estimate.model.lengths import computed_length
from backend.estimate.time.calibrated import calibrated_on
from backend.job.cluster import Calibration
from backend.job.job import Job
from backend.job.problems import ProblemsError
from backend.runs.api import RunMeasured, calibration_of_run

COMPARE_S = 10.0
"""Two ticks within this time see the same comparison: it costs an estimate."""
RUNS_KEPT = 16


class Compare:
    """Comparisons in one language, for any number of threads."""

    def __init__(self, services: Services, lang: str) -> None:
        self._services = services
        self._lang = lang
        self._kept: Shared[dict[str, Any]] = Shared(services.clock, fresh_s=COMPARE_S, kept=RUNS_KEPT)

    def of(self, run: str) -> dict[str, Any]:
        """What the page shows of one run; ProblemsError(unknown_run)."""
        return self._kept.get(run, lambda: self._look(run))

    def use(self, run: str) -> None:
        """Keep what the run says with the draft's cluster; ProblemsError where it says nothing or is of another GPU."""
        job, found = self._measured(run)
        calibration = calibration_of_run(job, found, today(self._services.clock()))
        self._services.audit.record("calibrate", **as_mapping(calibration))
        keep_in_draft(self._services, calibration)
        self._kept.forget(run)

    def _look(self, run: str) -> dict[str, Any]:
        launched, _ = self._services.controller.measured(run)
        job, found = self._measured(run)
        waits = any(problem.code == "calibrate_few_steps" for problem in found.problems)
        return {
            "predicted_tokens_per_s": _tokens_per_s(launched),
            "steps": found.steps,
            "step_s": found.step_s,
            "predicted_step_s": found.predicted_step_s,
            "reserved_gib": found.reserved_gib,
            "predicted_reserved_gib": found.predicted_reserved_gib,
            "useful": found.is_useful,
            "used": calibrated_on(job) == run,
            "why": [] if waits else [render_problem(self._lang, problem)["message"] for problem in found.problems],
        }

    def _measured(self, run: str) -> tuple[Job, RunMeasured]:
        """Against the cluster as the draft has it, where that is of the same GPU."""
        job, found = self._services.controller.measured(run)
        gpu, known = known_of_draft(self._services)
        if gpu != job.cluster.gpu:
            known = Calibration() if job.cluster.calibration.run == run else job.cluster.calibration
        return self._services.controller.measured(run, known) if known != job.cluster.calibration else (job, found)


def _tokens_per_s(job: Job) -> float | None:
    """Of the whole gang, as predicted at the launch and as trainers count: with padding."""
    try:
        found = estimate(job)
    except ProblemsError:
        return None
    if found.tokens_per_s_per_gpu is None:
        return None
    return found.tokens_per_s_per_gpu * job.world_size * float(computed_length(job)) / job.sequence_tokens
