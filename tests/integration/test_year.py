"""Test a week of a simulated year: each due time and each cause of a trigger happened, was skipped with a reason, or is
pending. `make year` simulates the whole year.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from year import simulate_year


@pytest.mark.parametrize("seed", [3, 13])
def test_a_simulated_week_tells_every_due_time(seed: int, tmp_path: Path) -> None:
    week = simulate_year(seed, tmp_path / "home", days=7, many=12)
    assert week.checker.due_times > 50
    assert week.checker.firings
