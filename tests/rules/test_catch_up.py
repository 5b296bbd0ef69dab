"""When a job will have caught up: from its speed while it works, less what still arrives."""

from __future__ import annotations

import sys
import threading

import pytest

from jobs.runtime.catch_up import CatchUp

INFINITY = float("inf")


def test_nothing_behind_is_caught_up_already() -> None:
    assert CatchUp().seconds(0, 0) == 0


def test_nothing_is_reported_before_there_is_anything_to_measure() -> None:
    assert CatchUp().seconds(0, 1_000) is None


def test_a_backlog_takes_its_records_over_the_speed_when_nothing_more_arrives() -> None:
    catch_up = CatchUp()
    catch_up.seconds(0, 10_000)
    catch_up.batch(1, 1_000, 1.0)
    assert catch_up.seconds(1, 9_000) == pytest.approx(9)


def test_what_still_arrives_slows_it_down() -> None:
    catch_up = CatchUp()
    catch_up.seconds(0, 10_000)
    catch_up.batch(10, 2_000, 2.0)  # 1,000 a second while it works, and 600 a second arrive
    assert catch_up.seconds(10, 14_000) == pytest.approx(14_000 / (1_000 - 600))


def test_a_job_that_receives_more_than_it_can_take_never_catches_up() -> None:
    catch_up = CatchUp()
    catch_up.seconds(0, 0)
    catch_up.batch(10, 1_000, 10.0)
    assert catch_up.seconds(10, 5_000) == INFINITY


def test_a_steady_stream_that_always_waits_for_the_next_trigger_is_not_behind_for_ever() -> None:
    catch_up = CatchUp()
    for second in range(0, 60, 5):
        catch_up.batch(second, 500, 0.4)
        estimate = catch_up.seconds(second + 4, 400)
        assert estimate is not None
        assert estimate < 1


def test_a_job_that_is_almost_idle_and_slow_at_that_keeps_up() -> None:
    catch_up = CatchUp()
    estimates = []
    for second in range(0, 60, 5):
        catch_up.batch(second, 4, 5.5)  # 0.7 a second while it works; 0.8 a second arrive
        estimates.append(catch_up.seconds(second + 4, 4))
    assert all(estimate is not None and estimate < 10 for estimate in estimates[2:])


def test_a_backlog_that_grows_through_all_batches_is_never_caught_up() -> None:
    catch_up = CatchUp()
    for number, second in enumerate(range(0, 60, 5)):
        catch_up.batch(second, 1_000, 5.0)
        estimate = catch_up.seconds(second + 4, 1_000 * number)
    assert estimate == INFINITY


def test_a_stalled_job_never_catches_up() -> None:
    catch_up = CatchUp()
    assert [catch_up.seconds(at, 10) for at in (0, 30, 61)] == [None, None, INFINITY]


def test_it_forgets_how_fast_it_was_long_ago() -> None:
    catch_up = CatchUp()
    catch_up.seconds(0, 100)
    catch_up.batch(0, 1_000, 0.001)
    catch_up.batch(200, 10, 10.0)
    assert catch_up.seconds(200, 100) == pytest.approx(100)


def test_a_batch_may_end_during_a_report() -> None:
    catch_up, interval = CatchUp(), sys.getswitchinterval()

    def end_batches() -> None:
        for _ in range(20_000):
            catch_up.batch(0, 1, 0.1)

    batches = threading.Thread(target=end_batches)
    sys.setswitchinterval(1e-6)
    try:
        batches.start()
        while batches.is_alive():
            assert catch_up.seconds(1, 5) is not None or not catch_up._batches
    finally:
        sys.setswitchinterval(interval)
        batches.join()
