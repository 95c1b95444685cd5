"""The dialogs of codex, and how they are provoked."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from agents.scenarios.claude import SCRIPT, TRICK
from agents.scenarios.common import LONG, PROJECT, RM, call
from agents.scenarios.scenario import Scenario
from repositories import a_repository, git

MENU = r"› 1\. "
PATCH = """apply_patch <<'EOF'
*** Begin Patch
*** Update File: notes.txt
@@
 one
-two
+2
 three
*** Add File: new.txt
+alpha
*** End Patch
EOF"""

Asking = partial(Scenario, args=("-a", "on-request"), files=PROJECT, shows=MENU)
shell = partial(call, "exec_command", sandbox_permissions="require_escalated", justification="May I?")


def _update(home: Path, _: Path, __: str) -> None:
    config = home / ".codex" / "config.toml"
    config.write_text(config.read_text().replace("check_for_update_on_startup = false\n", ""))
    found = '{"latest_version":"99.0.0","last_checked_at":"2199-01-01T00:00:00Z","dismissed_version":null}\n'
    (home / ".codex" / "version.json").write_text(found)


def _repository(_: Path, work: Path, __: str) -> None:
    git(work, "init", "--quiet")


def _worktree(home: Path, work: Path, _: str) -> None:
    repository = a_repository(home / "repository")
    git(repository, "worktree", "add", "--quiet", str(work))


SCENARIOS: tuple[Scenario, ...] = (
    Asking(kind="command", script=shell(cmd="touch made.txt")),
    Asking(kind="long-command", script=shell(cmd=LONG)),
    Asking(kind="script", script=shell(cmd=SCRIPT)),
    Asking(kind="trick", script=shell(cmd=TRICK)),
    Asking(kind="tab", script=shell(cmd="touch a\tb", prefix_rule=["touch", "ab"])),
    Asking(kind="rm", script=shell(cmd=RM)),
    Asking(kind="tall-command", script=shell(cmd="\n".join(f"touch file-{n}" for n in range(60)))),
    Asking(
        kind="edit",
        args=("-s", "read-only", "-a", "on-request"),
        script=call("exec_command", cmd=PATCH),
    ),
    Asking(kind="update", prepare=_update),
    Asking(kind="trust", prepare=_repository),
    Asking(kind="trust-worktree", files={}, prepare=_worktree),
)
MISSING: dict[str, str] = {
    "write": "a new file is a patch, see edit",
    "fetch": "codex has no tool that fetches",
    "mcp": "the fake model cannot name a tool of a server the way codex expects it",
    "plan": "codex shows a plan without a question",
    "theme": "codex does not ask for a theme",
    "telemetry": "codex asks nothing about telemetry",
}
