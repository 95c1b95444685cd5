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
from midwatch.base.errors import BadConfig, Conflict
from midwatch.programs import process, sandbox
from midwatch.programs.sandbox import Sandbox, build_sandbox, find_repository
from midwatch.programs.state import STATE
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


async def test_an_agent_commits_in_a_worktree(open_desk: OpenDesk, world: World) -> None:
    (world.user / ".gitconfig").write_text("[user]\nname = Bob\nemail = b@example.org\n")
    git(world.project, "config", "--unset", "user.name")
    git(world.project, "gc", "--quiet")
    script = (
        "set -e; exec 2>&1; echo 1 > x; git add x; git commit -qm one; echo 2 > x; git commit -qam two; "
        "git commit -q --amend -m three; git branch other; git checkout -q -b more; echo 4 > x; git stash -q; "
        "git stash list | wc -l; git checkout -q -; git log --format=%s,%an -2; git diff --stat HEAD~1 | wc -l; "
        "git status --short; git worktree list | wc -l"
    )
    git(world.project, "worktree", "add", "-q", str(world.user / "foreign"))
    async with open_desk() as desk:
        task = await run_task(desk, script, world.project, worktree=True)
        assert task.result == "1\nthree,Bob\none,Bob\n2\n2", task
        (tree,) = await desk.worktrees.list()
        assert git(world.project, "show", f"{tree.branch}:x") == "2"
        assert git(world.project, "rev-parse", "other") == git(world.project, "rev-parse", tree.branch)


async def test_a_main_checkout_is_read_only_unless_settings_allow_more(open_desk: OpenDesk, world: World) -> None:
    script = (
        "git status --short; echo y > ../y; echo y > y; git log -1 --format=%s; git diff --stat; "
        "git add -A; echo x > $(git rev-parse --git-dir)/commondir || echo kept; "
        "git -c user.name=a -c user.email=a@b commit -qm y && echo committed; ls .."
    )
    before = read_files(world.project / ".git")
    async with open_desk() as desk:
        task = await run_task(desk, script, world.project / "-sub")
        assert task.result == "first\nkept\n-sub\na.txt", task
    assert read_files(world.project / ".git") == before
    assert (world.project / "-sub" / "y").exists()
    async with open_desk(f'sandbox_paths = ["{world.project}/.git"]\n') as desk:
        task = await run_task(desk, script.replace("echo x >", "false"), world.project / "-sub")
        assert (task.result or "").endswith("kept\ncommitted\n-sub\na.txt"), task
    assert git(world.project, "show", "--name-status", "--format=") == "A\t-sub/y"


async def test_an_agent_in_a_worktree_plants_nothing_in_the_repository(open_desk: OpenDesk, world: World) -> None:
    git(world.project, "config", "extensions.worktreeConfig", "true")
    git(world.project, "worktree", "add", "-q", str(world.user / "foreign"))
    git(world.project, "gc", "--quiet")
    common, marker = world.project / ".git", world.user / "planted"
    names = "config config.worktree commondir hooks/post-checkout info/attributes packed-refs HEAD modules/m/config"
    evil = f"[filter.x]\\n clean = touch {marker}"
    tries = [
        *(f"mkdir -p $(dirname $c/{name}); printf '{evil}' >> $c/{name}" for name in names.split()),
        *(f"printf '{evil}' > $a/{name}" for name in ("config.worktree", "commondir", "gitdir")),
        *(f"rm -f $a/{name}" for name in ("config.worktree", "commondir", "gitdir")),
        "git config --worktree filter.x.clean evil", "mv $a $a.x", "mv $c $c.x", "mv $c/worktrees $c/x", "rm -f .git",
        "echo gitdir: /x > .git", "mv .git x", "echo /x > $c/worktrees/foreign/commondir", "ls $c/worktrees/foreign",
        "echo /x > $c/objects/info/alternates", "rm -f $c/objects/pack/*", "git replace HEAD HEAD~1",
        "mv $c/objects $c/o", "mv $c/refs $c/r", "mv $a/logs $a/l", "rm -f $a/logs/HEAD", "ln -sf /x $a/logs/HEAD",
        "touch $c/new", "git gc", "git worktree add ../z",
    ]  # fmt: skip
    script = "".join(f"({command}) 2>/dev/null >&2 && echo 'done: {number}'; " for number, command in enumerate(tries))
    link = "mkdir -p $c/logs/refs/heads; ln -sf ~/linked $c/logs/refs/heads/main; ln -sf ~/linked $c/logs/HEAD; "
    attributes = "echo '* filter=x' > .gitattributes; echo more >> a.txt; true"
    directories = "a=$(git rev-parse --git-dir); c=$(git rev-parse --git-common-dir); "
    before, names_before = read_files(common), {path.name for path in common.iterdir()}
    async with open_desk() as desk:
        task = await run_task(desk, directories + link + script + attributes, world.project, worktree=True)
        assert (task.outcome, task.result) == ("ok", ""), task
        (tree,) = await desk.worktrees.list()
        assert "+more" in (await desk.worktrees.diff(tree.id)).text
    admin = Path(git(tree.path, "rev-parse", "--git-dir"))
    assert {name: content for name, content in read_files(common).items() if name in before} == before
    assert {path.name for path in common.iterdir()} == names_before
    assert (admin / "config.worktree").read_bytes() == b""
    for folder in (Path(tree.path), world.user / "foreign", world.project):
        git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "after it")
    assert not marker.exists()
    assert not os.path.lexists(world.user / "linked"), "a log was written through a link"


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the content of all files below a directory, by their relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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
    program.write_text(
        "#!/bin/sh\ncd ~\necho new >> .claude/.credentials.json; echo said >> .claude/projects/p; echo x > notes/n\n"
        "cat .claude/.credentials.json .claude/projects/p notes/n .claude/settings.json .claude/hooks/h\n"
        "echo '{}' > .claude.json.new; mv .claude.json.new .claude.json; cat .claude.json\n"
    )
    program.chmod(0o755)
    for name in (".claude/hooks", "notes", "shared"):
        (world.user / name).mkdir(parents=True)
    (world.user / "dotfile").write_text("settings\n")
    (world.user / ".claude" / "settings.json").symlink_to(world.user / "dotfile")
    for name in ("notes/n", ".claude/hooks/h", ".claude/.credentials.json", ".claude.json"):
        (world.user / name).write_text(f"{name}\n")
    options = (
        f'kind = "command"\nargv = ["{program}"]\nsandbox = "bwrap"\nsandbox_read = ["~/notes"]\n'
        'sandbox_paths = ["~/shared"]\nok_codes = [0, 1, 2]\n'
    )
    before = read_files(world.user)
    async with open_desk(options=options) as desk:
        task = await run_task(desk, "x", world.project)
        assert task.result == ".claude/.credentials.json\nnew\nsaid\nnotes/n\nsettings\n.claude/hooks/h\n{}"
    after = {name: content for name, content in read_files(world.user).items() if not name.startswith(".midwatch")}
    assert {name: content for name, content in after.items() if before.get(name) != content} == {
        ".claude/.credentials.json": b".claude/.credentials.json\nnew\n", ".claude/projects/p": b"said\n"
    }  # fmt: skip


