"""The runtime's log: lines for people, or one JSON object a line for collectors."""

from __future__ import annotations

import json
import logging
import os
import sys
import time

from transformers.utils.logging import disable_progress_bar


class JsonFormatter(logging.Formatter):
    """One JSON object a record: time, level, logger, message and, where there is one, the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        shown = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            shown["traceback"] = self.formatException(record.exc_info)
        return json.dumps(shown, ensure_ascii=False)


def set_up_logging(level: str, *, as_json: bool) -> None:
    """Log to standard error. Libraries speak only from warnings upwards."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if as_json else logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    if as_json or not sys.stderr.isatty():
        # Bars are for a terminal; in a file they are noise, in JSON a broken line.
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        disable_progress_bar()  # type: ignore[no-untyped-call]
    for ours in ("runtime", "radix"):
        logging.getLogger(ours).setLevel(level.upper())
