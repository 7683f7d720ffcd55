"""Random job files through the engines' own parsers: what is refused, by whom, and whether values arrive.

    python -m benchmarks.job_grid [--jobs 400] [--seed 1] [--engine NAME]

Every job is refused by a rule before anything starts, or the program takes its files and ends with the job's values.
Needs .venv-node; MEGABOARD_MCORE_ADAPTER for llamafactory-megatron, and ms-swift for its engines (tools/programs.py).
"""

import argparse
import json
import random
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from backend.engines import ENGINES, check_all, engine_notes, render
from backend.engines.placement import NodePlacement, Placement
from backend.job.job import Job
from backend.job.mapping import parameters, parse_job, with_values
from backend.job.parameters import Parameter
from backend.job.presets import models
from backend.job.problems import ProblemsError, errors
from tools.programs import mcore_adapter_source, swift_python
from tools.real_parsers import parse_with_llamafactory, parse_with_swift

PRESETS = (
    "qwen3-8b", "qwen3-0.6b", "qwen3-30b-a3b", "qwen3-vl-8b", "qwen2.5-7b", "qwen2.5-vl-7b", "llama-3.1-8b",
    "glm-4.5-air", "gemma-2-9b", "deepseek-v3",
)  # fmt: skip
SIZES = (1, 1, 1, 2, 2, 4, 8, 3)
_FIXED = ("cluster.", "model.", "version", "name", "engine", "environment", "extra", "training.dataset",
          "training.template", "training.output_dir", "training.samples", "training.learning_rate_batch",
          "parallel.pipeline_layout", "parallel.offload_folder", "training.lora.targets", "training.liger")  # fmt: skip
