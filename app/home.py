"""The home folder of Megaboard, and the named clusters in it."""

import errno
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import platformdirs

from app.private_file import write_atomically
from backend.job.mapping import dump_mapping, load_mapping
from backend.job.problems import Problem, ProblemsError, quoted

VARIABLE = "MEGABOARD_HOME"
_PRIVATE = 0o700
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


def home_path() -> Path:
    """Return $MEGABOARD_HOME or the user's data folder, which may not exist yet.

    Raises ProblemsError(home_unusable).
    """
    path = os.path.expanduser(os.environ.get(VARIABLE) or platformdirs.user_data_path("megaboard"))
    if path.startswith("~"):
        raise _unusable(path, os.strerror(errno.ENOENT))
    return Path(path).absolute()


def make_home(path: Path) -> Path:
    """Create the folder if missing, restrict it to this user, and return it. Raises ProblemsError(home_unusable).

    A folder on a read-only disk is not changed; its files can be read.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
        if stat.S_IMODE(path.stat().st_mode) != _PRIVATE:
            path.chmod(_PRIVATE)
    except OSError as error:
        if error.errno != errno.EROFS or not path.is_dir():
            raise _unusable(path, error.strerror) from error
    return path


def why_read_only(home: Path) -> str | None:
    """Return the system's error text if no file can be written in the folder, else None."""
    try:
        with tempfile.TemporaryFile(dir=home):
            return None
    except OSError as error:
        return error.strerror if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) else None


def _unusable(path: str | Path, reason: object) -> ProblemsError:
    values = {"path": str(path), "reason": reason, "variable": VARIABLE}
    return ProblemsError([Problem(code="home_unusable", values=values)])


def store_path(home: Path) -> Path:
    """Return the path of the database in the home folder."""
    return home / "megaboard.db"


def with_cluster(mapping: Mapping[str, Any], home: Path) -> dict[str, Any]:
    """Return the job with `cluster: NAME` replaced by the content of `clusters/NAME.yaml` in the home folder.

    Raises ProblemsError if there is no such cluster or its file is not a mapping.
    """
    name = mapping.get("cluster")
    if not isinstance(name, str):
        return dict(mapping)
    return {**mapping, "cluster": named_cluster(home, name)[1]}


def named_cluster(home: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """Return the path and the content of a named cluster's file. ProblemsError(unknown_cluster, bad_cluster_file)."""
    path = home / "clusters" / f"{name}.yaml"
    if not _NAME.fullmatch(name) or not path.is_file():
        raise ProblemsError([Problem(code="unknown_cluster", field="cluster", values={"name": quoted(name)})])
    cluster = _mapping_in(path)
    if cluster is None:
        values = {"name": name, "path": str(path)}
        raise ProblemsError([Problem(code="bad_cluster_file", field="cluster", values=values)])
    return path, cluster


def save_cluster(home: Path, name: str, cluster: Mapping[str, Any], *, replace: bool = False) -> None:
    """Save a cluster under a name.

    Raises ProblemsError: bad_cluster_name, cannot_write, cluster_exists unless `replace`.
    """
    path = _cluster_path(home, name)
    try:
        write_atomically(path, dump_mapping(cluster), replace=replace)
    except FileExistsError as error:
        raise ProblemsError([Problem(code="cluster_exists", values={"name": name})]) from error
    except OSError as error:
        values = {"path": str(path), "reason": error.strerror}
        raise ProblemsError([Problem(code="cannot_write", field="cluster", values=values)]) from error


def delete_cluster(home: Path, name: str) -> None:
    """Delete a named cluster. ProblemsError(bad_cluster_name, unknown_cluster)."""
    try:
        _cluster_path(home, name).unlink()
    except OSError as error:
        raise ProblemsError([Problem(code="unknown_cluster", field="cluster", values={"name": name})]) from error


def _cluster_path(home: Path, name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise ProblemsError([Problem(code="bad_cluster_name", values={"name": quoted(name)})])
    return home / "clusters" / f"{name}.yaml"


def cluster_names(home: Path) -> list[str]:
    """Return the sorted names of the named clusters. Reads no file, because every edit of the page calls it."""
    return sorted(path.stem for path in (home / "clusters").glob("*.yaml") if _NAME.fullmatch(path.stem))


def named_clusters(home: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the content of every named cluster that can be read."""
    for path in sorted((home / "clusters").glob("*.yaml")):
        cluster = _mapping_in(path)
        if cluster is not None and _NAME.fullmatch(path.stem):
            yield path.stem, cluster


def _mapping_in(path: Path) -> dict[str, Any] | None:
    try:
        mapping, problem = load_mapping(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    return None if problem else dict(mapping)


def with_readable_cluster(mapping: Mapping[str, object], home: Path) -> dict[str, object]:
    """Return the result of `with_cluster`, or an empty cluster if the named one cannot be read."""
    try:
        return with_cluster(mapping, home)
    except ProblemsError:
        return {**mapping, "cluster": {}}
