"""Writes all data of a run into one file that any tool can read, and reads it back to verify it.

A ZIP file `<run>.zip`: `tables/<table>.jsonl` with one JSON object per row, `flight_records/<attempt>/<name>`, and
`manifest.json` with the number of rows of each table and the size and SHA-256 of each other file. Bytes are
written as {"base64": ...}; numbers that JSON lacks are written as text: "nan", "inf", "-inf".
"""

import base64
import hashlib
import json
import math
import os
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from backend.job.problems import Problem, ProblemsError
from backend.runs.collect import flight_records
from backend.runs.store import run_store
from backend.runs.store.deletion import Archived, run_tables
from backend.runs.store.schema import MIGRATIONS
from backend.runs.store.store import Store

FORMAT, VERSION = "megaboard-run", 1
MANIFEST = "manifest.json"
_CHUNK = 1 << 20
ReportRows = Callable[[int], object]
"""Called with the number of written rows."""


def archive_folder(home: Path) -> Path:
    """Return the default folder of archives."""
    return home / "archive"


def archive(
    store: Store, home: Path, run: str, folder: Path, *, now: float, report: ReportRows = lambda rows: None
) -> Archived:
    """Write a run into `<folder>/<run>.zip`, read it back, and return its contents.

    It replaces an older archive of the same run. Raises ProblemsError: archive_in_the_way, archive_failed. After an
    error, no new file is left.
    """
    target = folder / f"{run}.zip"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if target.exists() and not _is_archive_of(target, run):
            raise ProblemsError([Problem(code="archive_in_the_way", values={"path": str(target)})])
        handle, part_file = tempfile.mkstemp(prefix=f"{run}.", suffix=".part", dir=folder)
        try:
            with os.fdopen(handle, "w+b") as file:
                counts = _write(store, home, run, file, now, report)
                file.flush()
                os.fsync(file.fileno())
            _verify(Path(part_file), run, counts)
            digest = _sha256_of(Path(part_file))
            os.replace(part_file, target)
            _sync(folder)
        finally:
            Path(part_file).unlink(missing_ok=True)
    except (OSError, zipfile.BadZipFile, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ProblemsError([Problem(code="archive_failed", values={"path": str(target), "reason": reason})]) from error
    return Archived(path=str(target), sha256=digest, row_counts=counts)


def _write(store: Store, home: Path, run: str, file: BinaryIO, now: float, report: ReportRows) -> dict[str, int]:
    counts: dict[str, int] = {}
    files: dict[str, dict[str, Any]] = {}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive_file, store.read() as connection:
        run_store.run_row(connection, run)
        for table in ("runs", *run_tables(connection)):
            column = "id" if table == "runs" else "run"
            rows = connection.execute(f"SELECT * FROM {table} WHERE {column} = ?", (run,))  # noqa: S608
            name = f"tables/{table}.jsonl"
            counts[table] = 0

            def lines(rows: sqlite3.Cursor = rows, table: str = table) -> Iterator[bytes]:
                for row in rows:
                    counts[table] += 1
                    if counts[table] % 10_000 == 0:
                        report(sum(counts.values()))
                    yield json.dumps({key: _plain(row[key]) for key in row.keys()}).encode() + b"\n"  # noqa: SIM118

            files[name] = _add(archive_file, name, lines())
        for record in sorted(flight_records.folder_of(home, run, 0).parent.glob("*/*")):
            name = f"flight_records/{record.parent.name}/{record.name}"
            files[name] = _add(archive_file, name, _chunks(record))
        counts = {table: count for table, count in counts.items() if count}
        manifest = {"format": FORMAT, "version": VERSION, "run": run, "made": now, "schema": len(MIGRATIONS)}
        archive_file.writestr(MANIFEST, json.dumps({**manifest, "rows": counts, "files": files}, indent=1))
    return counts


def _add(archive_file: zipfile.ZipFile, name: str, chunks: Iterator[bytes]) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with archive_file.open(name, "w", force_zip64=True) as member:
        for chunk in chunks:
            member.write(chunk)
            digest.update(chunk)
            size += len(chunk)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _verify(path: Path, run: str, counts: dict[str, int]) -> None:
    """Raise ValueError or BadZipFile unless the file contains the written data."""
    with zipfile.ZipFile(path) as archive_file:
        manifest = json.loads(archive_file.read(MANIFEST))
        if manifest["run"] != run or manifest["rows"] != counts:
            raise ValueError("the manifest is not what was written")
        if {*archive_file.namelist()} != {MANIFEST, *manifest["files"]}:
            raise ValueError("the files are not those of the manifest")
        for name, entry in manifest["files"].items():
            digest, lines = hashlib.sha256(), 0
            with archive_file.open(name) as member:
                while chunk := member.read(_CHUNK):
                    digest.update(chunk)
                    lines += chunk.count(b"\n")
            table = name.removeprefix("tables/").removesuffix(".jsonl")
            if digest.hexdigest() != entry["sha256"] or (name != table and lines != counts.get(table, 0)):
                raise ValueError(f"{name} is not what was written")


def _is_archive_of(path: Path, run: str) -> bool:
    try:
        with zipfile.ZipFile(path) as archive_file:
            manifest = json.loads(archive_file.read(MANIFEST))
    except (OSError, zipfile.BadZipFile, KeyError, ValueError):
        return False
    return isinstance(manifest, dict) and (manifest.get("format"), manifest.get("run")) == (FORMAT, run)


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
