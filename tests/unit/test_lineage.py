"""Test the lineage of tasks: the turn, the path and the source of work that grew out of other work."""

from __future__ import annotations

from midwatch.domain.event import EventFilter, TaskProgress, event
from midwatch.domain.lineage import LONGEST_PATH, derive, extend_path
from midwatch.domain.task import correlate, in_turn, new_task


def test_a_derived_task_names_the_latest_turn_and_the_way_from_the_root() -> None:
    root = new_task(1, "begin", "it", task_id="t_root")
    assert "source" not in in_turn(root)
    waiting = derive(new_task(2, "later", "it", task_id="t_a"), root, "background")
    assert correlate(waiting) == {"parent_turn_id": None, "trace_path": "t_root/t_a", "source": "background"}
    child = derive(new_task(2, "go on", "it", task_id="t_b"), waiting._replace(attempt=3), "retry")
    assert (
        in_turn(child).items() >= {"parent_turn_id": "t_a.3", "trace_path": "t_root/t_a/t_b", "source": "retry"}.items()
    )
    assert (child.root_id, child.parent_id) == ("t_b", None)  # these are set by others


def test_a_long_path_keeps_its_root_and_its_last_ids() -> None:
    path, names = "t_root", [f"t_{number:020}" for number in range(1000)]
    for name in names:
        path = extend_path(path, name)
        assert len(path) <= LONGEST_PATH
    first, left_out, *rest = path.split("/")
    assert (first, left_out) == ("t_root", "...")
    assert rest == names[-len(rest) :]
    assert len(rest) > 40
    assert len(extend_path("t_root", "x" * 2000)) > LONGEST_PATH  # an id is never cut


def test_a_filter_finds_the_whole_tree_below_an_id() -> None:
    inside = event(TaskProgress(text="x"), 1, task_id="t_c", trace_path="g_a/t_b/t_c")
    for name, matches in {"g_a": True, "t_b": True, "t_c": True, "t_": False, "b/t_c": False, "g_a/t_b": True}.items():
        assert EventFilter(tree=name).matches(inside) == matches, name
    assert EventFilter(tree="t_a").matches(event(TaskProgress(text="x"), 1, task_id="t_a"))
