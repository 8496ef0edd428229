"""Configure the tests: the application's settings, with a separate data folder and Redis prefix.

The environment is set first, so that child processes of tests inherit it.
"""

import os
from pathlib import Path

_worker = os.environ.get("PYTEST_XDIST_WORKER", "")

os.environ["DISPATCH_DEVELOPMENT"] = "1"
os.environ.setdefault("DISPATCH_DATA_DIR", ".data/test")
if _worker and os.path.basename(os.environ["DISPATCH_DATA_DIR"]) != _worker:
    # each worker of a parallel run has dedicated servers, which its children use too
    os.environ["DISPATCH_DATA_DIR"] = os.path.join(os.environ["DISPATCH_DATA_DIR"], _worker)
    os.environ.update({"DATABASE_URL": "", "REDIS_URL": ""} if os.environ.pop("DISPATCH_EMBEDDED", "") else {})
os.environ["REDIS_PREFIX"] = f"test-{_worker or 'main'}-{os.getpid()}:"
os.environ["DB_POOL_SIZE"] = "0"  # the pool below is for this process; its children choose for themselves
os.environ.setdefault("LOG_LEVEL", "WARNING")
os.environ["OSRM_URL"] = ""
os.environ["MAP_TILES_URL"] = ""  # tests load nothing from other hosts
os.environ.setdefault("REDIS_TIMEOUT_S", "20")  # a slow machine is not an outage

from dispatch.dev.embedded_servers import start_missing_servers  # noqa: E402

start_missing_servers(os.environ, Path(".data/test"))

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
# Power cuts of the test database's server are not tested; killed *processes* lose nothing by this.
DATABASES["default"]["OPTIONS"]["options"] = "-c synchronous_commit=off"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
PROVIDER_LOST_AFTER_S = 0.0  # there is no other host whose report could be awaited