"""Paths whose values are not drawn: machines, names, folders, what only the estimate reads, and Liger, whose package is
not here (swanlab's is not either)."""
_OF_SIZES = ("tensor", "pipeline", "virtual_pipeline", "context", "expert", "expert_tensor")
_VALUES: Mapping[str, Sequence[Any]] = {
    "training.micro_batch_size": (1, 2, 4),
    "training.gradient_accumulation_steps": (1, 2, 4, 8, 6),
    "training.global_batch_size": (None, 16, 32, 64, 100),
    "training.max_steps": (None, None, 1, 10, 1000),
    "training.num_train_epochs": (1.0, 3.0, 0.5),
    "training.warmup_ratio": (0.0, 0.03, 0.1, 0.5, 1.0),
    "training.learning_rate": (1e-6, 2e-5, 1e-4),
    "training.weight_decay": (0.0, 0.01, 0.1),
    "training.cutoff_len": (128, 1024, 8192),
    "training.ddp_timeout_s": (60, 1800, 100_000),
    "training.save_total_limit": (None, 1, 2, 5),
    "training.eval_steps": (None, 20),
    "training.trainable_layers": (1, 2, 100),
    "training.seed": (0, 1, 42),
    "parallel.recompute_num_layers": (None, 1, 2, 5),
    "parallel.optimizer_offload_fraction": (0.0, 0.5, 1.0),
    "parallel.fsdp.version": (1, 2),
    "training.image_max_pixels": (65_536, 451_584),
    "training.dpo.beta": (0.01, 0.1, 1.0),
    "training.interleave_probs": (None, "1", "0.5,0.5", "0.2,0.8"),
    "training.eval_dataset": (None, "b.jsonl"),
    "training.report_to": ((), ("tensorboard",), ("wandb", "mlflow")),
    "training.grpo.rewards": ("accuracy", "accuracy,format", "no_such_reward"),
    "training.grpo.plugin": (None, "/data/rewards.py"),
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of one job."""

    job: Job
    refused_by: tuple[str, ...] = ()
    """Codes of the rules; empty if no rule refused it."""
    error: str | None = None
    """The program's own error."""
    different: Mapping[str, tuple[Any, Any]] | None = None
    """Key -> (value in the file, value that the program ended with)."""


def draw(engine: str, seed: int) -> Job:
    """Return a job of an engine. An equal seed gives an equal job. About half of them break a rule."""
    rng = random.Random(f"{engine} {seed}")  # noqa: S311 - no secret
    megatron = "megatron" in engine
    values: dict[str, Any] = {}
    for item in rng.sample(_drawn(megatron), rng.randint(2, 9)):
        values[item.path] = _value(item, rng)
    if megatron:
        for name in rng.sample(_OF_SIZES, rng.randint(0, 3)):
            values[f"parallel.{name}"] = rng.choice(SIZES)
    nodes, gpus = rng.choice((1, 2, 4)), rng.choice((1, 2, 4, 8, 8))
    job = _plain(engine, rng.choice(PRESETS), nodes, gpus)
    if rng.random() < 0.2:
        values["training.dataset"] = "a.jsonl,b.jsonl"
    if rng.random() < 0.9:
        values["training.method"] = rng.choice(job.traits.methods)
    job = with_values(job, values)
    if job.training.eval_steps and rng.random() < 0.8:
        share = "split_dataset_ratio" if job.traits.environment == "swift" else "val_size"
        job = with_values(job, {"extra": {share: 0.1}})
    return job


def _drawn(megatron: bool) -> list[Parameter]:
    chosen = [item for item in parameters().values() if not item.path.startswith(_FIXED)]
    sizes = {f"parallel.{name}" for name in _OF_SIZES}
    return [item for item in chosen if item.path not in sizes and (megatron or not _only_megatron(item))]


def _only_megatron(item: Parameter) -> bool:
    return bool(item.keys) and not item.keys.keys() - {"mcore_adapter"} - {"swift"}


def _value(item: Parameter, rng: random.Random) -> Any:
    if item.path in _VALUES:
        return rng.choice(_VALUES[item.path])
    if item.kind == "bool":
        return rng.random() < 0.5
    if item.kind == "choice":
        return rng.choice((*item.choices, *([None] if item.optional else ())))
    if item.kind == "list":
        return tuple(rng.sample(item.choices, rng.randint(0, min(3, len(item.choices)))))
    if item.kind not in ("int", "float"):
        raise ValueError(f"{item.path}: _VALUES has no value of this text")
    low = item.minimum if item.minimum is not None else 1
    high = min(item.maximum or 64, low + 64)
    return rng.randint(int(low), int(high)) if item.kind == "int" else rng.uniform(low, high)


def _plain(engine: str, preset: str, nodes: int, gpus: int) -> Job:
    mapping = {
        "name": "grid",
        "engine": engine,
        "cluster": {
            "gpu": "h100-80g",
            "nodes": nodes,
            "gpus_per_node": gpus,
            "environments": {name: {"python": "/opt/it/bin/python"} for name in ("llamafactory", "swift")},
            "hosts": [{"address": f"10.0.0.{rank + 1}"} for rank in range(nodes)],
        },
        "model": {"preset": preset, "path": "/models/it"},
        "training": {"dataset": "a.jsonl", "dataset_dir": "/data", "template": "qwen3", "output_dir": "/runs"},
    }
    job, problems = parse_job(mapping)
    if job is None:
        raise ProblemsError(problems)
    return job


def results(jobs: Sequence[Job]) -> list[Result]:
    """Return what became of jobs of one engine."""
    refused = {number: errors(check_all(job)) for number, job in enumerate(jobs)}
    with tempfile.TemporaryDirectory() as folder:
        cases = {
            str(number): case_of(with_model(job, Path(folder) / str(number)))
            for number, job in enumerate(jobs)
            if not refused[number]
        }
        answers = _answers(jobs[0].engine, cases) if cases else {}
    found = []
    for number, job in enumerate(jobs):
        if codes := tuple(problem.code for problem in refused[number]):
            found.append(Result(job=job, refused_by=codes))
            continue
        answer, config = answers[str(number)], yaml.safe_load(cases[str(number)]["files"]["config.yaml"])
        if answer["error"]:
            found.append(Result(job=job, error=answer["error"]))
        else:
            # What a warning or a note of the job says is no surprise.
            told = {problem.field for problem in (*check_all(job), *engine_notes(job))}
            owned = ENGINES[job.engine].owned
            changed = differences(config, answer["arguments"])
            surprising = {key: values for key, values in changed.items() if owned.get(key) not in told}
            found.append(Result(job=job, different=surprising))
    return found


def with_model(job: Job, folder: Path) -> Job:
    """Return the job with a model's folder that has the preset's config.json, and empty data."""
    preset = models()[job.model.preset or ""]
    model = folder / (preset.hub or preset.key).rpartition("/")[2]
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(dict(preset.hf_config)))
    for name in ("a.jsonl", "b.jsonl"):
        (folder / name).touch()
    return with_values(job, {"model.path": str(model), "training.dataset_dir": str(folder)})


