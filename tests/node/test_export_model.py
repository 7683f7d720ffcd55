"""An exported model appears completely or not at all, and existing files stay."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from backend.cluster.node_programs import node_program

MAKES = "import os; os.mkdir(part); open(part + '/model.safetensors', 'w').write('new')"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a run folder whose results contain leftovers of converters."""
    results = tmp_path / "results"
    results.mkdir()
    (results / "generation_config.json").write_text("{}")
    values = {"kind": "megatron", "source": str(results), "target": str(tmp_path / "exported/model")}
    (tmp_path / "export.json").write_text(json.dumps(values))
    return tmp_path


def export(folder: Path, convert: str) -> subprocess.CompletedProcess[str]:
    """Run export_model.py with `convert` in place of mcore_adapter's converter."""
    package = folder / "lib/mcore_adapter/models/converter"
    package.mkdir(parents=True)
    (package / "post_converter.py").write_text(f"def convert_checkpoint_to_hf(source, part):\n    {convert}\n")
    (folder / "export_model.py").write_bytes(node_program("export_model.py"))
    command = [sys.executable, str(folder / "export_model.py"), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(folder / "lib")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_model_appears_with_what_the_converter_left_behind(folder: Path) -> None:
    done = export(folder, MAKES)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (folder / "exported/model").iterdir()) == [
        "generation_config.json",
        "model.safetensors",
    ]
    assert [path.name for path in (folder / "exported").iterdir()] == ["model"]


def test_a_converter_that_fails_leaves_nothing(folder: Path) -> None:
    done = export(folder, f"{MAKES}; raise ValueError('no part of rank 3')")
    assert done.returncode == 1
    assert "no part of rank 3" in done.stderr
    assert list((folder / "exported").iterdir()) == []


def test_what_is_there_already_stays(folder: Path) -> None:
    (folder / "exported/model").mkdir(parents=True)
    done = export(folder, MAKES)
    assert done.returncode == 1
    assert list((folder / "exported/model").iterdir()) == []


def test_what_somebody_else_keeps_beside_the_target_stays(folder: Path) -> None:
    path = folder / "exported/model.part/model.safetensors"
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    assert export(folder, MAKES).returncode == 0
    assert path.read_text() == "mine"


def test_a_link_in_place_of_the_part_leads_to_no_other_folder(folder: Path) -> None:
    """Another user may write beside a folder on a disk that users share."""
    private = folder / "private"
    private.mkdir()
    (private / "model.safetensors").write_text("mine")
    (folder / "exported").mkdir()
    (folder / "exported/model.megaboard-part").symlink_to(private)
    done = export(folder, MAKES.replace("os.mkdir(part)", "os.makedirs(part, exist_ok=True)"))
    assert (done.returncode, [path.name for path in private.iterdir()]) == (1, ["model.safetensors"])
    assert (private / "model.safetensors").read_text() == "mine"
    assert not (folder / "exported/model").exists()
