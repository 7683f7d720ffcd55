"""SSH servers that break the protocol or keep a client waiting, on real sockets. Each server is one function.

Functions in `RAW` get the bare socket. The others use paramiko's server side through `Hooks`.
"""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import paramiko
from paramiko.common import cMSG_CHANNEL_DATA, cMSG_IGNORE
from paramiko.message import Message

HOST_KEY = paramiko.ECDSAKey.generate()
DRIP_S = 0.02
BLOCK = b"x" * 32_000
KEXINIT, NEWKEYS, AUTH = "kexinit", "newkeys", "auth"

Channel = paramiko.Channel
Wait = Callable[[float], bool]
"""A function that returns True after the test has ended."""


def _nothing(*_: object) -> None:
    """Do nothing, so the client waits for the answer."""


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """The places where a server misbehaves. Without a hook, it behaves as it should."""

    stalls_at: str = ""
    auth: Callable[[paramiko.Transport, Wait], int] = lambda transport, over: paramiko.AUTH_SUCCESSFUL
    banner: str = ""
    opens: Callable[[paramiko.Transport, Wait], int] = lambda transport, over: paramiko.OPEN_SUCCEEDED
    answers_exec: bool = True
    runs: Callable[[Channel, Wait], object] = _nothing
    sftp: Callable[[Channel, Wait], object] | None = None
    window: int = 2 << 20


class _Transport(paramiko.Transport):
    def __init__(self, sock: socket.socket, hooks: Hooks, over: Wait) -> None:
        super().__init__(sock, default_window_size=hooks.window)
        self._hooks, self._over = hooks, over

    def _stall(self, hook: str) -> None:
        if self._hooks.stalls_at == hook:
            self._over(600)

    def _negotiate_keys(self, m: Message) -> None:
        self._stall(KEXINIT)
        super()._negotiate_keys(m)

    def _parse_newkeys(self, m: Message) -> None:
        self._stall(NEWKEYS)
        super()._parse_newkeys(m)


class _Server(paramiko.ServerInterface):
    def __init__(self, transport: paramiko.Transport, hooks: Hooks, over: Wait) -> None:
        self._transport, self._hooks, self._over = transport, hooks, over

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def get_banner(self) -> tuple[str | None, str | None]:
        return (self._hooks.banner, "en") if self._hooks.banner else (None, None)

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return self._hooks.auth(self._transport, self._over)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return self._hooks.opens(self._transport, self._over)

    def check_channel_exec_request(self, channel: Channel, command: bytes) -> bool:
        if self._hooks.answers_exec:
            _beside(self._hooks.runs, channel, self._over)
            return True
        self._hooks.runs(channel, self._over)
        self._over(600)
        return False

    def check_channel_subsystem_request(self, channel: Channel, name: str) -> bool:
        if self._hooks.sftp is None:
            return False
        _beside(self._hooks.sftp, channel, self._over)
        return True


def _beside(act: Callable[..., object], *args: object) -> None:
    def run() -> None:
        with suppress(EOFError, OSError, paramiko.SSHException, struct.error):
            act(*args)

    threading.Thread(target=run, name="hostile server", daemon=True).start()


