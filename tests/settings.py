"""The settings of the tests: those of the application, in a data folder and under a Redis prefix of their own.

The environment is set first, so that processes which tests start inherit it."""

import os

_worker = os.environ.get("PYTEST_XDIST_WORKER", "")

os.environ["DISPATCH_DEVELOPMENT"] = "1"
os.environ.setdefault("DISPATCH_DATA_DIR", ".data/test")
if _worker and os.path.basename(os.environ["DISPATCH_DATA_DIR"]) != _worker:
    # each worker of a parallel run has servers of its own, which its children use too
    os.environ["DISPATCH_DATA_DIR"] = os.path.join(os.environ["DISPATCH_DATA_DIR"], _worker)
os.environ["REDIS_PREFIX"] = f"test-{_worker or 'main'}-{os.getpid()}:"
os.environ["DB_POOL_SIZE"] = "0"  # the pool below is of this process; its children choose for themselves
os.environ.setdefault("LOG_LEVEL", "WARNING")
os.environ.setdefault("REDIS_TIMEOUT_S", "20")  # a machine that stands still is no outage

from dispatch.settings import *  # noqa: E402, F403
from dispatch.settings import DATABASES  # noqa: E402

# As in the web process, connections outlive their requests in a pool; it is closed before the database is dropped.
DATABASES["default"]["CONN_MAX_AGE"] = 0
DATABASES["default"].setdefault("OPTIONS", {})["pool"] = {
    "min_size": 1,
    "max_size": 60,
    "max_idle": 5,
    "timeout": 60,
}
# Nobody pulls the plug on the test database's server; killed *processes* lose nothing by this.
DATABASES["default"]["OPTIONS"]["options"] = "-c synchronous_commit=off"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
