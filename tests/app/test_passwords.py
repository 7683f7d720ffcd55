"""Generated passwords are strong. Passwords are read from private files only, and stored as a hash."""

import json

import pytest

from app.private_file import PrivateFileError
from app.web.passwords import PasswordError, PasswordHash, load_hash, random_password, read_password, store_hash


def test_a_generated_password_is_different_each_time_and_easy_to_type():
    passwords = {random_password() for _ in range(100)}
    assert len(passwords) == 100
    assert all(len(password) == 24 and not set(password) & set("l0o1") for password in passwords)


def test_a_hash_matches_only_its_password():
    hashed = PasswordHash.of("correct-horse-battery", 2**14)
    assert hashed.matches("correct-horse-battery")
    assert not any(hashed.matches(wrong) for wrong in ("", "correct-horse-batter", "Correct-horse-battery"))


def test_a_stored_hash_survives_a_restart_and_contains_no_password(tmp_path):
    hashed = PasswordHash.of("correct-horse-battery", 2**14)
    store_hash(tmp_path, hashed)
    loaded = load_hash(tmp_path)
    assert loaded == hashed
    assert loaded.matches("correct-horse-battery"), "the cost of new hashes does not matter"
    assert loaded.name == hashed.name
    assert "battery" not in (tmp_path / "password.json").read_text()
    assert (tmp_path / "password.json").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["password.json"]


def test_without_a_stored_hash_there_is_none(tmp_path):
    assert load_hash(tmp_path) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"salt": 1, "digest": 2}',
        "\xff",
        *(json.dumps({"salt": "AAAA", "digest": "AAAA", "scrypt": {"n": cost}}) for cost in (0, 3, "x", 2**20, 2**70)),
    ],
)
def test_a_damaged_hash_is_an_error_and_never_gives_access(tmp_path, text):
    (tmp_path / "password.json").write_text(text, encoding="latin-1")
    with pytest.raises(PasswordError) as error:
        load_hash(tmp_path)
    assert error.value.code == "password_store_damaged"


def write(path, text, mode=0o600):
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_first_line_of_a_private_file_is_the_password(tmp_path):
    assert read_password(write(tmp_path / "pw", "correct-horse-battery\nsecond line\n")) == "correct-horse-battery"


@pytest.mark.parametrize(
    ("text", "mode", "code"),
    [
        ("correct-horse-battery", 0o644, "private_file_open"),
        ("correct-horse-battery", 0o660, "private_file_open"),
        ("short", 0o600, "password_too_short"),
        ("", 0o600, "password_too_short"),
    ],
)
def test_a_file_that_others_can_read_or_with_a_short_password_is_refused(tmp_path, text, mode, code):
    with pytest.raises(PrivateFileError) as error:
        read_password(write(tmp_path / "pw", text, mode))
    assert error.value.code == code


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(PrivateFileError) as error:
        read_password(tmp_path / "nowhere")
    assert error.value.code == "private_file_unreadable"
