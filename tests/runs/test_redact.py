"""Nothing that looks like a secret reaches a log or the audit file."""

import json
import logging

import pytest

from app.web.audit import Audit
from backend.job.job_secrets import looks_secret
from backend.runs.redact import MARK, RedactingFormatter, redact, redact_value

SECRETS = {
    "HF_TOKEN=hf_abcdEFGH12345678": "hf_abcd",
    "export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567": "0123456789",
    "Authorization: Bearer eyJhbGciOi.eyJzdWIi.x-y_z": "eyJ",
    "https://user:hunter2pass@host/repo": "hunter2pass",
    "password: hunter2": "hunter2",
    "--passphrase=hunter2": "hunter2",
    "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI": "wJalr",
    "key AKIAIOSFODNN7EXAMPLE in text": "AKIAIOSF",
    "token ghp_0123456789abcdefghijABCDEFGHIJ012345 leaked": "ghp_",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----": "b3Blbn",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEcut off": "MIIE",
    f"logged in with wandb_v1_{'aB3_' * 19}c": "aB3_",
    "login(ms-01234567-89ab-cdef-0123-456789abcdef)": "89ab",
    '{"password": "hunter2 two"}': "hunter2",
    '{"password":"a\\"hunter2"}': "hunter2",
    json.dumps({"line": json.dumps({"password": 'a"hunter2'})}): "hunter2",
    "{'api_key': 'hunter2'}": "hunter2",
    '{"line": "{\\"HF_TOKEN\\": \\"hunter2\\"}"}': "hunter2",
    '{"token": 8675309}': "8675309",
    "login(token='hunter2', add=True)": "hunter2",
    "login(token=b'hunter2')": "hunter2",
    'passwd = "hunter2': "hunter2",
    "llamafactory-cli train --api-key hunter2 --bf16": "hunter2",
    'run --wandb_token "hunter2 two"': "hunter2",
    "Command '['run', '--api-key', 'hunter2']' failed": "hunter2",
    "Authorization: Basic dXNlcjpodW50ZXIy": "dXNl",
    "{'Authorization': 'Basic dXNlcjpodW50ZXIy'}": "dXNl",
    json.dumps({"line": json.dumps({"proxy-authorization": "basic dXNlcjpodW50ZXIy"})}): "dXNl",
    'curl -H "authorization: token hunter2hunter2" host': "hunter2",
    "git clone https://0123456789abcdef@host/repo": "0123456789",
    "pip install git+HTTPS://hunter2@host/repo": "hunter2",
    "redis://:hunter2@host:6379/0": "hunter2",
    "private_key=MIIEhunter2": "hunter2",
    '{"private_key": "MIIEhunter2 two"}': "hunter2",
    "private-key: MIIEhunter2": "hunter2",
    "credentials=hunter2": "hunter2",
    "credentials: hunter2": "hunter2",
    '{"credentials": "user hunter2"}': "hunter2",
    "AWS_CREDENTIALS='hunter2'": "hunter2",
    "run --private-key hunter2 --bf16": "hunter2",
    '{"url":"https://hunter2@host","user":"a@b"}': "hunter2",
    "http://user:hunter2@ss@host:80/a": "hunter2",
    "http://user:it'shunter2@host": "hunter2",
    "Authorization: ApiKey hunterhunter": "hunterhunter",
    "Authorization: hunterhunter": "hunterhunter",
    "authorization=hunter2hunter2, retries=5": "hunter2",
    "{'Authorization': 'hunter2hunter2'}": "hunter2",
    "credentials: hunter": "hunter",
    "credentials: hunter\nINFO next line": "hunter",
    "credentials: hunter port: 5": "hunter",
    "private_key=/hunter2+/=": "hunter2",
    "DB_PASSWORD=/hunter2": "hunter2",
    "MYSQL_PWD=hunter2": "hunter2",
    "creds=hunter2": "hunter2",
    "WANDB_KEY=hunter2": "hunter2",
    "aws_access_key: hunter2": "hunter2",
    "webhook: https://host/hunter2": "hunter2",
    '{"swanlab_webhook_url": "https://host/hunter2"}': "hunter2",
}
HARMLESS = (
    "loss 1.2, tokens_per_s: 4200",
    "tokens=5",
    "ssh://train@10.0.0.1:22",
    "tokenizer: qwen3",
    "10.0.0.1:22",
    "wandb_v1_migration",
    "run ms-2026 at commit 0123456789abcdef0123456789abcdef01234567",
    "--password-file /x",
    "--api-key --bf16",
    "Pass --token or --api-key to log in",
    "--password\nINFO next line",
    '{"bos_token_id": 5, "tokens": [1, 2]}',
    "basic configuration of the bearer",
    "Authorization: failed for this user",
    "Invalid credentials: please log in again",
    "Loading credentials from the file",
    "GOOGLE_APPLICATION_CREDENTIALS=/etc/gcp/key.json private_key=~/keys/a.pem",
    '{"credentials": "/etc/gcp/key.json"}',
    "private_key_path=/x, credentials_file: a.json",
    "https://github.com/a/b@main and mail a@b.org",
    '{"eos_token": "<|im_end|>", "pad_token": null}',
    "https://hub?x=1&mail=me@org and https://hub?x=a:b&mail=me@org",
    '{"url":"http://host:8080","user":"a@b"} http://host:8080?mail=me@org',
    "Cloning https://git@host/repo",
    "Authorization: required",
    'headers = {"authorization": header}',
    "such as `SSL_KEY=/etc/a.pem`",
    "Authorization: https://host/oauth",
    "Authorization:\nTraceback",
    "Invalid credentials: couldn't read the file",
    "credentials: /etc/gcp/key.json: No such file",
    "webhook: 404 Not Found",
    "sort_key=value, reft_layer_key: block, Missing key: model.layers.0, KEY=VALUE",
    "PWD=/root OLDPWD=/home apptainer exec --pwd /data",
    "passphrases: None typed, secrets: HF_TOKEN",
)


