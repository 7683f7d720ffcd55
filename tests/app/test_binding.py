"""The addresses at which the server may listen."""

import socket

import pytest

from app.web.binding import Binding, ServerError


@pytest.fixture
def pem(tmp_path):
    path = tmp_path / "x.pem"
    path.write_text("")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.5", "localhost", "::1"])
def test_a_loopback_address_needs_neither_tls_nor_host_names(host):
    Binding(host=host).check()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "train.lan", ""])
def test_any_other_address_needs_tls_and_host_names(host, pem):
    for binding in (
        Binding(host=host),
        Binding(host=host, hosts=("train.lan",)),
        Binding(host=host, certificate=pem, key=pem),
    ):
        with pytest.raises(ServerError) as error:
            binding.check()
        assert error.value.code == "not_loopback"
    Binding(host=host, certificate=pem, key=pem, hosts=("train.lan",)).check()


def test_a_certificate_without_its_key_or_an_unreadable_one_is_refused(pem, tmp_path):
    for binding, code in (
        (Binding(certificate=pem), "tls_half"),
        (Binding(key=pem), "tls_half"),
        (Binding(certificate=pem, key=tmp_path / "none"), "tls_unreadable"),
    ):
        with pytest.raises(ServerError) as error:
            binding.check()
        assert error.value.code == code


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o660, 0o666])
def test_a_tls_key_that_other_users_can_read_or_its_group_can_change_is_refused(pem, mode):
    pem.chmod(mode)
    with pytest.raises(ServerError) as error:
        Binding(certificate=pem, key=pem).check()
    assert (error.value.code, error.value.values) == ("tls_key_open", {"path": str(pem)})


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440])
def test_a_tls_key_that_its_owner_and_a_group_for_it_can_read_is_accepted(pem, mode):
    pem.chmod(mode)
    Binding(certificate=pem, key=pem).check()


def test_a_port_in_use_is_reported_with_its_number():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ServerError) as error:
            Binding(port=port).listen()
        assert error.value.values["port"] == port


def test_port_0_takes_a_free_port():
    with Binding(port=0).listen() as listener:
        assert listener.getsockname()[1] > 0


def test_the_url_has_the_operators_host_name_or_else_the_servers_own(pem):
    own = "mb-abc.localhost"
    assert Binding().address(7860, own) == "http://mb-abc.localhost:7860/"
    assert Binding(host="::1").address(80, own) == "http://mb-abc.localhost:80/"
    assert Binding(host="127.0.0.5").address(80, own) == "http://127.0.0.5:80/", "*.localhost does not lead there"
    assert Binding(hosts=("localhost",)).address(80, own) == "http://localhost:80/"
    public = Binding(host="0.0.0.0", certificate=pem, key=pem, hosts=("train.lan",))
    assert public.address(443, own) == "https://train.lan:443/"
