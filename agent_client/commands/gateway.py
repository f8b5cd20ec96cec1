"""`agent-client gateway`: HTTP APIs in front of a runtime."""

from __future__ import annotations

from pathlib import Path

from radixloop.tenants import BadKeyFile

from ..access import Access
from .failures import FAILED, USAGE, say


def run(target: str, host: str, port: int, aliases: list[str], keys: Path | None, access: Access | None = None) -> int:
    try:
        from ..gateway import read_tenants, serve
    except ImportError as error:
        say(f"the gateway needs the package {error.name}: pip install 'radixloop[gateway]'")
        return USAGE
    try:
        tenants = None if keys is None else read_tenants(keys)
    except BadKeyFile as error:
        say(str(error))
        return USAGE
    if tenants is None and host not in ("127.0.0.1", "::1", "localhost"):
        say(f"listening at {host} without --keys: whoever reaches this address may use the model")
    say(f"http://{host}:{port} answers for the runtime at {target}; Ctrl-C ends it")
    try:
        serve(target, host, port, aliases, tenants, access)
    except SystemExit as ended:
        return FAILED if ended.code else 0
    except KeyboardInterrupt:
        return 0
    return 0
