"""Private keys for a log-in: the keys that the job or the SSH configuration names, or else the default keys."""

import base64
from collections.abc import Iterator
from pathlib import Path

import paramiko
from paramiko.pkey import UnknownKeyType

from backend.cluster.node import NodeError
from backend.cluster.ssh.agent import Agent
from backend.cluster.ssh.config import Target
from backend.cluster.ssh.connect_errors import is_local_resource
from backend.cluster.ssh.passphrases import Passphrases

DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
LARGEST_KEY_BYTES = 1 << 16
_BAD_KEY = (OSError, ValueError, paramiko.SSHException, UnknownKeyType)


def offered_keys(target: Target, passphrases: Passphrases, ssh_folder: Path, agent: Agent) -> Iterator[paramiko.PKey]:
    """Yield the named keys, or else all keys of the agent and of the default files.

    Only two kinds of named keys need the agent: keys with a passphrase, and keys with only the public half on disk.
    Raises NodeError: passphrase_needed, passphrase_wrong, bad_identity_file, and what `agent` raises.
    """
    for path in target.identity_files:
        yield _named_key(path, target, passphrases, agent)
    if target.identity_files:
        return
    yield from agent.listed()
    for name in DEFAULT_KEYS:
        if target.default_keys and (ssh_folder / name).exists():
            yield _load(ssh_folder / name, target, passphrases)


def _named_key(path: Path, target: Target, passphrases: Passphrases, agent: Agent) -> paramiko.PKey:
    try:
        return _load(path, target, passphrases)
    except NodeError:
        public = _public_part(path)
        key = None if public is None else next((key for key in agent.listed() if key.asbytes() == public), None)
        if key is None:
            raise
        return key


def _public_part(path: Path) -> bytes | None:
    public = path if path.suffix == ".pub" else path.with_name(path.name + ".pub")
    if not public.is_file():
        return None
    try:
        return base64.b64decode(public.read_text(encoding="utf-8").split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _load(path: Path, target: Target, passphrases: Passphrases) -> paramiko.PKey:
    def failed(code: str, error: Exception) -> NodeError:
        return NodeError(code, target.node, key="identity_file", identity_file=str(path), detail=str(error))

    try:
        return _read_key(path, None)
    except (TypeError, paramiko.PasswordRequiredException) as error:
        passphrase = passphrases.get(path)
        if passphrase is None:
            raise failed("passphrase_needed", error) from error
    except _BAD_KEY as error:
        raise failed("local_resources" if is_local_resource(error) else "bad_identity_file", error) from error
    try:
        return _read_key(path, passphrase)
    except (TypeError, *_BAD_KEY) as error:
        raise failed("passphrase_wrong", error) from error


def _read_key(path: Path, passphrase: str | None) -> paramiko.PKey:
    # A job file may name a device that never ends.
    if path.exists() and (not path.is_file() or path.stat().st_size > LARGEST_KEY_BYTES):
        raise ValueError("not a file, or larger than any key")
    # The annotation is str, but cryptography, which reads the file, accepts only bytes.
    return paramiko.PKey.from_path(path, passphrase.encode() if passphrase else None)  # type: ignore[arg-type]
