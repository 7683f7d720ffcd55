"""Write presets/engine_keys.yaml: the keys of the engines in .venv-node and in the named sources.

    python -m tools.write_engine_keys

Needs .venv-node, MEGABOARD_MCORE_ADAPTER (mcore_adapter's src folder) and MEGABOARD_SWIFT_PYTHON (an interpreter with
ms-swift).
"""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from backend.cluster.node_programs import node_program
from tools.programs import NODE_PYTHON, mcore_adapter_source, swift_python

ROOT = Path(__file__).parents[1]
FILE = ROOT / "presets" / "engine_keys.yaml"
WITHOUT_GPU = Path(__file__).with_name("swift_without_gpu.py")
SOURCES = {
    "llamafactory": "https://github.com/hiyouga/LLaMA-Factory/tree/v{}/src/llamafactory/hparams",
    "llamafactory_trainer": "https://github.com/hiyouga/LLaMA-Factory/blob/v{}/src/llamafactory/hparams/training_args.py",
    "transformers": "https://github.com/huggingface/transformers/blob/v{}/src/transformers/training_args.py",
    "mcore_adapter": "https://github.com/alibaba/ROLL/blob/8eb27cc2dc34c4d1310b169d9b86d339004d811a/mcore_adapter/src/mcore_adapter/training_args.py",
    "swift": "https://pypi.org/project/ms-swift/{}/ swift/megatron/arguments",
    "swift_trainer": "https://pypi.org/project/ms-swift/{}/ swift/arguments",
}
MCORE_ADAPTER_VERSION = "0.10.0.dev0"
HEAD = """\
# The keys that each program's argument classes take: type, default, choices. Written by
# tools/write_engine_keys.py, which asks the programs; test_real_parser.py compares.
"""


def run_swift(python: str, action: str, **question_fields: Any) -> dict[str, Any]:
    """Return the answer of engine_args.py for ms-swift on a machine without a GPU. `action` is `keys` or `parse`."""
    command = [python, "-W", "ignore", str(WITHOUT_GPU), action]
    question = json.dumps({"engine": "swift", "environment": {}, **question_fields})
    # PYTHONPATH may hold its environment, so the process must not import modules of this folder.
    process = subprocess.run([*command, question, "--token", "T"], capture_output=True, check=False, cwd="/")
    return _output(process)


def _output(process: "subprocess.CompletedProcess[bytes]") -> dict[str, Any]:
    lines = [line for line in process.stdout.decode().splitlines() if line.startswith("T{")]
    if not lines:
        raise RuntimeError(process.stderr.decode()[-3000:])
    output: dict[str, Any] = json.loads(lines[-1][1:])
    return output


def engine_keys(python: Path | str, engine: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return program -> {version, keys} of an installed engine."""
    question = {"engine": engine, "environment": {"HF_HUB_OFFLINE": "1", **environment}}
    command = [str(python), "-W", "ignore", "-", "keys", json.dumps(question), "--token", "T"]
    env = {**os.environ, **environment}
    process = subprocess.run(command, input=node_program("engine_args.py"), env=env, capture_output=True, check=False)
    return _output(process)


def to_text(programs: Mapping[str, Any]) -> str:
    """Return YAML with one key per line."""
    lines = [HEAD.rstrip()]
    for name, program in programs.items():
        lines += [f"{name}:", f"  version: {program['version']}", f"  # {SOURCES[name].format(program['version'])}"]
        lines.append("  keys:")
        lines += [f"    {key}: {_flow(entry)}" for key, entry in program["keys"].items()]
    return "\n".join(lines) + "\n"


def _flow(entry: Mapping[str, Any]) -> str:
    shown = {key: value for key, value in entry.items() if key != "default" or value is not None}
    return yaml.safe_dump(shown, default_flow_style=True, sort_keys=False, width=float("inf")).strip()


def main() -> None:
    programs = engine_keys(NODE_PYTHON, "llamafactory", {})
    if source := mcore_adapter_source():
        mca = engine_keys(NODE_PYTHON, "llamafactory", {"USE_MCA": "1", "PYTHONPATH": source})["mcore_adapter"]
        # A source folder has no version, but the pyproject.toml beside it has one.
        programs["mcore_adapter"] = {**mca, "version": MCORE_ADAPTER_VERSION}
    if python := swift_python():
        programs |= run_swift(python, "keys")
        programs |= run_swift(python, "keys", environment={"MEGABOARD_TRAINER": "swift_trainer"})
    before = yaml.safe_load(FILE.read_text()) if FILE.exists() else {}
    FILE.write_text(to_text({**before, **programs}), encoding="utf-8")


if __name__ == "__main__":
    main()
