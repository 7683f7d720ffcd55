"""The attempt of a derived run: the folders of its models, the free GPUs, and the files for its node."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from backend.cluster.inventory.checkpoints import read_checkpoints
from backend.cluster.inventory.gpus import BUSY_MIB
from backend.cluster.inventory.hardware import Hardware, read_all_hardware
from backend.cluster.inventory.software import NodeFacts
from backend.cluster.node import Node
from backend.cluster.node_programs import PREDICT, SERVE_MODELS, node_program
from backend.engines import NodeCommand, Placement, Rendered, results_folder
from backend.engines.inference import inference_keys, model_keys, prediction_keys
from backend.engines.swift_inference import swift_inference_keys, swift_model_keys
from backend.job.job import Job
from backend.job.presets import resolve_gpu
from backend.job.problems import Problem, ProblemsError
from backend.runs.launch import launch
from backend.runs.launch.resume import checkpoint_folder
from backend.runs.rank_secrets import TakenSecrets
from backend.runs.store.derived_runs import DerivedRun
from backend.runs.tasks.discovery import refuse_scheduler
from backend.runs.tasks.export import SavedModel, find_source, target_of
from backend.runs.tasks.one_off_task import all_read

TUNED, BASE = "tuned", "base"
MODELS = (TUNED, BASE)
SETTINGS = {SERVE_MODELS: "serve.json", PREDICT: "evaluate.json"}
MOST_ROWS, MOST_TOKENS = 200, 2048
SHARED_MEMORY = 0.42
"""Share of a GPU's memory for each of two models of vLLM or SGLang on one GPU."""
IDLE_S = 1800.0
"""A chat ends when nobody asks for this time."""
STALL_S = 1800.0
"""The program on the node writes a line at least every five minutes (backend/node/serving/main.py)."""
GRACE_S = 5.0


def derived_job(job: Job, models: int, node: int = 0) -> Job:
    """Return the job of a derived run: one node of the trained run, with one process per model.

    Raises ProblemsError.
    """
    refuse_scheduler(job)
    hosts = job.cluster.hosts[node : node + 1]
    cluster = replace(job.cluster, nodes=1, hosts=hosts, spares=(), gpus_per_node=models)
    return replace(job, cluster=cluster)


def has_chat(job: Job) -> bool:
    """Return whether the job's model answers: ms-swift's reward model has a score in place of its words."""
    return job.traits.environment == "llamafactory" or job.training.stage != "rm"


def chat_request(job: Job, models: Sequence[str], checkpoint: int | None) -> dict[str, object]:
    """Return the request of a chat with models of a trained job, which is stored with its run. Raises ProblemsError."""
    chosen = [name for name in MODELS if name in models]
    if not chosen:
        raise ProblemsError([Problem(code="chat_no_model", field="models")])
    if not has_chat(job):
        raise ProblemsError([Problem(code="chat_of_scores", field="training.stage")])
    shared = swift_inference_keys(job) if job.traits.environment == "swift" else inference_keys(job)
    return {"models": chosen, "checkpoint": checkpoint, "args": shared}


def evaluation_request(
    job: Job, models: Sequence[str], checkpoint: int | None, rows: int, max_tokens: int
) -> dict[str, object]:
    """Return the request of an evaluation, which is stored with its run. Raises ProblemsError."""
    chosen = [name for name in MODELS if name in models]
    if not chosen:
        raise ProblemsError([Problem(code="chat_no_model", field="models")])
    if job.traits.environment != "llamafactory":
        raise ProblemsError([Problem(code="evaluation_by_swift", field="engine")])
    if job.training.stage != "sft":
        raise ProblemsError([Problem(code="evaluation_needs_sft", field="training.stage")])
    if not (0 < rows <= MOST_ROWS and 0 < max_tokens <= MOST_TOKENS):
        values: dict[str, object] = {"rows": MOST_ROWS, "tokens": MOST_TOKENS}
        raise ProblemsError([Problem(code="evaluation_too_large", field="rows", values=values)])
    data = "held_out" if job.eval_size else "eval_dataset" if job.eval_dataset else "trained"
    config = prediction_keys(job, max_tokens)
    return {"models": chosen, "checkpoint": checkpoint, "rows": rows, "data": data, "config": config}


def make_attempt(
    derived: DerivedRun, job: Job, node: Node, facts: NodeFacts, key: str, *, grace_s: float = GRACE_S
) -> launch.Attempt:
    """Return the attempt of a derived run on its connected node. Raises ProblemsError and NodeError."""
    placement = launch.make_placement(job, derived.run, 1, {0: facts}, job.cluster.port_range[0])
    names = derived.request["models"]
    arguments = {name: model_args(derived, job, name, node) for name in names}
    program, settings = (
        _chat(arguments, job, node) if derived.kind == "chat" else _evaluation(derived, arguments, job, node)
    )
    files = {program: node_program(program).decode(), SETTINGS[program]: json.dumps(settings, indent=1)}
    return launch.Attempt(
        run=derived.run,
        number=1,
        job=job,
        placement=placement,
        rendered=Rendered(files=files, commands=(_command(job, placement, program),)),
        records=launch.make_records(job, placement, {0: facts}),
        grace_s=grace_s,
        stall_s=STALL_S,
        secrets=TakenSecrets({"API_KEY": key}),
        versions={0: facts.versions()},
        hostnames={0: facts.hostname},
    )


