"""Test many simulated weeks with random agents, people, crashes and clocks. A failing seed is printed with its history:
replay it alone with `pytest tests/integration/test_week.py --seed N`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from week import simulate_week

CHUNK = 20


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make chunks of seeds, so that they can be spread over processes; or one seed."""
    seed, count = metafunc.config.getoption("--seed"), metafunc.config.getoption("--seeds")
    chunks = (
        [range(seed, seed + 1)]
        if seed is not None
        else [range(n, min(n + CHUNK, count)) for n in range(0, count, CHUNK)]
    )
    metafunc.parametrize("seeds", chunks, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")


def test_a_simulated_week_keeps_every_promise(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        try:
            simulate_week(seed, tmp_path / "home")
        except BaseException:
            print(f"\nreplay it: pytest tests/integration/test_week.py --seed {seed}")
            raise
