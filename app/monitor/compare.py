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
"""Polls within this time get the same comparison, because it needs an estimate."""
RUNS_KEPT = 16


class Compare:
    """Comparisons of runs in one language. Thread-safe."""

    def __init__(self, services: Services, lang: str) -> None:
        self._services = services
        self._lang = lang
        self._answers: Shared[dict[str, Any]] = Shared(services.clock, fresh_s=COMPARE_S, size=RUNS_KEPT)

    def comparison(self, run: str) -> dict[str, Any]:
        """Return the comparison of one run for the page. Raises ProblemsError(unknown_run)."""
        return self._answers.get(run, lambda: self._compute(run))

    def calibrate(self, run: str) -> None:
        """Calibrate the draft's cluster with the run. Raises ProblemsError if it has no figures or another GPU."""
        job, measured = self._measured(run)
        calibration = calibration_of_run(job, measured, today(self._services.clock()))
        self._services.audit.record("calibrate", **as_mapping(calibration))
        keep_in_draft(self._services, calibration)
        self._answers.forget(run)

    def _compute(self, run: str) -> dict[str, Any]:
        launched, _ = self._services.controller.measured(run)
        job, result = self._measured(run)
        problems = result.problems
        has_few_steps = any(problem.code == "calibrate_few_steps" for problem in problems)
        return {
            **_tokens_per_s(launched),
            "steps": result.steps,
            "step_s": result.step_s,
            "predicted_step_s": result.predicted_step_s,
            "reserved_gib": result.reserved_gib,
            "predicted_reserved_gib": result.predicted_reserved_gib,
            **{
                f"{name}_{end}": getattr(result, f"{name}_{end}")
                for name in ("predicted_step_s", "predicted_reserved_gib")
                for end in ("low", "high")
            },
            "useful": result.is_useful,
            "used": calibrated_on(job) == run,
            "why": [] if has_few_steps else [render_problem(self._lang, problem)["message"] for problem in problems],
        }

    def _measured(self, run: str) -> tuple[Job, RunMeasured]:
        """Compare with the calibration of the draft's cluster if that has the same GPU."""
        job, measured = self._services.controller.measured(run)
        gpu, known = known_of_draft(self._services)
        if gpu != job.cluster.gpu:
            known = Calibration() if job.cluster.calibration.run == run else job.cluster.calibration
        return self._services.controller.measured(run, known) if known != job.cluster.calibration else (job, measured)


def _tokens_per_s(job: Job) -> dict[str, float | None]:
    """Return the speed of all GPUs that the launch predicted, and its interval. Like trainers, it counts padding."""
    names = ("tokens_per_s_per_gpu", "tokens_per_s_per_gpu_low", "tokens_per_s_per_gpu_high")
    try:
        estimated = estimate(job)
    except ProblemsError:
        estimated = None
    scale = job.world_size * float(computed_length(job)) / job.sequence_tokens
    rates = {name: getattr(estimated, name, None) for name in names}
    return {
        f"predicted_{name.replace('_per_gpu', '')}": None if rate is None else rate * scale
        for name, rate in rates.items()
    }