def _chat(arguments: Mapping[str, dict[str, object]], job: Job, node: Node) -> tuple[str, dict[str, Any]]:
    """Return the program of a chat and its settings. All models are loaded at the same time."""
    devices = _devices(job, node, len(arguments))
    models = [
        {"name": name, "args": _sharing(args, devices, index), "devices": devices[index]}
        for index, (name, args) in enumerate(arguments.items())
    ]
    return SERVE_MODELS, {"idle_s": IDLE_S, "engine": job.traits.environment, "models": models}


def _evaluation(
    derived: DerivedRun, arguments: Mapping[str, dict[str, object]], job: Job, node: Node
) -> tuple[str, dict[str, Any]]:
    """Return the program of an evaluation and its settings. The models run in turns on the first free GPU."""
    devices = _devices(job, node, 1)[0].partition(",")[0]
    models = [{"name": name, "args": args, "devices": devices} for name, args in arguments.items()]
    return PREDICT, {"rows": derived.request["rows"], "config": derived.request["config"], "models": models}


def model_args(derived: DerivedRun, job: Job, name: str, node: Node) -> dict[str, object]:
    """Return the engine's inference arguments of the base model, or of what the run has trained.

    ProblemsError(nothing_saved, chat_needs_export). Raises NodeError.
    """
    shared: dict[str, object] = derived.request.get("args", {})
    base = job.model.path or ""
    keys_of = swift_model_keys if job.traits.environment == "swift" else model_keys
    if name == BASE:
        return shared | keys_of(base)
    step = derived.request.get("checkpoint")
    results = results_folder(job, derived.trained)
    folder = results if step is None else checkpoint_folder(results, step)
    exported = target_of(job, derived.trained, step)
    source = find_source(job, folder, node) or (_newest_source(job, folder, node) if step is None else None)
    if source is not None and source.kind in ("merge", "merge_swift"):
        return shared | keys_of(base, source.folder)
    if source is not None and source.kind == "ready":
        return shared | keys_of(source.folder)
    if node.exists(exported):
        return shared | keys_of(exported)
    code = "nothing_saved" if source is None else "chat_needs_export"
    raise ProblemsError([Problem(code=code, node=node.name, values={"folder": folder, "run": derived.trained})])


def _newest_source(job: Job, results: str, node: Node) -> SavedModel | None:
    """Return the model of the newest checkpoint: ms-swift saves nothing else, and a run that was stopped may not have.

    Raises NodeError and GroupError.
    """
    saved = read_checkpoints(job, {0: node}, results)[0].steps
    whole = [step for step in sorted(saved, reverse=True) if not saved[step].damaged]
    sources = (find_source(job, checkpoint_folder(results, step), node) for step in whole)
    return next((source for source in sources if source is not None), None)


def _devices(job: Job, node: Node, count: int) -> list[str]:
    """Return CUDA_VISIBLE_DEVICES of each model: the free GPUs in equal parts, or one GPU for all models.

    Raises ProblemsError(chat_no_free_gpu).
    """
    if resolve_gpu(job.cluster).device == "cpu":
        return [""] * count
    hardware: Mapping[int, Hardware] = all_read(read_all_hardware(job, {0: node}))
    gpus = hardware[0].gpus.gpus
    free = [str(gpu.index) for gpu in gpus if (gpu.memory_used_mib or 0) <= BUSY_MIB and not gpu.fault]
    if not free:
        values = {"node": node.name, "gpus": len(gpus)}
        raise ProblemsError([Problem(code="chat_no_free_gpu", node=node.name, values=values)])
    return split_devices(free, count)


def split_devices(free: Sequence[str], count: int) -> list[str]:
    """Return `count` lists of GPUs, as CUDA_VISIBLE_DEVICES names them. With fewer GPUs than models, all share."""
    size = len(free) // count
    if size == 0:
        return [",".join(free)] * count
    return [",".join(free[index * size : (index + 1) * size]) for index in range(count)]


def _sharing(args: dict[str, object], devices: Sequence[str], index: int) -> dict[str, Any]:
    """Return the arguments of a model. Models of vLLM and SGLang on one GPU may not each take most of its memory.

    ms-swift's models are generated by transformers, which takes only what it needs.
    """
    if devices.count(devices[index]) == 1 or not devices[index] or "infer_dtype" not in args:
        return args
    return {**args, "vllm_gpu_util": SHARED_MEMORY, "sglang_mem_fraction": SHARED_MEMORY}


def _command(job: Job, placement: Placement, program: str) -> NodeCommand:
    node = placement.nodes[0]
    # The model lies on the node: requests to the hub would only add delays and failures.
    variables = {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", **job.environment}
    return NodeCommand(rank=0, argv=(node.python, f"{node.folder}/{program}", node.folder), environment=variables)
