"""Test the completion of commands in a shell."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from midwatch.cli.main import execute

BEGUN = {
    "su": ["submit"],
    "automation ad": ["add"],
    "agents a": ["add"],
    "tasks --st": ["--status"],
    "automation add --ev": ["--every"],
    "tasks --status ": ["pending", "running", "done", "failed", "cancelled"],
    "tasks --status=f": ["failed"],
    "approvals -s g": ["granted"],
    "usage --by a": ["actor", "agent"],
    "token create --role o": ["operator", "owner"],
    "submit - --pri": ["--priority"],
    "tasks --limit wrong --cr": ["--creator"],
    "completion z": ["zsh"],
    "nonsense --ver": ["--version"],
}


@pytest.mark.parametrize("line", BEGUN)
def test_a_shell_can_complete_commands_options_and_values(line: str) -> None:
    words = f"midwatch {line}"
    env = {
        **os.environ,
        "_MIDWATCH_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    with subprocess.Popen(  # its standard input stays open: a completion must not read it
        [sys.executable, "-m", "midwatch"], env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.wait(30) == 0
        assert program.stdout is not None
        assert program.stdout.read().split() == [f"plain,{found}" for found in BEGUN[line]]


def test_bash_completes_with_the_script() -> None:
    script = """
    source <(midwatch completion)
    for line in "midwatch sub" "midwatch tasks --stat" "midwatch tasks --status fai"; do
        COMP_WORDS=($line) COMPREPLY=()
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _midwatch_completion midwatch
        echo "${COMPREPLY[@]}"
    done
    complete -p midwatch
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "SHELL": "/bin/bash"}
    result = subprocess.run(["bash", "--norc", "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert result.stderr == ""
    assert result.stdout.splitlines() == [
        "submit", "--status", "failed", "complete -o nosort -F _midwatch_completion midwatch",
    ]  # fmt: skip


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(shell: str, capsys, monkeypatch) -> None:
    monkeypatch.setenv("SHELL", f"/usr/local/bin/{shell}")
    assert execute(["completion"]) == execute(["completion", shell, "--json"]) == 0
    script, _, answer = capsys.readouterr().out.rstrip().rpartition("\n")
    assert f"_MIDWATCH_COMPLETE={shell}_complete" in script
    assert json.loads(answer)["shell"] == shell
    assert json.loads(answer)["script"].strip() == script.strip()


@pytest.mark.parametrize(("shell", "says"), [("/bin/dash", "the shell 'dash'"), ("", "$SHELL is not set")])
def test_an_unknown_shell_must_be_named(shell: str, says: str, capsys, monkeypatch) -> None:
    monkeypatch.setenv("SHELL", shell)
    assert execute(["completion", "--json"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    error = json.loads(output.err)["error"]
    assert error["code"] == "invalid_input"
    assert says in error["message"]
    assert "midwatch completion bash" in error["message"]
