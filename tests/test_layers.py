"""Imports point down the layers, and the planning commands load neither the page nor SSH."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("job", "estimate", "planning", "engines", "cluster", "runs")
FOLDERS = ("backend", "app", "tools", "benchmarks", "tests")
"""A folder imports none of those after it: the product needs no benchmark, and no benchmark needs a test."""
DOOR = (
    "controller",
    "database",
    "retention",
    "maintenance",
    "emergency_stop",
    "connections",
    "rank_secrets",
    "redact",
    "records",
    "states",
    "api",
)
"""The modules of backend/runs that `app` may import: what acts on runs, then record types and pure functions."""
STATE = {
    # What a function answered for the newest arguments. The same arguments give the same answer without it.
    ("backend/planning/enumerate.py", "_newest"),
    ("backend/planning/enumerate.py", "_legal"),
    # One process has one log, one set of secrets that its log must not show, and one user who types them.
    ("backend/runs/redact.py", "_known_secrets"),
    ("backend/runs/rank_secrets.py", "SECRETS"),
    ("backend/cluster/ssh/passphrases.py", "PASSPHRASES"),
    # Only one thread at a time may parse: ast of Python 3.11 is not safe for threads.
    ("backend/cluster/node_programs.py", "_parse_lock"),
    # One thread ends every late call of the process. It holds nothing while no call is open.
    ("backend/cluster/deadlines.py", "_watchdog"),
}
"""Mutable values of modules, as (file, name). functools.cache holds answers of pure functions only."""
MUTABLE = {"Lock", "RLock", "Condition", "Event", "Queue", "local", "ContextVar"} | {
    *("dict", "list", "set", "deque", "defaultdict", "Counter", "OrderedDict", "WeakKeyDictionary")
}
"""Classes of the standard library whose objects change. `mutability` finds those of the project."""
PURE = ("job", "estimate", "planning", "engines")
HEAVY = ("gradio", "plotly", "fastapi", "paramiko", "torch")

IMPORT_ALL = """
import importlib, json, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(f"backend.{name}")
    for module in pkgutil.walk_packages(package.__path__, f"backend.{name}."):
        importlib.import_module(module.name)
print(json.dumps(sorted(sys.modules)))
"""


RUN_COMMANDS = """
import json, sys
from app.main import main
job, out = sys.argv[1:]
for words in (["estimate", job], ["plan", job], ["render", job, "--out", out]):
    assert main(words) == 0, words
print(json.dumps(sorted(sys.modules)))
"""

JOB = """
version: 1
cluster:
  gpu: h100-80g
  nodes: 1
  gpus_per_node: 8
  environments: {llamafactory: {python: /opt/lf/bin/python}}
  hosts: [{address: 10.0.0.1}]
