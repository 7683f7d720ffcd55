"""Texts of the programs that run on nodes. The server sends each program as one file."""

import ast
from functools import cache
from pathlib import Path
from threading import Lock

from backend import node

SUPERVISOR = "supervisor.py"
COPIER = "copy_files.py"
SAMPLES = "count_samples.py"
DATA_PREVIEW = "preview_data.py"
DATASET_INFO = "dataset_info.py"
MODEL_PROFILE = "model_profile.py"
SERVE_MODELS = "serve_models.py"
PREDICT = "predict.py"
CONTAINER = "container.py"
INSTALLER = "install_environment.py"
FALLBACK_STOP = "fallback_stop.sh"
PROGRAMS = {
    SUPERVISOR: (
        "supervisor/__init__.py",
        "tools.py",
        "nvidia_smi.py",
        "interface.py",
        "container.py",
        "supervisor/files.py",
        "supervisor/processes.py",
        "supervisor/locks.py",
        "supervisor/heartbeat.py",
        "supervisor/kernel_log.py",
        "supervisor/gpus.py",
        "supervisor/activity.py",
        "supervisor/shutdown.py",
        "supervisor/masking.py",
        "supervisor/oom_kills.py",
        "supervisor/keeper.py",
        "supervisor/allocation.py",
        "supervisor/commands.py",
    ),
    COPIER: (
        "copier/__init__.py",
        "own_folder.py",
        "copier/files.py",
        "copier/give.py",
        "copier/destination.py",
        "copier/take.py",
        "copier/main.py",
    ),
    SAMPLES: (
        "samples/__init__.py",
        "regular_file.py",
        "samples/drawn.py",
        "samples/rows.py",
        "samples/lengths.py",
        "samples/main.py",
    ),
    DATA_PREVIEW: (
        "data_preview/__init__.py",
        "regular_file.py",
        "samples/drawn.py",
        "samples/rows.py",
        "data_preview/reading.py",
        "training/engine_data.py",
        "data_preview/encoding.py",
        "data_preview/llamafactory_rows.py",
        "data_preview/swift_rows.py",
        "data_preview/main.py",
    ),
    DATASET_INFO: (
        "dataset_info/__init__.py",
        "regular_file.py",
        "samples/drawn.py",
        "samples/rows.py",
        "checks/dataset_columns.py",
        "data_preview/reading.py",
        "dataset_info/table.py",
        "dataset_info/proposal.py",
        "dataset_info/check.py",
        "dataset_info/main.py",
    ),
    SERVE_MODELS: (
        "serving/__init__.py",
        "serving/backends.py",
        "serving/chat_request.py",
        "model_process.py",
        "serving/llamafactory_chat.py",
        "serving/swift_chat.py",
        "serving/model.py",
        "serving/server.py",
        "serving/main.py",
    ),
    CONTAINER: ("tools.py", "container.py"),
    INSTALLER: (
        "installer/__init__.py",
        "tools.py",
        "installer/folder.py",
        "installer/interpreters.py",
        "installer/packages.py",
        "installer/build.py",
        "installer/main.py",
    ),
    FALLBACK_STOP: ("fallback_stop.sh",),
    "entry.py": ("training/entry.py",),
    "rank_facts.py": ("training/rank_facts.py",),
    "step_lines.py": ("training/step_lines.py",),
    "swift_entry.py": ("training/swift_entry.py",),
    "prepare_data.py": ("regular_file.py", "training/prepare_data.py"),
    "tokenise.py": ("training/engine_data.py", "training/tokenise.py"),
    "download.py": ("own_folder.py", "training/hubs.py", "training/download.py"),
    "export_model.py": ("own_folder.py", "training/export_model.py"),
    PREDICT: ("model_process.py", "training/predict.py"),
    "benchmark.py": ("benchmark.py",),
    "software.py": (
        "own_folder.py",
        "regular_file.py",
        "interface.py",
        "config_text.py",
        "checks/dataset_columns.py",
        "checks/model_folder.py",
        "checks/model_code.py",
        "checks/logins.py",
        "checks/software.py",
    ),
    "hardware.py": ("tools.py", "nvidia_smi.py", "checks/hardware.py"),
    "fingerprints.py": ("regular_file.py", "checks/fingerprints.py"),
    "dial.py": ("checks/dial.py",),
    "engine_args.py": (
        "checks/environment_faults.py",
        "checks/model_class.py",
        "checks/swift_arguments.py",
        "checks/engine_keys.py",
        "checks/engine_args.py",
    ),
    MODEL_PROFILE: (
        "model_profile/__init__.py",
        "model_profile/problem.py",
        "model_profile/sources.py",
        "model_profile/meta_tensors.py",
        "model_profile/shapes.py",
        "model_profile/build.py",
        "model_profile/parts.py",
        "model_profile/cores.py",
        "model_profile/operators.py",
        "model_profile/static_operators.py",
        "model_profile/measure.py",
        "model_profile/polynomials.py",
        "model_profile/towers.py",
        "model_profile/main.py",
    ),
    "checkpoint_files.py": ("regular_file.py", "checks/checkpoint_files.py"),
}
"""File name on a node -> modules in backend/node. A module comes after the modules that it imports."""
_NODE = Path(node.__file__).parent
_parse_lock = Lock()
"""In Python 3.11 ast.parse raises SystemError when two threads parse at once."""


def node_program(name: str) -> bytes:
    """Return the text of a program."""
    modules = PROGRAMS[name]
    if len(modules) == 1:
        return (_NODE / modules[0]).read_bytes()
    with _parse_lock:
        return _join(modules).encode()


@cache
def _join(modules: tuple[str, ...]) -> str:
    """Join modules into one text, without the imports between them."""
    texts = [(_NODE / module).read_text(encoding="utf-8") for module in modules]
    return "\n\n".join(["from __future__ import annotations\n", *map(_without_own_imports, texts)])


def _without_own_imports(text: str) -> str:
    lines = text.splitlines()
    for line in ast.parse(text).body:
        if isinstance(line, ast.ImportFrom) and (line.level or _root(line) in ("__future__", "backend")):
            lines[line.lineno - 1 : line.end_lineno] = [""] * ((line.end_lineno or line.lineno) - line.lineno + 1)
    return "\n".join(lines).strip() + "\n"


def _root(line: ast.ImportFrom) -> str:
    return (line.module or "").partition(".")[0]
