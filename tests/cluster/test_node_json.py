"""JSON that a node writes is read up to a limit, or not at all."""

import json
import random

import pytest

from backend.cluster.node_json import MOST_DEPTH, BadJson, parse_node_json


@pytest.mark.parametrize(
    "value", [{}, [], 1, -(2**63), 2**63 - 1, 1.5, "text", None, True, {"a": [{"b": [1, "[[[", '}\\"']}]}]
)
def test_what_our_programs_send_comes_in_unchanged(value: object) -> None:
    assert parse_node_json(json.dumps(value)) == value
    assert parse_node_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        "[" * 2_000 + "]" * 2_000,
        '{"a":' * 100_000,
        '["' + '",["' * 100_000,
        "[" * (MOST_DEPTH + 1) + "]" * (MOST_DEPTH + 1),
        "NaN",
        "[Infinity]",
        '{"a": -Infinity}',
        "1e400",
        "-1e999999999",
        "1" * 5_000,
        "9" * 400_000,
        str(2**63),
        "",
        "{",
        "[1,]",
        "nonsense",
        '"unclosed',
        '"a\nb"',
        "\x00",
        b"\xff\xfe[",
        b'"\xe9"',
    ],
    ids=lambda text: repr(text[:20]),
)
def test_what_would_break_a_reader_is_refused_with_one_kind_of_error(text: str | bytes) -> None:
    with pytest.raises(BadJson):
        parse_node_json(text)


def test_brackets_inside_of_strings_do_not_nest() -> None:
    text = json.dumps({"log": "[" * 10_000, "path": '\\"[[{' * 100, "deep": [[["{"]]]})
    assert parse_node_json(text) == json.loads(text)


def test_the_deepest_that_is_allowed_comes_in() -> None:
    assert parse_node_json("[" * MOST_DEPTH + "]" * MOST_DEPTH)


@pytest.mark.parametrize("text", ["[" + "1," * 600 + "1]", '"' + "é" * 600 + '"'])
def test_a_text_beyond_the_limit_is_refused_by_its_bytes(text: str) -> None:
    assert parse_node_json(text, max_bytes=len(text.encode()))
    with pytest.raises(BadJson, match="larger than"):
        parse_node_json(text, max_bytes=len(text.encode()) - 1)


def test_no_text_that_cannot_be_encoded_gets_through() -> None:
    value = parse_node_json('{"\\ud800name": ["\\udc80", "\\ud83d\\ude80"]}')
    assert value == {"?name": ["?", "🚀"]}
    assert parse_node_json('"\ud800"') == "?"


def test_random_bytes_and_random_cuts_end_as_a_value_or_as_one_kind_of_error() -> None:
    dice = random.Random(0)
    whole = json.dumps({"gpus": [{"index": 0, "used": 1.5}], "time": 1e9, "reason": None, "ok": [True, "é\\ud800"]})
    for _ in range(2_000):
        text = list(whole)
        for _ in range(dice.randrange(4)):
            text[dice.randrange(len(text))] = dice.choice('[]{}",:\\0123456789eE+-. NIu\x00é')
        cut = "".join(text)[: dice.randrange(1, len(text) + 1)]
        try:
            json.dumps(parse_node_json(cut), allow_nan=False).encode()
        except BadJson:
            continue
