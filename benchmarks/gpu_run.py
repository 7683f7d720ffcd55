"""Runs one case of benchmarks/gpu.py with LLaMA-Factory on this machine, from the files that Megaboard renders."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from app.demo import tiny_model
from backend.cluster.node_programs import node_program
from backend.engines import NodePlacement, Placement, render
from backend.engines.torchrun import ENTRY
from backend.estimate import estimate, to_json
from backend.job.job import Job
from backend.job.mapping import parse_job, to_mapping, with_values
from backend.job.presets import models
from backend.job.problems import ProblemsError, errors
from backend.job.rules import check
from backend.runs.launch.launch import BESIDE_ENTRY
from backend.runs.tasks.calibration import FIRST_STEPS
from benchmarks import gpu_model, gpu_pictures
from benchmarks.gpu_grid import SIDE, TINIES, TINY_SIDE, Case, shared_values
from tools.tiny_data import PICTURES_ENTRY

LONG, SHORT, PICTURES = "long", "short", "pictures"
ROWS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """This machine, and a folder for models, data and runs."""

    python: Path
    """The interpreter of the engine's environment."""
    folder: Path
    gpu: str
    ranks: int
    limit_s: float = 1800.0
    """Seconds after which a run is ended."""

    @property
    def on_cpu(self) -> bool:
        return self.gpu == "cpu"