def case_of(job: Job) -> dict[str, Any]:
    nodes = tuple(
        NodePlacement(rank=rank, folder=f"/r/{rank}", python="/p", interface="eth0", address=host.address)
        for rank, host in enumerate(job.cluster.hosts)
    )
    place = Placement(
        run_id="20260101-000000-grid-0000", attempt=1, master_address="10.0.0.1", master_port=29500, nodes=nodes
    )
    rendered = render(job, place)
    return {
        "files": dict(rendered.files),
        "environment": dict(rendered.commands[0].environment),
        "ranks": job.world_size,
    }


def _answers(engine: str, cases: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    if engine.startswith("swift-"):
        python = swift_python()
        if python is None:
            raise SystemExit("no ms-swift here (tools/programs.py)")
        without = {
            case: {key: value for key, value in fields.items() if key != "ranks"} for case, fields in cases.items()
        }
        return parse_with_swift(python, without)
    source = mcore_adapter_source()
    megatron = engine == "llamafactory-megatron"
    if megatron and not source:
        raise SystemExit("no mcore_adapter here (tools/programs.py)")
    return parse_with_llamafactory(cases, {"USE_MCA": "1", "PYTHONPATH": source or ""} if megatron else {})


_SAME = {("include_num_input_tokens_seen", True): "all"}
"""transformers' own words for the same."""
_FILES = {"fsdp": ("fsdp.json", "full_shard auto_wrap")}
"""Key -> name of a file, and the value that ms-swift reads from it."""
_LISTS = frozenset({"dataset", "lora_target", "recompute_modules", "report_to", "target_modules"})


def differences(config: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the keys whose value the program changed."""
    return {
        key: (value, arguments[key])
        for key, value in config.items()
        if key in arguments and _is_changed(config, key, arguments[key])
    }


def _is_changed(config: Mapping[str, Any], key: str, value: Any) -> bool:
    """Return whether a program changed a key's value. LLaMA-Factory's packed sequences get their last token back."""
    if key == "cutoff_len" and config.get("packing") and value == config[key] - 1:
        return False
    return (config[key], value) != _FILES.get(key) and not is_same(key, config[key], value)


def is_same(key: str, first: Any, second: Any) -> bool:
    """Return whether two values of a key mean the same to the programs."""
    first, second = _plain_value(key, first), _plain_value(key, second)
    if isinstance(second, list) and not isinstance(first, list):
        first = [first]
    return bool(first == second)


def _plain_value(key: str, value: Any) -> Any:
    if key in _LISTS:
        items = value.split(",") if isinstance(value, str) else value or []
        return [str(item).strip() for item in items if item != "none"]
    if isinstance(value, bool):
        value = _SAME.get((key, value), value)
    if isinstance(value, str):
        value = _as_data(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _as_data(text: str) -> Any:
    """Return the number or the mapping that a text holds."""
    try:
        return json.loads(text) if text.startswith("{") else float(text)
    except ValueError:
        return text


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=tuple(ENGINES))
    args = parser.parse_args()
    engines = [args.engine] if args.engine else list(ENGINES)
    bad = 0
    for engine in engines:
        # Megatron has most of the rules.
        each = round(args.jobs * (2 if "megatron" in engine else 1) / sum(1 + ("megatron" in name) for name in engines))
        found = results([draw(engine, args.seed * 100_000 + number) for number in range(each)])
        wrong = [result for result in found if result.error or result.different]
        codes = Counter(result.refused_by[0] for result in found if result.refused_by)
        taken = sum(not result.refused_by for result in found) - len(wrong)
        print(f"{engine}: {each} jobs, {taken} taken with the job's values, {sum(codes.values())} refused by a rule, "
              f"{len(wrong)} wrong; rules: {dict(codes)}")  # fmt: skip
        for result in wrong:
            print(f"  {found.index(result)} {result.job.model.preset}: {result.error or dict(result.different or {})}")
        bad += len(wrong)
    raise SystemExit(bad > 0)


if __name__ == "__main__":
    main()
