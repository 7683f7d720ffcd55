"""Commands that make one node equal to another. A user pastes them into a shell, so every part is quoted."""

import posixpath
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from backend.cluster.inventory.software import NodeFacts, Origin, read_modules
from backend.job.cluster import Environment, Host
from backend.job.job import Job
from backend.job.launch_rules import environment_of

MCORE_ADAPTER = "mcore_adapter @ git+https://github.com/alibaba/roll.git#subdirectory=mcore_adapter"
"""PyPI has another package of this name."""
BUILT_WITH_TORCH = {
    "flash_attn": "flash-attn",
    "transformer_engine": "transformer-engine[pytorch]",
    "causal_conv1d": "causal-conv1d",
    "mamba_ssm": "mamba-ssm",
}
"""Packages whose source distributions import torch when pip builds them, so pip must not isolate the build: import name
-> PyPI's name, with the extra that contains the bindings.

Sources: https://github.com/Dao-AILab/flash-attention/blob/0251105/README.md and
https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/installation.html, whose extra `pytorch` takes the
core library of the CUDA of the installed torch, 12 or 13 (NVIDIA/TransformerEngine d0067d0
transformer_engine/pytorch/setup.py, since 2.9). In isolation, causal-conv1d and mamba-ssm would be built with the
newest torch instead of the installed one (https://github.com/Dao-AILab/causal-conv1d/blob/40b7357/pyproject.toml and
https://github.com/state-spaces/mamba/blob/0b11daa/pyproject.toml: `requires = [..., "torch", ...]`)."""
NOT_ON_PYPI = ("flash_attn_interface",)
"""FlashAttention 3 is built from the folder hopper of the repository (Dao-AILab/flash-attention 0251105 README.md)."""
BUILD_TOOLS = ("setuptools", "wheel", "packaging", "ninja", "psutil")
"""What these builds use of the environment itself: the Requirements of flash-attn's README, and what the files setup.py
of flash-attn, causal-conv1d (00f80e7) and transformer-engine import. An environment of uv has no setuptools."""
UNKNOWN = "unknown"
"""Version of a module that belongs to no distribution (backend/node/checks/software.py)."""


def install_command(job: Job, rank: int, facts: NodeFacts, modules: Sequence[str], wanted: Mapping[str, Origin]) -> str:
    """Return the command that installs the `wanted` versions of these modules in a node's environment.

    A git checkout of the node is moved to the wanted commit. pip installs all other packages. Empty if
    no version is known.
    """
    names = read_modules(job)
    index, checkouts = "", []
    isolated: list[str] = []
    built: list[str] = []
    for name in modules:
        origin, own = wanted.get(name), facts.origins.get(name)
        requirements = built if name in BUILT_WITH_TORCH else isolated
        if origin is not None and origin.commit and own is not None and own.folder:
            folder = shlex.quote(own.folder)
            checkouts.append(f"git -C {folder} fetch && git -C {folder} checkout {shlex.quote(origin.commit)}")
        elif origin is not None and origin.url and origin.commit:
            part = f"#subdirectory={origin.subdirectory}" if origin.subdirectory else ""
            requirements.append(f"{names.get(name, name)} @ git+{origin.url}@{origin.commit}{part}")
        elif origin is not None and name in BUILT_WITH_TORCH and origin.version not in ("", UNKNOWN):
            # PyPI has no local builds (`2.8.3+cu12torch2.8`).
            requirements.append(f"{BUILT_WITH_TORCH[name]}=={origin.version.partition('+')[0]}")
        elif origin is not None and origin.version not in ("", UNKNOWN) and name not in NOT_ON_PYPI:
            # The version of a build for another CUDA ends with `+cu128`. torch's own index has these builds.
            build = origin.version.partition("+")[2]
            index = f"https://download.pytorch.org/whl/{build}" if name == "torch" and build else index
            requirements.append(f"{names.get(name, name)}=={origin.version}")
    extra = ["--extra-index-url", index] if index else []
    return " && ".join([*_pip_commands(environment_of(job, rank), facts, [*extra, *isolated], built), *checkouts])


def install_missing(environment: Environment | None, facts: NodeFacts, missing: Mapping[str, str]) -> str:
    """Return the command that installs packages in their newest version: import name -> distribution."""
    names = {"mcore_adapter": MCORE_ADAPTER}
    isolated = [names.get(name, package) for name, package in missing.items() if name not in BUILT_WITH_TORCH]
    built = [BUILT_WITH_TORCH[name] for name in missing if name in BUILT_WITH_TORCH]
    return " && ".join(_pip_commands(environment, facts, isolated, built)) if environment else ""


def _pip_commands(
    environment: Environment | None, facts: NodeFacts, isolated: Sequence[str], built: Sequence[str]
) -> list[str]:
    """Return the commands of both kinds of packages. torch and the tools come before what needs them."""
    if built:
        first, second = [*isolated, *BUILD_TOOLS], [*built, "--no-build-isolation"]
        with_pip = replace(facts, has_pip=True)
        return [pip_command(environment, facts, first), pip_command(environment, with_pip, second)]
    return [pip_command(environment, facts, isolated)] if isolated else []


def pip_command(
    environment: Environment | None, facts: NodeFacts, requirements: Sequence[str], action: str = "install"
) -> str:
    """Return the command `python -m pip install ...` of an environment, for a shell on the node.

    An environment without pip, such as one that uv made, first gets the pip that Python brings.
    """
    if environment is None:
        return ""
    python = _path(environment.python)
    setup = f". {_path(environment.setup)} && " if environment.setup else ""
    pip = "" if facts.has_pip else f"{python} -m ensurepip && "
    return f"{setup}{pip}{python} -m pip {action} {shlex.join(requirements)}"


def copy_command(source: Host, paths: Sequence[str]) -> str:
    """Return the command that copies another node's files to the same paths.

    -s: with an rsync older than 3.2.4 the other node's shell reads the names. It would split and expand them.
    """
    login = f"{source.user}@" if source.user else ""
    address = f"[{source.dialled_address}]" if ":" in source.dialled_address else source.dialled_address
    port = ["-e", f"ssh -p {source.port}"] if source.port != 22 else []
    folders: dict[str, list[str]] = {}
    for path in paths:
        folders.setdefault(posixpath.dirname(path), []).append(path)
    commands = []
    for folder, files in folders.items():
        head = shlex.join(["rsync", "-as", "--checksum", *port])
        sources = " ".join(shlex.quote(f"{login}{address}:{path.removeprefix('~/')}") for path in files)
        commands.append(f"{head} {sources} {_path(folder + '/')}")
    return " && ".join(commands)


def remove_command(paths: Sequence[str]) -> str:
    """Return the command that removes these files. It asks before each file."""
    return " ".join(["rm", "-i", "--", *map(_path, paths)])


def _path(path: str) -> str:
    """Return the quoted path. The shell still expands `~/`."""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)