@pytest.mark.parametrize("name", STATE)
def test_an_agent_changes_and_creates_no_settings(world: World, name: str) -> None:
    program = world.user / "bin" / name
    program.parent.mkdir()
    state = STATE[name]
    (world.user / state.shown[0]).parent.mkdir(exist_ok=True, parents=True)
    (world.user / state.shown[0]).write_text("mine")
    before = read_files(world.user)
    files = [f"{known}hook" if known.endswith("/") else known for known in (*state.shown, *state.private)]
    files += [f"{Path(known).parent}/new-settings" for known in state.shown]
    program.write_text("#!/bin/sh\ncd ~\n" + "".join(f"mkdir -p $(dirname {f}); echo evil > {f}\n" for f in files))
    program.chmod(0o755)
    own = Sandbox(agent="x", home=str(world.home)).admit_program(str(program), "", str(world.project))
    done = run_in(own, world.project, str(program))
    assert read_files(world.user) == {**before, f"bin/{name}": program.read_bytes()}, done
    allowed = replace(own, write=(str(world.user / Path(state.shown[-1]).parent),))
    run_in(allowed, world.project, str(program))
    assert read_files(world.user) != {**before, f"bin/{name}": program.read_bytes()}, "the settings allow it"


def run_in(own: Sandbox, workdir: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a sandbox."""
    command, env = own.command(argv, str(workdir), dict(os.environ))
    return subprocess.run(command, env=env, cwd=workdir, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_the_kernel_and_devices_cannot_be_changed(world: World) -> None:
    tries = {
        "sys": "test -w /proc/sys/kernel/core_pattern || test -w /proc/sys/kernel/hostname",
        "sysrq": "test -w /proc/sysrq-trigger",
        "irq": "test -w /proc/irq/default_smp_affinity",
        "cgroup": "mkdir /sys/fs/cgroup/midwatch-test",
        "mount": "mount -t tmpfs x /mnt",
        "umount": "umount /proc/sys",
        "device": "mknod d b 1 0 || find /dev -type b | grep .",
        "terminal": "true < /dev/tty",
        "sockets": "find /run -type s | grep .",
        "namespace": "unshare --user --map-root-user --mount sh -c 'umount /proc/sys || mount -t proc x /mnt'",
    }
    script = "; ".join(f"({command}) >/dev/null 2>&1 && echo {name}" for name, command in tries.items())
    done = run_in(Sandbox(agent="x", home=str(world.home)), world.project, "sh", "-c", f"{script}; echo end")
    assert done.stdout == "end\n", done


def test_a_directory_that_is_replaced_while_the_sandbox_is_made_stops_it(world: World) -> None:
    own = Sandbox(agent="x", home=str(world.home))
    plain = world.user / "plain"
    plain.mkdir()
    command, env = own.command(("ls", "-A", "."), str(plain), dict(os.environ))
    plain.rmdir()
    plain.symlink_to(world.user / ".ssh")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (125, ""), done
    assert "was replaced while the sandbox was made" in done.stderr


def test_a_link_of_an_agent_does_not_lead_a_path_out_of_its_directory(world: World) -> None:
    for name in ("written", "read"):
        (world.project / name).symlink_to(world.user / ".ssh")
    paths = {"write": (str(world.project / "written"),), "read": (str(world.project / "read"),)}
    done = run_in(Sandbox(agent="x", home=str(world.home), **paths), world.project, "sh", "-c", "cat */x; ls -A ~")
    assert done.stdout == ".midwatch\nproject\n", done


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
    for directory in (world.project / ".git", world.project / ".git" / "hooks"):
        assert "is in a git directory, which a sandbox protects" in (sandbox.problem(str(directory)) or "")


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
    for name in ("objects", "refs"):
        (tree / name).mkdir()
    (tree / "HEAD").touch()
    (tree / "worktrees" / "fake" / "gitdir").write_text(f"{tree}/.git")
    (tree / "worktrees" / "fake" / "commondir").write_text("../..")
    (tree / ".git").write_text("gitdir: worktrees/fake")
    assert find_repository(tree) is None, "an agent can write all of this"
    (other_directory / ".git").unlink()
    (other_directory / ".git").symlink_to(world.user / ".ssh")
    assert find_repository(other_directory) is None


def test_loader_and_shell_variables_reach_only_the_program(world: World) -> None:
    sandbox = Sandbox(agent="x", home=str(world.home))
    odd = {"LD_PRELOAD": "/p/evil.so", "BASH_FUNC_read%%": "() { evil; }", "PS4": "$(evil)", "PLAIN": "1", "PATH": "/p"}
    argv, env = sandbox.command(("prog",), str(world.project), odd)
    plain_env = {name: value for name, value in env.items() if not name.startswith("GIT_CONFIG_")}
    assert plain_env == {"PLAIN": "1", "PATH": os.environ["PATH"]}, "an agent's PATH would choose other programs"
    outside = argv[: argv.index("--")]
    assert not any("evil" in argument for argument in outside)
    assert {"LD_PRELOAD=/p/evil.so", "PS4=$(evil)", "PATH=/p"} <= set(argv[len(outside) :])
    assert replace(sandbox, prefix=("jail",)).command(("prog",), "/", {"PATH": "/p"}) == (
        ("jail", "env", "PATH=/p", "prog"), {"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert any(argument.endswith("/bwrap") and not argument.startswith("/p") for argument in outside)


def test_settings_for_git_are_added_to_those_of_the_environment(world: World) -> None:
    own, given = Sandbox(agent="x", home=str(world.home)), {"GIT_CONFIG_KEY_0": "a.b", "GIT_CONFIG_VALUE_0": "c"}
    _, env = own.command(("prog",), str(world.project), {**given, "GIT_CONFIG_COUNT": "1"})
    count = int(env["GIT_CONFIG_COUNT"])
    pairs = {env[f"GIT_CONFIG_KEY_{number}"]: env[f"GIT_CONFIG_VALUE_{number}"] for number in range(count)}
    assert pairs == {"a.b": "c", **sandbox.GIT_SETTINGS}


async def test_special_files_in_place_of_git_do_not_stop_the_desk(open_desk: OpenDesk, world: World) -> None:
    plain = world.user / "plain"
    plain.mkdir()
    os.mkfifo(plain / ".git")
    async with open_desk() as desk:
        task = await run_task(desk, "echo ran", plain)
        assert task.result == "ran", task
        sleeping = await desk.tasks.submit("touch begun; exec sleep 600", workdir=str(plain))
        await _exists(plain / "begun")
        await desk.tasks.cancel(sleeping.id)
        assert (await desk.tasks.wait(sleeping.id)).outcome == "cancelled"


def test_special_files_in_place_of_git_are_not_read(world: World) -> None:
    tree = world.user / "tree"
    git(world.project, "worktree", "add", "-q", str(tree))
    linked = find_repository(tree)
    assert linked is not None
    for file in (linked.admin / "gitdir", linked.admin / "commondir", tree / ".git"):
        content = file.read_text()
        file.unlink()
        os.mkfifo(file)
        assert find_repository(tree) is None
        file.unlink()
        file.symlink_to("/dev/zero")
        assert find_repository(tree) is None
        file.unlink()
        with file.open("w") as large:
            large.write(content)
            large.truncate(2**40)
        assert find_repository(tree) is None
        file.write_text(content)
        assert find_repository(tree) == linked
    (linked.admin / "config.worktree").symlink_to(world.user / ".ssh" / "x")
    with pytest.raises(Conflict, match=r"config.worktree is a link or a FIFO; look at it"):
        Sandbox(agent="x", home=str(world.home)).command(("prog",), str(tree), {})


async def test_a_file_system_that_does_not_answer_fails_the_task(
    open_desk: OpenDesk, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "PREPARE_SECONDS", 0.0)
    async with open_desk() as desk:
        task = await run_task(desk, "echo ran", world.project)
        assert task.error == f"the file system of {world.project} did not answer within 0 s; check it"


async def _exists(file: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        while not file.exists():
            await asyncio.sleep(0.01)
