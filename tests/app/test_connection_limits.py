"""Silent or slow sockets lock nobody out, and take no file descriptor that connections to nodes need."""

import asyncio
import resource
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest
import uvicorn

from app.web.connection_limits import Connections, LimitedListener, Limits
from app.web.descriptors import MOST_CONNECTIONS, RESERVED, connections_for
from app.web.log_limit import LogLimit
from app.web.timed_protocol import TimedProtocol
from tests.app.tiny_app import IDENTITY, PASSWORD
from tests.clock import Clock

pytestmark = pytest.mark.slow

FOREVER_S = 3600.0
SOON_S = 0.2
PATIENCE_S = 60.0
"""Far above the time that any of this takes. It only limits the time of a failure."""


async def _app(scope, receive, send) -> None:
    """Answer a request with the header `operator` as an operator. /wait answers after the client has gone."""
    assert scope["type"] in ("http", "lifespan")
    if scope["type"] == "lifespan":
        return
    if (b"cookie", b"operator") in scope["headers"]:
        scope["state"]["operator"] = "operator"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"transfer-encoding", b"chunked")]})
    await send({"type": "http.response.body", "body": b"begun", "more_body": True})
    while scope["path"] == "/wait" and (await receive())["type"] != "http.disconnect":
        continue
    await send({"type": "http.response.body", "body": b""})


class Server:
    """A real socket with the limits, served in a thread."""

    def __init__(self, limits: Limits) -> None:
        self.connections = Connections(limits)
        config = uvicorn.Config(
            _app,
            http=partial(TimedProtocol, connections=self.connections),  # type: ignore[arg-type]
            loop="asyncio",
            lifespan="off",
            log_config=None,
            timeout_graceful_shutdown=1,
        )
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self._server = uvicorn.Server(config)
        sockets = [LimitedListener(listener, self.connections)]
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve(sockets=sockets)))
        self._thread.start()

    def end(self) -> None:
        self._server.should_exit = True
        self._thread.join()


@contextmanager
def server(**limits: float) -> Iterator[Server]:
    patient = dict.fromkeys(("request_s", "anonymous_body_s", "body_s", "anonymous_answer_s", "idle_s"), FOREVER_S)
    limited = Server(Limits(**{"most": 8, "check_every_s": 0.02, **patient, **limits}))  # type: ignore[arg-type]
    try:
        yield limited
    finally:
        limited.end()


