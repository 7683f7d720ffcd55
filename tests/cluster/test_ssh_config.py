"""~/.ssh/config has the same meaning as for OpenSSH, and nothing in it runs a program."""

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from backend.cluster.node import NodeError
from backend.cluster.ssh.config import ALLOWED, find_target
from backend.cluster.ssh.config_file import Undecided, read_settings
from backend.job.cluster import Host

CONFIG = """\
Host plain
  User first
Match originalhost plain !canonical exec "touch {ran}"
  User late

Match host gpu* exec "touch {ran}"
  ServerAliveInterval 5
  User second
Match !exec "touch {ran}" originalhost other
  ForwardAgent no
Match host exec-host
  Port 2200
Host *
  User last
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(ALLOWED, raising=False)
    (tmp_path / "config").write_text(CONFIG.format(ran=tmp_path / "ran"))
    return tmp_path


def test_a_host_whose_settings_hang_on_a_program_is_told_file_and_line(folder: Path) -> None:
    with pytest.raises(NodeError) as caught:
        find_target(Host(address="gpu1"), folder)
    values = caught.value.values
    assert (caught.value.code, values["path"], values["line"]) == ("match_exec_refused", f"{folder}/config", "6")
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("address", "user", "port"),
    [("plain", "first", 22), ("other", "last", 22), ("exec-host", "last", 2200), ("x", "last", 22)],
)
def test_other_hosts_take_what_the_file_says_of_them(folder: Path, address: str, user: str, port: int) -> None:
    target = find_target(Host(address=address), folder)
    assert (target.user, target.port) == (user, port)
    assert not (folder / "ran").exists()


INCLUDING = """\
Include {folder}/parts/*
Host gpu-d
  Include {folder}/nested
  Port 2222
Host *
  User last
"""
PARTS = {
    "parts/a": "Host gpu-a\n  Port 2201\n  User a\n",
    "parts/b": "Host gpu-b gpu-c\n  HostName 10.0.0.9\n  ProxyJump gate\n",
    "parts/old/c": "Host *\n  Port 1\n",
    "nested": "User nested\n",
}


@pytest.fixture
def including(folder: Path) -> Path:
    for name, text in PARTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "config").write_text(INCLUDING.format(folder=folder))
    return folder


@pytest.mark.parametrize("address", ["gpu-a", "gpu-b", "gpu-c", "gpu-d", "gpu-e"])
def test_included_files_count_as_they_do_for_openssh(
    including: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("ssh") is None:
        pytest.skip("there is no ssh")
    ours = find_target(Host(address=address), including)
    monkeypatch.setenv(ALLOWED, "1")
    assert ours == find_target(Host(address=address), including)


def test_an_included_file_is_found_beside_the_configuration_and_may_include_others(folder: Path) -> None:
    (folder / "config").write_text('Include first "no such"\nUser late\n')
    (folder / "first").write_text("Include second\nUser first\n")
    (folder / "second").write_text("Include config\nPort 2300\n")
    target = find_target(Host(address="x"), folder)
    assert (target.user, target.port) == ("first", 2300)


def test_files_that_all_include_one_another_come_to_an_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every order, ten such files would be ten million."""
    (folder / "config").write_text("Include all/*\nHost x\n  Include all/*\n  User late\n")
    (folder / "all").mkdir()
    for number in range(10):
        (folder / f"all/{number}").write_text(f"Include all/*\nHost y{number} x{number}\n  Port {2300 + number}\n")
    read, opened = Path.read_text, []
    monkeypatch.setattr(Path, "read_text", lambda path, **how: opened.append(path) or read(path, **how))
    targets = [find_target(Host(address=address), folder) for address in ("x", "x7")]
    assert [(target.user == "late", target.port) for target in targets] == [(True, 22), (False, 2307)]
    assert len(opened) < 100


def test_files_that_include_one_another_deeper_than_openssh_goes_are_refused(folder: Path) -> None:
    for number in range(20):
        (folder / f"{number}").write_text(f"Include {number + 1}\n")
    (folder / "config").write_text("Host x\n Include 0\nHost y\n User me\n")
    with pytest.raises(NodeError, match="bad_ssh_config"):
        find_target(Host(address="x"), folder)
    assert find_target(Host(address="y"), folder).user == "me"


def test_what_stands_behind_an_include_in_an_included_file_holds_for_the_host(folder: Path) -> None:
    (folder / "config").write_text("Host x\n  Include first\n")
    (folder / "first").write_text("Include second\nUser first\n")
    (folder / "second").write_text("Port 2300\n")
    target = find_target(Host(address="x"), folder)
    assert (target.user, target.port) == ("first", 2300)


def test_a_program_in_an_included_file_is_refused_with_that_file_and_line(folder: Path) -> None:
    (folder / "config").write_text("Include conf.d/*\n")
    (folder / "conf.d").mkdir()
    (folder / "conf.d/a b").write_text(f'\nMatch exec "touch {folder}/ran"\n User evil\n')
    with pytest.raises(NodeError) as caught:
        find_target(Host(address="x"), folder)
    values = caught.value.values
    assert (caught.value.code, values["path"], values["line"]) == ("match_exec_refused", f"{folder}/conf.d/a b", "2")


def test_what_the_job_file_says_hangs_on_nothing(folder: Path) -> None:
    assert find_target(Host(address="gpu1", user="mine"), folder).user == "mine"


@pytest.mark.parametrize("line", ['Match e"xe"c "touch {ran}"', 'Match=exec "touch {ran}"', 'match EXEC "touch {ran}"'])
def test_no_spelling_of_exec_runs_a_program(folder: Path, line: str) -> None:
    (folder / "config").write_text(line.format(ran=folder / "ran") + "\n User evil\n")
    with pytest.raises(NodeError, match="match_exec_refused"):
        find_target(Host(address="x"), folder)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('Match host "x\n User a\n', 1),
        ("Host *\n Port many\n", 2),
        ("Host *\n Port 22 23\n", 2),
        ("Host x\n\nUser\n", 3),
        ('Host x\n "User me\n', 2),
        ("Host x\nMatch all host x\n User me\n", 2),
        ("Match user\n User me\n", 1),
        ("Host x\n  IdentityFile a b\n", 2),
    ],
)
def test_a_line_that_cannot_be_understood_is_told_to_those_it_concerns(folder: Path, text: str, line: int) -> None:
    (folder / "config").write_text(f"Host y\n User you\n Port 2200\n IdentityFile /k\n{text}")
    with pytest.raises(NodeError, match="bad_ssh_config") as caught:
        find_target(Host(address="x"), folder)
    values = caught.value.values
    assert (values["path"], str(values["detail"]).partition(":")[0]) == (f"{folder}/config", f"line {line + 4}")
    if text.startswith("Host x") and "Match" not in text:
        assert find_target(Host(address="z"), folder).port == 22


UNDECIDED = """\
Host plain
  User first
Match originalhost gpu* localnetwork 10.0.0.0/8
  User second
Match localnetwork 10.0.0.0/8
  ForwardAgent yes
Match !originalhost plain,other,y* sessiontype shell
  Port 2200
Match tagged "a"
  User tagged
Match final invented 3 host elsewhere
  Port 2300
Host y*
  Tag a
Match tagged a
  Port 2400
Host *
  User last
"""


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("plain", ("first", 22)),
        ("other", ("last", 22)),
        ("y1", ("last", 2400)),
        ("gpu1", ("Match localnetwork", "3")),
        ("x", ("Match sessiontype", "7")),
    ],
)
def test_a_criterion_that_cannot_be_evaluated_is_refused_for_those_it_may_concern(
    folder: Path, address: str, expected: tuple[object, object]
) -> None:
    (folder / "config").write_text(UNDECIDED)
    host = Host(address=address)
    if isinstance(expected[1], int):
        target = find_target(host, folder)
        assert (target.user, target.port) == expected
        return
    with pytest.raises(NodeError, match="match_undecided") as caught:
        find_target(host, folder)
    values = caught.value.values
    assert (values["setting"], values["line"], values["path"]) == (*expected, f"{folder}/config")
    assert caught.value.is_local
    assert find_target(Host(address=address, user="me", port=2222), folder).port == 2222, "nothing hangs on it"


def test_an_include_in_a_block_that_cannot_be_decided_is_undecided_too(folder: Path) -> None:
    (folder / "config").write_text("Match localnetwork 10.0.0.0/8\n  Include more\n")
    (folder / "more").write_text("Host gpu1\n  User gpu\n")
    with pytest.raises(NodeError, match="match_undecided"):
        find_target(Host(address="gpu1"), folder)
    assert find_target(Host(address="x"), folder).port == 22


def test_names_are_made_canonical_as_the_file_says(folder: Path) -> None:
    text = "CanonicalizeHostname yes\nCanonicalDomains a.example b.example\nHost gpu1.b.example\n  Port 2200\n"
    (folder / "config").write_text(text)
    known = {"gpu1.b.example."}

    def port(name: str) -> object:
        expected = frozenset({"hostname", "port", "proxyjump"})
        values = read_settings(folder / "config", name, user="me", wanted=expected, resolves=known.__contains__).values
        return values["hostname"], values.get("port")

    assert port("gpu1") == ("gpu1.b.example", "2200")
    assert port("gpu2") == ("gpu2", None)
    assert port("10.0.0.1") == ("10.0.0.1", None)
    (folder / "config").write_text(f"CanonicalizeFallbackLocal no\n{text}")
    with pytest.raises(ValueError, match="gpu2"):
        port("gpu2")
    (folder / "config").write_text(f"CanonicalizePermittedCNAMEs *.example:*.example\n{text}")
    assert isinstance(port("gpu1")[0], Undecided)  # type: ignore[index]
    (folder / "config").write_text("Match localnetwork 10.0.0.0/8\n  CanonicalizeHostname yes\n")
    assert isinstance(port("gpu1")[0], Undecided)  # type: ignore[index]


def test_without_a_named_key_none_of_the_usual_files_is_offered(folder: Path) -> None:
    (folder / "config").write_text("Host x\n  IdentityFile none\nHost *\n  IdentityFile /k\n")
    assert find_target(Host(address="x"), folder).identity_files == (Path("/k"),)
    (folder / "config").write_text("Host x\n  IdentityFile none\n")
    target = find_target(Host(address="x"), folder)
    assert (target.identity_files, target.default_keys) == ((), False)
    assert find_target(Host(address="y"), folder).default_keys


def test_an_environment_variable_that_is_not_set_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", "/keys")
    (folder / "config").write_text("Host x\n  IdentityFile ${KEYS}/%n\nHost y\n  IdentityFile ${NO_SUCH}/id\n")
    assert find_target(Host(address="x"), folder).identity_files == (Path("/keys/x"),)
    with pytest.raises(NodeError, match="bad_ssh_config") as caught:
        find_target(Host(address="y"), folder)
    assert "${NO_SUCH}" in str(caught.value.values["detail"])


# fmt: off
AS_OPENSSH = {
    "comments": "Host gpu1 # ours\n  Port 2222 # not 22\n  User me#too\n  HostName 10.0.0.1 # the first\n",
    "equals": 'Host=gpu1\n  Port = 2222\nUser="some one"\n  HostName=%h.example\n\tIdentityFile   =  "/a b"\n',
    "quotes": 'Host "gpu1" \'gpu2\'\n  IdentityFile \'/a "b\'\n  IdentityFile /c\\ d\n  "User" x\n',
    "final": "Match final all\n  User last\nMatch final host 10.*\n  Port 2222\nHost gpu1\n  HostName 10.0.0.1\n",
    "not final": "Match !final host gpu*\n  User early\nMatch final\n  Port 2200\nHost *\n  User late\n",
    "canonical": "Match canonical all\n  User c\nMatch final all\n  Port 2200\n",
    "final hosts": "Match final originalhost no\nHost 10.*\n  Port 2200\nHost gpu1\n  HostName 10.0.0.1\n",
    "case": "Host GPU1\n  User upper\nMatch host GPU*\n  Port 2200\nMATCH ORIGINALHOST gpu1\n  IdentityFile /k\n",
    "lists": "Match host gpu*,!gpu2\n  User a\nMatch !originalhost gpu1,other\n  Port 2200\nHost gpu? !gpu3\n User b\n",
    "brackets": "Host gpu[12]\n  User a\nMatch host [g]pu1\n  User b\n",
    "negated": "Host !gpu1\n  User a\nHost !gpu1 *\n  User b\nHost * !gpu2\n  Port 2200\nMatch !all\n  User c\n",
    "users": "Host gpu1\n  User me\nMatch user me\n  Port 2200\nMatch user m*,!me\n  Port 2300\n"
    "Match localuser no\n  IdentityFile /x\n",
    "latin": b"# M\xfcller\nHost gpu1 # \xe4\n  User a\nHost m\xfc\n  User b\n",
    "none": "Host gpu1\n  IdentityFile none\n  ProxyJump none\nHost gpu2\n  IdentityFile /k\nHost *\n"
    "  ProxyJump gate\n",
    "proxies": "Host gpu1\n  ProxyCommand none\nHost gpu2\n  ProxyJump a@gate:2200,b # two\nHost *\n  ProxyJump gate\n",
    "variables": "IdentityFile ${HOME}/a\nIdentityFile ~/b\nIdentityFile %d/%n/%h/%p/%r/%u/%i/%L/%%\n"
    "Host gpu1\n  User me\n",
    "twice": "IdentityFile /a\nIdentityFile /b\nHost gpu1\n  IdentityFile /a\n  IdentityFile /c\n",
    "odd lines": "=\n   \nHost gpu1\x0c\r\n  Port 2222\r\n#Host gpu2\n=Port 2300\nHost\tgpu2\n\tUser\tme\n",
    "no space": "Host gpu1\nPort=2222#1\nHost gpu2\nPort 2222\n",
    "services": "Host gpu1\n  Port ssh\nHost gpu2\n  Port 0x16\n",
    "include": "Host gpu1\n  Include {folder}/more\n  User late\nHost *\n  Include {folder}/m*\n",
    "all": "Match all\n  User a\nMatch host gpu1 all\n  Port 2200\nMatch canonical final\n  Port 2300\n",
    "hostname": "Host gpu1\n  HostName %h.%%x\nMatch host *.%x\n  Port 2200\nHost gpu2\n  HostName GPU2.Example\n",
}
# fmt: on
MORE = "Host gpu1\n  Port 2201\nMatch host gpu2\n  Port 2202\nHost *\n  IdentityFile /included\n"


def _targets(folder: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> tuple[object, object]:
    """Return where the host leads by our reading and by OpenSSH's, or the code of the error."""
    result: list[object] = []
    for allowed in ("0", "1"):
        monkeypatch.setenv(ALLOWED, allowed)
        try:
            target = find_target(host, folder)
            result.append(replace(target, address=target.address.lower()))
        except NodeError as error:
            result.append(error.code)
    return result[0], result[1]


@pytest.mark.parametrize("name", AS_OPENSSH)
def test_the_file_means_what_it_means_to_openssh(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A file that OpenSSH refuses is refused for the hosts that it concerns. It never gets another meaning."""
    if shutil.which("ssh") is None:
        pytest.skip("there is no ssh")
    text = AS_OPENSSH[name]
    written = text if isinstance(text, bytes) else text.replace("{folder}", str(folder)).encode()
    (folder / "config").write_bytes(written)
    (folder / "more").write_text(MORE)
    agreed = refused = 0
    for host in (*(Host(address=item) for item in ("gpu1", "gpu2", "gpu3", "other")), Host(address="gpu1", user="me")):
        ours, theirs = _targets(folder, host, monkeypatch)
        assert theirs in (ours, "bad_ssh_config"), host.address
        agreed += ours == theirs
        refused += theirs == "bad_ssh_config"
    assert agreed == 5 or refused == 5


_HOSTS = ("gpu1", "gpu2", "GPU1", "10.0.0.1", "gpu*", "*", "!gpu1", "!*.x", "gpu?", "a,gpu1", "*.x", "gpu1.x")
_VALUES = {
    "User": ("me", '"a b"', "%u", "'it''s'", "x\\y"),
    "Port": ("22", "2200", "2300 # c", "ssh", "=2400"),
    "HostName": ("gpu1", "%h.x", "10.0.0.1", "GPU1", "%%h"),
    "IdentityFile": ("none", "/k", "~/k", "%d/%h", "${HOME}/k", '"/a b" # c', "%n-%r-%p"),
    "ProxyJump": ("none", "gate", "u@gate:2200", "a,b # c", "NONE"),
    "ProxyCommand": ("none", "None"),
    "ForwardAgent": ("yes", "no # c"),
}
_CRITERIA = ("host", "originalhost", "user", "localuser", "final", "canonical", "HOST", "!host", "!user", "!final")


def _random_file(chance: random.Random) -> str:
    lines = []
    for _ in range(chance.randrange(3, 14)):
        kind = chance.randrange(5)
        if kind == 0:
            lines.append("Host " + " ".join(chance.choices(_HOSTS, k=chance.randrange(1, 4))))
        elif kind == 1:
            names = chance.choices(_CRITERIA, k=chance.randrange(0, 3))
            words = [
                n if n.endswith(("final", "canonical")) else f"{n} {chance.choice((*_HOSTS, 'me,root'))}" for n in names
            ]
            lines.append("Match " + " ".join(words if words and chance.random() < 0.8 else [*words[:1], "all"]))
        else:
            key = chance.choice(list(_VALUES))
            gap = chance.choice((" ", "=", " = ", "\t", "  "))
            lines.append(
                chance.choice(("", "  ", "\t")) + chance.choice((key, key.upper())) + gap + chance.choice(_VALUES[key])
            )
    return "\n".join(lines) + chance.choice(("", "\n", "\r\n"))


@pytest.mark.parametrize("seed", range(40))
def test_no_file_means_something_else_here_than_to_openssh(
    folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    if shutil.which("ssh") is None:
        pytest.skip("there is no ssh")
    text = _random_file(random.Random(seed))
    (folder / "config").write_bytes(text.encode())
    for host in (Host(address="gpu1"), Host(address="gpu2.x"), Host(address="gpu1", user="me", port=2222)):
        ours, theirs = _targets(folder, host, monkeypatch)
        assert theirs in (ours, "bad_ssh_config"), (text, host.address)
