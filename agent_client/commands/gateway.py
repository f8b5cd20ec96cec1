"""`agent-client gateway`: HTTP APIs in front of runtimes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from radixloop.tenants import BadKeyFile

from ..access import Access
from .failures import FAILED, INTERRUPTED, USAGE, say


def run(
    targets: Sequence[str],
    host: str,
    port: int,
    *,
    aliases: Sequence[str] = (),
    keys: Path | None = None,
    cert: Path | None = None,
    key: Path | None = None,
    insecure: bool = False,
    access: Access | None = None,
) -> int:
    try:
        from ..gateway import NotSafe, check_listening, read_tenants, serve
    except ImportError as error:
        say(f"the gateway needs the package {error.name}: pip install 'radixloop[gateway]'")
        return USAGE
    try:
        check_listening(host, cert, key, keys=keys is not None, insecure=insecure)
        tenants = None if keys is None else read_tenants(keys)
    except (BadKeyFile, NotSafe) as error:
        say(str(error))
        return USAGE
    scheme, shown = "http" if cert is None else "https", f"[{host}]" if ":" in host else host
    behind = f"the runtime at {targets[0]}" if len(targets) == 1 else f"the runtimes at {', '.join(targets)}"
    say(f"{scheme}://{shown}:{port} answers for {behind}; Ctrl-C ends it")
    try:
        serve(targets, host, port, aliases, tenants, access, cert=cert, key=key)
    except OSError as error:
        if cert is None:
            raise
        say(f"{cert} and {key} are no certificate and its key, as PEM: {error}")
        return USAGE
    except SystemExit as ended:
        return FAILED if ended.code else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0
