"""The Hardware step's card of the cluster's calibration: measured by a benchmark, which it starts, and by a run."""

from collections.abc import Mapping
from typing import Any

from app.calibration import keep_in_draft, today
from app.services import Services
from app.text import t
from app.wizard.draft_state import DraftState
from app.wizard.last_benchmark import HostsCalibration
from backend.job.cluster import Calibration
from backend.job.job import Job
from backend.job.presets import calibration_figures
from backend.runs.api import Measurement, calibration_of_benchmark


def measure(services: Services, job: Job) -> Measurement:
    """Measure the nodes. The result waits until the user saves it."""
    measurement = services.controller.tasks.measure_speed(job)
    if measurement.speeds:
        calibration = calibration_of_benchmark(job, measurement.speeds, today(services.clock()))
        services.last_benchmark.result = HostsCalibration(calibration, job.cluster.hosts)
    return measurement


def keep(services: Services) -> dict[str, object]:
    """Save the newest benchmark in the draft's cluster. Return its day, or nothing without a benchmark."""
    last = services.last_benchmark.result
    if last is None:
        return {}
    services.audit.record("calibrate", probe=last.calibration.probe_date)
    keep_in_draft(services, last.calibration)
    services.last_benchmark.result = None
    return {"day": last.calibration.probe_date}


def forget(services: Services) -> dict[str, object]:
    """Remove the draft's calibration."""
    services.audit.record("calibrate", forgotten=True)
    keep_in_draft(services, Calibration())
    return {"forgotten": True}


def card(state: DraftState, lang: str, services: Services) -> dict[str, Any]:
    """Return sentences about the cluster's calibration, and about a benchmark that is not saved."""
    if state.job is None:
        return {"lines": [], "is_known": False, "waiting": ""}
    cluster = state.job.cluster
    last = services.last_benchmark.result
    waiting = ""
    if last and last.hosts == cluster.hosts and last.calibration.holds_for(cluster.gpu):
        waiting = t(lang, "wizard.calibration.waiting", speeds=speeds_words(last.calibration, lang))
    lines = _lines(cluster.calibration, cluster.gpu, lang)
    return {"lines": lines or [t(lang, "wizard.calibration.none")], "is_known": bool(lines), "waiting": waiting}


def speeds_words(known: Calibration, lang: str) -> str:
    """Return the known measured speeds in one text."""
    figures = {
        "product": known.matmul_tflops,
        "intra": known.intra_node_bus_gb_per_s,
        "inter": known.inter_node_bus_gb_per_s,
    }
    parts = [
        t(lang, f"wizard.calibration.{name}", figure=_number(figure), precision=known.matmul_precision)
        for name, figure in figures.items() if figure
    ]  # fmt: skip
    return t(lang, "wizard.calibration.join").join(parts)


def _lines(known: Calibration, gpu: str | Mapping[str, Any], lang: str) -> list[str]:
    lines = []
    if not known.holds_for(gpu):
        lines.append(t(lang, "wizard.calibration.other_gpu", gpu=known.gpu if isinstance(known.gpu, str) else "-"))
    run = {"run": known.run or "-", "day": known.run_date or "-"}
    if known.time_ratio:
        accuracy = calibration_figures()
        errors = {"error": f"{100 * accuracy.typical_error:.0f}", "bare": f"{100 * accuracy.uncorrected_error:.0f}"}
        lines.append(t(lang, "wizard.calibration.time", ratio=_number(known.time_ratio), **run, **errors))
    if known.memory_ratio:
        engine = t(lang, f"choice.engine.{known.engine}") if known.engine else "-"
        lines.append(t(lang, "wizard.calibration.memory", ratio=_number(known.memory_ratio), engine=engine, **run))
    if speeds := speeds_words(known, lang):
        lines.append(t(lang, "wizard.calibration.benchmark", day=known.probe_date or "-", speeds=speeds))
    return lines


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
