"""Test sandboxes with agents that try to escape."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from midwatch import Runtime, Settings, Task
from midwatch.agents.registry import build
from midwatch.base.errors import BadConfig
from midwatch.programs import sandbox
from midwatch.programs.sandbox import Sandbox, build_sandbox, find_repository
from repositories import a_repository, git
from servers import PATIENCE, processes_with

REFUSED = sandbox._try_sandbox("bwrap")
pytestmark = pytest.mark.skipif(REFUSED is not None, reason=f"bubblewrap cannot be used here: {REFUSED}")

SHELL = 'kind = "command"\nargv = ["sh", "-c", "{prompt}"]\nsandbox = "bwrap"\nmax_attempts = 1\n'


class World(NamedTuple):
    """A user's home with a secret, a project in it, and midwatch's home."""

    user: Path
    project: Path
    home: Path


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    user = tmp_path / "user"
    project = a_repository(user / "project")
    (user / ".ssh").mkdir()
    (user / ".ssh" / "x").write_text("a secret key")
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    monkeypatch.setenv("MIDWATCH_LOG_LEVEL", "warning")
    return World(user, project, user / ".midwatch")


OpenDesk = Callable[..., AbstractAsyncContextManager[Runtime]]


@pytest.fixture
def open_desk(world: World) -> OpenDesk:
    """Open a desk whose agent `sh` runs in a sandbox."""

    @asynccontextmanager
    async def make(more: str = "", options: str = SHELL) -> AsyncIterator[Runtime]:
        world.home.mkdir(exist_ok=True)
        (world.home / "midwatch.toml").write_text(f"[agents.sh]\n{options}{show_own_files(options + more)}{more}")
        settings = Settings.load(world.home, shutdown_grace=0, detect_agents=False, default_agent="sh")
        async with Runtime.open(settings=settings) as desk:
            yield desk

    return make


def show_own_files(options: str) -> str:
    """Make our own files visible if they are in a directory that the sandbox replaces."""
    root = Path(__file__).parents[2]
    hidden = root.is_relative_to("/tmp") and '"bwrap"' in options and "sandbox_read" not in options
    return f'sandbox_read = ["{root}"]\n' if hidden else ""


async def run_task(desk: Runtime, prompt: str, workdir: Path, *, worktree: bool = False) -> Task:
    task = await desk.tasks.submit(prompt, workdir=str(workdir), worktree=worktree)
    async with asyncio.timeout(PATIENCE):
        return await desk.tasks.wait(task.id)


async def test_hidden_files_cannot_be_read_and_outside_files_cannot_be_written(
    open_desk: OpenDesk, world: World
) -> None:
    listening = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    tries = {
        "key": f"cat {world.user}/.ssh/x",
        "home": "ls ~",
        "settings": f"cat {world.home}/midwatch.toml",
        "token": f"cat {world.home}/token",
        "database": f"ls {world.home}",
        "etc": "echo x > /etc/midwatch-test",
        "link": "ln -s /etc/midwatch-test out; echo x > out",
        "usr": "touch /usr/midwatch-test",
        "kill": f"kill -9 {os.getpid()}",
        "see": f"ls -d /proc/{os.getpid()}",
        "around": f"echo x > {world.user}/outside; ln -s {world.user}/through l; echo x > l; echo x > /tmp/outside",
        "inside": "echo here > made; cat made",
        "network": f"{sys.executable} -c 'import socket; socket.create_connection((\"127.0.0.1\", {port})); print(9)'",
        "variables": "env | grep ^MIDWATCH_ | cut -d= -f1 | sort | tr '\\n' ' '",
    }
    script = "; ".join(
        f"printf '{name}: '; ({command}) 2>/dev/null && echo . || echo no" for name, command in tries.items()
    )
    async with open_desk() as desk, listening:
        task = await run_task(desk, script, world.project)
    assert task.result is not None, task.error
    output = task.result
    for name in ("key", "settings", "token", "etc", "link", "usr", "kill", "see"):
        assert f"{name}: no" in output, output
    for secret in ("secret", "[agents", (world.home / "token").read_text().strip()):
        assert secret not in output
    assert "home: project\n" in output, "of the home only what leads to the working directory is there"
    assert "database: ." in output, "it is empty"
    assert "inside: here" in output
    assert "network: 9" in output
    assert "variables: MIDWATCH_SESSION MIDWATCH_TASK MIDWATCH_TOKEN" in output
    assert "LOG_LEVEL" not in output
    assert not any(Path(path).exists() for path in ("/etc/midwatch-test", "/usr/midwatch-test", "/tmp/outside"))
    assert not (world.user / "outside").exists()
    assert not (world.user / "through").exists()
    assert (world.project / "made").read_text() == "here\n"


async def test_an_agent_can_commit_but_not_change_git_configuration_or_hooks(open_desk: OpenDesk, world: World) -> None:
    (world.user / ".gitconfig").write_text("[user]\nname = Bob\nemail = b@example.org\n")
    git(world.project, "config", "--unset", "user.name")
    config = (world.project / ".git" / "config").read_text()
    script = (
        "echo $MIDWATCH_TASK > x; git add x; git commit -qm x && echo committed; "
        "git config core.fsmonitor ./evil || echo kept; echo evil >> $G/config || echo kept; "
        "echo evil > $G/hooks/pre-commit || echo kept; mv $G $G.away || echo kept; git log -1 --format=%an"
    )
    async with open_desk() as desk:
        for apart in (False, True):
            task = await run_task(desk, f"G=$(git rev-parse --git-common-dir); {script}", world.project, worktree=apart)
            assert task.result == "committed\nkept\nkept\nkept\nkept\nBob", (apart, task)
            assert (world.project / ".git" / "config").read_text() == config
            assert not (world.project / ".git" / "hooks" / "pre-commit").exists()
        (tree,) = await desk.worktrees.list()
        assert git(world.project, "show", f"{tree.branch}:x") == f"{tree.task_id}/1"
        below = await run_task(
            desk, "echo y > ../y; echo y > y; git add -A; git commit -qm y; ls ..", world.project / "-sub"
        )
        assert below.result == "-sub\na.txt\nx", below
        assert git(world.project, "show", "--name-status", "--format=") == "A\t-sub/y"
        assert git(world.project, "log", "-1", "--format=%s") == "y"


async def test_a_repository_in_the_home_directory_stays_hidden(open_desk: OpenDesk, world: World) -> None:
    git(world.user, "init", "-q")
    (world.user / "plain").mkdir()
    async with open_desk() as desk:
        task = await run_task(desk, "ls -A ~; touch made", world.user / "plain")
        assert task.result == ".midwatch\nplain"
        assert (world.user / "plain" / "made").exists()


async def test_an_agent_may_write_its_whole_worktree(open_desk: OpenDesk, world: World) -> None:
    async with open_desk() as desk:
        task = await desk.tasks.submit("echo x > ../a.txt; pwd", workdir=str(world.project / "-sub"), worktree=True)
        ended_task = await desk.tasks.wait(task.id)
        worktree = ended_task.snapshot()["worktree"]
        assert ended_task.result == f"{worktree['path']}/-sub", ended_task.error
        assert (worktree["files"], worktree["added"], worktree["removed"]) == (1, 1, 2)


async def test_a_sandboxed_program_is_interrupted_and_ended_as_a_whole(open_desk: OpenDesk, world: World) -> None:
    script = "trap 'echo bye > bye; exit' INT; setsid sleep 600 & touch begun; sleep 600 & wait"
    async with open_desk() as desk:
        task = await desk.tasks.submit(script, workdir=str(world.project))
        await _exists(world.project / "begun")
        assert len(await asyncio.to_thread(processes_with, f"MIDWATCH_TASK={task.id}/1")) >= 3
        await desk.tasks.cancel(task.id)
        ended_task = await desk.tasks.wait(task.id)
        assert ended_task.outcome == "cancelled"
        assert (world.project / "bye").exists()
        assert await asyncio.to_thread(processes_with, f"MIDWATCH_TASK={task.id}/1") == []
        finished_task = await run_task(desk, "setsid sleep 600 & echo done", world.project)
        assert finished_task.result == "done"
        assert await asyncio.to_thread(processes_with, f"MIDWATCH_TASK={finished_task.id}/1") == []
        stubborn = await desk.tasks.submit(
            "trap '' INT TERM; touch deaf; sleep 600; sleep 600", workdir=str(world.project), timeout=1.0
        )
        assert (await desk.tasks.wait(stubborn.id)).outcome == "timeout"
        assert await asyncio.to_thread(processes_with, f"MIDWATCH_TASK={stubborn.id}/1") == []


async def test_no_sandboxed_process_outlives_midwatch(open_desk: OpenDesk, world: World) -> None:
    async with open_desk():
        pass
    code = (
        "import asyncio, midwatch\n"
        "async def main():\n"
        f"    async with midwatch.Runtime.open({str(world.home)!r}) as desk:\n"
        "        script = 'setsid sleep 600 & echo $MIDWATCH_TASK > new; mv new begun; sleep 600'\n"
        "        await desk.tasks.submit(script, agent='sh',\n"
        f"            workdir={str(world.project)!r})\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen((sys.executable, "-c", code))
    try:
        await _exists(world.project / "begun")
        mark = f"MIDWATCH_TASK={(world.project / 'begun').read_text().strip()}"
        assert await asyncio.to_thread(processes_with, mark)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    async with asyncio.timeout(PATIENCE):
        while await asyncio.to_thread(processes_with, mark):
            await asyncio.sleep(0.02)


async def test_an_agents_own_state_and_program_are_visible(open_desk: OpenDesk, world: World) -> None:
    program = world.user / ".local" / "bin" / "claude"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho more >> ~/.claude/state; cat ~/.claude/state ~/notes/n; echo x > ~/notes/n\n")
    program.chmod(0o755)
    for name in (".claude", "notes", "shared"):
        (world.user / name).mkdir()
    (world.user / "notes" / "n").write_text("noted\n")
    options = (
        f'kind = "command"\nargv = ["{program}"]\nsandbox = "bwrap"\nsandbox_read = ["~/notes"]\n'
        'sandbox_paths = ["~/shared"]\nok_codes = [0, 1, 2]\n'
    )
    async with open_desk(options=options) as desk:
        task = await run_task(desk, "x", world.project)
        assert task.result == "more\nnoted"
    assert (world.user / ".claude" / "state").read_text() == "more\n"
    assert (world.user / "notes" / "n").read_text() == "noted\n"


async def test_a_function_is_sandboxed_too(open_desk: OpenDesk, world: World) -> None:
    (world.user / "lib").mkdir()
    (world.user / "lib" / "mine.py").write_text(
        "import os\ndef work(prompt):\n    open('made', 'w').write('x')\n    return str(os.path.exists(prompt))\n"
    )
    options = f'kind = "function"\ntarget = "mine:work"\npath = "{world.user}/lib"\nsandbox = "bwrap"\n'
    async with open_desk(options=options) as desk:
        task = await run_task(desk, str(world.user / ".ssh"), world.project)
        assert task.result == "False", task.error
        assert (world.project / "made").exists()
        assert "problem" not in desk.agents["sh"].describe()


async def test_a_worktree_cannot_point_to_another_configuration(open_desk: OpenDesk, world: World) -> None:
    tries = ("echo /x > $a/commondir", "rm $a/commondir", "echo /x > $a/gitdir", "mv $a $a.x", "mv $c/worktrees $c/x")
    script = "a=$(git rev-parse --git-dir); c=$(git rev-parse --git-common-dir); "
    script += "".join(f"({command}) 2>/dev/null && echo done; " for command in tries)
    author = "-c user.name=a -c user.email=a@b"
    async with open_desk() as desk:
        task = await run_task(desk, f"{script} echo n > n; git add n && git {author} commit -qm n && echo well",
                          world.project, worktree=True)  # fmt: skip
    assert task.result == "well", (task.result, task.error)


async def test_an_acp_agent_is_sandboxed_too(open_desk: OpenDesk, world: World) -> None:
    options = f'kind = "acp"\nargv = ["{sys.executable}", "{Path(__file__).parents[1]}/fakes/acp_agent.py"]\n'
    async with open_desk(options=f'{options}sandbox = "bwrap"\n') as desk:
        task = await run_task(desk, "hello", world.project)
        assert task.result == "you said hello", task.error
        assert task.dir_key == str(world.project)
        task = await run_task(desk, "[[write .git/config [core]]] [[read .git/config]]", world.project)
        assert (task.result or "").count("refused: the agent runs in a sandbox") == 2, "we would read and write outside"


async def test_without_bubblewrap_nothing_runs_and_the_error_has_a_remedy(
    open_desk: OpenDesk, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(programs))
    async with open_desk() as desk:
        missing = await run_task(desk, "touch ran", world.project)
        assert missing.error == (
            'bubblewrap is missing; install it (package bubblewrap), or write agents.sh.sandbox = "none"'
        )
        assert desk.agents["sh"].describe()["problem"] == missing.error
        (programs / "bwrap").write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
        (programs / "bwrap").chmod(0o755)
        refused = await run_task(desk, "touch ran", world.project)
        assert refused.error is not None
        assert "(bwrap: No permissions to create new namespace); allow user namespaces" in refused.error
        assert "\n" not in refused.error
    assert not (world.project / "ran").exists()


async def test_a_configured_program_starts_the_sandbox(open_desk: OpenDesk, world: World) -> None:
    own = '["env", "KEPT_IN={workdir}"]'
    async with open_desk(options=SHELL.replace('"bwrap"', own)) as desk:
        task = await run_task(desk, "echo $KEPT_IN; env | grep ^MIDWATCH_LOG; true", world.project)
        assert task.result == str(world.project)
    agent = build("x", "command", {"argv": ["sh"]}, sandbox=Sandbox(agent="x", home="/h", prefix=("no-such-jail",)))
    assert "'no-such-jail' of agents.x.sandbox is missing" in agent.describe()["problem"]


def test_a_working_directory_with_hidden_files_is_refused(world: World) -> None:
    sandbox = Sandbox(agent="x", home=str(world.home))
    world.home.mkdir()
    for directory in (world.user, world.user.parent, Path("/"), world.home):
        why = sandbox.problem(str(directory))
        assert why is not None
        assert "which a sandbox hides; choose another working directory" in why
    assert sandbox.problem(str(world.project)) is None


@pytest.mark.parametrize(
    ("wanted", "more", "why"),
    [
        ("none", {"write": ["/x"]}, 'need `sandbox = "bwrap"`'),
        (["jail"], {"read": ["/x"]}, 'need `sandbox = "bwrap"`'),
        ("bwrap", {"write": ["~"]}, "a sandbox always hides"),
        ("bwrap", {"read": ["~/.midwatch"]}, "a sandbox always hides"),
        ("bwrap", {"read": ["~/.midwatch/token"]}, "a sandbox always hides"),
    ],
)
def test_invalid_options_are_refused(world: World, wanted: str, more: dict[str, list[str]], why: str) -> None:
    with pytest.raises(BadConfig, match=why):
        build_sandbox("x", wanted, str(world.home), **{"write": [], "read": [], **more})


def test_an_agent_without_programs_cannot_have_a_sandbox(world: World) -> None:
    with pytest.raises(BadConfig, match="kind demo starts no programs"):
        build("x", "demo", {}, sandbox=Sandbox(agent="x", home=str(world.home)))


def test_a_repository_must_link_back_to_its_worktree(world: World) -> None:
    repository = find_repository(world.project / "-sub")
    assert repository is not None
    assert repository.top == world.project
    tree = world.user / "tree"
    git(world.project, "worktree", "add", "-q", str(tree))
    linked = find_repository(tree)
    assert linked is not None
    assert (linked.top, linked.common) == (tree, world.project / ".git")
    admin = linked.admin
    for evil in (f"gitdir: {world.user}/.ssh", "gitdir: /", "", f"gitdir: {tree}/none"):
        (tree / ".git").write_text(evil)
        assert find_repository(tree) is None
    other_directory = world.user / "other"
    other_directory.mkdir()
    (other_directory / ".git").write_text(f"gitdir: {admin}")
    assert find_repository(other_directory) is None, "that repository knows another directory"
    (tree / "worktrees" / "fake").mkdir(parents=True)
    (tree / "objects").symlink_to(world.user / ".ssh")
    (tree / "worktrees" / "fake" / "gitdir").write_text(f"{tree}/.git")
    (tree / ".git").write_text("gitdir: worktrees/fake")
    fake = find_repository(tree)
    assert fake is None or fake.common.is_relative_to(tree), "what it may name itself is its own"
    (other_directory / ".git").unlink()
    (other_directory / ".git").symlink_to(world.user / ".ssh")
    assert find_repository(other_directory) is None


def test_loader_and_shell_variables_reach_only_the_program(world: World) -> None:
    sandbox = Sandbox(agent="x", home=str(world.home))
    odd = {"LD_PRELOAD": "/p/evil.so", "BASH_FUNC_read%%": "() { evil; }", "PS4": "$(evil)", "PLAIN": "1", "PATH": "/p"}
    argv, env = sandbox.command(("prog",), str(world.project), odd)
    assert env == {"PLAIN": "1", "PATH": os.environ["PATH"]}, "an agent's would choose the program that keeps it in"
    outside = argv[: argv.index("--")]
    assert not any("evil" in argument for argument in outside)
    assert {"LD_PRELOAD=/p/evil.so", "PS4=$(evil)", "PATH=/p"} <= set(argv[len(outside) :])
    assert replace(sandbox, prefix=("jail",)).command(("prog",), "/", {"PATH": "/p"}) == (
        ("jail", "env", "PATH=/p", "prog"), {"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert any(argument.endswith("/bwrap") and not argument.startswith("/p") for argument in outside)


async def _exists(file: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        while not file.exists():
            await asyncio.sleep(0.01)
