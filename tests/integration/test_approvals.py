"""Test questions and rules in a runtime: decisions without a person, stored rules, and permissions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from internals import simulate_crash
from midwatch import Runtime, Settings, Turn
from midwatch.base.clock import SECOND
from midwatch.base.errors import Conflict
from midwatch.domain.agent import AgentTerms, Answer, Choice, Question
from midwatch.domain.changes import Changes
from midwatch.domain.event import EventFilter
from midwatch.domain.identity import OWNER
from midwatch.testing import ScriptedAgent
from servers import until
from serving import client, serve_agents

REJECT, ALLOW = Choice("Reject", "reject_once"), Choice("Allow", "allow_once")
TERMS = AgentTerms(timeout_seconds=60.0, on_crash="rerun", slots=16)


def make_question(command: str, **fields: Any) -> Question:
    return Question(text="May I?", kind="execute", command=command, choices=(REJECT, ALLOW), **fields)


async def ask_to_run(turn: Turn) -> str:
    """Ask for permission to run each line of the prompt, all at once."""
    answers = await asyncio.gather(*(turn.ask(make_question(line)) for line in turn.prompt.splitlines()))
    return " ".join(describe_answer(answer) for answer in answers)


def describe_answer(answer: Answer) -> str:
    return f"{answer.status}:{answer.choice}"


@asynccontextmanager
async def desk_of(home: Path, approvals: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[Runtime]:
    argv = {"kind": "command", "argv": ["true"], "approvals": approvals}
    loaded = Settings.load(home, detect_agents=False, agents={"it": argv} if approvals else {}, **settings)
    async with Runtime.open(settings=loaded, agents={"it": ScriptedAgent(ask_to_run, terms=TERMS)}) as desk:
        yield desk


async def run_task(desk: Runtime, prompt: str, **options: Any) -> str | None:
    task = await desk.tasks.submit(prompt, agent="it", **options)
    async with asyncio.timeout(20):
        return (await desk.tasks.wait(task.id)).result


async def wait_for_inbox(desk: Runtime, count: int = 1) -> Any:
    async def look() -> Any:
        approvals = await desk.approvals.list()
        return approvals if len(approvals) == count else None

    return await until(look)


# -- answers by rules ----------------------------------------------------------------------------------------------


async def test_rules_answer_at_once_and_are_logged(home: Path, tmp_path: Path) -> None:
    rules = {"allow": [{"command": "git log *"}], "deny": [{"command": "git push"}], "default": "deny"}
    async with desk_of(home, rules) as desk:
        assert (
            await run_task(desk, "git log\ngit push\nls", workdir=str(tmp_path))
            == "granted:Allow denied:Reject denied:Reject"
        )
        approvals = {approval.command: approval for approval in await desk.approvals.list(None)}
        assert [
            (approval.status, approval.answered_by, approval.rule) for _, approval in sorted(approvals.items())
        ] == [
            ("granted", "rule:agent", "allow `git log *`"),
            ("denied", "rule:agent", "deny `git push`"),
            ("denied", "rule:agent", "default: deny"),
        ]
        assert await desk.approvals.list("pending") == []
        events = await desk.store.read_events(0, EventFilter(kinds=("approval_requested", "approval_resolved")))
        assert len(events) == 6 and all(event.payload["rule"] for event in events)
        assert "task_waiting" not in [event.kind for event in await desk.store.read_events(0)]


async def test_an_approval_by_a_rule_costs_one_write(home: Path, tmp_path: Path) -> None:
    async with desk_of(home, {"allow": [{"command": "ls"}]}) as desk:
        writes: list[Changes] = []
        apply = desk.store.apply

        async def count(changes: Changes) -> None:
            writes.append(changes)
            await apply(changes)

        desk.store.apply = count  # type: ignore[method-assign]
        await run_task(desk, "ls", workdir=str(tmp_path))
        with_one = len(writes)
        await run_task(desk, "ls\nls\nls\nls\nls", workdir=str(tmp_path))
        assert with_one and len(writes) <= 2 * with_one + 5


async def test_a_plain_question_is_answered_only_by_a_default_deny(home: Path) -> None:
    async def ask_plainly(turn: Turn) -> str:
        return describe_answer(await turn.ask("Deploy?", ("yes", "no")))

    argv = {"kind": "command", "argv": ["true"]}
    for default, expected in (("deny", "denied:no"), ("allow", None)):
        settings = Settings.load(home, agents={"it": {**argv, "approvals": {"default": default}}})
        async with Runtime.open(settings=settings, agents={"it": ScriptedAgent(ask_plainly, terms=TERMS)}) as desk:
            task = await desk.tasks.submit("x", agent="it")
            if expected is None:
                (question,) = await wait_for_inbox(desk)
                await desk.approvals.answer(question.id, grant=True)
                expected = "granted:yes"
            assert (await desk.tasks.wait(task.id)).result == expected


async def test_an_automation_has_its_own_rules(home: Path, tmp_path: Path) -> None:
    async with desk_of(home) as desk:
        automation = await desk.automations.create(
            "make", every=3600, agent="it", workdir=str(tmp_path), approvals={"allow": [{"command": "make"}]}
        )
        task = await desk.automations.run(automation.id)
        assert (await desk.tasks.wait(task.id)).result == "granted:Allow"
        (approval,) = await desk.approvals.list(None)
        assert approval.answered_by == "rule:automation"
        (exported,) = await desk.automation_transfer.export()
        assert exported.snapshot()["approvals"] == {"allow": [{"command": "make"}]}


# -- always answers ------------------------------------------------------------------------------------------------


async def test_an_always_answer_is_kept_until_it_is_revoked(home: Path, tmp_path: Path) -> None:
    async with desk_of(home) as desk:
        first = await desk.tasks.submit("git status", agent="it", workdir=str(tmp_path))
        (question,) = await wait_for_inbox(desk)
        await desk.approvals.answer(question.id, grant=True, always=True, actor="ann")
        assert (await desk.tasks.wait(first.id)).result == "granted:Allow"
        assert await run_task(desk, "git  status", workdir=str(tmp_path)) == "granted:Allow"
        (rule,) = await desk.rules.list()
        answered = await desk.approvals.list("granted")
        assert [approval.answered_by for approval in answered] == [f"rule:{rule.id}", "ann"]
        for command, workdir in (("git status -s", tmp_path), ("git status", tmp_path.parent)):
            task = await desk.tasks.submit(command, agent="it", workdir=str(workdir))
            (new_question,) = await wait_for_inbox(desk)
            await desk.approvals.answer(new_question.id, grant=False)
            await desk.tasks.wait(task.id)
        await desk.rules.revoke(rule.id, actor="bob")
        task = await desk.tasks.submit("git status", agent="it", workdir=str(tmp_path))
        (new_question,) = await wait_for_inbox(desk)
        await desk.approvals.answer(new_question.id, grant=False, always=True)
        assert (await desk.tasks.wait(task.id)).result == "denied:Reject"
        assert await run_task(desk, "git status -s", workdir=str(tmp_path)) == "denied:Reject"


async def test_a_turn_asks_one_question_at_a_time(home: Path) -> None:
    async with desk_of(home) as desk:
        task = await desk.tasks.submit("a\nb\nc", agent="it")
        for _ in range(3):  # in any order
            (question,) = await wait_for_inbox(desk)
            await desk.approvals.answer(question.id, grant=question.command != "b")
        assert (await desk.tasks.wait(task.id)).result == "granted:Allow denied:Reject granted:Allow"


# -- expiry --------------------------------------------------------------------------------------------------------


async def test_a_policy_sets_the_expiry_of_a_question_and_expiry_denies(home: Path) -> None:
    async with desk_of(home, {"expires": 0.2}) as desk:
        assert await run_task(desk, "ls") == "expired:None"
        (approval,) = await desk.approvals.list("expired")
        assert approval.why == "nobody answered in time"
        assert approval.expires_at - approval.created_at == SECOND // 5


async def test_a_question_expires_at_the_deadline_of_its_goal(home: Path) -> None:
    async with desk_of(home) as desk:
        goal = await desk.goals.create("ls", agent="it", deadline_at=desk.clock.now() + 3600 * SECOND)
        (question,) = await wait_for_inbox(desk)
        assert question.expires_at == goal.deadline_at
        task = await desk.tasks.get(question.task_id)
        assert task.cause == "goal"
        await desk.tasks.cancel(task.id)


# -- crashes -------------------------------------------------------------------------------------------------------


async def test_an_answer_the_agent_did_not_receive_is_asked_again(home: Path, tmp_path: Path) -> None:
    """The process dies between the answer and the agent: nothing is granted by mistake and nothing waits for ever."""
    async with desk_of(home) as desk:
        task = await desk.tasks.submit("git status", agent="it", workdir=str(tmp_path))
        (question,) = await wait_for_inbox(desk)
        simulate_crash(desk)
        await desk.approvals.answer(question.id, grant=True, actor="ann")
    async with desk_of(home) as desk:
        (again,) = await wait_for_inbox(desk)
        assert (again.id != question.id, again.attempt, again.command) == (True, 2, "git status")
        approval = await desk.approvals.get(question.id)
        assert (approval.status, approval.answered_by) == ("granted", "ann")
        await desk.approvals.answer(again.id, grant=False)
        assert (await desk.tasks.wait(task.id)).result == "denied:Reject"


# -- permissions ---------------------------------------------------------------------------------------------------


async def test_roles_limit_questions_and_rules_over_http(home: Path, tmp_path: Path) -> None:
    async with serve_agents(home, {"it": ScriptedAgent(ask_to_run, terms=TERMS)}) as served:
        _, secret = await served.runtime.tokens.create("other", "operator", by=OWNER)
        body = {"prompt": "git status", "agent": "it", "workdir": str(tmp_path)}
        task = (await served.runtime.tasks.submit(**body, actor="operator")).snapshot()
        await served.until("approval_requested")
        (question,) = (await served.get("/approvals"))["approvals"]
        assert (question["kind"], question["command"], question["risk"]) == ("execute", "git status", "medium")
        kinds = [choice["kind"] for choice in question["choices"]]
        assert kinds == ["reject_once", "allow_once", "allow_always", "reject_always"]
        path = f"/approvals/{question['id']}"
        refused = await served.http.post(f"{path}/approve", json={"always": True, "choice": "Allow"})
        assert (refused.status_code, refused.json()["field"]) == (422, "choice")
        async with served.as_role("viewer") as viewer, served.as_role("operator") as operator:
            assert (await viewer.post(f"{path}/approve")).status_code == 403
            async with client(served.url, secret) as other:
                reply = await other.post(f"{path}/approve")
                assert (reply.status_code, "only operator and owners may" in reply.json()["detail"]) == (403, True)
            approval = (await operator.post(f"{path}/approve", json={"always": True, "why": "fine"})).json()
            assert (approval["status"], approval["answered_by"], approval["why"]) == ("granted", "operator", "fine")
            assert (await served.wait_for_end(task["id"]))["result"] == "granted:Allow"
            (rule,) = (await viewer.get("/rules")).json()["rules"]
            assert (rule["text"], rule["created_by"], rule["approval_id"]) == (
                approval["rule"],
                "operator",
                question["id"],
            )
            assert (await viewer.delete(f"/rules/{rule['id']}")).status_code == 403
            reply = await operator.delete(f"/rules/{rule['id']}")
            assert (reply.status_code, reply.json()["revoked_by"]) == (200, "operator")
            assert (await operator.delete(f"/rules/{rule['id']}")).status_code == 409
            assert (await operator.delete("/rules/r_none")).status_code == 404
            assert (await viewer.get("/rules")).json()["rules"] == []
            assert len((await viewer.get("/rules", params={"all": True})).json()["rules"]) == 1


async def test_an_agent_cannot_answer_questions_or_read_rules(home: Path, tmp_path: Path) -> None:
    tokens: list[str] = []

    async def return_token(turn: Turn) -> str:
        tokens.append(turn.env["MIDWATCH_TOKEN"])
        return await ask_to_run(turn)

    async with serve_agents(home, {"it": ScriptedAgent(return_token, terms=TERMS)}) as served:
        desk = served.runtime
        await desk.tasks.submit("git status", agent="it", workdir=str(tmp_path))
        (question,) = await wait_for_inbox(desk)
        async with client(served.url, tokens[0]) as agent:
            for way in ("approve", "deny"):
                for body in ({}, {"always": True}, {"choice": "Allow"}):
                    reply = await agent.post(f"/approvals/{question.id}/{way}", json=body)
                    assert reply.status_code == 403, reply.text
            assert (await agent.get("/rules")).status_code == 403
            assert (await agent.delete("/rules/r_1")).status_code == 403
            assert (await agent.get(f"/approvals/{question.id}")).status_code == 200
        assert (await desk.approvals.get(question.id)).status == "pending"
        await desk.approvals.answer(question.id, grant=False)


async def test_a_large_diff_is_shown_truncated_for_one_approval_only(home: Path) -> None:
    async def ask_to_edit(turn: Turn) -> str:
        question = Question(text="Edit?", kind="edit", paths=("a",), diff="+x\n" * 3_500_000, choices=(ALLOW, REJECT))
        return describe_answer(await turn.ask(question))

    async with serve_agents(home, {"it": ScriptedAgent(ask_to_edit, terms=TERMS)}) as served:
        task = await served.post("/tasks", {"prompt": "x", "agent": "it"})
        await served.until("approval_requested")
        (listed,) = (await served.get("/approvals"))["approvals"]
        assert (listed["diff"], listed["diff_bytes"]) == (None, 10_500_000)
        approval = await served.get(f"/approvals/{listed['id']}")
        assert len(approval["diff"]) == 100_000 and approval["diff_left_out"] == 10_400_000
        (event,) = await served.read_log(kind="approval_requested")
        assert "+x" not in str(event)
        await served.post(f"/approvals/{listed['id']}/deny", {})
        assert (await served.wait_for_end(task["id"]))["result"] == "denied:Reject"


async def test_of_two_concurrent_answers_one_makes_a_rule(home: Path, tmp_path: Path) -> None:
    async with desk_of(home) as desk:
        task = await desk.tasks.submit("git status", agent="it", workdir=str(tmp_path))
        (question,) = await wait_for_inbox(desk)
        answers = await asyncio.gather(
            *(desk.approvals.answer(question.id, grant=n % 2 == 0, always=True, actor=f"p{n}") for n in range(8)),
            return_exceptions=True,
        )
        assert sum(isinstance(answer, Conflict) for answer in answers) == 7
        (rule,) = await desk.rules.list()
        approval = await desk.approvals.get(question.id)
        assert (rule.created_by, rule.text) == (approval.answered_by, approval.rule)
        await desk.tasks.wait(task.id)


@pytest.mark.parametrize("choices", [(ALLOW, REJECT), (REJECT, ALLOW)])
async def test_a_configured_function_asks_with_all_details(home: Path, tmp_path: Path, choices: Any) -> None:
    names = ", ".join(f"Choice({choice.name!r}, {choice.kind!r})" for choice in choices)
    (tmp_path / "asking.py").write_text(
        "from midwatch.domain.agent import Choice, Question\n\n\n"
        "def work(prompt, turn):\n"
        f"    asked = Question(text='May I?', kind='execute', command=prompt, paths=('a',), choices=({names}))\n"
        "    return turn.ask(asked).choice\n"
    )
    agent = {"kind": "function", "target": "asking:work", "path": [str(tmp_path)], "workdir": str(tmp_path)}
    settings = Settings.load(
        home, detect_agents=False, agents={"fn": {**agent, "approvals": {"allow": [{"command": "ls"}]}}}
    )
    async with Runtime.open(settings=settings) as desk:
        task = await desk.tasks.submit("ls", agent="fn", workdir=str(tmp_path))
        assert (await desk.tasks.wait(task.id)).result == "Allow"


async def test_a_question_that_the_agent_no_longer_asks_leaves_the_inbox(home: Path) -> None:
    changed = asyncio.Event()

    async def change_its_mind(turn: Turn) -> str:
        first = asyncio.create_task(turn.ask(make_question("ls")))
        await changed.wait()
        first.cancel()
        await asyncio.wait({first})
        return describe_answer(await turn.ask(make_question("pwd")))

    settings = Settings.load(home, detect_agents=False)
    async with Runtime.open(settings=settings, agents={"it": ScriptedAgent(change_its_mind, terms=TERMS)}) as desk:
        task = await desk.tasks.submit("go", agent="it")
        await wait_for_inbox(desk)
        changed.set()

        async def second() -> Any:
            return [approval for approval in await desk.approvals.list() if approval.command == "pwd"]

        (approval,) = await until(second)
        assert [each.command for each in await desk.approvals.list()] == ["pwd"]
        await desk.approvals.answer(approval.id, grant=True)
        assert (await desk.tasks.wait(task.id)).result == "granted:Allow"
        (withdrawn,) = [each for each in await desk.approvals.list(None) if each.command == "ls"]
        assert (withdrawn.status, withdrawn.why) == ("expired", "the agent no longer asks this")
