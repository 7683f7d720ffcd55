"""A small set of packages for tests that install an environment."""

from pathlib import Path

from backend.job.environment_sets import EnvironmentSet, LockStep


def tiny_environment(folder: Path, lock: str, modules: str, name: str = "tiny") -> EnvironmentSet:
    """Write `lock` into the folder, and return the set of its packages, which have these modules ("six, docopt")."""
    path = folder / "lock.txt"
    path.write_text(lock)
    return EnvironmentSet(
        name=name,
        engine="llamafactory",
        pythons=("3.11", "3.12", "3.13"),
        steps=(LockStep(lock=str(path)),),
        imports=f"import {modules}",
        disk_gib=0.1,
    )
