"""What a node tells its owner: log lines, as JSON where nobody watches."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, node, message, and whatever else the call gave."""

    def __init__(self, node: str):
        super().__init__()
        self.node = node

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "node": self.node,
            "message": record.getMessage(),
        }
        said |= {key: value for key, value in vars(record).items() if key not in STANDARD}
        if record.exc_info:
            said["trace"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str)


class Plain(logging.Formatter):
    """For people."""

    def format(self, record: logging.LogRecord) -> str:
        more = ", ".join(f"{key} {value}" for key, value in vars(record).items() if key not in STANDARD)
        return f"{time.strftime('%H:%M:%S')} {record.getMessage()}" + (f": {more}" if more else "")


def log_to(stream: Any, node: str, as_json: bool) -> None:
    """Send the log of this process there."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines(node) if as_json else Plain())
    logger = logging.getLogger("dekpca.peer")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO)
