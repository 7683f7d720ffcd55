"""Download from a local hub with the real huggingface_hub, in the Python of a node."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.cluster.node_programs import node_program
from tests.full_disk import full_disk, read_only
from tests.local_hub import TOKEN, LocalHub, local_hub
from tests.nodes import needs_node_environment
from tools.programs import NODE_ENVIRONMENT, NODE_PYTHON

pytestmark = [pytest.mark.e2e, needs_node_environment]

SWIFT = NODE_ENVIRONMENT / "swift"
needs_modelscope = pytest.mark.skipif(
    not (SWIFT / "modelscope_hub").is_dir(), reason="modelscope is not installed: make .venv-node/extra/.ready"
)
WEIGHTS = bytes(range(256)) * 4000
FILES = {
    "config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "sub/tokenizer.json": b'{"a": 1}',
    "pytorch_model.bin": b"x",
}


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    with local_hub() as hub:
        hub.repositories["owner/model"] = dict(FILES)
        yield hub


def download(server: LocalHub, folder: Path, **request: Any) -> tuple[int, dict[str, Any], str]:
    """Return exit status, result.json and the output of the program."""
    folder.mkdir(exist_ok=True)
    asked = {"hub": "huggingface", "kind": "model", "id": "owner/model", "revision": None, "endpoint": server.address}
    asked |= request
    (folder / "download.json").write_text(json.dumps({"target": str(folder / "target"), **asked}))
    (folder / "download.py").write_bytes(node_program("download.py"))
    environment = {"PATH": os.defpath, "HOME": str(folder), **request.get("environment", {})}
    done = subprocess.run(
        [NODE_PYTHON, folder / "download.py", folder], env=environment, capture_output=True, text=True, check=False
    )
    result = folder / "result.json"
    return done.returncode, json.loads(result.read_text()) if result.exists() else {}, done.stdout + done.stderr


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_model_appears_whole_without_weights_in_other_formats(hub: LocalHub, tmp_path: Path) -> None:
    code, result, output = download(hub, tmp_path)
    assert (code, result) == (0, {}), output
    assert content(tmp_path / "target") == {name: data for name, data in FILES.items() if name != "pytorch_model.bin"}
    assert not (tmp_path / "target.downloading").exists()


def test_a_link_in_place_of_the_part_leads_to_no_other_folder(hub: LocalHub, tmp_path: Path) -> None:
    """Another user may write beside a folder on a disk that users share."""
    private = tmp_path / "private"
    private.mkdir()
    (private / "config.json").write_text("mine")
    (tmp_path / "target.downloading").symlink_to(private)
    code, result, output = download(hub, tmp_path)
    assert (code != 0, result.get("code")) == (True, "download_not_writable"), output
    assert content(private) == {"config.json": b"mine"}


def test_a_data_set_keeps_all_its_files(hub: LocalHub, tmp_path: Path) -> None:
    hub.repositories["datasets/owner/rows"] = {"rows.jsonl": b"{}\n", "old.bin": b"x"}
    code, _, output = download(hub, tmp_path, kind="dataset", id="owner/rows")
    assert code == 0, output
    assert set(content(tmp_path / "target")) == {"rows.jsonl", "old.bin"}


def test_a_wrong_hash_is_named_and_nothing_is_taken_for_whole(hub: LocalHub, tmp_path: Path) -> None:
    hub.wrong_hash.add("model.safetensors")
    code, result, _ = download(hub, tmp_path)
    assert (code != 0, result["code"], result["file"]) == (True, "download_wrong_hash", "model.safetensors")
    assert not (tmp_path / "target").exists()
    hub.wrong_hash.clear()
    hub.requests.clear()
    (tmp_path / "result.json").unlink()
    assert download(hub, tmp_path)[0] == 0
    assert [path for path, _ in hub.requests if path == "config.json"] == []


def test_a_gated_model_names_its_page_and_comes_with_a_token(hub: LocalHub, tmp_path: Path) -> None:
    hub.gated.add("owner/model")
    code, result, output = download(hub, tmp_path)
    assert code != 0
    assert (result["code"], result["url"]) == ("download_gated", f"{hub.address}/owner/model"), output
    (tmp_path / "result.json").unlink()
    code, _, output = download(hub, tmp_path, environment={"HF_TOKEN": TOKEN})
    assert code == 0, output
    assert TOKEN not in output


def test_a_repository_that_is_not_there_is_named(hub: LocalHub, tmp_path: Path) -> None:
    _, result, _ = download(hub, tmp_path, id="owner/nothing")
    assert (result["code"], result["id"]) == ("download_not_found", "owner/nothing")


def test_a_hub_that_does_not_answer_is_named(hub: LocalHub, tmp_path: Path) -> None:
    _, result, _ = download(hub, tmp_path, endpoint="http://127.0.0.1:9")
    assert result["code"] == "download_failed"


def test_a_connection_that_breaks_costs_only_one_file(hub: LocalHub, tmp_path: Path) -> None:
    hub.broken_after["model.safetensors"] = 600_000
    for _ in range(2):  # huggingface_hub may try again by itself
        if download(hub, tmp_path)[0] == 0:
            break
    assert (tmp_path / "target" / "model.safetensors").read_bytes() == WEIGHTS
    names = [path for path, _ in hub.requests]
    assert names.count("model.safetensors") > 1
    assert names.count("config.json") == 1


def test_a_folder_with_files_is_never_written(hub: LocalHub, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine").write_text("mine")
    _, result, _ = download(hub, tmp_path)
    assert result["code"] == "download_target_taken"
    assert content(tmp_path / "target") == {"mine": b"mine"}


def test_a_disk_without_room_is_named_before_the_download(hub: LocalHub, tmp_path: Path) -> None:
    hub.repositories["owner/model"]["more.safetensors"] = b""
    sizes = {"more.safetensors": 1 << 60}
    described = hub.repositories["owner/model"]
    hub.repositories["owner/model"] = {name: Sized(data, sizes.get(name)) for name, data in described.items()}
    _, result, output = download(hub, tmp_path)
    assert result["code"] == "download_no_space", output
    assert hub.requests == []


def test_a_disk_that_becomes_full_is_named_and_the_next_download_goes_on(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check before the download is switched off, as if somebody filled the disk after it."""
    program = node_program("download.py")
    check = b"if shutil.disk_usage(folder).free <"
    assert check in program
    monkeypatch.setattr(f"{__name__}.node_program", lambda name: program.replace(check, b"if False and 0 <"))
    hub.repositories["owner/model"] = {"config.json": b"{}", "model.safetensors": WEIGHTS * 6}
    with full_disk(tmp_path / "disk") as disk:
        target = disk.folder / "model"
        code, result, output = download(hub, tmp_path, target=str(target))
        assert (code != 0, result["code"], result["path"]) == (True, "download_no_space", str(disk.folder)), output
        assert not target.exists()
        (tmp_path / "result.json").unlink()
        hub.requests.clear()
        subprocess.run(["mount", "-o", "remount,size=32m", str(disk.folder)], check=True)
        code, _, output = download(hub, tmp_path, target=str(target))
        assert code == 0, output
        assert (target / "model.safetensors").read_bytes() == WEIGHTS * 6
        assert "config.json" not in {path for path, _ in hub.requests}


