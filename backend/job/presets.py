"""Presets: GPUs, models, clusters and recipes, as YAML data with the source of every figure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import yaml

from backend.job.cluster import Cluster, Host
from backend.job.job import Model
from backend.job.model import ModelShape, parse_model
from backend.job.problems import Problem, ProblemsError


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One accelerator, or a CPU that stands in for one."""

    key: str
    name: str
    memory_gib: float
    """What torch reports as the device's total memory."""
    bf16_tflops: float
    """Dense peak; on a GPU without bf16, that of fp16."""
    hbm_gb_per_s: float
    matmul_tflops: float | None = None
    """What the best matrix product was measured to reach; None where no measurement is known."""
    fp32_tflops: float | None = None
    """Dense peak without tensor cores; None where not known."""
    power_w: float | None = None
    """What it may draw; None where not known."""
    host_gb_per_s: float = 31.0
    """To host memory, one direction."""
    device: Literal["cuda", "cpu"] = "cuda"
    supports_bf16: bool = True
    mma_sync_share: float = 1.0
    """Of the peak, by the instructions of Ampere (mma.sync), which FlashAttention 2 is written in."""
    nvlink_sharp: bool = False
    """Its NVSwitch adds up what GPUs send (NVLink SHARP)."""
    source: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPreset:
    """A named model: its config.json keys and where they were read."""

    key: str
    name: str
    hf_config: Mapping[str, Any]
    parameters: int
    """Of the whole model, as published or as counted from its config."""
    sources: tuple[str, ...]


def data_folder(name: Literal["presets", "static"]) -> Path:
    """Where the files of `name` lie: the checkout's folder, or the one inside the wheel."""
    backend = Path(__file__).parents[1]
    packaged = backend / "data" / name
    return packaged if packaged.is_dir() else backend.parent / name


@cache
def gpus() -> Mapping[str, Gpu]:
    """Every GPU preset by key."""
    return MappingProxyType({key: Gpu(key=key, **entry) for key, entry in _load("gpus").items()})


@cache
def models() -> Mapping[str, ModelPreset]:
    """Every model preset by key."""
    return MappingProxyType(
        {
            key: ModelPreset(
                key=key,
                name=entry["name"],
                hf_config=MappingProxyType(entry["hf_config"]),
                parameters=entry["parameters"],
                sources=tuple(entry["sources"]),
            )
            for key, entry in _load("models").items()
        }
    )


@cache
def clusters() -> Mapping[str, Mapping[str, Any]]:
    """Every cluster preset by key: {name, cluster: keys of the job file's cluster}."""
    return MappingProxyType(_load("clusters"))


