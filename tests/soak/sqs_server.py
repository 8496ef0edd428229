"""Run moto's SQS so that a request does not cost more with each message on the queue.

moto counts all messages ten times for each one sent, and builds two dates for each message counted. With 700
messages a batch of ten took seconds, longer than a received pointer stays hidden, so that pointers came back
before they could be acknowledged, and the queue only grew.
"""

from __future__ import annotations

import time
from typing import Any

from moto.server import main
from moto.sqs import models


def _count(queue: Any) -> int:
    return len(queue._messages)


models.unix_time = time.time
models.unix_time_millis = lambda: time.time() * 1000
for name in ("", "_delayed", "_not_visible"):  # nobody asks for these counts here
    setattr(models.Queue, f"approximate_number_of_messages{name}", property(_count))

if __name__ == "__main__":
    main()
