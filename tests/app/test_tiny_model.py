import json
import re
import subprocess
from datetime import date

import pytest

from app.demo import tiny_model
from tests.nodes import needs_node_environment
from tools.programs import NODE_PYTHON


def test_rows_are_distinct_and_equal_on_every_call():
    rows = tiny_model.make_rows(tiny_model.ROWS)
    assert rows == tiny_model.make_rows(tiny_model.ROWS)
    assert len({row["instruction"] for row in rows}) == tiny_model.ROWS


def test_every_answer_is_correct():
    for row in tiny_model.make_rows(tiny_model.ROWS):
        question, answer = row["instruction"], row["output"]
        numbers = [int(digits) for digits in re.findall(r"\d+", question)]
        if re.search("plus|加", question):
            assert str(sum(numbers)) == re.findall(r"\d+", answer)[-1]
        elif re.search("minus|减", question):
            assert str(numbers[0] - numbers[1]) == re.findall(r"\d+", answer)[-1]
        else:
            weekday = date(*numbers).weekday()
            assert answer.endswith((f"{tiny_model._WEEKDAYS_EN[weekday]}.", f"{tiny_model._WEEKDAYS_ZH[weekday]}。"))


@pytest.mark.e2e
@needs_node_environment
def test_a_finished_folder_is_not_changed(tmp_path):
    build = [NODE_PYTHON, tiny_model.__file__, tmp_path]
    subprocess.run(build, check=True)
    weights = tmp_path / tiny_model.MODEL_FOLDER / "model.safetensors"
    before = weights.stat().st_mtime_ns
    subprocess.run(build, check=True)
    assert weights.stat().st_mtime_ns == before
    assert json.loads((weights.parent / "config.json").read_text())["vocab_size"] % 8 == 0
