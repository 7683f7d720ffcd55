"""The server's own name and keys survive a restart, and no other user can read them."""

import pytest

from app.web.device_cookie import DeviceCookies
from app.web.identity import load_identity
from app.web.passwords import PasswordHash


def test_a_home_folder_keeps_its_own_host_name(tmp_path):
    first = load_identity(tmp_path / "a")
    assert load_identity(tmp_path / "a") == first
    assert load_identity(tmp_path / "b").host != first.host
    assert (tmp_path / "a" / "identity.json").stat().st_mode & 0o777 == 0o600
    assert first.secret.hex() not in repr(first)


@pytest.mark.parametrize("text", ["", "{}", "[]", "\xff", '{"host": "evil.example", "salt": "", "secret": ""}'])
def test_a_new_file_replaces_a_damaged_one(tmp_path, text):
    (tmp_path / "identity.json").write_text(text, encoding="latin-1")
    assert load_identity(tmp_path) == load_identity(tmp_path)


def test_in_a_read_only_home_the_identity_lasts_as_long_as_the_process_and_a_warning_is_logged(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    assert load_identity(tmp_path / "file" / "home").host.endswith(".localhost")
    assert "cannot be written" in caplog.text


def test_a_device_cookie_survives_a_restart_and_ends_with_the_password(tmp_path):
    identity = load_identity(tmp_path)
    old, new = (PasswordHash.of(word, 2, identity.salt) for word in ("old-password", "new-password"))
    cookies = DeviceCookies(identity.device_key(old), "device")
    known = {"device": cookies.make()}
    again = DeviceCookies(
        load_identity(tmp_path).device_key(PasswordHash.of("old-password", 2, identity.salt)), "device"
    )
    assert again.device(known) is not None
    assert DeviceCookies(identity.device_key(new), "device").device(known) is None
