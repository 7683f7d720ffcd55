"""Lines of text that name hosts."""

import pytest

from app.wizard.hosts import from_form, read_spares, spares_text, to_form


def test_lines_and_shared_values_become_hosts_and_come_back() -> None:
    form = {"lines": "10.0.0.1\nroot@10.0.0.2:2222 fabric=192.168.0.2\n[fe80::1]:23 key=/k", "user": "train"}
    hosts, problems = from_form(form)
    assert problems == []
    assert hosts == [
        {"user": "train", "address": "10.0.0.1"},
        {"user": "root", "address": "10.0.0.2", "port": 2222, "fabric_address": "192.168.0.2"},
        {"user": "train", "address": "fe80::1", "port": 23, "identity_file": "/k"},
    ]
    assert from_form(to_form(hosts))[0] == hosts


def test_what_lines_cannot_say_is_kept() -> None:
    hosts = [{"address": "a", "environments": {"llamafactory": {"python": "/p"}}}]
    assert from_form(to_form(hosts))[0] == hosts


@pytest.mark.parametrize(
    "line", ["user@", "host:", "host:ssh", "host fabric", "host colour=red", "@host", "host fabric=a fabric=b"]
)
def test_a_line_that_cannot_be_read_is_named_and_left_out(line: str) -> None:
    hosts, problems = from_form({"lines": f"good\n{line}"})
    assert hosts == [{"address": "good"}]
    assert [(p.code, p.values["line"]) for p in problems] == [("bad_host_line", 2)]


def test_lines_of_spares_take_the_values_that_all_hosts_share_and_come_back() -> None:
    hosts = {"lines": "10.0.0.1", "user": "train", "identity_file": "/k"}
    spares, problems = read_spares("10.0.0.9\nme@10.0.0.8:2222", hosts)
    assert problems == []
    assert spares == [
        {"address": "10.0.0.9", "user": "train", "identity_file": "/k"},
        {"address": "10.0.0.8", "user": "me", "identity_file": "/k", "port": 2222},
    ]
    assert spares_text(spares, hosts) == "10.0.0.9\nme@10.0.0.8:2222"
    assert [(problem.code, problem.field) for problem in read_spares("a b", hosts)[1]] == [
        ("bad_host_line", "cluster.spares")
    ]
