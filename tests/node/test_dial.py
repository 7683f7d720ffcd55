"""The listener at the master's port answers only its own launch."""

import socket
import threading

from backend.node.checks import dial


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


def test_a_caller_of_another_launch_gets_no_answer_and_does_not_end_the_listening() -> None:
    port = _free_port()
    own = {"address": "127.0.0.1", "port": port, "seconds": 10.0, "word": "node0"}
    expected = {"port": port, "seconds": 10.0, "words": ["node0", "node1"], "dial": own}
    answers = []
    listener = threading.Thread(target=lambda: answers.append(dial.listen(expected)))
    listener.start()
    strangers = [dial.dial({**own, "word": f"stranger{number}"}) for number in range(3)]
    assert [answer["reached"] for answer in strangers] == [False] * 3
    assert dial.dial({**own, "word": "node1"}) == {"reached": True}
    listener.join()
    assert answers == [{"bound": True, "dialled": {"reached": True}}]
