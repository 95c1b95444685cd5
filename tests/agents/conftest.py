"""Run each agent in each way and print a table of the results. In CI four agents must pass everything."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Container

import pytest

from agents.known import AGENTS, Known
from agents.rig import missing

FEWEST = 4
"""The number of agents that must pass everything in CI, each in at least one way."""
TOO_FEW_STATUS = 6
"""The exit status if there are fewer; pytest itself does not use it."""
PAIRS = [(known, way) for known in AGENTS for way in known.ways]
TERMINALS = [(known, "terminal") for known in AGENTS if known.name in ("claude", "codex", "gemini", "goose")]
RESULTS: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
"""The result of each case by agent and way."""
SIGNS = {"passed": "yes", "failed": "NO", "skipped": "-"}


def pytest_configure(config: pytest.Config) -> None:
    """Add the marks of these tests."""
    config.addinivalue_line("markers", "asks: only for ways in which an agent can ask a person")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `known` and `way` for each pair."""
    if "known" in metafunc.fixturenames:
        asks = metafunc.definition.get_closest_marker("asks") is not None
        terminals = "test_terminal" in metafunc.module.__name__
        pairs = TERMINALS if terminals else [(known, way) for known, way in PAIRS if way == "acp" or not asks]
        metafunc.parametrize(("known", "way"), pairs, ids=[f"{known.name}-{way}" for known, way in pairs])


@pytest.fixture(autouse=True)
def installed(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """Record the agent in the report of its test, and skip the test if it is not installed."""
    known, way = request.getfixturevalue("known"), request.getfixturevalue("way")
    assert isinstance(known, Known)
    record_property("case", [known.name, way, request.node.originalname.removeprefix("test_")])
    if problem := missing(known, way):
        pytest.skip(problem)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the worst result of a test's phases. The report may come from another process."""
    for name, value in report.user_properties:
        if name == "case" and (report.when == "call" or report.outcome != "passed"):
            agent, way, case = value
            RESULTS[agent, way][case] = report.outcome


def passed_all(agent: str, *, terminal: bool = False, states: Container[str] = ("passed",)) -> bool:
    """Return whether all cases of an agent ended in one of the states, in one way or in its terminal."""
    ways = [cases for (name, way), cases in RESULTS.items() if name == agent and (way == "terminal") is terminal]
    return any(cases and all(state in states for state in cases.values()) for cases in ways)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the results of each version of each agent."""
    cases = sorted({case for results in RESULTS.values() for case in results})
    line = terminalreporter.write_line
    line(f"{'agent':<10}{'version':<10}{'way':<10}" + "".join(f"{case[:22]:<24}" for case in cases))
    for known, way in (*PAIRS, *TERMINALS):
        results = RESULTS.get((known.name, way), {})
        signs = (SIGNS.get(results.get(case, "skipped"), "?") for case in cases)
        line(f"{known.name:<10}{known.version:<10}{way:<10}" + "".join(f"{sign:<24}" for sign in signs))
    good = [known.name for known in AGENTS if passed_all(known.name)]
    line(f"{len(good)} agents pass everything: {', '.join(good) or 'none'}.")
    good = [known.name for known in AGENTS if passed_all(known.name, terminal=True)]
    line(f"{len(good)} agents pass everything in their terminal: {', '.join(good) or 'none'}.")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail in CI if too few agents pass, also when nothing else failed. A failed case has its own report, and may pass
    when it is run again.
    """
    some = session.config.option.keyword or any("::" in name for name in session.config.args)
    enforced = os.environ.get("CI") and not hasattr(session.config, "workerinput") and not some
    tried = ("passed", "failed")
    counts = [sum(passed_all(known.name, terminal=at, states=tried) for known in AGENTS) for at in (False, True)]
    if enforced and min(counts) < FEWEST:
        session.exitstatus = TOO_FEW_STATUS
