"""The architecture, held by a test: reading order is import order, edges are strangers, nothing grows large."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import midwatch

SOURCE = Path(midwatch.__file__).parent
ROOT = SOURCE.parent.parent

ORDER = (
    "errors", "clock", "trace",
    "schedule", "event", "budget", "session", "channel", "change", "notifications", "submission",
    "task", "step", "steering", "worktree", "tasks", "worktrees", "state", "usage", "spending", "sessions", "history",
    "handoff", "agent", "commandline", "risk", "rule", "approval", "identity", "automation", "goal", "rules",
    "automations", "snapshots", "goals", "awaiting", "engine", "roster", "handoffs", "handover", "settlement", "alert",
    "alerts", "store", "home",
    "slots", "giving", "turn", "verdict", "conversations", "waiting", "run", "worker", "lookout", "courier", "watchdog",
    "scheduler", "routines", "subscriptions", "hooks", "partial", "relay", "terminals", "bus", "telemetry",
    "stores", "engines",
    "agents", "channels", "config", "loopback", "runtime", "backup", "testing", "wire", "api", "client", "cli",
    "__main__",
)  # fmt: skip
"""Reading order. A module imports only from names that stand before its own."""

NOUNS = (
    "errors",
    "clock",
    "schedule",
    "event",
    "budget",
    "session",
    "channel",
    "change",
    "submission",
    "task",
    "step",
    "steering",
    "worktree",
    "tasks",
    "worktrees",
    "agent",
    "approval",
    "identity",
    "automation",
    "goal",
    "history",
    "handoff",
    "automations",
    "snapshots",
    "goals",
    "awaiting",
    "roster",
    "handoffs",
    "handover",
    "settlement",
    "alert",
    "alerts",
    "engine",
)
PURE = ("cronsim",)
"""Packages that nouns may import: they compute and touch nothing."""
LOOPS = ("courier", "watchdog", "scheduler", "routines", "hooks")
EDGES = ("stores", "engines", "agents", "channels")
MEETING_PLACES = ("runtime", "testing", "wire", "api", "client", "cli")
NAMELESS = (*NOUNS, "store", "slots", "turn", "worker", "partial", "relay", "terminals", "bus", "subscriptions", *LOOPS)
"""These work with any store and any engine, so they name none."""
FORBIDDEN_WORDS = ("sqlite", "postgres", "psycopg", "procrastinate", "embedded")

MOST_LINES, MOST_FUNCTION_LINES = 600, 60

FILES = sorted(SOURCE.rglob("*.py"))


def part(path: Path) -> str:
    """The first name below the package: a module or an edge folder."""
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every module a file imports, absolute or relative, wherever in the file, with its line."""
    package = ("midwatch", *path.relative_to(SOURCE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            if module == "midwatch":
                for name in node.names:
                    yield node.lineno, f"midwatch.{name.name}"
            else:
                yield node.lineno, module


def ours(path: Path) -> Iterator[tuple[int, str]]:
    """The parts of midwatch a file imports."""
    for line, module in imports(path):
        names = module.split(".")
        if names[0] == "midwatch" and len(names) > 1:
            yield line, names[1]


def test_every_module_has_its_place_in_the_order() -> None:
    assert {part(path) for path in FILES} - {"__init__"} == set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_upwards_in_the_reading_order(path: Path) -> None:
    if part(path) == "__init__":
        return
    place = ORDER.index(part(path))
    for line, name in ours(path):
        if name in ("__version__", part(path)):
            continue
        assert ORDER.index(name) < place, f"{path.name}:{line} imports midwatch.{name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_edges_and_loops_meet_only_in_the_composition(path: Path) -> None:
    apart = (*EDGES, *LOOPS)
    if part(path) not in apart:
        return
    for line, name in ours(path):
        assert name == part(path) or name not in apart, f"{path}:{line} imports midwatch.{name}"


def test_nouns_import_no_third_party_package() -> None:
    for path in FILES:
        if part(path) in (*NAMELESS, "home"):
            for line, module in imports(path):
                top = module.split(".")[0]
                allowed = top in ("midwatch", *PURE) or top in sys.stdlib_module_names
                assert allowed, f"{path.name}:{line} imports {module}"


def test_worker_nouns_and_loops_name_no_store_and_no_engine() -> None:
    for path in FILES:
        if part(path) in NAMELESS:
            text = path.read_text().lower()
            for word in FORBIDDEN_WORDS:
                allowed = text.count("the embedded engine") if path.name == "engine.py" and word == "embedded" else 0
                assert text.count(word) == allowed, f"{path.name} says {word}"


def test_sql_is_only_in_the_stores() -> None:
    for path in FILES:
        if part(path) != "stores":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    start = node.value.lstrip()[:12]
                    assert not start.startswith(("SELECT ", "INSERT INTO", "UPDATE ", "DELETE FROM", "CREATE TABLE"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_nothing_grows_large(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < MOST_FUNCTION_LINES, f"{path.name}: {node.name} is too long"


def test_ports_are_documented_method_by_method() -> None:
    """A protocol that others implement is a contract; a private one next to its user may be bare."""
    for name in ("clock", "event", "session", "channel", "task", "agent", "approval", "identity", "engine",
        "automation", "goal", "alert", "state", "usage", "relay",
    ):  # fmt: skip
        file = SOURCE / f"{name}.py"
        for node in ast.parse((file if file.exists() else SOURCE / name / "__init__.py").read_text()).body:
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases):
                assert ast.get_docstring(node), f"{name}.{node.name}"
                for method in node.body:
                    if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "Timer":
                        assert ast.get_docstring(method), f"{name}.{node.name}.{method.name}"


def test_public_names_are_frozen() -> None:
    """Adding or removing one is a decision: change this list with the changelog."""
    assert sorted(midwatch.__all__) == [
        "Agent", "AgentCapability", "AgentError", "Answer", "Approval", "Channel", "Client", "Conflict", "Conversation",
        "Delivery", "Event", "EventFilter", "InvalidInput", "Message", "MidwatchError", "NotFound", "Runtime",
        "Session", "Settings", "Summary", "Task", "TaskFilter", "TransientError", "Turn", "TurnResult", "Usage",
        "__version__",
    ]  # fmt: skip
    for name in midwatch.__all__:
        assert getattr(midwatch, name) is not None


def test_javascript_lines_are_short() -> None:
    for path in (path for folder in (SOURCE, ROOT / "tests") for path in folder.rglob("*.js")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert len(line) <= 120, f"{path.relative_to(ROOT)}:{number} has {len(line)} characters"
