"""The form of an entry of dataset_info.json, and uploaded files, before anything reaches a node."""

import pytest

from app.wizard.dataset_info import _check_rows, _entry_of
from app.wizard.sources import fetch
from backend.job.problems import ProblemsError

FORM = {"file_name": "a.json", "formatting": "sharegpt", "ranking": False, "columns": {"messages": "chat"}, "tags": {}}


def code_of(action):
    with pytest.raises(ProblemsError) as raised:
        action()
    [problem] = raised.value.problems
    return problem.code


def test_keys_that_the_form_does_not_show_stay_and_emptied_ones_go():
    before = {
        "file_name": "old.json",
        "num_samples": 7,
        "columns": {"messages": "x", "kto_tag": "label", "system": "s"},
    }
    form = {**FORM, "columns": {"messages": "chat", "system": ""}, "tags": {"role_tag": "role"}}
    assert _entry_of({"form": form, "previous": before}) == {
        "file_name": "a.json",
        "num_samples": 7,
        "formatting": "sharegpt",
        "columns": {"messages": "chat", "kto_tag": "label"},
        "tags": {"role_tag": "role"},
    }
    assert "tags" not in _entry_of({"form": {**form, "formatting": "alpaca"}, "previous": before})


def test_a_data_set_of_a_hub_needs_no_file():
    entry = _entry_of({"form": {**FORM, "file_name": ""}, "previous": {"hf_hub_url": "a/b"}})
    assert "file_name" not in entry


@pytest.mark.parametrize(
    ("form", "code"),
    [
        ({}, "dataset_path_needed"),
        ({**FORM, "file_name": "a\nb"}, "dataset_key"),
        ({**FORM, "formatting": "csv"}, "dataset_key"),
        ({**FORM, "columns": {"messages": "x" * 1001}}, "dataset_key"),
        (None, "dataset_path_needed"),
    ],
)
def test_a_form_that_no_entry_can_have_is_refused(form, code):
    assert code_of(lambda: _entry_of({"form": form})) == code


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ('{"a": 1}\n' * 16 + '{"a": \n', "row 17"),
        ('[{"a": 1}, 2]', "row 2"),
        ("[]", "no rows"),
        ("", "no rows"),
        ("{}\n[]", "row 2"),
    ],
)
def test_an_uploaded_file_with_a_broken_row_is_refused_with_the_row(text, row):
    with pytest.raises(ProblemsError) as raised:
        _check_rows("a.jsonl", text)
    [problem] = raised.value.problems
    assert (problem.code, row in str(problem.values["reason"])) == ("dataset_upload_broken", True)
    _check_rows("a.jsonl", '\ufeff{"a": "行"}\r\n\n{"a": 2}\n')
    _check_rows("a.json", '[{"a": 1}]')


@pytest.mark.parametrize("file", ["../a.json", "a b.json", "a.parquet", ".json", "a;b.jsonl", ""])
def test_a_file_name_that_a_node_may_misread_is_refused(file):
    result = fetch(None, {"kind": "dataset_upload", "file": file, "text": "{}"})
    assert [problem.code for problem in result.problems] == ["dataset_file_name"]


def test_a_name_with_a_comma_is_two_data_sets_and_refused():
    result = fetch(None, {"kind": "dataset_save", "name": "a,b", "form": FORM})
    assert [problem.code for problem in result.problems] == ["dataset_name"]