@cache
def recipes() -> Mapping[str, Mapping[str, Any]]:
    """Every recipe by key: {job: keys of the job file, source}."""
    return MappingProxyType(_load("recipes"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Accuracy:
    """Errors of the memory estimate on the project's own sources, as absolute fractions.

    For the errors to expect on a user's cluster, see `expected_errors`.
    """

    group: str
    """megatron or hugging_face, or a kind of run in it: `megatron-moe`. Words under `accuracy.group.<group>`."""
    rows: int
    mean: float
    median: float
    p90: float
    max: float
    date: str


@cache
def accuracy() -> Mapping[str, Accuracy]:
    """By engine family, and by kind of run where there are enough. Written by benchmarks/memory.py."""
    return MappingProxyType({group: Accuracy(group=group, **entry) for group, entry in _load("accuracy").items()})


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedError:
    """Error of one kind of estimate on sources that were not used to build the estimates."""

    median: float
    """Of the absolute errors, as a fraction of what was measured."""
    low_share: float
    """Share of the rows whose computed value was below the measured one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedErrors:
    """The expected errors on a cluster that nobody has measured."""

    sources: int
    """Where the measurements come from: papers, repositories, reports."""
    rows: int
    date: str
    time: ExpectedError
    """Of the seconds of a step: too low is too fast."""
    memory: ExpectedError
    """Of what the fullest GPU needs."""


@cache
def expected_errors() -> ExpectedErrors:
    """Entered by hand from an independent test whose rows the project does not carry."""
    entry = dict(_load("expected_error"))
    return ExpectedErrors(**{**entry, **{name: ExpectedError(**entry[name]) for name in ("time", "memory")}})


@dataclass(frozen=True, kw_only=True, slots=True)
class EfficiencyFigures:
    """The constants of the time model with the errors of their fit; errors are absolute fractions."""

    constants: Mapping[str, float]
    typical_error: float
    """Median, over the published sources, of the error on dense models of a source that the fit did not see."""
    typical_error_of_experts: float
    """The same on mixtures of experts."""
    date: str
    rows: Mapping[str, int]
    errors: Mapping[str, Mapping[str, float]]
    version: str
    """Which constants these are: their date, for people, and a digest, which tells two fits of a day apart."""


@cache
def efficiency_figures() -> EfficiencyFigures:
    """Written by benchmarks/fit.py."""
    entry = _load("efficiency")
    return EfficiencyFigures(**entry, version=version_of(entry["constants"], entry["date"]))


def version_of(constants: Mapping[str, float], date: str) -> str:
    """`EfficiencyFigures.version` of these constants."""
    digest = sha256(json.dumps(dict(constants), sort_keys=True).encode()).hexdigest()
    return f"{date}-{digest[:8]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationFigures:
    """What correcting times by one measured run is worth: median absolute errors on other plans of published runs."""

    typical_error: float
    uncorrected_error: float
    groups: int
    """Of runs that differ in the plan alone."""
    date: str


@cache
def calibration_figures() -> CalibrationFigures:
    """Written by benchmarks/calibration.py."""
    return CalibrationFigures(**_load("calibration"))


READING = 0.03
"""How far a node's reading of its GPU's memory may be below the preset's or above it: nvidia-smi counts what the driver
keeps, up to 2% of a GPU, which torch cannot have."""


def resolve_gpu(cluster: Cluster) -> Gpu:
    """The GPU a cluster names or describes, with what a plan may use of its memory: all but the user's margin.

    Raises ProblemsError (unknown_gpu, bad_gpu).
    """
    least, margin = least_gpu(cluster), cluster.memory_margin
    return replace(least, memory_gib=(1 - margin) * least.memory_gib) if margin else least


def least_gpu(cluster: Cluster) -> Gpu:
    """The GPU with the memory of the node whose GPUs have least; raises as `resolve_gpu`."""
    return _least_of(named_gpu(cluster), cluster.hosts)


def _least_of(named: Gpu, hosts: Iterable[Host]) -> Gpu:
    read = [host.gpu_memory_gib for host in hosts if host.gpu_memory_gib is not None]
    least = min(read, default=named.memory_gib)
    return replace(named, memory_gib=usable_gib(least)) if least < (1 - READING) * named.memory_gib else named


def smallest_hosts(cluster: Cluster) -> tuple[Host, ...]:
    """The nodes whose GPUs decide what a plan may need; none where the GPU that the cluster names does."""
    least = least_gpu(cluster).memory_gib
    if least == named_gpu(cluster).memory_gib:
        return ()
    read = [(host, host.gpu_memory_gib) for host in cluster.hosts if host.gpu_memory_gib is not None]
    return tuple(host for host, gib in read if usable_gib(gib) <= (1 + READING) * least)


def others_gib(cluster: Cluster) -> float | None:
    """What plans may count on of a GPU without the nodes of `smallest_hosts`; None where no other node is listed."""
    smallest = smallest_hosts(cluster)
    kept = [host for host in cluster.hosts if host not in smallest]
    return _least_of(named_gpu(cluster), kept).memory_gib if kept else None


def usable_gib(read: float) -> float:
    """What torch has of a GPU whose memory a node read: that of the presets which are about as large."""
    alike = [gpu.memory_gib for gpu in gpus().values() if (1 - READING) * read <= gpu.memory_gib <= read]
    return max(alike, default=read)


def named_gpu(cluster: Cluster) -> Gpu:
    """The GPU a cluster names or describes, whatever its nodes read; raises as `resolve_gpu`."""
    if isinstance(cluster.gpu, str):
        found = gpus().get(cluster.gpu)
        if found is None:
            raise ProblemsError(
                [Problem(code="unknown_gpu", field="cluster.gpu", values={"gpu": cluster.gpu, "known": list(gpus())})]
            )
        return found
    return Gpu(
        key="",
        name=str(cluster.gpu.get("name", "GPU")),
        memory_gib=_figure(cluster.gpu, "memory_gib"),
        bf16_tflops=_figure(cluster.gpu, "bf16_tflops"),
        hbm_gb_per_s=_figure(cluster.gpu, "hbm_gb_per_s"),
        source="the job file",
    )


def _figure(gpu: Mapping[str, Any], key: str) -> float:
    value = gpu.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise ProblemsError([Problem(code="bad_gpu", field="cluster.gpu", values={"key": key})])
    return float(value)


def resolve_model(model: Model) -> ModelShape:
    """The shape of the model that a job names; raises ProblemsError (unknown_model, no_model, or parse_model's)."""
    if model.preset is not None:
        if model.preset not in models():
            values = {"preset": model.preset, "known": list(models())}
            raise ProblemsError([Problem(code="unknown_model", field="model.preset", values=values)])
        return _preset_shape(model.preset)
    if not model.hf_config:
        raise ProblemsError([Problem(code="no_model", field="model.preset")])
    return parse_model(model.hf_config)


@cache
def _preset_shape(key: str) -> ModelShape:
    return parse_model(models()[key].hf_config)


def _load(name: str) -> Mapping[str, Any]:
    path = data_folder("presets") / f"{name}.yaml"
    if not path.exists():
        return {}
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries: Mapping[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 - a safe one
    return entries
