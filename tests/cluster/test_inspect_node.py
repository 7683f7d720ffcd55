"""What is read of a data set's description, whatever somebody has written into it."""

import json
from pathlib import Path

import pytest

from backend.cluster.inspect_node import find_datasets


@pytest.mark.parametrize("text", ['["mine"]', "5", "null", "{", ""])
def test_a_description_that_is_no_mapping_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "dataset_info.json").write_text(text)
    assert find_datasets(str(tmp_path), ["mine"])["info"] is False


def test_a_data_set_whose_entry_says_nothing_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text(json.dumps({"mine": "mine.json", "other": {"file_name": 5}}))
    found = find_datasets(str(tmp_path), ["mine", "other"])
    assert found == {"info": True, "unknown": ["mine"], "missing": [str(tmp_path / "5")]}
