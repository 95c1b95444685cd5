"""Test time: durations as people write them, instants in JSON, sortable ids, and clocks."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midwatch.base.clock import LONGEST_NAP, SECOND, Stopwatch, SystemClock, iso
from midwatch.base.durations import seconds
from midwatch.base.errors import InvalidInput
from midwatch.base.ids import new_id
from midwatch.domain.budget import Budget
from midwatch.testing import FakeClock

# -- durations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", 90.0),
        ("10m", 600.0),
        ("1h30m", 5400.0),
        ("2d", 172800.0),
        ("1w", 604800.0),
        ("250ms", 0.25),
        ("7us", 7e-6),
        ("1.5h", 5400.0),
        (" 1H 30M ", 5400.0),
        ("0", 0.0),
        ("0s", 0.0),
        ("12", 12.0),
        ("0.5", 0.5),
        (3, 3.0),
        (0.25, 0.25),
    ],
)
def test_durations_are_parsed(text: str | float, expected: float) -> None:
    read = seconds(text)
    assert read == pytest.approx(expected)
    assert isinstance(read, float)


BAD = ("", " ", "soon", "5 minutes", "1h30", "s", "10x", "1h-5m", "--3s", "1,5s", "1.s", "m10", "5mm", "0x10", "½h")


@pytest.mark.parametrize("text", BAD)
def test_an_invalid_duration_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(InvalidInput, match="not a duration; write 90s, 10m, 1h30m or 2d"):
        seconds(text)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "Infinity", "1e999"])
def test_a_duration_must_be_finite(text: str) -> None:
    with pytest.raises(InvalidInput):
        seconds(text)


def test_a_number_that_no_float_can_hold_is_refused() -> None:
    with pytest.raises(InvalidInput, match="is not a duration"):
        seconds(10**399)
    with pytest.raises(InvalidInput, match="must be at most 1000000000000000"):
        Budget.from_data({"tokens": 10**399})


def test_a_very_long_text_is_refused_at_once() -> None:
    """A search for numbers in it would not end within the time limit of a test."""
    with pytest.raises(InvalidInput, match="at most 100 characters"):
        seconds("1" * 2_000_000)


def test_a_duration_with_a_unit_must_be_finite() -> None:
    with pytest.raises(InvalidInput):
        seconds("9" * 400 + "s")


@given(st.text(max_size=20))
def test_any_text_is_a_duration_or_invalid_input(text: str) -> None:
    try:
        assert isinstance(seconds(text), float)
    except InvalidInput as refused:
        assert repr(text) in str(refused)


@given(
    st.dictionaries(st.sampled_from(["w", "d", "h", "m", "s", "ms", "us"]), st.integers(0, 10_000), min_size=1),
    st.booleans(),
)
def test_parts_of_a_duration_add_up(parts: dict[str, int], spaced: bool) -> None:
    length = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1, "ms": 1e-3, "us": 1e-6}
    text = (" " if spaced else "").join(f"{number}{unit}" for unit, number in parts.items())
    assert seconds(text) == pytest.approx(sum(number * length[unit] for unit, number in parts.items()))


# -- instants ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "shown"),
    [
        (None, None),
        (0, "1970-01-01T00:00:00.000000Z"),
        (1, "1970-01-01T00:00:00.000001Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (1_700_000_000 * SECOND + 5, "2023-11-14T22:13:20.000005Z"),
    ],
)
def test_instants_are_iso_in_utc_with_microseconds(when: int | None, shown: str | None) -> None:
    assert iso(when) == shown


@given(st.integers(0, 4_000_000_000 * SECOND))
def test_microseconds_survive_json(when: int) -> None:
    shown = iso(when)
    assert shown is not None
    moment = datetime.fromisoformat(shown)
    assert moment.tzinfo == UTC
    whole = moment - datetime(1970, 1, 1, tzinfo=UTC)
    assert (whole.days * 86400 + whole.seconds) * SECOND + whole.microseconds == when


@given(st.lists(st.integers(0, 4_000_000_000 * SECOND), min_size=2, max_size=20))
def test_texts_of_instants_sort_like_the_instants(instants: list[int]) -> None:
    assert [iso(when) for when in sorted(instants)] == sorted(str(iso(when)) for when in instants)


# -- ids ---------------------------------------------------------------------------------------------------------


def test_ids_are_unique_within_a_millisecond() -> None:
    now = SystemClock().now()
    assert len({new_id("t", now) for _ in range(100_000)}) == 100_000


@given(st.lists(st.integers(0, 2**53), min_size=2, max_size=50))
def test_ids_sort_by_creation_millisecond(times: list[int]) -> None:
    stamped_ids = [(new_id("t", when), when // 1000) for when in times]
    assert [ms for _, ms in sorted(stamped_ids)] == sorted(ms for _, ms in stamped_ids)


def test_ids_of_one_millisecond_keep_their_order() -> None:
    now = SystemClock().now()
    ids = [new_id("t", now) for _ in range(1000)]
    assert sorted(ids) == ids


def test_an_id_has_a_prefix_of_its_kind_and_a_fixed_length() -> None:
    ids = [new_id("t", when) for when in (0, SystemClock().now(), 2**53)]
    assert {len(task_id) for task_id in ids} == {len("t_") + 11 + 12}
    assert all(task_id.startswith("t_") and task_id[2:].isalnum() and task_id == task_id.lower() for task_id in ids)


FORK = """
import os
from midwatch.base.ids import new_id
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, new_id("t", 0).encode())
    os._exit(0)
