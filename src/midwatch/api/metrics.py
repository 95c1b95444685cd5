"""Metrics for Prometheus. They are read from the store for each request."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as MEDIA_TYPE
from prometheus_client.registry import Collector

from midwatch.base.clock import SECOND
from midwatch.base.version import __version__
from midwatch.desk.desk import Desk
from midwatch.domain.channel import Status
from midwatch.domain.identity import AnyActor
from midwatch.domain.task_store import TaskFilter

__all__ = ["MEDIA_TYPE", "render"]

Family = type[CounterMetricFamily] | type[GaugeMetricFamily]

NOTICES: tuple[Status, ...] = ("pending", "failed")
OLDEST_PENDING = "Seconds that the most overdue of the newest 500 waiting tasks is late."
STANDSTILLS = "How often the event loop of this process stood still for 5 seconds, so that nobody was answered."
ROUTINE_FIGURES: Mapping[str, tuple[Family, str]] = {
    "runs": (CounterMetricFamily, "Runs of a routine, which is background work at intervals."),
    "failures": (CounterMetricFamily, "Runs of a routine that failed."),
}
SUBSCRIPTION_FIGURES: Mapping[str, tuple[Family, str]] = {
    "received": (CounterMetricFamily, "Events that reached a subscription."),
    "handled": (CounterMetricFamily, "Events that the handler of a subscription has handled."),
    "failed": (CounterMetricFamily, "Events for which the handler of a subscription failed or was too slow."),
    "dropped": (CounterMetricFamily, "Events that a subscription missed because it was too slow."),
    "lag": (GaugeMetricFamily, "Events that a subscription has not handled yet."),
}


class _Collected(Collector):
    """A collector that returns a fixed list of metrics."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


async def render(desk: Desk, streams: int, actor: AnyActor) -> bytes:
    """Return all metrics in the text format of Prometheus."""
    desk.system.check_overseer(actor)
    registry = CollectorRegistry()
    registry.register(_Collected(await _measure(desk, streams)))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


async def _measure(desk: Desk, streams: int) -> list[Metric]:
    counts = (await desk.tasks.summary())._asdict()
    del counts["total"]
    notices: dict[str, int] = {
        status: len(await desk.notifications.list(status=status, limit=500)) for status in NOTICES
    }
    waiting = await desk.tasks.list(TaskFilter(statuses=("pending",), limit=500))
    oldest = min((task.due_at for task in waiting), default=None)
    age = 0.0 if oldest is None else max(0.0, time.time() - oldest / SECOND)
    approvals = len(await desk.approvals.list(limit=500))
    last_seq = (await desk.events.bounds()).last_seq
    processes = len(await desk.living())
    return [
        InfoMetricFamily("midwatch", "Version of midwatch.", {"version": __version__}),
        _make_metric(GaugeMetricFamily, "tasks", "Stored tasks, by status.", "status", counts),
        _make_metric(GaugeMetricFamily, "deliveries", "Waiting and failed notices.", "status", notices),
        CounterMetricFamily("midwatch_events", "Events stored so far.", last_seq),
        GaugeMetricFamily("midwatch_approvals_pending", "Questions that wait for an answer.", approvals),
        GaugeMetricFamily("midwatch_oldest_pending_seconds", OLDEST_PENDING, age),
        GaugeMetricFamily("midwatch_running_here", "Tasks that run in this process.", desk.running),
        GaugeMetricFamily("midwatch_slots", "Maximum of tasks that run in this process at once.", desk.settings.slots),
        GaugeMetricFamily("midwatch_processes", "Processes that run tasks.", processes),
        *_make_metrics(desk.routines.list(), "routine", ROUTINE_FIGURES),
        *_make_metrics(desk.subscriptions.list(), "subscription", SUBSCRIPTION_FIGURES),
        GaugeMetricFamily("midwatch_event_streams", "Open streams of events.", streams),
        CounterMetricFamily("midwatch_loop_standstills", STANDSTILLS, desk.standstills),
    ]


def _make_metrics(records: Sequence[Any], noun: str, figures: Mapping[str, tuple[Family, str]]) -> list[Metric]:
    """Return a metric for each of `figures`, with one value per record. The label of a value is the record's name."""
    return [
        _make_metric(family, f"{noun}_{figure}", text, noun, {each.name: getattr(each, figure) for each in records})
        for figure, (family, text) in figures.items()
    ]


def _make_metric(family: Family, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    metric = family(f"midwatch_{name}", text, labels=[label])
    for key, value in values.items():
        metric.add_metric([key], value)
    return metric
