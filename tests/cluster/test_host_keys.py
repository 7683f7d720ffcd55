import base64
import hmac
import os
from pathlib import Path

import pytest

from backend.cluster.ssh.host_keys import ChangedHostKey, HostKey, KnownHosts, UnknownHostKey, entry_name

KEY = b"\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20" + bytes(32)
OTHER = KEY[:-1] + b"\x01"


def line(names: str, blob: bytes = KEY) -> str:
    return f"{names} ssh-ed25519 {base64.b64encode(blob).decode()} a comment\n"


def hashed(name: str) -> str:
    salt = bytes(20)
    parts = (base64.b64encode(part).decode() for part in (salt, hmac.new(salt, name.encode(), "sha1").digest()))
    return "|1|" + "|".join(parts)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "app", tmp_path / "user"


def check(files: tuple[Path, Path], blob: bytes = KEY, host: str = "10.0.0.1", port: int = 22) -> None:
    KnownHosts(*files).check("node", host, port, "ssh-ed25519", blob)


def test_an_unknown_host_carries_what_is_shown_to_the_user(files: tuple[Path, Path]) -> None:
    with pytest.raises(UnknownHostKey) as caught:
        check(files, port=2222)
    key = caught.value.host_key
    assert key.fingerprint.startswith("SHA256:")
    assert key.line == line("[10.0.0.1]:2222").removesuffix(" a comment\n")
    assert caught.value.problem.values["fingerprint"] == key.fingerprint


def test_an_accepted_key_is_known_from_then_on_in_a_private_file(files: tuple[Path, Path]) -> None:
    with pytest.raises(UnknownHostKey) as caught:
        check(files)
    KnownHosts(*files).accept(caught.value.host_key)
    check(files)
    assert os.stat(files[0]).st_mode & 0o777 == 0o600
    assert not files[1].exists()


def test_accepting_twice_writes_one_line(files: tuple[Path, Path]) -> None:
    with pytest.raises(UnknownHostKey) as caught:
        check(files)
    for _ in range(2):
        KnownHosts(*files).accept(caught.value.host_key)
    assert len(files[0].read_text().splitlines()) == 1


def test_a_key_is_not_appended_to_a_line_without_an_end(files: tuple[Path, Path]) -> None:
    """A power loss may have cut the last line."""
    keys = []
    for port in (2222, 2223):
        with pytest.raises(UnknownHostKey) as caught:
            check(files, port=port)
        keys.append(caught.value.host_key)
    KnownHosts(*files).accept(keys[0])
    files[0].write_text(files[0].read_text().rstrip("\n"))
    KnownHosts(*files).accept(keys[1])
    check(files, port=2222)
    check(files, port=2223)
    assert len(files[0].read_text().splitlines()) == 2


@pytest.mark.parametrize("names", ["10.0.0.1", "a,10.0.0.1", "10.0.0.*", "10.0.0.?", hashed("10.0.0.1")])
def test_the_users_own_file_is_honoured(files: tuple[Path, Path], names: str) -> None:
    files[1].write_text("# a comment\n\nnonsense\n" + line(names))
    check(files)


@pytest.mark.parametrize("names", ["10.0.0.2", "10.0.0.*,!10.0.0.1", hashed("10.0.0.2"), "|1|broken", "[10.0.0.1]:22"])
def test_lines_about_other_hosts_are_not(files: tuple[Path, Path], names: str) -> None:
    files[1].write_text(line(names))
    with pytest.raises(UnknownHostKey):
        check(files)


@pytest.mark.parametrize("names", ["*,![10.0.0.1]:2222", "*,![10.0.0.*]:2222", "*,![10.0.0.1]:*", "*,!*:2222"])
def test_a_line_is_not_about_a_host_at_a_port_that_it_excludes(files: tuple[Path, Path], names: str) -> None:
    """As OpenSSH matches it (match.c): brackets are no set of letters."""
    files[1].write_text(line(names))
    check(files, port=2223 if names.endswith("2222") else 22, host="10.1.0.1")
    with pytest.raises(UnknownHostKey):
        check(files, port=2222)


def test_an_excluded_name_may_have_large_letters(files: tuple[Path, Path]) -> None:
    files[1].write_text(line("*,!Evil.example"))
    with pytest.raises(UnknownHostKey):
        check(files, host="evil.example")


@pytest.mark.parametrize("names", ["[10.0.0.*]:2222", "[10.0.0.1]:*", "[*]:2222", "[10.0.0.?]:2222"])
def test_a_changed_key_is_no_unknown_one_where_a_pattern_has_the_port(files: tuple[Path, Path], names: str) -> None:
    """An unknown key could be confirmed."""
    files[1].write_text(line(names))
    check(files, port=2222)
    with pytest.raises(ChangedHostKey):
        check(files, OTHER, port=2222)


def test_a_changed_key_is_refused_and_the_line_is_named(files: tuple[Path, Path]) -> None:
    files[1].write_text("\n" + line("10.0.0.1"))
    with pytest.raises(ChangedHostKey) as caught:
        check(files, OTHER)
    assert caught.value.problem.code == "host_key_changed"
    assert caught.value.problem.values["where"] == f"{files[1]}:2"


def test_a_changed_key_cannot_be_accepted(files: tuple[Path, Path]) -> None:
    files[1].write_text(line("10.0.0.1"))
    text = line("10.0.0.1", OTHER)
    key = HostKey(host="10.0.0.1", port=22, key_type="ssh-ed25519", fingerprint="", line=text)
    with pytest.raises(ChangedHostKey):
        KnownHosts(*files).accept(key)
    assert not files[0].exists()


def test_a_revoked_key_is_refused_even_where_another_line_knows_it(files: tuple[Path, Path]) -> None:
    files[0].write_text(line("10.0.0.1"))
    files[1].write_text("@revoked " + line("*"))
    with pytest.raises(ChangedHostKey):
        check(files)


def test_a_second_known_key_of_the_host_is_good_too(files: tuple[Path, Path]) -> None:
    files[1].write_text(line("10.0.0.1", OTHER) + line("10.0.0.1"))
    check(files)


def test_names_are_bare_at_port_22_and_in_lower_case() -> None:
    assert entry_name("Node1", 22) == "node1"
    assert entry_name("Node1", 2222) == "[node1]:2222"
