"""Test rules on permission requests of agents that write the same thing in many forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from midwatch.agents.acp.questions import make_question, read_options
from midwatch.agents.acp.updates import Transcript
from midwatch.domain.rule import Decision, Level, Policy
from midwatch.services.rule_decision import decide

OPTIONS = read_options([{"optionId": "y", "name": "Yes", "kind": "allow_once"}])
PATH = {"default": "allow", "deny": [{"path": "secret/**"}]}
EDIT = {"default": "allow", "deny": [{"kind": "edit"}]}
PUSH = {"default": "allow", "deny": [{"command": "git push **"}]}
TOOL = {"default": "allow", "deny": [{"tool": "write_file"}, {"tool": "github/push"}]}
HOST = {"default": "allow", "deny": [{"host": "evil.example"}]}
NARROW = {"default": "ask", "allow": [{"kind": "edit", "path": "ok/**"}, {"kind": "read"}, {"command": "ls *"}]}
OK = [{"path": "{root}/ok/a"}]


def judge(root: Path, policy: dict[str, Any], *messages: dict[str, Any]) -> Decision:
    """Return the decision about the last message, a permission request; the others are updates of the same call."""

    def fill(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace("{root}", str(root))
        if isinstance(value, dict):
            return {fill(key): fill(item) for key, item in value.items()}
        return [fill(item) for item in value] if isinstance(value, list) else value

    transcript = Transcript("m")
    *updates, request = [{"toolCallId": "1", **fill(message)} for message in messages]
    for update in updates:
        transcript.update({"sessionUpdate": "tool_call", **update})
    tool, _ = transcript.ask_for(request)
    question = make_question(tool, OPTIONS, str(root))
    return decide(question, str(root), [Level("agent", Policy.from_data(policy))], "it")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("secret", "ok"):
        (tmp_path / name).mkdir()
    return tmp_path.resolve()


def edit(**fields: Any) -> dict[str, Any]:
    return {"kind": "edit", "title": "Change a file", **fields}


def nest(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = {"more": value}
    return value


def run(**fields: Any) -> dict[str, Any]:
    return {"kind": "execute", "title": "ls", "rawInput": fields}


@pytest.mark.parametrize(
    ("policy", "messages"),
    [
        # the path is in another field than usual
        (PATH, [edit(title="Edit secret/k")]),
        (PATH, [edit(title="Edit secret/k", locations=OK)]),
        (PATH, [edit(locations=OK, content=[{"type": "diff", "path": "secret/k", "newText": "x"}])]),
        (PATH, [edit(locations=OK, rawInput={"command": "create", "path": "{root}/secret/k", "file_text": "x"})]),
        (PATH, [edit(locations=OK, rawInput={"edits": [{"path": "secret/k"}]})]),
        (PATH, [edit(locations=OK, rawInput={"changes": {"secret/k": {"type": "update"}}})]),
        (PATH, [edit(locations=OK, rawInput={"target_file": "secret/k"})]),
        (PATH, [edit(kind="move", locations=OK, rawInput={"source": "ok/a", "destination": "secret/k"})]),
        (PATH, [edit(locations=["{root}/secret/k"])]),
        (PATH, [edit(locations=[{"uri": "file://{root}/s%65cret/k"}])]),
        (PATH, [edit(locations=[{"path": "secret/k:12"}])]),
        (PATH, [edit(locations=[{"path": f"ok/{n}"} for n in range(60)] + [{"path": "secret/k"}])]),
        (PATH, [edit(locations=[{"path": "k"}], rawInput={"path": "k", "cwd": "{root}/secret"})]),
        (PATH, [{"kind": "other", "title": "Do it", "rawInput": {"uri": "file://{root}/secret/k"}}]),
        (PATH, [{"kind": "other", "title": "Go on"}]),
        (PATH, [{}]),
        # the path was in an earlier message about the call
        (PATH, [edit(locations=[{"path": "secret/k"}]), {}]),
        (PATH, [edit(locations=[{"path": "secret/k"}]), {"locations": OK, "rawInput": {"path": "ok/a"}}]),
        (PATH, [edit(rawInput={"files": [f"ok/{n}" for n in range(60)] + ["secret/k"]}), {}]),
        (PATH, [{"title": "x", "rawInput": {"script": "x" * 3000 + " secret/k"}}, {}]),
        (PATH, [{"title": "x", "rawInput": {"a": {"b": {"c": {"d": {"e": "secret/k"}}}}}}, {}]),
        (PATH, [{"title": "x", "rawInput": {"script": "x" * 90_000 + " secret/k"}}, {}]),
        (PATH, [{"title": "x", "rawInput": {"n": [0] * 10_000, "script": "cat secret/k"}}, {}]),
        (PATH, [{"title": "x", "rawInput": nest("secret/k", 300)}, {}]),
        (PATH, [edit(locations=OK, rawInput={"path": "ok/a", "x": nest("secret/k", 30)})]),
        (PATH, [edit(locations=OK, rawInput={"path": "ok/a", "x": nest("secret/k", 300)})]),
        (PUSH, [run(command="ls", input=nest("git push", 30))]),
        # another field has the command
        (PATH, [run(command="cat k", working_dir="{root}/secret")]),
        (PATH, [run(script="cat secret/k")]),
        (PATH, [{**run(), "rawInput": "cat secret/k"}]),
        (PATH, [{**run(), "rawInput": ["cat", "secret/k"]}]),
        (PATH, [run(command="cat", arguments=["secret/k"])]),
        (PUSH, [run(command="ls", cmd="git push")]),
        (PUSH, [run(command="sh", stdin="git push")]),
        (PUSH, [run(input={"command": "git push"})]),
        (PUSH, [{"kind": "read", "title": "x", "rawInput": {"command": "git push"}}]),
        (PUSH, [{"kind": "execute", "title": "`git push`"}]),
        (PUSH, [{"kind": "execute", "title": "Publish the branch"}]),
        (PUSH, [run(command="x" * 60_000), {"title": "ls"}]),
        # another kind, or none
        (EDIT, [{"kind": "other", "title": "Do it", "rawInput": {"path": "ok/a", "content": "x"}}]),
        (EDIT, [{"kind": "other", "title": "write_file", "rawInput": {"p": "ok/a"}}]),
        (EDIT, [{"kind": "write", "title": "Do it", "rawInput": {"path": "ok/a"}}]),
        (EDIT, [{"kind": ["edit"], "title": "Do it", "rawInput": {"path": "ok/a"}}]),
        (EDIT, [{"kind": "read", "title": "x", "content": [{"type": "diff", "path": "ok/a", "newText": "x"}]}]),
        (EDIT, [{"kind": "read", "title": "x", "name": "write_file", "rawInput": {"path": "ok/a"}}]),
        # the name of the tool
        (TOOL, [edit(title="src/a.py", locations=OK)]),
        (TOOL, [edit(title="Write File", locations=OK)]),
        (TOOL, [{"kind": "other", "title": "fs_write_file", "rawInput": {"path": "ok/a"}}]),
        (TOOL, [{"kind": "other", "title": "my-fs-write-file", "rawInput": {"path": "ok/a"}}]),
        (TOOL, [{"title": "call_mcp_tool", "rawInput": {"server": "github", "tool": "push"}}]),
        (HOST, [{"kind": "other", "title": "Open https://evil.example/x"}]),
        (HOST, [{"kind": "fetch", "title": "x", "rawInput": {"command": "get", "url": "https://evil.example"}}]),
        # rules that allow
        (NARROW, [edit(locations=OK, rawInput={"destination": "secret/k"})]),
        (NARROW, [edit(locations=OK, rawInput={"command": "rm -rf /"})]),
        (NARROW, [{"kind": "read", "title": "x", "locations": OK, "rawInput": {"command": "rm -rf /"}}]),
        (NARROW, [{"kind": "read", "title": "x", "content": [{"type": "diff", "path": "k", "newText": "x"}]}]),
        (NARROW, [run(command="ls a", cmd="rm -rf /")]),
        (NARROW, [run(script="rm -rf /")]),
    ],
)
def test_what_a_rule_denies_is_not_allowed_in_any_form(
    root: Path, policy: dict[str, Any], messages: list[dict[str, Any]]
) -> None:
    assert judge(root, policy, *messages).effect in ("ask", "deny")


DIFF = [{"type": "diff", "path": "{root}/ok/a", "oldText": "secret/k", "newText": "git push"}]
USUAL = [
    {
        "kind": "execute", "title": "`ls a`", "_meta": {"claudeCode": {"toolName": "Bash"}},
        "rawInput": {"command": "ls a", "description": "List a", "timeout": 1000},
    },
    {
        "kind": "execute", "title": "ls a",
        "rawInput": {
            "command": ["bash", "-lc", "ls a"], "cwd": "{root}", "call_id": "c", "turn_id": "3", "available": ["yes"],
            "parsed_cmd": [{"type": "list_files", "cmd": "ls a", "path": "a"}], "reason": "to see what is there",
        },
    },
    {"kind": "execute", "title": "ls a"},
    {
        "kind": "edit", "title": "Edit `{root}/ok/a`", "locations": OK, "content": DIFF,
        "rawInput": {"file_path": "{root}/ok/a", "old_string": "secret/k", "new_string": "git push"},
    },
    {"kind": "edit", "title": "edit", "locations": OK, "rawInput": {"filepath": "{root}/ok/a", "diff": "+x\n-y\n"}},
    {"kind": "edit", "title": "Write ok/a", "content": DIFF},
    {"kind": "read", "title": "Read ok/a", "locations": OK, "rawInput": {"path": "ok/a", "limit": 10}},
]  # fmt: skip


@pytest.mark.parametrize("request_", USUAL)
@pytest.mark.parametrize("policy", [PATH, PUSH, HOST, NARROW])
def test_usual_requests_are_not_asked(root: Path, policy: dict[str, Any], request_: dict[str, Any]) -> None:
    assert judge(root, policy, request_).effect == "allow"
    earlier = {**request_, "status": "pending"}
    assert judge(root, policy, earlier, {"title": request_["title"]}).effect == "allow"