os.wait()
print(os.read(read, 100).decode() == new_id("t", 0))
"""


def test_a_forked_process_makes_other_ids_than_its_parent() -> None:
    process = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "False"


# -- the machine's clock -----------------------------------------------------------------------------------------


def test_the_machines_clock_is_in_microseconds_and_monotonic_never_goes_back() -> None:
    here = SystemClock()
    assert abs(here.now() / SECOND - datetime.now(UTC).timestamp()) < 60
    readings = [here.monotonic() for _ in range(1000)]
    assert readings == sorted(readings)


async def test_a_cancelled_call_never_happens() -> None:
    here = SystemClock()
    called: list[str] = []
    event = asyncio.Event()
    here.call_later(0.0, lambda: called.append("never")).cancel()
    here.call_later(0.001, event.set)
    await event.wait()
    assert called == []


# -- the fake clock ----------------------------------------------------------------------------------------------


async def test_the_fake_clock_calls_in_order_at_the_right_time() -> None:
    fake = FakeClock()
    start, called = fake.now(), []
    for delay in (3.0, 1.0, 2.0, 1.0):
        fake.call_later(delay, lambda delay=delay: called.append((delay, (fake.now() - start) / SECOND)))
    cancelled = fake.call_later(1.5, lambda: called.append("never"))
    cancelled.cancel()
    await fake.advance(2.5)
    assert called == [(1.0, 1.0), (1.0, 1.0), (2.0, 2.0)]
    await fake.advance(0.5)
    assert called[-1] == (3.0, 3.0)
    assert (fake.now() - start, fake.monotonic()) == (3 * SECOND, 1003.0)


def test_every_clock_sleeps_at_most_as_long_as_the_port_says() -> None:
    assert math.isclose(LONGEST_NAP, 30.0)


async def test_a_stopwatch_counts_only_while_it_runs() -> None:
    clock = FakeClock()
    stopwatch = Stopwatch(clock)
    await clock.advance(2)
    assert stopwatch.read() == 2
    stopwatch.stop()
    await clock.advance(5)
    assert stopwatch.read() == 2
    stopwatch.start()
    await clock.advance(1)
    stopwatch.start()
    await clock.advance(1)
    assert stopwatch.read() == 4
