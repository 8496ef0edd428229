"""Benchmarks: `make bench`, or `make bench SUITE=core`. Each module here that has `run()` is a suite of its name.

`run()` yields Result rows; the database is fresh and separate, on the servers that the tests use.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """One figure of a benchmark.

    `target` is such as ">= 10000" or "<= 5", or empty. `peer` names the product or machine that a comparison
    figure is of.
    """

    name: str
    value: float
    unit: str
    target: str = ""
    peer: str = ""

    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        if not self.target:
            return None
        sign, _, bound = self.target.partition(" ")
        limit = float(bound.replace(",", ""))
        return {">=": self.value >= limit, "<=": self.value <= limit, "<": self.value < limit}[sign]
