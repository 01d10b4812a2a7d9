"""A pytest fixture that tests estimators, with one level for a whole session.

Nothing but pytest is imported before a test asks for the fixture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

FIXTURE, PROPERTY = "unbiased", "elbocheck"
COUNT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("elbocheck", "statistical tests of estimators")
    group.addoption("--elbocheck-seed", type=int, default=0, help="of all draws")
    group.addoption(
        "--elbocheck-level",
        type=float,
        default=1e-4,
        help="probability that any right estimator of the session is called biased, at most",
    )
    group.addoption(
        "--elbocheck-seconds", type=float, default=30.0, help="of drawing, at most, of each check"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The level is shared by the tests that ask for the fixture."""
    asking = [item for item in items if FIXTURE in getattr(item, "fixturenames", ())]
    config.stash[COUNT] = max(1, len(asking))


@pytest.fixture
def unbiased(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """A function like :func:`elbocheck.check`, which fails the test where the verdict is not
    "unbiased"; a test calls it once. Each test has its part of the session's level
    (``--elbocheck-level``), and the seed and seconds of the session.
    """
    from elbocheck import check

    config, count = request.config, request.config.stash[COUNT]

    def run(program: Any, reference: Any = None, **options: Any) -> Any:
        defaults = {
            "level": config.getoption("elbocheck_level") / count,
            "seed": config.getoption("elbocheck_seed"),
            "max_seconds": config.getoption("elbocheck_seconds"),
        }
        report = check(program, reference, **(defaults | options))
        worst = max(report.comparisons, key=lambda c: abs(c.z))
        draws = report.comparisons[0].num_draws
        row = (report.verdict, report.p_value, worst.z, draws, report.seconds)
        request.node.user_properties.append((PROPERTY, row))
        return report.assert_unbiased()

    return run


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """A table of all checks; those that Holm's procedure rejects beside are marked."""
    rows = [
        (report.nodeid, *row)
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        for name, row in report.user_properties
        if name == PROPERTY and report.when == "call"
    ]
    if not rows:
        return
    level = config.getoption("elbocheck_level")
    rows.sort(key=lambda row: row[2])
    terminalreporter.section(f"elbocheck: {len(rows)} checks at a level of {level:g} together")
    rejecting = True
    for rank, (test, verdict, p, z, draws, seconds) in enumerate(rows):
        rejecting = rejecting and p <= level / (len(rows) - rank)
        beside = ", biased (Holm)" if rejecting and verdict != "biased" else ""
        terminalreporter.line(
            f"{verdict + beside:10}  p {p:8.2g}  z {z:8.1f}  {draws:7,} draws  {seconds:6.1f} s  "
            f"{test}"
        )
