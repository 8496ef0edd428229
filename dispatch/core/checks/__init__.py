"""Check the configuration for mistakes and dangers; each check has an id and a hint.

`connectivity`: checks that contact the servers. `manage.py check --database default` (and `migrate`) run them.
`environment`: checks of the environment, tagged `ENVIRONMENT`. Every process runs them before it works.
"""

from dispatch.core.checks.connectivity import connection_limits, servers
from dispatch.core.checks.environment import (
    addresses,
    called_addresses,
    called_networks,
    development,
    given_servers,
    keys,
    named,
    production,
    retention_days,
    timeouts,
    trusted_proxies,
)

__all__ = [
    "addresses",
    "called_addresses",
    "called_networks",
    "connection_limits",
    "development",
    "given_servers",
    "keys",
    "named",
    "production",
    "retention_days",
    "servers",
    "timeouts",
    "trusted_proxies",
]
