"""The courier: sends pending deliveries, and tries each delivery again until it is sent or has failed.

Every channel has a queue of its own, its lane, so that a slow channel does not delay other channels. A delivery may be
sent twice, with the same id: its result is recorded after it was sent, and if the process dies before the result is
recorded, the delivery stays pending.

A digest is one message for several deliveries. Before it is sent, the store records which deliveries it has, so that a
message that is sent again has the same id and the same text.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from midwatch.base.clock import LONGEST_NAP, SECOND, Clock, Timer
from midwatch.base.errors import Conflict, DeliveryError, MidwatchError
from midwatch.base.foreign import ContainExit, describe_source
from midwatch.base.text import cut
from midwatch.domain.changes import Changes, Update
from midwatch.domain.channel import MAX_ATTEMPTS, Channel, Delivery, backoff
from midwatch.domain.event import DeliveryFailed, DeliverySent, Payload, event
from midwatch.domain.notice import is_digest, merge_digest
from midwatch.domain.store import Store

log = logging.getLogger("midwatch.courier")

LANE_WIDTH = 8
"""How many deliveries of one channel are sent at once."""
PAUSE_SECONDS, LONGEST_PAUSE = 1.0, 60.0
"""The first and the longest pause, in seconds, after an error of the store. The pause doubles after each error."""
BATCH, MOST_QUEUED = 50, 20_000
CROWDED, CROWDED_SECONDS = 500, 0.25
"""With more than CROWDED queued deliveries, the courier pauses CROWDED_SECONDS between two reads of the store."""
ERROR_SHOWN = 500


class Patience(NamedTuple):
    """The timeouts of a courier, in seconds."""

    send: float = 15.0
    """Timeout of one send."""
    stop: float = 2.0
    """Time to send due deliveries while the courier is being stopped."""
    nap: float = LONGEST_NAP
    """The longest time for which the courier sleeps before it checks for due deliveries again."""


PATIENCE = Patience()


class _Lane:
    """The deliveries of one channel, by id: `waiting` in the order in which the store lists them, and `sending`."""

    def __init__(self) -> None:
        self.waiting: dict[str, Delivery] = {}
        self.sending: dict[str, Delivery] = {}

    def take(self) -> Delivery | None:
        """Move the next delivery from `waiting` to `sending` and return it, or return None if none may be sent now.

        Only one notice of each task is being sent at a time, so that the notices of a task arrive in order. For the
        same reason only one digest is being sent to each target.
        """
        if len(self.sending) >= LANE_WIDTH:
            return None
        busy = {_line_of(delivery) for delivery in self.sending.values()}
        chosen = next((delivery for delivery in self.waiting.values() if _line_of(delivery) not in busy), None)
        if chosen is not None:
            self.sending[chosen.id] = self.waiting.pop(chosen.id)
        return chosen


def _line_of(delivery: Delivery) -> tuple[str, str | None]:
    """Return what the deliveries have in common that are sent one after another."""
    return ("digest", delivery.target) if is_digest(delivery) else ("task", delivery.task_id)


class Courier:
    """Loop: sends due deliveries while this process leads. It sleeps until it is woken or a delivery becomes due."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        channels: Mapping[str, Channel],
        leads: Callable[[], bool],
        patience: Patience = PATIENCE,
    ) -> None:
        self._patience = patience
        self._store = store
        self._clock = clock
        self._channels = channels
        self._leads = leads
        self._awake = asyncio.Event()
        self._lanes: dict[str, _Lane] = {}
        self._ended: set[str] = set()
        self._sends: set[asyncio.Task[None]] = set()
        self._taking = False
        self._loop: asyncio.Task[None] | None = None
        self._timer: Timer | None = None

    async def start(self) -> None:
        """Start the loop, unless it runs already."""
        if self._loop is None:
            self._taking = True
            self._loop = asyncio.create_task(self._run(), name="courier")
            self.wake()

    async def stop(self) -> None:
        """Send due deliveries for a short time, then stop the loop. A second call does nothing.

        So a process that ends still sends the notice of its last task. Deliveries that are not sent stay pending.
        """
        loop, self._loop = self._loop, None
        if loop is None:
            return
        loop.cancel()
        await asyncio.wait({loop})
        self._set_timer(None)
        try:
            async with asyncio.timeout(self._patience.stop):
                await self._drain()
        except TimeoutError:
            log.info("%d deliveries are not sent yet; they stay pending", self._count_queued())
        finally:
            self._taking = False
            self._forget_waiting()
            unfinished = set(self._sends)
            for send in unfinished:
                send.cancel()
            if unfinished:
                await asyncio.wait(unfinished, timeout=self._patience.stop)

    def wake(self) -> None:
        """Check for due deliveries now, because a delivery was written or this process became the leader."""
        self._awake.set()

    # -- due deliveries ------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        pause = PAUSE_SECONDS
        while True:
            await self._awake.wait()
            self._awake.clear()
            try:
                self._set_timer(await self._look())
                pause = PAUSE_SECONDS
            except Exception as problem:
                log.warning("due deliveries cannot be read (%s); trying again in %g s", _describe(problem), pause)
                await self._pause(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                self.wake()
            if self._count_queued() > CROWDED:
                await self._pause(CROWDED_SECONDS)

    async def _look(self) -> float | None:
        """Begin to send due deliveries. Return the seconds until the next check, or None to wait for a wake-up."""
        if not self._leads():
            self._forget_waiting()
            return None
        now = self._clock.now()
        limit = min(BATCH + 2 * self._count_queued(), MOST_QUEUED)
        self._ended.clear()
        due = await self._store.list_due_deliveries(now, limit)
        fresh = [delivery for delivery in due if self._queue(delivery)]
        for lane in self._lanes.values():
            self._begin(lane)
        if fresh and len(due) == limit:
            self.wake()  # there may be more
        due_at = await self._store.find_next_delivery_at()
        if due_at is None:
            return None
        if due_at <= now:  # a delivery that is being sent; the time of the next one is not known
            return PAUSE_SECONDS
        return (due_at - self._clock.now()) / SECOND

    def _queue(self, delivery: Delivery) -> bool:
        """Queue a delivery, unless it is queued, being sent, or was sent after the store was read."""
        lane = self._lanes.setdefault(delivery.channel, _Lane())
        if delivery.id in lane.waiting or delivery.id in lane.sending or delivery.id in self._ended:
            return False
        lane.waiting[delivery.id] = delivery
        return True

    def _count_queued(self) -> int:
        return sum(len(lane.waiting) + len(lane.sending) for lane in self._lanes.values())

    def _forget_waiting(self) -> None:
        for lane in self._lanes.values():
            lane.waiting.clear()

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if seconds is not None:
            self._timer = self._clock.call_later(min(max(seconds, 0.0), self._patience.nap), self.wake)

    async def _pause(self, seconds: float) -> None:
        over = asyncio.Event()
        timer = self._clock.call_later(seconds, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()

    async def _drain(self) -> None:
        try:
            await self._look()
        except Exception as problem:
            log.warning("due deliveries cannot be read (%s); they stay pending", _describe(problem))
        while self._sends:
            await asyncio.wait(self._sends)

    # -- one send ------------------------------------------------------------------------------------------------

    def _begin(self, lane: _Lane) -> None:
        while self._leads() and (delivery := lane.take()) is not None:
            send = asyncio.create_task(self._send(lane, delivery), name=f"send {delivery.id}")
            self._sends.add(send)
            send.add_done_callback(self._sends.discard)

    async def _send(self, lane: _Lane, delivery: Delivery) -> None:
        parts: Sequence[Delivery] = ()
        try:
            parts = await self._gather(delivery)
            if parts:
                message = merge_digest(parts) if is_digest(delivery) else delivery
                problem = await self._try(message)
                if problem is None:
                    log.info("delivery %s was sent to channel %s", message.id, message.channel)
                else:
                    log.warning("delivery %s was not sent (try %d): %s", message.id, message.attempts + 1, problem)
                await self._record(parts, problem)
        finally:
            del lane.sending[delivery.id]
            for part in (delivery, *parts):
                lane.waiting.pop(part.id, None)
                self._ended.add(part.id)
            if self._taking:
                self.wake()
                self._begin(lane)

    async def _gather(self, delivery: Delivery) -> Sequence[Delivery]:
        """Return all deliveries that are sent together with a delivery. Return none if the store cannot say it now."""
        if not is_digest(delivery):
            return (delivery,)
        try:
            return await self._store.seal_digest(delivery, self._clock.now())
        except Exception as problem:
            log.warning("the digest of delivery %s cannot be read (%s); trying again", delivery.id, _describe(problem))
            await self._pause(PAUSE_SECONDS)
            return ()

    async def _try(self, delivery: Delivery) -> DeliveryError | None:
        """Send a delivery once. Return None after success, or a DeliveryError after any error of the channel."""
        name = delivery.channel
        channel = self._channels.get(name)
        if channel is None:
            return DeliveryError(f"there is no channel {name!r}; add [channels.{name}].", permanent=True)
        try:
            async with asyncio.timeout(self._patience.send) as limit:
                with ContainExit("`deliver`"):
                    await channel.deliver(delivery)
        except DeliveryError as problem:
            return problem
        except asyncio.CancelledError as problem:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return DeliveryError(f"channel {name}: {_describe(problem)}.")
        except Exception as problem:
            why = f"it took longer than {self._patience.send:g} s" if limit.expired() else _describe(problem)
            return DeliveryError(f"channel {name}: {why.rstrip('.')}.")
        return None

    async def _record(self, parts: Sequence[Delivery], problem: DeliveryError | None) -> None:
        """Record the result of a send in the store, and try again until the store accepts it.

        Until the result is recorded, the deliveries must not be sent again.
        """
        changes = record_attempts(parts, problem, self._clock.now())
        pause = PAUSE_SECONDS
        while True:
            try:
                await self._store.apply(changes)
            except Conflict:
                if len(parts) > 1:  # one was changed or removed; each of the others is recorded
                    for part in parts:
                        await self._record([part], problem)
                else:
                    log.info("the result of delivery %s was recorded by another process already", parts[0].id)
            except Exception as trouble:
                log.warning("no result of delivery %s was stored: %s; trying again", parts[0].id, _describe(trouble))
                await self._pause(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            return


def record_attempts(parts: Sequence[Delivery], problem: DeliveryError | None, now: int) -> Changes:
    """Return the changes of all deliveries that were sent as one message."""
    changes = Changes()
    for part in parts:
        changes = changes.plus(record_attempt(part, problem, now))
    return changes


def record_attempt(delivery: Delivery, problem: DeliveryError | None, now: int) -> Changes:
    """Return the changes of a delivery after a send: it is sent, has failed, or is due again later."""
    attempts = delivery.attempts + 1
    fields: dict[str, Any] = {"attempts": attempts}
    payload: Payload | None = None
    about = {"delivery_id": delivery.id, "channel": delivery.channel, "notice": delivery.notice}
    if problem is None:
        fields |= {"status": "sent", "sent_at": now, "error": None}
        payload = DeliverySent(**about)
    else:
        error = cut(" ".join(str(problem).split()), ERROR_SHOWN)
        fields["error"] = error
        if problem.permanent or attempts >= MAX_ATTEMPTS:
            fields["status"] = "failed"
            payload = DeliveryFailed(**about, error=error)
        else:
            pause = backoff(attempts) * random.uniform(0.8, 1.2)  # noqa: S311 - random only to spread the load
            fields["due_at"] = now + int(pause * SECOND)
    return Changes(
        updates=(Update("delivery", delivery.id, fields, {"status": "pending", "attempts": delivery.attempts}),),
        events=(event(payload, now, task_id=delivery.task_id),) if payload else (),
    )


def _describe(problem: BaseException) -> str:
    """Describe an error without secrets: an error of midwatch by its text, any other by its type and source line."""
    return str(problem) if isinstance(problem, MidwatchError) else describe_source(problem)
