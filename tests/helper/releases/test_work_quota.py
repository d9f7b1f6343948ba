"""What one caller's work takes of a helper, and that another caller's does not wait for it."""

from threading import Thread

import pytest

from helper.releases import work_quota
from helper.releases.work_quota import WorkQuota
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused
from tests.patience import HANGS_S

MOST = 1_000


def gone() -> None:
    raise JobRefused(JobReason.CANCELLED, "gone")


def test_one_caller_takes_a_largest_round_and_leaves_room_for_anothers() -> None:
    quota = WorkQuota(MOST, at_once=3)
    with quota.taken("one", MOST):
        refused = pytest.raises(HelperUnavailable, match=r"share of the memory.*--max-round-bytes")
        with refused, quota.taken("one", MOST):
            pass
        with quota.taken("another", MOST):
            pass
    with quota.taken("one", MOST), quota.taken("another", MOST):
        pass


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_caller_computes_so_much_at_once_and_waits_with_the_rest(at_once: int) -> None:
    quota = WorkQuota(MOST, at_once=at_once)
    held = [quota.taken("one", 1) for _ in range(at_once)]
    for one in held:
        one.__enter__()
    with pytest.raises(JobRefused, match="gone"), quota.taken("one", 1, gone):
        pass
    with quota.taken("another", 1, gone):
        pass
    waited: list[str] = []

    def wait_for_a_turn() -> None:
        with quota.taken("one", 1):
            waited.append("computed")

    waiting = Thread(target=wait_for_a_turn, daemon=True)
    waiting.start()
    held.pop().__exit__(None, None, None)
    waiting.join(HANGS_S)
    assert waited == ["computed"]
    for one in held:
        one.__exit__(None, None, None)
    assert not quota._computing


@pytest.mark.parametrize(("cores", "at_once"), [(None, 1), (1, 1), (2, 1), (3, 1), (4, 2), (9, 4)])
def test_a_caller_has_half_of_the_cores(
    cores: int | None, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert WorkQuota(MOST)._at_once == at_once


@pytest.mark.parametrize(("num_bytes", "times"), [((64 << 20) - 1, 0), (64 << 20, 1)])
def test_what_was_freed_goes_back_to_the_system_after_much_work_however_it_ended(
    num_bytes: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: list[None] = []
    monkeypatch.setattr(work_quota, "give_back_memory", lambda: given_back.append(None))
    quota = WorkQuota(1 << 30)
    with quota.taken("one", num_bytes):
        assert not given_back
    assert len(given_back) == times
    with pytest.raises(JobRefused), quota.taken("one", num_bytes):
        gone()
    assert len(given_back) == 2 * times


def test_a_caller_reads_one_model_at_a_time_and_another_beside_it() -> None:
    quota, read = WorkQuota(MOST), list[str]()

    def read_another() -> None:
        with quota.reading("one"):
            read.append("one")

    waiting = Thread(target=read_another, daemon=True)
    with quota.reading("one"):
        waiting.start()
        with quota.reading("another"):
            read.append("another")
        waiting.join(0.05)
        assert read == ["another"]
    waiting.join(HANGS_S)
    assert read == ["another", "one"]
