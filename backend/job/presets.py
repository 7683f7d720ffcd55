"""Presets: GPUs, models, clusters and recipes, as YAML data with the source of every figure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Literal

import yaml

from backend.job.cluster import Cluster, Host
from backend.job.data_folder import data_folder
from backend.job.job import Model
from backend.job.model import ModelShape
from backend.job.preset_profiles import preset_profile
from backend.job.problems import Problem, ProblemsError
from backend.job.unestimated import UnestimatedModel, shape_or_reason


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One accelerator, or a CPU in its place."""

    key: str
    name: str
    memory_gib: float
    """Total memory of the device as torch reports it."""
    bf16_tflops: float
    """Dense peak; for a GPU without bf16, that of fp16."""
    hbm_gb_per_s: float
    compute_capability: float | None = None
    """NVIDIA's number of the architecture, such as 9.0 for Hopper; None if not known."""
    matmul_tflops: float | None = None
    """Measured speed of the best GEMM; None if no measurement is known."""
    fp8_over_bf16: float | None = None
    """Speed of the best FP8 GEMM over that of the best bf16 GEMM; None if no measurement is known."""
    fast_fp8_attention: bool = False
    """Whether attention beside FP8 products counts at the FP8 peak. Published FP8 runs of long sequences on Blackwell
    are that fast. Whether their attention is in FP8 or their kernels reach more of the 16-bit peak is not known."""
    any_order_fp8: bool = False
    """Whether it multiplies FP8 matrices in any order of rows and columns, so that none is kept transposed: compute
    capability 10 and 11 (NVIDIA/TransformerEngine d0067d0, transformer_engine/pytorch/utils.py
    is_non_tn_fp8_gemm_supported)."""
    fp32_tflops: float | None = None
    """Dense peak without tensor cores; None if not known."""
    power_w: float | None = None
    """Power limit; None if not known."""
    host_gb_per_s: float = 31.0
    """Bandwidth to host memory, one direction."""
    device: Literal["cuda", "cpu"] = "cuda"
    supports_bf16: bool = True
    mma_sync_share: float = 1.0
    """Share of the peak that Ampere instructions (mma.sync) reach. FlashAttention 2 uses these."""
    nvlink_sharp: bool = False
    """Whether its NVSwitch reduces data in the network (NVLink SHARP)."""
    source: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPreset:
    """A named model: its config.json keys and their source."""

    key: str
    name: str
    hf_config: Mapping[str, Any]
    parameters: int
    """Parameters of the whole model, as published or as counted from its config."""
    sources: tuple[str, ...]
    hub: str | None = None
    """A repository of the model on the Hugging Face hub; None if no source names one."""
    template: str | None = None
    """LLaMA-Factory's chat template of the model at `hub`; None if LLaMA-Factory does not list the model."""


@cache
def gpus() -> Mapping[str, Gpu]:
    """Return every GPU preset by key."""
    return MappingProxyType({key: Gpu(key=key, **entry) for key, entry in _load("gpus").items()})


@cache
def models() -> Mapping[str, ModelPreset]:
    """Return every model preset by key."""
    return MappingProxyType(
        {
            key: ModelPreset(
                key=key,
                name=entry["name"],
                hf_config=MappingProxyType(entry["hf_config"]),
                parameters=entry["parameters"],
                sources=tuple(entry["sources"]),
                hub=entry.get("hub"),
                template=entry.get("template"),
            )
            for key, entry in _load("models").items()
        }
    )


@cache
def clusters() -> Mapping[str, Mapping[str, Any]]:
    """Return every cluster preset by key: {name, cluster: keys of the job file's cluster}."""
    return MappingProxyType(_load("clusters"))