model: {preset: qwen3-8b, path: /models/qwen3-8b}
training: {dataset: demo, dataset_dir: /data, template: qwen3, output_dir: /runs}
parallel: {tensor: 2}
"""


def test_pure_layers_load_nothing_of_the_page_of_ssh_or_of_training():
    assert loaded_roots(IMPORT_ALL, *PURE).isdisjoint(HEAVY)


def test_planning_commands_start_without_the_page_or_ssh(tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    assert loaded_roots(RUN_COMMANDS, str(job), str(tmp_path / "out")).isdisjoint(HEAVY)


def test_imports_point_down_the_list_of_layers():
    wrong = []
    for rank, layer in enumerate(LAYERS):
        forbidden = ("app", *(f"backend.{above}" for above in LAYERS[rank + 1 :]))
        for path in (ROOT / "backend" / layer).rglob("*.py"):
            wrong += [f"{path.relative_to(ROOT)} imports {name}" for name in imports(path) if is_under(name, forbidden)]
    assert wrong == []


def test_app_imports_only_the_public_modules_of_runs():
    door = {f"backend.runs.{name}" for name in DOOR}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / "app").rglob("*.py")
        for name in imports(path)
        if is_under(name, ("backend.runs",)) and name != "backend.runs" and not is_under(name, tuple(door))
    ]
    assert wrong == []
    assert [name for name in DOOR if not (ROOT / "backend" / "runs" / f"{name}.py").is_file()] == []


def test_modules_hold_no_state():
    """State belongs to an object that app/services.py holds, so that a test makes its own. STATE has the exceptions."""
    modules = {path: parsed(path) for folder in ("app", "backend") for path in (ROOT / folder).rglob("*.py")}
    classes = {path: mutability(module) for path, module in modules.items()}
    mutable = MUTABLE | {name for own in classes.values() for name, changes in own.items() if changes}
    assert {"Secrets", "Passphrases", "Store"} <= mutable
    wrong = set()
    for path, module in modules.items():
        # A class of the module hides one of the same name elsewhere.
        hidden = {name for name, changes in classes[path].items() if not changes}
        # Decorators fill RULES while the module is imported.
        wrong |= {(str(path.relative_to(ROOT)), name) for name in state_of(module, mutable - hidden) - {"RULES"}}
    assert wrong == set(STATE)


def test_the_door_of_runs_opens_on_no_table_of_the_store():
    """`app` gets records and answers from the controller and the database, not rows."""
    stores = {f"backend.runs.store.{path.stem}" for path in (ROOT / "backend" / "runs" / "store").glob("*.py")}
    names = set().union(*(imports(path) for path in (ROOT / "app").rglob("*.py")))
    assert names.isdisjoint(stores | {"backend.runs.store", "sqlite3"})


def test_only_the_registry_lists_checks_of_the_preflight():
    """A second list would be forgotten when a check is added. slurm.py may add checks of its request."""
    folder = ROOT / "backend" / "cluster" / "preflight"
    lists = [
        path.name
        for path in (ROOT / "backend").rglob("*.py")
        if sum(
            name.startswith("backend.cluster.preflight.") and name.split(".")[-1].startswith("check_")
            for name in imports(path)
        )
        > 1
    ]
    assert lists == ["registry.py"]
    checks = {
        f"backend.cluster.preflight.{path.stem}.{node.name}"
        for path in folder.glob("*.py")
        if path.stem not in ("registry", "slurm", "engine_args")
        for node in parsed(path).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
    }
    assert checks - imports(folder / "registry.py") == set()


def test_code_that_runs_on_nodes_imports_nothing_else_of_the_project():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / "backend" / "node").rglob("*.py")
        for name in imports(path)
        if is_under(name, FOLDERS) and name != "backend" and not is_under(name, ("backend.node",))
    ]
    assert wrong == []


@pytest.mark.parametrize("folder", FOLDERS[:-1])
def test_no_folder_imports_what_stands_on_it(folder):
    forbidden = FOLDERS[FOLDERS.index(folder) + 1 :]
    files = [path for path in (ROOT / folder).rglob("*.py") if any(is_under(name, forbidden) for name in imports(path))]
    assert files == []


@pytest.mark.parametrize(("library", "home"), [("gradio", "app"), ("paramiko", "backend/cluster")])
def test_a_library_is_imported_at_home_only(library, home):
    strangers = [
        str(path.relative_to(ROOT))
        for folder in ("app", "backend")
        for path in (ROOT / folder).rglob("*.py")
        if not path.is_relative_to(ROOT / home) and any(is_under(name, (library,)) for name in imports(path))
    ]
    assert strangers == []


def mutability(module: ast.Module) -> dict[str, bool]:
    """Return whether objects of a class change: class name -> whether a method assigns to `self` or to an item of it.

    `__init__` does not count.
    """
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    return {each.name: any(assigns_to_self(method) for method in each.body) for each in classes}


def assigns_to_self(method: ast.stmt) -> bool:
    return (
        isinstance(method, ast.FunctionDef)
        and method.name != "__init__"
        and any(
            isinstance(node, (ast.Attribute, ast.Subscript))
            and isinstance(node.ctx, (ast.Store, ast.Del))
            and root_of(node) == "self"
            for node in ast.walk(method)
        )
    )


def root_of(node: ast.expr) -> str:
    """Return the name that an attribute or an item begins with; empty if it begins with none."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def state_of(module: ast.Module, mutable: Collection[str]) -> set[str]:
    """Return the names of a module's empty containers, locks and other mutable objects, and of what `global` names."""
    names = {name for node in ast.walk(module) if isinstance(node, ast.Global) for name in node.names}
    for node in module.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, (ast.List, ast.Dict, ast.Call)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            made = re.fullmatch(r"\[\]|\{\}|(?:\w+\.)?(\w+)\(.*\)", ast.unparse(node.value))
            if made and (made[1] is None or made[1] in mutable):
                names.update(ast.unparse(target) for target in targets)
    return names


def loaded_roots(script: str, *arguments: str) -> set[str]:
    """Return the top-level names of all modules that a fresh interpreter has loaded. The script prints them."""
    command = [sys.executable, "-c", script, *arguments]
    out = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {name.split(".")[0] for name in json.loads(out.splitlines()[-1])}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the dotted names that a file imports anywhere. `from a import b` gives both `a` and `a.b`."""
    package, names = path.relative_to(ROOT).parent.parts, set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*above, *filter(None, [node.module])))
            names.update((module, *(f"{module}.{alias.name}" for alias in node.names)))
    return frozenset(names)


def is_under(name: str, roots: tuple[str, ...]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


@pytest.mark.parametrize("folder", ["backend", "app", "tools", "benchmarks"])
def test_no_module_has_the_name_of_one_of_the_standard_library(folder):
    """Python puts the folder of a script first on the import path."""
    assert [path.name for path in (ROOT / folder).rglob("*.py") if path.stem in sys.stdlib_module_names] == []
