"""Figures for Prometheus, read from the store when they are asked for."""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as MEDIA_TYPE
from prometheus_client.registry import Collector

from midwatch.base.clock import SECOND
from midwatch.base.version import __version__
from midwatch.desk.desk import Desk
from midwatch.domain.task import TaskFilter

__all__ = ["MEDIA_TYPE", "text"]


class _Found(Collector):
    """Metrics that were worked out already."""

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


async def text(desk: Desk, streams: int) -> bytes:
    """All of it, in the text format."""
    registry = CollectorRegistry()
    registry.register(_Found(await _measured(desk, streams)))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


async def _measured(desk: Desk, streams: int) -> list[Metric]:
    bounds = await desk.store.log_bounds()
    tasks = GaugeMetricFamily("midwatch_tasks", "Tasks that are kept, by status.", labels=["status"])
    for status, count in (await desk.tasks.summary())._asdict().items():
        if status != "total":
            tasks.add_metric([status], count)
    deliveries = GaugeMetricFamily("midwatch_deliveries", "Notices that wait or failed.", labels=["status"])
    for state in ("pending", "failed"):
        found = await desk.notifications.list(status=state, limit=500)
        deliveries.add_metric([state], len(found))
    waiting = await desk.tasks.list(TaskFilter(statuses=("pending",), limit=500))
    oldest = min((task.due_at for task in waiting), default=None)
    age = 0.0 if oldest is None else max(0.0, time.time() - oldest / SECOND)
    events = CounterMetricFamily("midwatch_events", "Events written since the beginning.")
    events.add_metric([], bounds.last_seq)
    return [
        InfoMetricFamily("midwatch", "This program.", {"version": __version__}),
        tasks,
        deliveries,
        events,
        _gauge(
            "midwatch_approvals_pending", "Questions nobody has answered.", len(await desk.approvals.list(limit=500))
        ),
        _gauge("midwatch_oldest_pending_seconds", "How long the oldest of the newest waiting tasks is due.", age),
        _gauge("midwatch_running_here", "Tasks that run in this process.", desk.running),
        _gauge("midwatch_slots", "Tasks that may run in this process at once.", desk.settings.slots),
        _gauge("midwatch_processes", "Processes that run tasks.", len(await desk.living())),
        *_routines(desk),
        *_subscriptions(desk),
        _gauge("midwatch_event_streams", "Open streams of events.", streams),
    ]


def _gauge(name: str, told: str, value: float) -> Metric:
    return GaugeMetricFamily(name, told, value)


def _subscriptions(desk: Desk) -> list[Metric]:
    named = ["subscription"]
    counters = {
        "received": "Events that reached a subscription.",
        "handled": "Those its handler took.",
        "failed": "Those its handler failed over or was too slow for.",
        "dropped": "Those it missed because it was too slow.",
    }
    found: list[Metric] = []
    for name, told in counters.items():
        counter = CounterMetricFamily(f"midwatch_subscription_{name}", told, labels=named)
        for one in desk.subscriptions.list():
            counter.add_metric([one.name], getattr(one, name))
        found.append(counter)
    lag = GaugeMetricFamily("midwatch_subscription_lag", "Events a subscription is behind.", labels=named)
    for one in desk.subscriptions.list():
        lag.add_metric([one.name], one.lag)
    return [*found, lag]


def _routines(desk: Desk) -> list[Metric]:
    runs = CounterMetricFamily("midwatch_routine_runs", "Runs of own work at intervals.", labels=["routine"])
    failures = CounterMetricFamily("midwatch_routine_failures", "Those that failed.", labels=["routine"])
    for one in desk.routines.list():
        runs.add_metric([one.name], one.runs)
        failures.add_metric([one.name], one.failures)
    return [runs, failures]
