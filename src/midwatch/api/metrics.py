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

__all__ = ["MEDIA_TYPE", "render"]


class _Collected(Collector):
    """Metrics that were collected already."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


async def render(desk: Desk, streams: int) -> bytes:
    """Return all metrics in the text format."""
    registry = CollectorRegistry()
    registry.register(_Collected(await _measure(desk, streams)))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


async def _measure(desk: Desk, streams: int) -> list[Metric]:
    bounds = await desk.events.bounds()
    tasks = GaugeMetricFamily("midwatch_tasks", "Tasks that are kept, by status.", labels=["status"])
    for status, count in (await desk.tasks.summary())._asdict().items():
        if status != "total":
            tasks.add_metric([status], count)
    deliveries = GaugeMetricFamily("midwatch_deliveries", "Notices that wait or failed.", labels=["status"])
    for state in ("pending", "failed"):
        deliveries.add_metric([state], len(await desk.notifications.list(status=state, limit=500)))
    waiting = await desk.tasks.list(TaskFilter(statuses=("pending",), limit=500))
    oldest = min((task.due_at for task in waiting), default=None)
    age = 0.0 if oldest is None else max(0.0, time.time() - oldest / SECOND)
    approvals = len(await desk.approvals.list(limit=500))
    events = CounterMetricFamily("midwatch_events", "Events written since the beginning.")
    events.add_metric([], bounds.last_seq)
    return [
        InfoMetricFamily("midwatch", "This program.", {"version": __version__}),
        tasks,
        deliveries,
        events,
        GaugeMetricFamily("midwatch_approvals_pending", "Questions nobody has answered.", approvals),
        GaugeMetricFamily(
            "midwatch_oldest_pending_seconds", "How long the oldest of the newest waiting tasks is due.", age
        ),
        GaugeMetricFamily("midwatch_running_here", "Tasks that run in this process.", desk.running),
        GaugeMetricFamily("midwatch_slots", "Tasks that may run in this process at once.", desk.settings.slots),
        GaugeMetricFamily("midwatch_processes", "Processes that run tasks.", len(await desk.living())),
        *_measure_routines(desk),
        *_measure_subscriptions(desk),
        GaugeMetricFamily("midwatch_event_streams", "Open streams of events.", streams),
    ]


def _measure_subscriptions(desk: Desk) -> list[Metric]:
    named = ["subscription"]
    counters = {
        "received": "Events that reached a subscription.",
        "handled": "Those its handler took.",
        "failed": "Those its handler failed over or was too slow for.",
        "dropped": "Those it missed because it was too slow.",
    }
    metrics: list[Metric] = []
    for name, help_text in counters.items():
        counter = CounterMetricFamily(f"midwatch_subscription_{name}", help_text, labels=named)
        for subscription in desk.subscriptions.list():
            counter.add_metric([subscription.name], getattr(subscription, name))
        metrics.append(counter)
    lag = GaugeMetricFamily("midwatch_subscription_lag", "Events a subscription is behind.", labels=named)
    for subscription in desk.subscriptions.list():
        lag.add_metric([subscription.name], subscription.lag)
    return [*metrics, lag]


def _measure_routines(desk: Desk) -> list[Metric]:
    runs = CounterMetricFamily("midwatch_routine_runs", "Runs of own work at intervals.", labels=["routine"])
    failures = CounterMetricFamily("midwatch_routine_failures", "Those that failed.", labels=["routine"])
    for routine in desk.routines.list():
        runs.add_metric([routine.name], routine.runs)
        failures.add_metric([routine.name], routine.failures)
    return [runs, failures]
