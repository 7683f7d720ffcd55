"""The state of runs, nodes and GPUs in the text format of Prometheus, for GET /metrics.

A scrape reads the same snapshots as the page. It shows the runs that have not ended, and those that ended within
ENDED_S, so that an alert rule of Prometheus sees the end.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.services import Services
from app.web.scrape_token import METRICS_PATH
from backend import __version__
from backend.job.problems import ProblemsError
from backend.runs.records import RunSnapshot
from backend.runs.states import RunState

ENDED_S = 3600.0
"""How long an ended run stays in the answer."""
MOST_RUNS = 100
"""Maximum number of runs in one answer, the newest first."""
_MIB = float(1 << 20)
_PREFIX = "megaboard_"
_NODE = ("run", "rank", "node")


@dataclass(frozen=True, slots=True)
class Figure:
    """One gauge: the end of its name, its help text, and where its value stands."""

    name: str
    help: str
    key: str
    """Attribute of a RunSnapshot, or key of a node's or GPU's mapping."""
    scale: float = 1.0
    """Factor to the base unit of Prometheus (bytes, seconds, ratio)."""


RUN_FIGURES = (
    Figure("attempt", "Number of the newest attempt.", "attempt"),
    Figure("restarts", "Automatic restarts since the launch or the last resume.", "restarts"),
    Figure("step", "Newest optimizer step.", "step"),
    Figure("total_steps", "Number of steps of the whole training.", "total_steps"),
    Figure("loss", "Newest logged loss.", "loss"),
    Figure("step_seconds", "Median time of the recent steps.", "step_s"),
    Figure("tokens_per_second", "Throughput of all GPUs together, padding included.", "tokens_per_s"),
    Figure("eta_seconds", "Remaining time at the speed of the recent steps.", "eta_s"),
    Figure("last_step_timestamp_seconds", "When the newest step ended.", "last_step_at"),
    Figure("created_timestamp_seconds", "When the run was created.", "created"),
)
HOST_FIGURES = (
    Figure("load1", "Load average of one minute.", "load1"),
    Figure("memory_used_bytes", "Used host memory.", "memory_used_mib", _MIB),
    Figure("memory_total_bytes", "Host memory.", "memory_total_mib", _MIB),
    Figure("disk_free_bytes", "Free space on the disk of the run folder.", "disk_free_mib", _MIB),
)
GPU_FIGURES = (
    Figure("utilization_ratio", "Share of time in which a kernel ran.", "utilization", 0.01),
    Figure("memory_used_bytes", "Used GPU memory.", "memory_used_mib", _MIB),
    Figure("memory_total_bytes", "GPU memory.", "memory_total_mib", _MIB),
    Figure("power_watts", "Power draw.", "power_w"),
    Figure("temperature_celsius", "GPU temperature.", "temperature_c"),
    Figure("clock_hertz", "Clock of the streaming multiprocessors.", "clock_mhz", 1e6),
)


def routes(services: Services) -> APIRouter:
    """Return the route GET /metrics. AuthMiddleware checks the token before."""
    router = APIRouter()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunCollector(services))

    @router.get(METRICS_PATH)
    def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), media_type=content_type)

    return router


class RunCollector(Collector):
    """Collects the metrics of all shown runs when Prometheus reads them."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that a registration does not read the database."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield each metric once, with the samples of all shown runs. Raises StoreError."""
        yield _gauge("build_info", "Version of this server.", ("version",), [((__version__,), 1)])
        summaries = self._services.run_cache.runs()
        states = Counter(run.state for run in summaries)
        yield _gauge("runs", "Number of runs by state.", ("state",), [((s.value,), states[s]) for s in RunState])
        since = self._services.clock() - ENDED_S
        shown = [run.id for run in summaries if run.ended is None or run.ended > since][:MOST_RUNS]
        runs = list(self._snapshots(shown))
        yield from _of_runs(runs)
        yield from _of_nodes(runs)
        yield from _of_gpus(runs)
        yield self._events(run.id for run in runs)

    def _snapshots(self, ids: Iterable[str]) -> Iterator[RunSnapshot]:
        for run_id in ids:
            # A broken run counts in megaboard_runs; a run may be deleted meanwhile.
            with suppress(ProblemsError):
                yield self._services.run_cache.run(run_id)

    def _events(self, ids: Iterable[str]) -> Metric:
        family = CounterMetricFamily(f"{_PREFIX}run_events", "Events of the run by kind.", labels=("run", "kind"))
        with self._services.database.read() as reader:
            for run_id in ids:
                for kind, count in reader.event_counts(run_id).items():
                    family.add_metric((run_id, kind.value), count)
        return family


def _of_runs(runs: Sequence[RunSnapshot]) -> Iterator[Metric]:
    labels = ("run", "name", "engine", "state")
    values = [((run.id, run.name, run.engine, run.state.value), 1) for run in runs]
    yield _gauge("run_info", "Name, engine and state of the run.", labels, values)
    for figure in RUN_FIGURES:
        rows = [((run.id,), getattr(run, figure.key)) for run in runs]
        yield _gauge(f"run_{figure.name}", figure.help, ("run",), rows, figure.scale)
    hangs = [((run.id,), int(run.standstill is not None)) for run in runs]
    yield _gauge("run_hang", "Whether the run makes no progress although it did not end.", ("run",), hangs)
    slow = [((run.id,), int(run.slowdown is not None)) for run in runs]
    yield _gauge("run_slow", "Whether the steps take longer than before.", ("run",), slow)


def _of_nodes(runs: Sequence[RunSnapshot]) -> Iterator[Metric]:
    nodes = [((run.id, str(node.rank), node.address), node) for run in runs for node in run.nodes]
    states = [((*labels, node.state), 1) for labels, node in nodes]
    yield _gauge("node_info", "State of the node in the run.", (*_NODE, "state"), states)
    ages = [(labels, node.heartbeat_age_s) for labels, node in nodes]
    yield _gauge("node_heartbeat_age_seconds", "Time since the newest heartbeat arrived.", _NODE, ages)
    members = [(labels, node.members) for labels, node in nodes]
    yield _gauge("node_processes", "Processes of the run on the node.", _NODE, members)
    for figure in HOST_FIGURES:
        rows = [(labels, node.host.get(figure.key)) for labels, node in nodes]
        yield _gauge(f"node_{figure.name}", figure.help, _NODE, rows, figure.scale)


def _of_gpus(runs: Sequence[RunSnapshot]) -> Iterator[Metric]:
    gpus: list[tuple[tuple[str, ...], Mapping[str, Any]]] = [
        ((run.id, str(node.rank), node.address, str(gpu["index"])), gpu)
        for run in runs
        for node in run.nodes
        for gpu in node.gpus
    ]
    for figure in GPU_FIGURES:
        rows = [(labels, gpu.get(figure.key)) for labels, gpu in gpus]
        yield _gauge(f"gpu_{figure.name}", figure.help, (*_NODE, "gpu"), rows, figure.scale)


def _gauge(
    name: str,
    text: str,
    labels: Sequence[str],
    rows: Iterable[tuple[Sequence[str], float | None]],
    scale: float = 1.0,
) -> Metric:
    """Return a gauge with a sample for each row whose value is known."""
    family = GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=labels)
    for label_values, value in rows:
        if value is not None:
            family.add_metric(label_values, value * scale)
    return family
