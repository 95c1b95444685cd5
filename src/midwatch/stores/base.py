"""The methods of a store: each runs one verb in one transaction. See the ports in `midwatch.domain`."""

from __future__ import annotations

from midwatch.stores.runner import VerbRunner, peek, read, snapshot, write
from midwatch.stores.verbs import (
    account,
    alert,
    approval,
    automation,
    changes,
    context_item,
    delivery,
    event,
    goal,
    handoff,
    instance,
    live,
    rule,
    session,
    steering,
    task,
    token,
    trigger,
    turn_steps,
    usage,
    watch_state,
    worktree,
)


class VerbStore(VerbRunner):
    """A store that implements `midwatch.domain.store.Store`: each method runs a verb."""

    submit = write(task.submit)
    claim = write(task.claim)
    apply = write(changes.apply)
    record_late = write(task.record_late)
    get_task = peek(task.get)
    list_tasks = snapshot(task.list_)
    count_tasks = read(task.count)
    list_related_tasks = read(task.list_related)
    list_failed_tasks = read(task.list_failed)
    sum_usage = snapshot(usage.sum_usage)
    list_running_tasks = read(task.list_running)
    find_gate_holder = peek(task.find_gate_holder)
    find_dir_holder = peek(task.find_dir_holder)
    list_open_events = read(task.list_open_events)
    prune_tasks = write(task.prune)

    reserve = write(account.reserve)
    open_days = write(account.open_days)
    sum_account = read(account.sum_spending)
    read_accounts = peek(account.read)
    list_accounts = snapshot(account.list_)
    find_account = peek(account.find_asked)
    has_reported_cost = read(account.has_reported_cost)
    list_account_tasks = read(account.list_tasks)

    list_task_steps = read(turn_steps.list_of_task)
    list_earlier_steps = read(turn_steps.list_before)
    list_thread_steps = read(turn_steps.list_of_thread)

    send_steer = write(steering.send)
    list_queued_steers = read(steering.list_queued)
    list_context_items = read(context_item.list_)

    get_handoff = peek(handoff.get)
    find_handoff = peek(handoff.find)
    list_handoffs = snapshot(handoff.list_)
    count_open_handoffs = read(handoff.count_open)
    count_handoffs = peek(handoff.count)
    list_due_handoffs = read(handoff.list_due)
    find_due_handoff = peek(handoff.find_due)
    find_next_handoff_at = peek(handoff.find_next_at)
    list_abandoned_handoffs = read(handoff.list_abandoned)
    list_orphaned_handoffs = read(handoff.list_orphaned)
    prune_handoffs = write(handoff.prune)

    read_events = snapshot(event.read)
    read_events_back = snapshot(event.read_back)
    read_log_bounds = read(event.read_bounds)
    get_cursor = peek(event.get_cursor)
    set_cursor = write(event.set_cursor)
    prune_events = write(event.prune)

    get_session = peek(session.get)
    list_session_managers = read(session.list_managers)
    view_session = read(session.view)
    list_sessions = read(session.list_)
    open_session = write(session.open_)
    close_session = write(session.close)
    read_messages = read(session.list_messages)
    read_last_messages = read(session.list_last_messages)
    hold_session = write(live.hold)
    release_session = write(live.release)
    restart_session = write(live.restart)
    list_live_sessions = read(live.list_sessions)
    has_live_work = read(live.has_work)

    read_task_state = snapshot(watch_state.read_task)
    read_session_state = snapshot(watch_state.read_session)
    read_desk_state = snapshot(watch_state.read_desk)

    get_delivery = peek(delivery.get)
    list_deliveries = read(delivery.list_)
    list_due_deliveries = read(delivery.list_due)
    seal_digest = write(delivery.seal_digest)
    list_digest = read(delivery.list_digest)
    find_told_run = read(delivery.find_told_run)
    find_next_delivery_at = read(delivery.find_next_at)

    get_approval = peek(approval.get)
    list_approvals = read(approval.list_)
    list_pending_approvals = read(approval.list_pending)
    list_overdue_approvals = read(approval.list_overdue)
    find_next_expiry = read(approval.find_next_expiry)

    get_rule = peek(rule.get)
    list_rules = read(rule.list_)
    list_declared_rules = read(rule.list_declared)

    find_token = peek(token.recognise)
    get_token = peek(token.get)
    list_tokens = read(token.list_)
    count_tokens = read(token.count)
    prune_tokens = write(token.prune)

    get_automation = peek(automation.get)
    list_automations = read(automation.list_)
    find_automation_key = peek(automation.find_key)
    list_declared_automations = read(automation.list_declared)
    find_automations = read(automation.find)
    list_due_automations = read(automation.list_due)
    find_held_automations = read(automation.find_held)
    find_next_automation_at = peek(automation.find_next_at)
    find_open_run = peek(automation.find_open_run)
    list_runs = read(automation.list_runs)
    list_results = read(automation.list_results)
    prune_automations = write(automation.prune)

    get_trigger = peek(trigger.get)
    list_triggers = read(trigger.list_)
    list_triggers_naming = read(trigger.list_naming)
    get_firing = peek(trigger.get_firing)
    find_firing = peek(trigger.find_firing)
    find_firing_of = peek(trigger.find_firing_of)
    list_firings = read(trigger.list_firings)
    list_due_firings = read(trigger.list_due)
    find_next_firing_at = peek(trigger.find_next_at)
    count_firings = peek(trigger.count)
    count_waiting_firings = peek(trigger.count_waiting)
    prune_firings = write(trigger.prune)

    get_goal = peek(goal.get)
    list_named_goals = read(goal.list_named)
    list_goals = read(goal.list_)
    find_goal_key = peek(goal.find_key)
    list_declared_goals = read(goal.list_declared)
    list_due_goals = read(goal.list_due)
    has_open_goals = peek(goal.has_open)
    find_next_goal_at = read(goal.find_next_at)
    find_open_step = peek(goal.find_open_step)
    list_goal_steps = read(goal.list_steps)
    delete_goal = write(goal.delete)

    raise_alert = write(alert.raise_)
    get_alert = peek(alert.get)
    list_open_alerts = read(alert.list_open)
    prune_alerts = write(alert.prune)
    list_signs = snapshot(alert.list_signs)
    list_late_agents = read(alert.list_late_agents)
    find_oldest_late = read(alert.find_oldest_late)
    list_behind_sessions = snapshot(alert.list_behind_sessions)
    list_behind_directories = snapshot(alert.list_behind_directories)
    list_unanswered = read(alert.list_unanswered)
    list_paused_automations = read(alert.list_paused_automations)
    list_paused_goals = read(alert.list_paused_goals)
    list_undelivered = read(alert.list_undelivered)
    count_plans = snapshot(alert.count_plans)
    list_waits = read(alert.list_waits)

    get_worktree = peek(worktree.get)
    list_worktrees = snapshot(worktree.list_)
    prune_worktrees = write(worktree.prune)

    add_instance = write(instance.add)
    remove_instances = write(instance.remove)
    list_instances = read(instance.list_)

    async def check_writable(self) -> None:
        if self._write_failed:
            await self.write(event.touch)
            self._write_failed = False
