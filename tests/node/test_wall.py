"""backend/node imports nothing else of this project: a node has only a Python and the engine's environment."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from backend import node

ROOT = Path(node.__file__).parent
BESIDE = {path.stem for path in (ROOT / "training").glob("*.py")}
"""These files lie side by side in the run folder, and import each other by their own names."""
ENGINE = {
    "benchmark.py": {"torch"},
    "checks/engine_args.py": {"deepspeed", "llamafactory", "swift", "transformers", "yaml"},
    "checks/engine_keys.py": {"llamafactory", "mcore_adapter", "transformers"},
    "checks/environment_faults.py": {"torch"},
    "checks/model_class.py": {"transformers"},
    "checks/swift_arguments.py": {"swift"},
    "data_preview/encoding.py": {"PIL"},
    "data_preview/llamafactory_rows.py": {"llamafactory"},
    "data_preview/swift_rows.py": {"swift"},
    "dataset_info/check.py": {"llamafactory"},
    "dataset_info/proposal.py": {"pyarrow"},
    "model_profile/build.py": {"torch", "transformers"},
    "model_profile/cores.py": {"torch", "transformers"},
    "model_profile/main.py": {"torch", "transformers"},
    "model_profile/measure.py": {"torch"},
    "model_profile/meta_tensors.py": {"torch"},
    "model_profile/operators.py": {"torch"},
    "model_profile/parts.py": {"torch"},
    "model_profile/shapes.py": {"torch"},
    "model_profile/sources.py": {"huggingface_hub"},
    "model_profile/towers.py": {"torch"},
    "samples/lengths.py": {"tokenizers"},
    "samples/rows.py": {"pyarrow"},
    "serving/chat_request.py": {"PIL"},
    "serving/llamafactory_chat.py": {"llamafactory"},
    "serving/model.py": {"torch", "transformers"},
    "serving/swift_chat.py": {"swift"},
    "training/hubs.py": {"huggingface_hub", "modelscope_hub"},
    "training/entry.py": {"llamafactory", "torch", "transformers", "yaml", *BESIDE},
    "training/export_model.py": {"llamafactory", "mcore_adapter", "swift"},
    "training/predict.py": {"llamafactory"},
    "training/swift_entry.py": {"swift", "torch", *BESIDE},
    "training/engine_data.py": {"llamafactory"},
    "training/tokenise.py": {"datasets", "llamafactory", "yaml"},
}
"""Module -> what it imports of the engine's environment, inside functions only."""


def test_a_node_needs_nothing_but_its_standard_library_and_engine() -> None:
    strangers = set()
    for path in ROOT.rglob("*.py"):
        tree, name = ast.parse(path.read_text(encoding="utf-8")), path.relative_to(ROOT).as_posix()
        for statement in ast.walk(tree):
            engine = ENGINE.get(name, set()) if statement not in tree.body else set()
            strangers |= {f"{name}: {module}" for module in modules(statement) if not is_allowed(module, engine)}
    assert strangers == set()


def modules(statement: ast.AST) -> list[str]:
    """Yield the names of modules that a statement imports, except those of its own package."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    if isinstance(statement, ast.ImportFrom) and statement.level != 1:
        return ["." * statement.level + (statement.module or "")]
    return []


def is_allowed(module: str, engine: set[str]) -> bool:
    root = module.partition(".")[0]
    return root in sys.stdlib_module_names or root in engine or f"{module}.".startswith("backend.node.")


@pytest.mark.parametrize(
    ("text", "is_old"),
    [
        ("if (count := 1):\n    print(count)\n", True),
        ("match 1:\n    case 1:\n        pass\n", False),
        ('with (open("a") as a, open("b") as b):\n    print(a, b)\n', False),
        ("def first(names: list[str]) -> str | None:\n    return names[0]\n", False),
    ],
)
def test_lint_refuses_syntax_that_the_oldest_python_of_nodes_lacks(text: str, is_old: bool) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--stdin-filename", str(ROOT / "sample.py"), "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT.parents[1])
    assert (done.returncode == 0) == is_old, done.stdout