def prepare(bench: Bench) -> None:
    """Write the tokenizer and the data sets."""
    _python(bench, tiny_model.__file__, bench.folder)
    data = bench.folder / tiny_model.DATA_FOLDER
    rows = tiny_model.make_rows(ROWS)
    text = " ".join(row["output"] for row in rows)
    # A token of the demo's tokenizer has at most a few characters: these rows fill every cutoff_len.
    answer = text * (1 + 8 * 8192 // len(text))
    pictures = [f"{number}.png" for number in range(4)]
    written: Mapping[str, tuple[list[Any], Mapping[str, Any]]] = {
        LONG: ([{"instruction": row["instruction"], "input": "", "output": answer} for row in rows], {}),
        SHORT: ([dict(row) for row in tiny_model.make_rows(64 * ROWS)], {}),
        PICTURES: ([_seen(row, pictures[number % 4], answer) for number, row in enumerate(rows)], PICTURES_ENTRY),
    }
    for name, (content, _) in written.items():
        (data / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    info = {name: {"file_name": f"{name}.json", **entry} for name, (_, entry) in written.items()}
    (data / "dataset_info.json").write_text(json.dumps(info, indent=1))
    side = TINY_SIDE if bench.on_cpu else SIDE
    _python(bench, gpu_pictures.__file__, str(side), *(data / name for name in pictures))


def _seen(row: Mapping[str, str], picture: str, answer: str) -> dict[str, Any]:
    question = {"role": "user", "content": "<image>" + row["instruction"]}
    return {"messages": [question, {"role": "assistant", "content": answer}], "images": [picture]}


def run_case(bench: Bench, case: Case) -> dict[str, Any]:
    """Run a case and return its row: settings, measured values, the estimate, and how it ended."""
    job = job_of(bench, case)
    row = {**described(job, case, bench), "job": dict(to_mapping(job)), "estimate": _estimate(job)}
    wrong = errors(check(job))
    if wrong:
        return {**row, "status": f"refused: {wrong[0].code}"}
    try:
        _write_model(bench, case)
    except subprocess.CalledProcessError as error:
        return {**row, "status": f"failed: {_last_error(error.stderr.splitlines())}"}
    run = bench.folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    (run / "control").mkdir(parents=True)
    try:
        return {**row, **_run(bench, job, run)}
    finally:
        shutil.rmtree(bench.folder / "out", ignore_errors=True)


def job_of(bench: Bench, case: Case) -> Job:
    """Return the job of a case on all ranks of this machine. Raises ProblemsError."""
    vision = case.kind == "vision"
    mapping = {
        "name": case.name,
        "cluster": {
            "gpu": bench.gpu,
            "nodes": 1,
            "gpus_per_node": bench.ranks,
            "hosts": [{"address": "127.0.0.1"}],
            "environments": {"llamafactory": {"python": str(bench.python)}},
        },
        "model": {"hf_config": config_of(case), "path": str(bench.folder / case.model)},
        "training": {
            "dataset": PICTURES if vision else LONG,
            "dataset_dir": str(bench.folder / tiny_model.DATA_FOLDER),
            "template": "qwen3_vl_nothink" if vision else tiny_model.TEMPLATE,
            "output_dir": str(bench.folder / "out"),
        },
        "engine": case.engine,
    }
    job, problems = parse_job(mapping)
    if job is None:
        raise ProblemsError(errors(problems))
    values = {**shared_values(case)}
    if values.get("training.packing"):
        values["training.dataset"] = SHORT
    return with_values(job, values)


def config_of(case: Case) -> dict[str, Any]:
    """Return the config.json of the case's model."""
    # A preset's is a read-only view, which json does not write.
    return dict(TINIES[case.model] if case.model in TINIES else models()[case.model].hf_config)


def described(job: Job, case: Case, bench: Bench) -> dict[str, Any]:
    """Return the settings in the form of the published rows."""
    parallel, megatron = job.parallel, job.traits.is_megatron
    return {
        "source": f"own runs, {bench.gpu}",
        "case": case.name,
        "model": case.model,
        "hf_config": config_of(case),
        "hardware": bench.gpu,
        "gpus": job.world_size,
        "tp": parallel.tensor if megatron else 1,
        "pp": parallel.pipeline if megatron else 1,
        "dp": job.data_parallel,
        "mbs": job.training.micro_batch_size,
        "gbs": job.global_batch,
        "seq": job.training.cutoff_len,
        "recompute": job.recompute,
        "precision": job.training.precision,
        "method": job.training.method,
        "engine": job.engine,
        "notes": case.name,
    }


def _estimate(job: Job) -> dict[str, Any] | None:
    try:
        figures = to_json(estimate(job), ())
    except ProblemsError:
        return None
    names = ("peak_gib", "reserved_gib", "outside_gib", "need_gib_low", "need_gib_high", "fit", "iteration_s")
    return {name: figures[name] for name in (*names, "iteration_s_low", "iteration_s_high")}


def _write_model(bench: Bench, case: Case) -> None:
    folder = bench.folder / case.model
    if (folder / "config.json").exists():
        return
    config = bench.folder / f"{case.model}.config.json"
    config.write_text(json.dumps(config_of(case)), encoding="utf-8")
    _python(bench, gpu_model.__file__, folder, bench.folder / tiny_model.MODEL_FOLDER, config)


def _run(bench: Bench, job: Job, run: Path) -> dict[str, Any]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    node = NodePlacement(rank=0, folder=str(run), python=str(bench.python), address="127.0.0.1")
    rendered = render(
        job,
        Placement(run_id="benchmark", attempt=1, master_address="127.0.0.1", master_port=port, nodes=(node,)),
    )
    for name, text in rendered.files.items():
        (run / name).write_text(text)
    for name in (ENTRY, *BESIDE_ENTRY):
        (run / name).write_bytes(node_program(name))
    command = rendered.commands[0]
    environment = {**os.environ, **command.environment}
    environment["PATH"] = f"{bench.python.parent}:{os.environ.get('PATH', '')}"
    # As on a node: the files that the engine reads are named relative to the folder of the run.
    process = subprocess.Popen(
        command.argv, env=environment, cwd=run, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        _, printed = process.communicate(timeout=bench.limit_s)
    except subprocess.TimeoutExpired:
        # torchrun ends its ranks, which would hold the GPU in the next case.
        process.terminate()
        process.communicate()
        return {"status": f"failed: no end within {bench.limit_s:.0f} s"}
    rows = [_rows(run / f"steps.rank{rank}.jsonl") for rank in range(bench.ranks)]
    if process.returncode or not all(rows):
        return {"status": f"failed: {_last_line(run, printed)}"}
    return {"status": "done", **measured(rows)}


def measured(ranks: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the measured values: peaks of the rank with the most memory in use, and the median step of rank 0."""
    timed = [row["step_s"] for row in ranks[0] if row.get("step_s") and row["step"] > FIRST_STEPS]
    tokens = [row["tokens"] for row in ranks[0] if row.get("tokens")]
    values: dict[str, Any] = {
        "steps": max(row["step"] for row in ranks[0]),
        "measured_iter_s": median(timed) if timed else None,
    }
    values["tokens_per_step"] = median(tokens) if tokens else None
    for name in ("allocated_gib", "reserved_gib"):
        figures = [row[name] for rows in ranks for row in rows if row.get(name)]
        values[name] = max(figures, default=None)
    if values["reserved_gib"]:
        values |= {"measured_mem_gb": values["reserved_gib"], "mem_kind": "GiB reserved"}
    return values


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _last_line(run: Path, printed: str) -> str:
    """Return the last error in the logs of the ranks, else in what was printed."""
    lines = [line for log in sorted(run.glob("rank*.log")) for line in log.read_text(errors="replace").splitlines()]
    return _last_error(lines if any("Error" in line for line in lines) else printed.splitlines())


def _last_error(lines: list[str]) -> str:
    """Return the last line that names an error and the text after it, or the last line."""
    found = next((place for place in reversed(range(len(lines))) if "Error" in lines[place]), len(lines) - 1)
    return " ".join(line.strip() for line in lines[found : found + 3])[:300] if lines else "no output"


def _python(bench: Bench, script: str | None, *arguments: str | Path) -> None:
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": ":".join(paths), "HF_HUB_OFFLINE": "1"}
    command = [bench.python, "-W", "ignore", str(script), *arguments]
    subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
