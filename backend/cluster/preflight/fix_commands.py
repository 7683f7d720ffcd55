"""Commands that make one node equal to another, to be pasted into a shell there: every part is quoted."""

import posixpath
import shlex
from collections.abc import Mapping, Sequence

from backend.cluster.inventory.software import Origin, needed_modules
from backend.job.cluster import Environment, Host
from backend.job.job import Job
from backend.job.launch_rules import environment_of

MCORE_ADAPTER = "mcore_adapter @ git+https://github.com/alibaba/roll.git#subdirectory=mcore_adapter"
"""The package of that name on PyPI is another one."""


def install_command(
    job: Job, rank: int, modules: Sequence[str], wanted: Mapping[str, Origin], here: Mapping[str, Origin]
) -> str:
    """What to type on a node so that its environment has the same of these modules as another one.

    A package that lies in a git checkout on both is moved to the other's commit; all else pip installs.
    """
    names = needed_modules(job)
    requirements, index, commands = [], "", []
    for name in modules:
        of, own = wanted.get(name), here.get(name)
        if of is not None and of.commit and own is not None and own.folder:
            folder = shlex.quote(own.folder)
            commands.append(f"git -C {folder} fetch && git -C {folder} checkout {shlex.quote(of.commit)}")
        elif of is not None and of.url and of.commit:
            part = f"#subdirectory={of.subdirectory}" if of.subdirectory else ""
            requirements.append(f"{names.get(name, name)} @ git+{of.url}@{of.commit}{part}")
        elif of is not None and of.version:
            # Builds for a CUDA of their own carry its name behind a plus, and lie in torch's own index.
            local = of.version.partition("+")[2]
            index = f"https://download.pytorch.org/whl/{local}" if name == "torch" and local else index
            requirements.append(f"{names.get(name, name)}=={of.version}")
    if requirements:
        extra = ["--extra-index-url", index] if index else []
        commands.insert(0, pip_command(environment_of(job, rank), [*extra, *requirements]))
    return " && ".join(commands)


def pip_command(environment: Environment | None, requirements: Sequence[str]) -> str:
    """`python -m pip install ...` of an environment, to be pasted into a shell on the node."""
    if environment is None:
        return ""
    python = _path(environment.python)
    setup = f". {_path(environment.setup)} && " if environment.setup else ""
    return f"{setup}{python} -m pip install {shlex.join(requirements)}"


def copy_command(source: Host, paths: Sequence[str]) -> str:
    """What to type on a node so that it has another node's files at the same paths.

    -s: an rsync older than 3.2.4 has the other node's shell read the names, which would split and expand them.
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
    """What to type on a node to be asked of each of these files whether it may go."""
    return " ".join(["rm", "-i", "--", *map(_path, paths)])


def _path(path: str) -> str:
    """Quoted, with `~/` left for the shell."""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)