@pytest.mark.parametrize(("text", "secret"), SECRETS.items())
def test_a_secret_in_text_is_replaced(text, secret):
    assert secret not in redact(text)
    assert MARK in redact(text)


@pytest.mark.parametrize("value", ["x y", 'a "b" c', "a\\", None, 5, True, ["x"], {"a": "b"}])
def test_json_stays_json(value):
    line = json.dumps({"password": value, "loss": 1.5})
    for text in (line, json.dumps({"line": line, "n": 1})):
        assert json.loads(redact(text)).keys() == json.loads(text).keys()
    assert json.loads(redact(line))["loss"] == 1.5


def test_a_long_line_is_redacted_at_once():
    text = "a-" * 50_000 + "-" * 50_000 + '\\"' * 50_000 + "token='" + "\\" * 50_000
    assert MARK in redact(text)


@pytest.mark.parametrize(
    "part",
    [
        *("_a", "_", "-", "-secret", " --token", " password", "credentials", " credentials: a", "private_key"),
        *("authorization:", "authorization: a", " basic ", "https://a", "://a:", "a@", " \\", "'"),
        *("https://a'a", "://a:a'a", "credentials=/a", "_KEY", "webhook ", "creds: a b"),
    ],
)
def test_a_line_that_repeats_names_of_secrets_is_redacted_at_once(part):
    assert redact("secret" + part * 15_000)


@pytest.mark.parametrize("text", HARMLESS)
def test_other_text_stays_as_it_is(text):
    assert redact(text) == text


def test_a_value_that_is_named_like_a_secret_goes_whole():
    cleaned = redact_value(
        {
            "passphrase": "x",
            "credentials": {"user": "a"},
            "api_keys": ["a"],
            "env": {"HF_TOKEN": ["a"], "NCCL_DEBUG": "WARN"},
            "n": 1,
            "path": ("a",),
        }
    )
    assert cleaned == {
        "passphrase": MARK,
        "credentials": MARK,
        "api_keys": MARK,
        "env": {"HF_TOKEN": MARK, "NCCL_DEBUG": "WARN"},
        "n": 1,
        "path": ["a"],
    }


@pytest.mark.parametrize("name", ["private_key", "GOOGLE_APPLICATION_CREDENTIALS", "SSL_KEY", "creds", "DB_PASSWORD"])
@pytest.mark.parametrize("value", ["/etc/key.json", "~/key", "MIIEhunter2"])
def test_data_text_and_jobs_agree_on_what_is_secret(name, value):
    is_hidden = looks_secret(name, value)
    assert is_hidden == (name == "DB_PASSWORD" or value == "MIIEhunter2")
    assert redact_value({name: value}) == {name: MARK if is_hidden else value}
    for text in (f"{name}={value}", json.dumps({name: value})):
        assert (MARK in redact(text)) == is_hidden


def test_log_lines_are_redacted_with_their_arguments_and_tracebacks():
    try:
        raise ValueError("password=hunter2")
    except ValueError as error:
        record = logging.LogRecord("x", 40, "f", 1, "with %s", ("HF_TOKEN=abc123",), (type(error), error, None))
    text = RedactingFormatter("%(message)s").format(record)
    assert "hunter2" not in text
    assert "abc123" not in text


def test_the_audit_log_only_grows_is_private_and_redacted(tmp_path):
    audit = Audit(tmp_path, clock=lambda: 5.0)
    audit.record("launch", run="r1", environment={"HF_TOKEN": "hf_abcdefgh1"}, nodes=["10.0.0.1"], note="line\nbreak")
    Audit(tmp_path, clock=lambda: 6.0).record("stop", run="r1", path=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(entry["time"], entry["action"]) for entry in lines] == [(5.0, "launch"), (6.0, "stop")]
    assert lines[0]["environment"] == {"HF_TOKEN": MARK}
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600