@contextmanager
def hostile_server(behaviour: Hooks | Callable[[socket.socket, Wait], object]) -> Iterator[int]:
    """Yield the port of a server that behaves so towards every client."""
    over = threading.Event()
    server = socket.create_server(("127.0.0.1", 0))
    opened: list[Any] = []

    def serve() -> None:
        while True:
            try:
                sock, _ = server.accept()
            except OSError:
                return
            opened.append(sock)
            if not isinstance(behaviour, Hooks):
                _beside(behaviour, sock, over.wait)
                continue
            transport = _Transport(sock, behaviour, over.wait)
            opened.append(transport)
            transport.add_server_key(HOST_KEY)
            with suppress(paramiko.SSHException, EOFError):
                transport.start_server(threading.Event(), _Server(transport, behaviour, over.wait))

    thread = threading.Thread(target=serve, name="hostile door", daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        over.set()
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()
        for item in reversed(opened):
            item.close()


# ---- the bare socket


def silent(sock: socket.socket, over: Wait) -> None:
    over(600)


def dripping_banner(sock: socket.socket, over: Wait) -> None:
    while not over(DRIP_S):
        sock.sendall(b"S")


def endless_banner_lines(sock: socket.socket, over: Wait) -> None:
    while not over(0):
        sock.sendall(b"welcome\r\n" * 1000)


def giant_banner(sock: socket.socket, over: Wait) -> None:
    for _ in range(100):
        sock.sendall(b"x" * (1 << 20))
    over(600)


def web_server(sock: socket.socket, over: Wait) -> None:
    sock.recv(100)
    sock.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
    sock.close()


def banner_alone(sock: socket.socket, over: Wait) -> None:
    sock.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
    over(600)


def old_protocol(sock: socket.socket, over: Wait) -> None:
    sock.sendall(b"SSH-1.5-old\r\n")
    over(600)


def banner_and_noise(sock: socket.socket, over: Wait) -> None:
    sock.sendall(b"SSH-2.0-OpenSSH_9.2\r\n" + bytes(range(256)) * 40)
    over(600)


def giant_packet(sock: socket.socket, over: Wait) -> None:
    sock.sendall(b"SSH-2.0-OpenSSH_9.2\r\n" + struct.pack(">IB", 0x7FFFFFF4, 4))
    while not over(0):
        sock.sendall(BLOCK)


def dripping_packet(sock: socket.socket, over: Wait) -> None:
    sock.sendall(b"SSH-2.0-OpenSSH_9.2\r\n" + struct.pack(">IB", 30_004, 4))
    while not over(DRIP_S):
        sock.sendall(b"x")


# ---- log-in


def stalls(transport: paramiko.Transport, over: Wait) -> int:
    over(600)
    return paramiko.AUTH_FAILED


def fails_slowly(transport: paramiko.Transport, over: Wait) -> int:
    over(0.2)
    return paramiko.AUTH_FAILED


def wants_more(transport: paramiko.Transport, over: Wait) -> int:
    return paramiko.AUTH_PARTIALLY_SUCCESSFUL


def drips(transport: paramiko.Transport, over: Wait) -> int:
    while not over(DRIP_S):
        transport.sock.send(b"\0")
    return paramiko.AUTH_FAILED


def chatters(transport: paramiko.Transport, over: Wait) -> int:
    """Send SSH_MSG_IGNORE without end. A client skips these messages."""
    message = Message()
    message.add_byte(cMSG_IGNORE)
    message.add_string(BLOCK)
    while not over(0):
        transport._send_message(message)
    return paramiko.AUTH_FAILED


def hangs_up(transport: paramiko.Transport, over: Wait) -> int:
    transport.sock.shutdown(socket.SHUT_RDWR)
    return paramiko.AUTH_FAILED


# ---- commands


def endless_stdout(channel: Channel, over: Wait) -> None:
    while not over(0):
        channel.sendall(BLOCK)


def endless_stderr(channel: Channel, over: Wait) -> None:
    while not over(0):
        channel.sendall_stderr(BLOCK)


def flood(channel: Channel, over: Wait) -> None:
    """Send more than the client's window allows."""
    while not over(0):
        message = Message()
        message.add_byte(cMSG_CHANNEL_DATA)
        message.add_int(channel.remote_chanid)
        message.add_string(BLOCK)
        channel.transport._send_user_message(message)


def goes_on_after_its_exit(channel: Channel, over: Wait) -> None:
    channel.send_exit_status(0)
    endless_stdout(channel, over)


def drips_output(channel: Channel, over: Wait) -> None:
    while not over(DRIP_S):
        channel.sendall(b"x")


def no_exit_status(channel: Channel, over: Wait) -> None:
    channel.sendall(b"done\n")
    channel.shutdown_write()


def no_end_of_output(channel: Channel, over: Wait) -> None:
    channel.send_exit_status(0)


def no_close(channel: Channel, over: Wait) -> None:
    channel.sendall(b"done\n")
    channel.send_exit_status(0)
    channel.shutdown_write()


def hangs_up_in_the_middle(channel: Channel, over: Wait) -> None:
    channel.sendall(b"half a li")
    channel.transport.sock.shutdown(socket.SHUT_RDWR)


def opens_no_window(channel: Channel, over: Wait) -> None:
    """Never read the command's input."""
    over(600)


def window_by_drips(channel: Channel, over: Wait) -> None:
    while not over(DRIP_S):
        channel.recv(1)


def reads_no_socket(channel: Channel, over: Wait) -> None:
    """Read no byte from the connection, so the client's own writes wait in its kernel."""
    channel.transport.packetizer.read_message = lambda: over(600)


def never_ends_a_key_exchange(channel: Channel, over: Wait) -> None:
    transport = channel.transport
    transport._parse_kex_init = lambda m: over(600)
    transport._send_kex_init()


def new_keys_all_the_time(channel: Channel, over: Wait) -> None:
    while not over(0):
        channel.transport.renegotiate_keys()


def asks_all_the_time(channel: Channel, over: Wait) -> None:
    """Send global requests that need no answer."""
    while not over(0):
        channel.transport.global_request("nothing@example.com", wait=False)
        time.sleep(0.001)


# ---- files

INIT, VERSION, OPEN, CLOSE, READ, WRITE, STAT = 1, 2, 3, 4, 5, 6, 17
STATUS, HANDLE, DATA, ATTRS = 101, 102, 103, 105


def _packet(kind: int, *parts: bytes) -> bytes:
    body = bytes([kind]) + b"".join(parts)
    return struct.pack(">I", len(body)) + body


def _text(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _exactly(channel: Channel, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = channel.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def sftp(answer: Callable[[Channel, Wait, bytes, bytes], bool]) -> Callable[[Channel, Wait], None]:
    """Run a file server whose `answer` handles some requests (kind, id and rest) and returns True for them."""

    def serve(channel: Channel, over: Wait) -> None:
        while not over(0):
            (length,) = struct.unpack(">I", _exactly(channel, 4))
            request = _exactly(channel, length)
            kind, number = request[0], request[1:5]
            if kind == INIT:
                channel.sendall(_packet(VERSION, struct.pack(">I", 3)))
            elif not answer(channel, over, request[:1], number):
                channel.sendall(_usual(kind, number))

    return serve


def _usual(kind: int, number: bytes) -> bytes:
    if kind == STAT:
        return _packet(ATTRS, number, struct.pack(">II", 4, 0o100600))
    if kind == OPEN:
        return _packet(HANDLE, number, _text(b"handle"))
    if kind == READ:
        return _packet(DATA, number, _text(b"data"))
    return _packet(STATUS, number, struct.pack(">I", 0), _text(b""), _text(b""))


def no_version(channel: Channel, over: Wait) -> None:
    over(600)


def noise_as_version(channel: Channel, over: Wait) -> None:
    channel.sendall(b"Welcome to node1, it is Monday\n")
    over(600)


def packet_of_2_gib(channel: Channel, over: Wait) -> None:
    channel.sendall(struct.pack(">IB", 0x7FFFFFFF, VERSION))
    endless_stdout(channel, over)


def packet_of_16_mib(channel: Channel, over: Wait) -> None:
    """Send the largest packet that paramiko accepts, and then nothing."""
    channel.sendall(struct.pack(">IB", 0xFFFFFF, VERSION))
    for _ in range(400):
        channel.sendall(BLOCK)
    over(600)


def drips_an_answer(channel: Channel, over: Wait, kind: bytes, number: bytes) -> bool:
    channel.sendall(struct.pack(">IB", 100_000, DATA) + number)
    drips_output(channel, over)
    return True


def wrong_ids(channel: Channel, over: Wait, kind: bytes, number: bytes) -> bool:
    while not over(0.001):
        channel.sendall(_usual(kind[0], struct.pack(">I", 0xDEAD)))
    return True


def a_byte_a_read(channel: Channel, over: Wait, kind: bytes, number: bytes) -> bool:
    """Answer each read with one byte of a file that never ends."""
    if kind[0] == READ:
        over(0.001)
        channel.sendall(_packet(DATA, number, _text(b"x")))
    return kind[0] == READ


def more_than_asked(channel: Channel, over: Wait, kind: bytes, number: bytes) -> bool:
    if kind[0] == READ:
        channel.sendall(_packet(DATA, number, _text(b"x" * (8 << 20))))
    return kind[0] == READ


def lies_about_lengths(channel: Channel, over: Wait, kind: bytes, number: bytes) -> bool:
    channel.sendall(_packet(HANDLE if kind[0] == OPEN else ATTRS, number, b"\xff\xff\xff\xff\xff"))
    return True


def hangs_up_while_reading(channel: Channel, over: Wait, kind: bytes, number: bytes) -> bool:
    if kind[0] == READ:
        channel.sendall(struct.pack(">I", 30_000))
        channel.transport.sock.shutdown(socket.SHUT_RDWR)
    return kind[0] == READ


def floods_an_answer(channel: Channel, over: Wait, kind: bytes, number: bytes) -> bool:
    flood(channel, over)
    return True


def ends_no_write(channel: Channel, over: Wait, kind: bytes, number: bytes) -> bool:
    return kind[0] == WRITE