def test_a_folder_that_the_user_may_not_write_is_named(hub: LocalHub, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    with read_only(tmp_path / "shared"):
        code, result, output = download(hub, tmp_path, target=str(tmp_path / "shared" / "model"))
    assert (code != 0, result["code"]) == (True, "download_not_writable"), output
    assert result["path"].startswith(str(tmp_path / "shared"))


def test_a_file_in_the_place_of_the_folder_is_not_touched(hub: LocalHub, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    code, result, _ = download(hub, tmp_path)
    assert (code != 0, result["code"]) == (True, "download_target_taken")
    assert (tmp_path / "target").read_text() == "mine"


@needs_modelscope
class TestModelScope:
    """The same with the real modelscope_hub."""

    @staticmethod
    def download(hub: LocalHub, folder: Path, token: str = "", **request: Any) -> tuple[int, dict[str, Any], str]:
        environment = {"PYTHONPATH": str(SWIFT), "MODELSCOPE_API_TOKEN": token}
        return download(hub, folder, hub="modelscope", environment=environment, **request)

    def test_a_model_appears_whole_and_a_second_start_fetches_only_what_was_wrong(
        self, hub: LocalHub, tmp_path: Path
    ) -> None:
        hub.wrong_hash.add("model.safetensors")
        code, result, output = self.download(hub, tmp_path)
        assert (code != 0, result["code"], result["file"]) == (True, "download_wrong_hash", "model.safetensors"), output
        assert not (tmp_path / "target").exists()
        hub.wrong_hash.clear()
        hub.requests.clear()
        (tmp_path / "result.json").unlink()
        code, result, output = self.download(hub, tmp_path)
        assert (code, result) == (0, {}), output
        assert content(tmp_path / "target") == {
            name: data for name, data in FILES.items() if name != "pytorch_model.bin"
        }
        assert "config.json" not in {path for path, _ in hub.requests}

    def test_a_data_set_comes_with_all_its_files(self, hub: LocalHub, tmp_path: Path) -> None:
        hub.repositories["datasets/owner/rows"] = {"rows.jsonl": b"{}\n", "more/old.bin": b"x"}
        code, _, output = self.download(hub, tmp_path, kind="dataset", id="owner/rows")
        assert code == 0, output
        assert set(content(tmp_path / "target")) == {"rows.jsonl", "more/old.bin"}

    def test_a_repository_that_is_not_there_or_refused_is_named_with_its_page(
        self, hub: LocalHub, tmp_path: Path
    ) -> None:
        _, result, output = self.download(hub, tmp_path, id="owner/nothing")
        assert (result["code"], result["id"]) == ("download_not_found", "owner/nothing"), output
        hub.gated.add("owner/model")
        _, result, output = self.download(hub, tmp_path)
        assert (result["code"], result["url"]) == ("download_gated", f"{hub.address}/models/owner/model"), output
        (tmp_path / "result.json").unlink()
        code, _, output = self.download(hub, tmp_path, token=TOKEN)
        assert code == 0, output
        assert TOKEN not in output

    def test_a_hub_that_does_not_answer_is_named(self, hub: LocalHub, tmp_path: Path) -> None:
        _, result, output = self.download(hub, tmp_path, endpoint="http://127.0.0.1:9")
        assert result["code"] == "download_failed", output


def test_a_python_without_the_package_of_modelscope_is_named(hub: LocalHub, tmp_path: Path) -> None:
    code, result, _ = download(hub, tmp_path, hub="modelscope")
    assert (code != 0, result["code"]) == (True, "download_no_modelscope")
    assert "modelscope_hub" in result["detail"]


class Sized(bytes):
    """Content whose size the hub states wrongly."""

    stated: int | None

    def __new__(cls, data: bytes, stated: int | None) -> "Sized":
        made = super().__new__(cls, data)
        made.stated = stated
        return made

    def __len__(self) -> int:
        return super().__len__() if self.stated is None else self.stated
