"""Test the architecture: rooms, sizes, ports and public names. `make lint` checks the imports."""

from __future__ import annotations

import ast
import gc
import graphlib
from pathlib import Path

import grimp
import pytest

import midwatch

SOURCE = Path(midwatch.__file__).parent
ROOT = SOURCE.parent.parent

ROOMS = (
    "base", "domain", "wire", "services", "running", "programs", "live", "loops", "channels", "agents", "engines",
    "stores", "desk", "client", "api", "runtime", "testing", "cli",
)  # fmt: skip
"""The contracts of import-linter in `pyproject.toml` define which room imports which; `make lint` checks them."""

ANY_STORE = ("base", "domain", "services", "running", "loops", "live")
"""Rooms that work with any store and any engine, so they name none."""
FORBIDDEN_WORDS = ("sqlite", "postgres", "psycopg", "procrastinate", "embedded")
ALLOWED = ("the embedded engine", '"sqlite", "sqlite3"')
"""A general word, and the names of programs that agents run."""

MOST_LINES, MOST_FUNCTION_LINES, MOST_ENTRIES, MOST_IMPORTS = 600, 60, 20, 25

FILES = sorted(SOURCE.rglob("*.py"))


def parse(text: str) -> ast.Module:
    """Parse a module. In Python 3.11 the parser fails if the collector ends a task of another test meanwhile."""
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        gc.enable()


def room(path: Path) -> str:
    """Return the first name below the package: a room, or a module at the top."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def test_the_package_has_the_documented_rooms_and_no_others() -> None:
    entries = {entry.name for entry in SOURCE.iterdir() if entry.name not in ("__pycache__", "py.typed")}
    assert entries == {*ROOMS, "__init__.py", "__main__.py"}
    assert len(entries) <= MOST_ENTRIES


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_docstring_describes_its_content(name: str) -> None:
    lines = (ast.get_docstring(parse((SOURCE / name / "__init__.py").read_text())) or "").splitlines()
    what, _, imports, apart = lines
    assert what.endswith(".") and imports.startswith("Imports ") and apart.startswith("Not here: ")


def test_imports_have_no_cycles_and_are_few() -> None:
    """Imports for type checking count, and so do those between a package and its own modules."""
    graph = grimp.build_graph("midwatch", cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    graphlib.TopologicalSorter(imports).prepare()
    assert [name for name, modules in imports.items() if len(modules) > MOST_IMPORTS] == []


def test_rooms_independent_of_the_store_name_no_store() -> None:
    for path in FILES:
        if room(path) in ANY_STORE:
            text = path.read_text().lower()
            for allowed in ALLOWED:
                text = text.replace(allowed, "")
            for word in FORBIDDEN_WORDS:
                assert word not in text, f"{path.relative_to(SOURCE)} says {word}"


def test_only_the_stores_contain_sql() -> None:
    for path in FILES:
        if room(path) != "stores":
            for node in ast.walk(parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    start = node.value.lstrip()[:12]
                    assert not start.startswith(("SELECT ", "INSERT INTO", "UPDATE ", "DELETE FROM", "CREATE TABLE"))


def test_routes_check_no_permissions_and_read_no_store() -> None:
    """The guard is not a route: it decides which requests reach one."""
    for path in FILES:
        if room(path) == "api" and path.name != "guard.py":
            text = path.read_text()
            assert "raise Forbidden" not in text, path.name
            for node in ast.walk(parse(text)):
                assert getattr(node, "attr", None) != "store", f"{path.relative_to(SOURCE)}:{node.lineno}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_functions_and_files_are_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    for node in ast.walk(parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < MOST_FUNCTION_LINES, f"{path.name}: {node.name} is too long"


def test_every_method_of_a_port_has_a_docstring() -> None:
    """A port is a contract that others implement."""
    for path in FILES:
        if room(path) == "domain":
            for node in ast.walk(parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases):
                    assert ast.get_docstring(node), f"{path.name}: {node.name}"
                    for method in node.body:
                        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                            assert ast.get_docstring(method), f"{path.name}: {node.name}.{method.name}"


def test_the_public_names_do_not_change() -> None:
    """Adding or removing a name is a decision: change this list together with the changelog."""
    assert sorted(midwatch.__all__) == [
        "Agent", "AgentCapability", "AgentError", "AgentFault", "AgentTerms", "Answer", "Approval", "Channel", "Choice",
        "Client", "Conflict", "Conversation", "Delivery", "Event", "EventFilter", "FunctionAgent", "HandoffAgent",
        "HandoffContext", "HandoffInputData", "HandoffOptions", "HandoffTask",
        "Hook", "HookDecision", "HookMeta",
        "InvalidInput", "LlmAgent", "LoopError", "Message", "MessageDelta", "MessageUpdate", "MidwatchError",
        "NotFound", "Question", "Runtime", "ScreenUpdate", "Session", "Settings", "Summary", "Task", "TaskFilter",
        "TaskProgress", "ToolExecEnd", "ToolExecStart", "TransientError", "Turn", "TurnResult", "Usage", "__version__",
        "gate_key", "handoff_filters", "tool",
    ]  # fmt: skip
    for name in midwatch.__all__:
        assert getattr(midwatch, name) is not None


def test_javascript_lines_are_short() -> None:
    for path in (path for folder in (SOURCE, ROOT / "tests") for path in folder.rglob("*.js")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert len(line) <= 120, f"{path.relative_to(ROOT)}:{number} has {len(line)} characters"
