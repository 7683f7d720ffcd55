"""Measure LLaMA-Factory itself on this machine, and store the estimate beside each measurement.

    python -m benchmarks.gpu [--python PYTHON] [--gpu KEY] [--ranks N] [--folder FOLDER] [--only WORD ...] [--list]
                             [--limit SECONDS] [--output FILE]

PYTHON is the interpreter of the engine's environment (default: .venv-node). PYTHONPATH may add packages. Cases
with pictures need torchvision.
The grid (gpu_grid.py) has models of 0.6B to 8B parameters with random weights, DDP, LoRA, QLoRA, FSDP 2, ZeRO-2 and
ZeRO-3, offload, Megatron where it is installed, pictures, packing, accumulation and recompute. Without a GPU, a grid of
tiny models runs on the CPU: it tries the program, and gives times without an estimate.

FILE (default: own_runs.json) gets a row after every run; a case that it has is not run again. Then
`benchmarks.memory --measured FILE` and `benchmarks.throughput --measured FILE` compare the rows with the estimate of
today: they use the job of a row. A row has: the settings in the form of published rows, `job`, `estimate` (that of the
day), `status`, `allocated_gib` and `reserved_gib` of the rank with the most, `measured_iter_s` (the median step),
`tokens_per_step`, `versions` and `date`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from backend.job.presets import gpus
from benchmarks.gpu_grid import cases, chosen
from benchmarks.gpu_run import Bench, prepare, run_case
from tools.programs import NODE_PYTHON

PACKAGES = (
    *(
        "torch",
        "torchvision",
        "transformers",
        "accelerate",
        "peft",
        "llamafactory",
        "deepspeed",
        "bitsandbytes",
        "flash-attn",
    ),
    *("liger-kernel", "mcore_adapter", "megatron-core", "transformer-engine"),
)


def main() -> None:
    """Run the grid, and print a line per run."""
    arguments = _arguments()
    name, count = _gpus_here()
    gpu = arguments.gpu or _preset_of(name)
    ranks = arguments.ranks or (count if gpu != "cpu" else 2)
    every = chosen(cases(ranks, on_cpu=gpu == "cpu"), arguments.only)
    if arguments.list:
        print(*(case.name for case in every), sep="\n")
        return
    known = json.loads(arguments.output.read_text()) if arguments.output.exists() else []
    versions = _versions(arguments.python)
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(
            python=arguments.python.absolute(),
            folder=(arguments.folder or Path(temporary)).absolute(),
            gpu=gpu,
            ranks=ranks,
            limit_s=arguments.limit,
        )
        prepare(bench)
        for case in every:
            if any(_is_same(row, case.name, ranks, versions) for row in known):
                continue
            if case.kind == "vision" and "torchvision" not in versions:
                print(f"{case.name:40} not run: transformers needs torchvision to read pictures")
                continue
            row = run_case(bench, case)
            known = [other for other in known if (other["case"], other["gpus"]) != (case.name, ranks)]
            known.append({**row, "gpu_name": name, "versions": versions, "date": _today()})
            arguments.output.write_text(json.dumps(known, indent=1))
            print(summary(row), flush=True)


def summary(row: Mapping[str, Any]) -> str:
    """Return a line about a run: measured beside estimated."""
    if row["status"] != "done":
        return f"{row['case']:40} {row['status']}"
    planned = row["estimate"] or {}
    memory = _beside(row.get("reserved_gib"), planned.get("reserved_gib"), "GiB")
    return f"{row['case']:40} {memory}, {_beside(row['measured_iter_s'], planned.get('iteration_s'), 's')}"


def _beside(measured: float | None, computed: float | None, unit: str) -> str:
    words = "–" if measured is None else f"{measured:.3f}"
    return f"{words} {unit} (computed {'–' if computed is None else f'{computed:.3f}'})"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", type=Path, default=NODE_PYTHON)
    parser.add_argument("--gpu", choices=sorted(gpus()), help="default: the GPU of this machine, or cpu")
    parser.add_argument("--ranks", type=int, help="default: all GPUs; 2 processes on a CPU")
    parser.add_argument("--folder", type=Path, help="keeps models and data; default: a temporary folder")
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="cases whose name holds a word")
    parser.add_argument("--limit", type=float, default=1800.0, metavar="SECONDS", help="ends a run that takes longer")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--output", type=Path, default=Path("own_runs.json"))
    return parser.parse_args()


def _gpus_here() -> tuple[str, int]:
    """Return the name and the number of the GPUs of this machine; `cpu` and 0 without one."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        names = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")
    except (OSError, subprocess.CalledProcessError):
        return "cpu", 0
    found = [name.strip() for name in names if name.strip()]
    return (found[0], len(found)) if found else ("cpu", 0)


def _preset_of(name: str) -> str:
    """Return the preset of a GPU by its name. Exits with the presets if none or several have it."""
    if name == "cpu":
        return "cpu"
    fits = [key for key, gpu in gpus().items() if gpu.name.split(" ")[0] in name.replace("-", " ").split(" ")]
    if len(fits) != 1:
        sys.exit(f"Which preset is {name}? Give --gpu: {', '.join(fits or gpus())}")
    return fits[0]


def _versions(python: Path) -> dict[str, str]:
    """Return the versions of the packages that matter in the engine's environment."""
    script = (
        "import importlib.metadata as m, json, sys\n"
        "found = {}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    answer = subprocess.run([python, "-c", script, *PACKAGES], capture_output=True, text=True, check=True).stdout
    return dict(json.loads(answer))


def _is_same(row: Mapping[str, Any], case: str, ranks: int, versions: Mapping[str, str]) -> bool:
    is_case = (row["case"], row["gpus"], row["versions"]) == (case, ranks, versions)
    return is_case and not row["status"].startswith("failed")


def _today() -> str:
    return datetime.now(tz=UTC).date().isoformat()


if __name__ == "__main__":
    main()
