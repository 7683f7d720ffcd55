"""The Hardware step's card of what was measured on the cluster: by the probe, which it starts, and by a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from app.calibration import keep_in_draft, today
from app.i18n import t
from app.services import Services
from app.wizard.reading import Reading
from backend.job.job import Calibration, Host, Job
from backend.jobs.controller import Controller
from backend.jobs.speed import Measurement, calibration_of


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured, and on which hosts."""

    calibration: Calibration
    hosts: tuple[Host, ...]


@dataclass(slots=True)
class Bench:
    """What was measured last, until the user keeps it; one a server."""

    last: Measured | None = None


@lru_cache(maxsize=8)
def bench_of(controller: Controller) -> Bench:
    """The one bench of a controller, whichever page asks."""
    return Bench()


def measure(services: Services, job: Job) -> tuple[Measurement, dict[str, str]]:
    """Measure the nodes; the measurement, and its figures for a sentence."""
    found = services.controller.measure_speed(job)
    if found.speeds is None:
        return found, {}
    calibration = calibration_of(job, found.speeds, today(services.clock()))
    bench_of(services.controller).last = Measured(calibration, job.cluster.hosts)
    return found, _figures(calibration)


def keep(services: Services) -> dict[str, str]:
    """Keep what was measured last with the draft's cluster; its figures, nothing where there is none."""
    bench = bench_of(services.controller)
    last = bench.last
    if last is None:
        return {}
    keep_in_draft(services, last.calibration)
    services.audit.record("calibrate", probe=last.calibration.probe_date)
    bench.last = None
    return _figures(last.calibration)


def forget(services: Services) -> dict[str, str]:
    """Remove the draft's calibration."""
    keep_in_draft(services, Calibration())
    services.audit.record("calibrate", forgotten=True)
    return {"forgotten": "1"}


def card(reading: Reading, lang: str, services: Services) -> dict[str, Any]:
    """What is known of the cluster in sentences, and what was measured and waits to be kept."""
    if reading.job is None:
        return {"lines": [], "is_known": False, "waiting": ""}
    cluster = reading.job.cluster
    last = bench_of(services.controller).last
    waits = last is not None and last.hosts == cluster.hosts and last.calibration.holds_for(cluster.gpu)
    waiting = t(lang, "wizard.calibration.waiting", **_figures(last.calibration)) if last and waits else ""
    lines = _lines(cluster.calibration, cluster.gpu, lang)
    return {"lines": lines or [t(lang, "wizard.calibration.none")], "is_known": bool(lines), "waiting": waiting}


def _lines(known: Calibration, gpu: str | Mapping[str, Any], lang: str) -> list[str]:
    lines = []
    if not known.holds_for(gpu):
        lines.append(t(lang, "wizard.calibration.other_gpu", gpu=known.gpu if isinstance(known.gpu, str) else "-"))
    if known.run:
        ratios = {"time": _number(known.time_ratio), "memory": _number(known.memory_ratio)}
        lines.append(t(lang, "wizard.calibration.run", run=known.run, day=known.run_date or "-", **ratios))
    if known.matmul_tflops:
        lines.append(t(lang, "wizard.calibration.probe", day=known.probe_date or "-", **_figures(known)))
    return lines


def _figures(known: Calibration) -> dict[str, str]:
    return {
        "tflops": _number(known.matmul_tflops),
        "precision": known.matmul_precision,
        "intra": _number(known.intra_node_bus_gb_per_s),
        "inter": _number(known.inter_node_bus_gb_per_s),
    }


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if value < 100 else f"{value:,.0f}"
