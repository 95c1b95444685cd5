"""Test pinned working directories: a task runs in the directory that was there when it was submitted, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from midwatch import Runtime, Settings, Task
from midwatch.agents.registry import build
from midwatch.base.directories import check_pinned, pin_directory, real_directory
from midwatch.base.errors import DirectoryChanged, Forbidden
from midwatch.domain.event import EventFilter
from midwatch.domain.identity import Actor
from midwatch.programs import sandbox
from midwatch.programs.process import Child, Output, Program
from midwatch.programs.sandbox import Sandbox
from midwatch.testing import RecordingTurn
from repositories import a_repository
from servers import PATIENCE

REFUSED = sandbox._try_sandbox("bwrap")
OpenDesk = Callable[..., AbstractAsyncContextManager[Runtime]]


@pytest.fixture
def open_desk(home: Path, request: pytest.FixtureRequest) -> OpenDesk:
    """Open a desk whose agent `sh` runs the prompt, on the store of the parameter `kind`."""
    kind = request.node.callspec.params.get("kind") if hasattr(request.node, "callspec") else None
    options = {"db": request.getfixturevalue("database")} if kind == "postgres" else {}

    @asynccontextmanager
    async def make(*, work: bool = True) -> AsyncIterator[Runtime]:
        settings = Settings.load(home, shutdown_grace=0, detect_agents=False, default_agent="sh", **options)
        agent = build("sh", "command", {"argv": ["sh", "-c", "{prompt}"]}, submits=True)
        async with Runtime.open(settings=settings, agents={"sh": agent}, work=work) as desk:
            yield desk

    return make


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a directory `above/project`, beside a directory `elsewhere` that also has a `project`."""
    for name in ("above/project", "elsewhere/project"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path / "above" / "project"


def replace_by_link(project: Path) -> None:
    project.rename(project.with_name("moved"))
    project.symlink_to(project.parents[1] / "elsewhere" / "project")


def replace_by_directory(project: Path) -> None:
    project.rename(project.with_name("moved"))
    project.mkdir()


def replace_parent(project: Path) -> None:
    project.parent.rename(project.parents[1] / "moved")
    project.parent.symlink_to(project.parents[1] / "elsewhere")


def remove(project: Path) -> None:
    project.rmdir()


async def finish(desk: Runtime, task_id: str) -> Task:
    async with asyncio.timeout(PATIENCE):
        return await desk.tasks.wait(task_id)


def list_made(project: Path) -> list[str]:
    return [path.name for path in project.parents[1].rglob("ran")]


@pytest.mark.parametrize(
    ("change", "error", "kind"),
    [
        (replace_by_link, "now leads to", "sqlite"),
        pytest.param(replace_by_link, "now leads to", "postgres", marks=pytest.mark.slow),
        (replace_parent, "now leads to", "sqlite"),
        (replace_by_directory, "another directory is now at", "sqlite"),
        pytest.param(replace_by_directory, "another directory is now at", "postgres", marks=pytest.mark.slow),
        (remove, "No such file or directory; restore it", "sqlite"),
    ],
)
async def test_a_directory_that_was_replaced_is_refused(
    open_desk: OpenDesk, project: Path, change: Callable[[Path], None], error: str, kind: str
) -> None:
    async with open_desk(work=False) as desk:
        task_id = (await desk.tasks.submit("touch ran", workdir=str(project))).id
    change(project)
    async with open_desk() as desk:
        task = await finish(desk, task_id)
        faults = await desk.store.read_events(0, EventFilter(kinds=("error",), task_id=task_id))
    assert task.status == "failed"
    assert error in str(task.error), task.error
    assert str(project) in str(task.error)
    assert [fault.payload["stage"] for fault in faults] == ["directory_changed"]
    assert list_made(project) == [], "nothing ran"


async def test_a_task_runs_where_the_link_led_when_it_was_submitted(open_desk: OpenDesk, project: Path) -> None:
    link = project.with_name("link")
    link.symlink_to(project)
    async with open_desk(work=False) as desk:
        submitted = await desk.tasks.submit("pwd -P", workdir=str(link))
        other = await desk.tasks.submit("pwd -P", workdir=str(project))
    link.unlink()
    link.symlink_to(project.parents[1] / "elsewhere")
    async with open_desk() as desk:
        for task in (submitted, other):
            assert (await finish(desk, task.id)).result == str(project)
    assert submitted.workdir == str(project)


async def test_a_new_directory_is_accepted_by_a_retry_but_a_link_is_not(open_desk: OpenDesk, project: Path) -> None:
    async with open_desk(work=False) as desk:
        task_id = (await desk.tasks.submit("touch ran", workdir=str(project))).id
    replace_by_directory(project)
    async with open_desk() as desk:
        assert (await finish(desk, task_id)).status == "failed"
        project.rmdir()
        project.symlink_to(project.parents[1] / "elsewhere")
        linked = await finish(desk, (await desk.tasks.retry(task_id)).id)
        assert "symbolic link" in str(linked.error)
        assert list_made(project) == []
        project.unlink()
        project.mkdir()
        assert (await finish(desk, (await desk.tasks.retry(linked.id)).id)).status == "done"


async def test_sessions_automations_and_goals_do_not_follow_a_new_link(open_desk: OpenDesk, project: Path) -> None:
    async with open_desk() as desk:
        await desk.sessions.create(key="chat:1", agent="sh", workdir=str(project))
        automation = await desk.automations.create("touch ran", agent="sh", every="1d", workdir=str(project))
        replace_by_link(project)
        for task in (await desk.sessions.send("chat:1", "touch ran"), await desk.automations.run(automation.id)):
            assert "symbolic link" in str((await finish(desk, task.id)).error)
        goal = await desk.goals.create("touch ran", agent="sh", workdir=str(project))
        assert goal.workdir == str(project.resolve())
        await desk.goals.clear(goal.id)
        project.unlink()
        project.mkdir()
        for task in (await desk.sessions.send("chat:1", "pwd -P"), await desk.automations.run(automation.id)):
            assert (await finish(desk, task.id)).status == "done"


async def test_an_agent_cannot_reach_another_directory_through_a_link(open_desk: OpenDesk, project: Path) -> None:
    elsewhere = project.parents[1] / "elsewhere"
    (project / "sub").mkdir()
    (project / "inner").symlink_to("sub")
    (project / "outer").symlink_to(elsewhere)
    async with open_desk(work=False) as desk:
        own = await desk.tasks.submit("hi", workdir=str(project), actor="ada")
        agent = Actor("ada", "attempt", "attempt", task=own)
        inner = await desk.tasks.submit("pwd -P", workdir=str(project / "inner"), actor=agent)
        with pytest.raises(Forbidden):
            await desk.tasks.submit("pwd -P", workdir=str(project / "outer"), actor=agent)
        replace_by_link(project)
        with pytest.raises(Forbidden):  # its own directory leads elsewhere now
            await desk.tasks.submit("pwd -P", workdir=str(project), actor=agent)
    project.unlink()
    project.with_name("moved").rename(project)
    (project / "inner").unlink()
    (project / "inner").symlink_to(elsewhere)
    async with open_desk() as desk:
        assert (await finish(desk, inner.id)).result == str(project / "sub")


async def test_work_that_an_agent_submits_stays_in_its_worktree(open_desk: OpenDesk, tmp_path: Path) -> None:
    project = a_repository(tmp_path / "repository")
    async with open_desk() as desk:
        task = await finish(desk, (await desk.tasks.submit("pwd -P", workdir=str(project), worktree=True)).id)
        agent = Actor("ada", "attempt", "attempt", task=task)
        child = await desk.tasks.submit("pwd -P", actor=agent)
        assert (await finish(desk, child.id)).result == task.result
        with pytest.raises(Forbidden, match="inside of the agent's own directory"):
            await desk.tasks.submit("pwd -P", workdir=str(project), actor=agent)


async def test_a_worktree_does_not_lead_out_through_a_link(open_desk: OpenDesk, tmp_path: Path) -> None:
    project = a_repository(tmp_path / "repository")
    (project / "sub").mkdir()
    async with open_desk() as desk:
        await desk.sessions.create(key="chat:1", agent="sh", workdir=str(project / "sub"), worktree=True)
        first = await finish(desk, (await desk.sessions.send("chat:1", "pwd -P")).id)
        assert first.status == "done", first.error
        top = Path(str(first.result)).parent
        second = await finish(desk, (await desk.sessions.send("chat:1", f"cd {top} && rmdir sub && ln -s . sub")).id)
        assert second.status == "done", second.error
        third = await finish(desk, (await desk.sessions.send("chat:1", "touch ran")).id)
    assert third.status == "failed"
    assert "symbolic link" in str(third.error)


def test_a_pin_of_another_start_or_machine_compares_only_the_path(project: Path) -> None:
    pin = str(pin_directory(str(project)))
    assert check_pinned(str(project), pin) == pin
    earlier = f"another-boot:{pin.partition(':')[2]}0"
    assert check_pinned(str(project), earlier) == pin
    replace_by_link(project)
    for old in (pin, earlier, ""):
        with pytest.raises(DirectoryChanged, match="replaced by a symbolic link"):
            check_pinned(str(project), old)
    assert pin_directory(str(project)) == ""
    assert real_directory(str(project)) == str(project.resolve())


SANDBOXED = pytest.param(
    True, marks=pytest.mark.skipif(REFUSED is not None, reason=f"bubblewrap cannot be used here: {REFUSED}")
)


@pytest.mark.parametrize("sandboxed", [False, SANDBOXED])
async def test_a_program_starts_only_in_the_directory_that_was_checked(project: Path, sandboxed: bool) -> None:
    """The directory is replaced at the last moment, when the shell waits at the gate."""
    (project / "mine").touch()
    box = Sandbox(agent="x", home=str(project.parents[1] / "elsewhere")) if sandboxed else None
    argv = ("sh", "-c", "ls; ls -l /proc/self/fd | grep -c above")
    program = Program(agent="x", argv=argv, workdir=str(project), sandbox=box)
    turn, out, err = RecordingTurn(workdir=str(project)), Output(), Output()
    turn.pin = pin_directory(str(project))
    child = await Child.spawn(program, turn, out, err)
    try:
        replace_by_directory(project)
        await child.admit(turn)
        await child.exited.wait()
    finally:
        await child.end()
    if sandboxed:
        assert (out.text(), child.returncode) == ("", 125)
        assert "was replaced while the sandbox was made" in err.text()
    else:
        assert out.text().split() == ["mine", "0"], "no descriptor of the directory is left to the program"
    with pytest.raises(DirectoryChanged):
        await Child.spawn(program, turn, out, Output())