@cache
def recipes() -> Mapping[str, Mapping[str, Any]]:
    """Return every recipe by key: {job: keys of the job file, source}."""
    return MappingProxyType(_load("recipes"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Accuracy:
    """Errors of the memory estimate on the project's own sources, as absolute fractions.

    For the errors to expect on a user's cluster, see `expected_errors`.
    """

    group: str
    """megatron or hugging_face, or a kind of run in it: `megatron-moe`. Catalogue key `accuracy.group.<group>`."""
    rows: int
    mean: float
    median: float
    p90: float
    max: float
    date: str


@cache
def accuracy() -> Mapping[str, Accuracy]:
    """Return the accuracy by engine family, and by kind of run if there are enough. benchmarks/memory.py writes it."""
    return MappingProxyType({group: Accuracy(group=group, **entry) for group, entry in _load("accuracy").items()})


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedError:
    """Error of one kind of estimate on sources that were not used to build it."""

    median: float
    """Median of the absolute errors, as a fraction of the measurement."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedErrors:
    """The errors to expect on a cluster without measurements."""

    sources: int
    """Sources of the measurements: papers, repositories, reports."""
    rows: int
    date: str
    time: ExpectedError
    """Error of the seconds of a step. An estimate that is too low is too fast."""
    memory: ExpectedError
    """Error of the need of the GPU with the most memory in use."""


@cache
def expected_errors() -> ExpectedErrors:
    """Return the expected errors. They come from an independent test; its rows are not in the project."""
    entry = dict(_load("expected_error"))
    return ExpectedErrors(**{**entry, **{name: ExpectedError(**entry[name]) for name in ("time", "memory")}})


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """Factors of an estimate between which 80 % of the measurements are."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Intervals:
    """How far measurements of other people are from the estimates. benchmarks/intervals.py fits and explains them."""

    date: str
    sources: int
    rows: int
    level: Mapping[str, float]
    """Factor of step times by `cluster.stack`."""
    time: Mapping[str, Interval]
    """By kind of run (benchmarks/kinds.py), `tuned` for a tuned stack, `fp8` for matrix products in FP8 whatever the
    stack, and `calibrated_KIND` after one run of the same
    training corrected them."""
    memory: Mapping[str, Interval]
    """By kind of run, and `calibrated_KIND`. The interval is of the whole need of a GPU."""
    left_out: Mapping[str, Mapping[str, Any]]
    """By source: the level and the intervals without that source, for the benchmarks."""


@cache
def intervals() -> Intervals:
    """Return the intervals."""
    entry = dict(_load("intervals"))
    for name in ("time", "memory"):
        entry[name] = {key: Interval(**factors) for key, factors in entry[name].items()}
    return Intervals(**entry)


@dataclass(frozen=True, kw_only=True, slots=True)
class EfficiencyFigures:
    """The constants of the time model with the errors of their fit; errors are absolute fractions."""

    constants: Mapping[str, float]
    typical_error: float
    """Median, over the published sources, of the error on dense models of a source that was not fitted."""
    typical_error_of_experts: float
    """typical_error of mixtures of experts."""
    date: str
    rows: Mapping[str, int]
    errors: Mapping[str, Mapping[str, float]]
    version: str
    """Version of the constants: their date, and a digest that distinguishes two fits of one day."""


@cache
def efficiency_figures() -> EfficiencyFigures:
    """Return the constants that benchmarks/fit.py wrote."""
    entry = _load("efficiency")
    return EfficiencyFigures(**entry, version=version_of(entry["constants"], entry["date"]))


def version_of(constants: Mapping[str, float], date: str) -> str:
    """Return `EfficiencyFigures.version` of these constants."""
    digest = sha256(json.dumps(dict(constants), sort_keys=True).encode()).hexdigest()
    return f"{date}-{digest[:8]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationFigures:
    """Gain from correcting times by one measured run: median absolute errors on other plans of published runs."""

    typical_error: float
    uncorrected_error: float
    groups: int
    """Groups of runs that differ only in the plan."""
    date: str


@cache
def calibration_figures() -> CalibrationFigures:
    """Return the errors that benchmarks/calibration.py wrote."""
    return CalibrationFigures(**_load("calibration"))


READING = 0.03
"""Share by which the GPU memory that a node reports may differ from that of the preset. nvidia-smi includes the memory
of the driver, up to 2% of a GPU, which torch cannot use."""


def resolve_gpu(cluster: Cluster) -> Gpu:
    """Return the GPU that a cluster names or describes, with the memory that a plan may use: all but the user's margin.

    Raises ProblemsError (unknown_gpu, bad_gpu).
    """
    smallest, margin = least_gpu(cluster), cluster.memory_margin
    return replace(smallest, memory_gib=(1 - margin) * smallest.memory_gib) if margin else smallest


def least_gpu(cluster: Cluster) -> Gpu:
    """Return the GPU with the memory of the node whose GPUs have the least. Raises as `resolve_gpu`."""
    return _least_of(named_gpu(cluster), cluster.hosts)


def _least_of(named: Gpu, hosts: Sequence[Host]) -> Gpu:
    readings = [host.gpu_memory_gib for host in hosts if host.gpu_memory_gib is not None] if hosts else ()
    if not readings:
        return named
    least = min(readings)
    return replace(named, memory_gib=usable_gib(least)) if least < (1 - READING) * named.memory_gib else named


def smallest_hosts(cluster: Cluster) -> tuple[Host, ...]:
    """Return the nodes whose GPUs limit the plans; none if the GPU that the cluster names does."""
    least = least_gpu(cluster).memory_gib
    if least == named_gpu(cluster).memory_gib:
        return ()
    readings = [(host, host.gpu_memory_gib) for host in cluster.hosts if host.gpu_memory_gib is not None]
    return tuple(host for host, gib in readings if usable_gib(gib) <= (1 + READING) * least)


def others_gib(cluster: Cluster) -> float | None:
    """Return the GPU memory of plans without the nodes of `smallest_hosts`; None if no other node is listed."""
    smallest = smallest_hosts(cluster)
    other_hosts = [host for host in cluster.hosts if host not in smallest]
    return _least_of(named_gpu(cluster), other_hosts).memory_gib if other_hosts else None


def usable_gib(read: float) -> float:
    """Return the GiB that torch can use of a GPU whose node reports `read` GiB: those of a preset of similar size."""
    sizes = [gpu.memory_gib for gpu in gpus().values() if (1 - READING) * read <= gpu.memory_gib <= read]
    return max(sizes, default=read)


def named_gpu(cluster: Cluster) -> Gpu:
    """Return the GPU that a cluster names or describes, whatever its nodes read. Raises as `resolve_gpu`."""
    if isinstance(cluster.gpu, str):
        preset = gpus().get(cluster.gpu)
        if preset is None:
            raise ProblemsError(
                [Problem(code="unknown_gpu", field="cluster.gpu", values={"gpu": cluster.gpu, "known": list(gpus())})]
            )
        return preset
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
    """Return the shape of a job's model, which every figure needs.

    Raises ProblemsError: as `known_model`, and the warning model_not_estimated.
    """
    shape = known_model(model)
    if isinstance(shape, UnestimatedModel):
        raise ProblemsError([shape.reason])
    return shape


def known_model(model: Model) -> ModelShape | UnestimatedModel:
    """Return what is known of a job's model.

    Raises ProblemsError: unknown_model, no_model, bad_model_profile, or shape_or_reason's.
    """
    if model.preset is not None:
        if model.preset not in models():
            values = {"preset": model.preset, "known": list(models())}
            raise ProblemsError([Problem(code="unknown_model", field="model.preset", values=values)])
        return _preset_shape(model.preset)
    if not model.hf_config:
        raise ProblemsError([Problem(code="no_model", field="model.preset")])
    return shape_or_reason(model.hf_config, model.profile)


@cache
def _preset_shape(key: str) -> ModelShape | UnestimatedModel:
    return shape_or_reason(models()[key].hf_config, preset_profile(key))


def _load(name: str) -> Mapping[str, Any]:
    path = data_folder("presets") / f"{name}.yaml"
    if not path.exists():
        return {}
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries: Mapping[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 - a safe one
    return entries