def dial(port: int, opening: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    connection.sendall(opening)
    return connection


def request(path: str = "/", *, more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: x\r\n{more}\r\n".encode()


OPERATOR = "cookie: operator\r\n"


def is_ended(client: socket.socket) -> bool:
    """Return whether the server ends the connection, however long it takes."""
    try:
        while client.recv(1 << 16):
            continue
    except ConnectionResetError:
        return True
    return True


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        while client.recv(1 << 16):
            continue
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
    finally:
        client.settimeout(PATIENCE_S)
    return False


def drip(client: socket.socket, part: bytes) -> None:
    """Send a few bytes again and again until the server ends the connection."""
    client.settimeout(0.02)
    for _ in range(int(PATIENCE_S / 0.02)):
        try:
            client.sendall(part)
            if not client.recv(1 << 16):
                return
        except TimeoutError:
            continue
        except OSError:
            return
    raise AssertionError("it was never ended")


@pytest.mark.parametrize("opening", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\n"])
def test_a_connection_without_a_complete_request_is_closed(opening):
    with server(request_s=SOON_S) as limited, dial(limited.port, opening) as silent:
        assert is_ended(silent)
        assert len(limited.connections) == 0


def test_slow_headers_are_cut_off_after_a_first_request_too():
    with server(request_s=SOON_S) as limited:
        with dial(limited.port) as slow:
            drip(slow, b"x")
        with dial(limited.port, request()) as slow:
            slow.recv(1 << 16)
            drip(slow, b"x")


def test_a_slow_body_is_cut_off_even_after_its_response():
    post = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n"
    with server(anonymous_body_s=SOON_S, body_s=SOON_S) as limited:
        for more in (b"\r\n", OPERATOR.encode() + b"\r\n"):
            with dial(limited.port, post + more) as slow:
                drip(slow, b"x")


def test_only_a_response_to_the_operator_may_last():
    with server(anonymous_answer_s=SOON_S, request_s=SOON_S) as limited:
        live = dial(limited.port, request("/wait", more=OPERATOR))
        with live, dial(limited.port, request("/wait")) as stranger:
            assert is_ended(stranger)
            assert is_open(live)


def test_at_the_limit_the_oldest_silent_connections_are_closed_first_and_the_operators_stay():
    with server(most=4) as limited, ExitStack() as opened:
        live = opened.enter_context(dial(limited.port, request("/wait", more=OPERATOR)))
        assert live.recv(1 << 16)
        asking = opened.enter_context(dial(limited.port, request("/wait")))
        assert asking.recv(1 << 16)
        silent = [opened.enter_context(dial(limited.port)) for _ in range(40)]
        assert all(is_ended(old) for old in silent[:-2])
        with dial(limited.port, request()) as late:
            assert b"200" in late.recv(1 << 16)
        assert is_open(live)
        assert is_open(asking)
        assert len(limited.connections) <= 4


def test_if_all_connections_are_the_operators_a_new_one_is_refused_unless_one_is_idle():
    with server(most=2) as limited, ExitStack() as opened:
        lives = [opened.enter_context(dial(limited.port, request("/wait", more=OPERATOR))) for _ in range(2)]
        assert all(live.recv(1 << 16) for live in lives)
        with dial(limited.port) as refused:
            assert is_ended(refused)
        lives[0].close()
        idle = opened.enter_context(dial_until_answered(limited, request(more=OPERATOR)))
        with dial(limited.port, request()) as late:
            assert b"200" in late.recv(1 << 16)
        assert is_ended(idle)
        assert is_open(lives[1])


def dial_until_answered(client: Server, opening: bytes) -> socket.socket:
    """Connect again until the server answers. A slot is free only after the server has seen that a client has gone."""
    for _ in range(1000):
        sock = dial(client.port, opening)
        try:
            if b"200" in sock.recv(1 << 16):
                return sock
        except ConnectionResetError:
            pass
        sock.close()
    raise AssertionError("no place became free")


def test_at_the_limit_the_client_with_the_most_connections_loses_one():
    """Loopback has many addresses, so one machine can be several clients."""
    with server(most=8) as limited, ExitStack() as opened:
        others = opened.enter_context(socket.create_connection(("127.0.0.1", limited.port), 60, ("127.0.0.2", 0)))
        crowd = [opened.enter_context(dial(limited.port)) for _ in range(50)]
        assert all(is_ended(old) for old in crowd[:-7])
        assert is_open(others)


@pytest.mark.usefixtures("_many_files")
def test_without_free_descriptors_asyncio_gets_one_error_instead_of_thousands():
    """asyncio would accept again at once, and log and schedule a retry each time (2,048 times)."""
    listener = LimitedListener(socket.create_server(("127.0.0.1", 0)), Connections(Limits(most=8)))
    with listener, dial(listener.getsockname()[1]), ExitStack() as opened:
        listener.setblocking(False)
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        with suppress(OSError):
            while True:
                opened.enter_context(Path(__file__).open())
        with pytest.raises(OSError, match="Too many open files"):
            listener.accept()
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_enough_descriptors_remain_for_nodes():
    assert connections_for(4096, 60) == MOST_CONNECTIONS
    assert 1024 - 60 - 2 * connections_for(1024, 60) >= RESERVED
    for limit in (64, 128, 256, 512):
        remaining = limit - 40 - 2 * connections_for(limit, 40)
        assert connections_for(limit, 40) > 0
        assert remaining >= min(RESERVED, (limit - 40) // 2)


def test_an_endless_message_is_logged_a_few_times_a_minute_with_the_number_of_suppressed_ones(caplog):
    import logging

    clock = Clock()
    logger = logging.getLogger("tests.flood")
    limit = LogLimit(clock)
    logger.addFilter(limit)
    for _ in range(1000):
        logger.warning("Invalid request of %s", "somebody")
    logger.warning("Something else")
    clock.now += LogLimit.WINDOW_S + 1
    logger.warning("Invalid request of %s", "somebody")
    logger.removeFilter(limit)
    assert len(caplog.messages) == LogLimit.MOST + 2
    assert f"({1000 - LogLimit.MOST} " in caplog.messages[-1]


class Process:
    """The real application in a process of its own that may open `most_files` files."""

    def __init__(self, home: Path, most_files: int, *tls: Path) -> None:
        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most_files // 2, most_files))

        self.log = home / "log"
        argv = [sys.executable, "-m", "tests.app.tiny_server", str(home), *map(str, tls)]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log, preexec_fn=limit)
        self.port = int(self._process.stdout.readline() or self.fail())

    def fail(self) -> int:
        raise AssertionError(self.log.read_text())

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        self._process.stdout.close()


@pytest.fixture
def process(tmp_path) -> Iterator[Callable[..., Process]]:
    with ExitStack() as started:

        def start(*given) -> Process:
            limited = Process(tmp_path, *given)
            started.callback(limited.end)
            return limited

        yield start


@pytest.fixture
def _many_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def owner(port: int, scheme: str = "http", **more) -> httpx.Client:
    """Return a client as a browser: the server's own name resolves to this machine."""
    host = f"{IDENTITY.host}:{port}"
    headers = {"host": host, "origin": f"{scheme}://{host}"}
    return httpx.Client(base_url=f"{scheme}://127.0.0.1:{port}", headers=headers, timeout=PATIENCE_S, **more)


def logs_in(client: httpx.Client) -> None:
    assert client.post("/login", data={"password": PASSWORD}).status_code == 303
    name, value = next((name, value) for name, value in client.cookies.items() if "device" not in name)
    client.headers["cookie"] = f"{name}={value}"
    assert client.get("/en/").status_code == 200
    assert client.get("/open", params={"count": 60}).text == "60", "descriptors are left for nodes and the database"


@pytest.mark.usefixtures("_many_files")
def test_at_256_files_700_hostile_sockets_lock_nobody_out_and_do_not_fill_the_log(process):
    limited = process(256)
    with ExitStack() as opened:
        hostile = []

        def more(count: int, opening: bytes) -> None:
            hostile.extend(opened.enter_context(dial(limited.port, opening)) for _ in range(count))

        post = b"POST /login HTTP/1.1\r\nhost: 127.0.0.1\r\norigin: http://127.0.0.1\r\ncontent-length: 500\r\n\r\npass"
        more(400, b"")
        more(150, b"GET /login HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ")
        more(150, post)
        with owner(limited.port) as client:
            logs_in(client)
            more(100, b"no HTTP at all\r\n\r\n")
            logs_in(client)
    assert len(limited.log.read_text().splitlines()) < 50, limited.log.read_text()[:3000]


@pytest.mark.usefixtures("_many_files")
def test_handshakes_that_never_end_lock_nobody_out(process, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", f"/CN={IDENTITY.host}", "-addext", f"subjectAltName=DNS:{IDENTITY.host}", "-keyout", str(key),
         "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    key.chmod(0o600)
    limited = process(256, certificate, key)
    with ExitStack() as opened:
        for opening in (b"", b"\x16\x03\x01\x02\x00\x01"):
            for _ in range(200):
                opened.enter_context(dial(limited.port, opening))
        context = ssl.create_default_context(cafile=str(certificate))
        context.check_hostname = False
        with owner(limited.port, "https", verify=context) as client:
            logs_in(client)
    assert len(limited.log.read_text().splitlines()) < 50
