import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helper.trust.floors import MOST_HELD_BYTES, PREPARED_BYTES, Floors, WorkEstimate
from maskedlark.errors import InvalidTask, JobReason
from maskedlark.model.limits import HELPER_PARAMETERS
from maskedlark.reports.task import Task
from tests.helper.parties import Party, make_task
from tests.measured import SHOP
from tests.refusals import refused
from tests.update_builders import update_world

AT_THE_FLOORS: dict[str, Any] = {
    "labels": {"kind": "classes", "size": 4, "default_label": 0},
    "min_batch_size": 50,
    "mechanism": "gaussian",
    "epsilon": 4.0,
    "collusion_epsilon": 20.0,
    "delta": 1e-6,
    "num_decoys": 2,
    "max_dataset_size": 1000,
}
FLOORS = Floors(
    min_batch_size=50,
    max_epsilon=4.0,
    max_collusion_epsilon=20.0,
    max_delta=1e-6,
    min_decoys=2,
    max_dataset_size=1000,
)


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> tuple[Party, Party]:
    folder: Path = tmp_path_factory.mktemp("floors")
    return Party(data=folder / "a"), Party(data=folder / "b")


def task(parties: tuple[Party, Party], **changes: Any) -> Task:
    return make_task(parties, **{**AT_THE_FLOORS, **changes})


def test_a_task_exactly_at_the_floors_is_accepted(parties: tuple[Party, Party]) -> None:
    at = task(parties)
    FLOORS.check(at)
    replace(FLOORS, max_dataset_bytes=1000 * at.share_length).check(at)


@pytest.mark.parametrize(
    ("seconds", "is_refused"), [(0.0, False), (2.0, False), (math.nextafter(2, 3), True), (math.nan, True)]
)
def test_a_round_may_take_as_long_as_the_limit_and_no_longer(seconds: float, is_refused: bool) -> None:
    floors = replace(FLOORS, max_round_seconds=2.0)
    if not is_refused:
        floors.check_cost(WorkEstimate(seconds=seconds, num_bytes=1), "a round")
        return
    with refused(JobReason.TOO_LARGE):
        floors.check_cost(WorkEstimate(seconds=seconds, num_bytes=1), "a round")


@pytest.mark.parametrize(
    ("num_bytes", "is_refused"), [(0, False), (2 << 20, False), ((2 << 20) + 1, True), (math.nan, True)]
)
def test_a_round_may_take_as_much_memory_as_the_limit_and_no_more(num_bytes: Any, is_refused: bool) -> None:
    floors = replace(FLOORS, max_round_bytes=2 << 20)
    cost = WorkEstimate(seconds=0.0, num_bytes=num_bytes)
    if not is_refused:
        floors.check_cost(cost, "a round")
        return
    with refused(JobReason.TOO_LARGE, r"of memory, but this helper allows at most 2 \(--max-round-bytes\)"):
        floors.check_cost(cost, "a round")


def test_what_would_take_too_long_is_told_with_two_digits_at_least() -> None:
    floors = replace(FLOORS, max_round_seconds=0.0)
    for seconds, told in ((9.94, "9.9 "), (10.0, "10 "), (12_345.6, "12,346 "), (0.0123, "0.012 ")):
        with refused(JobReason.TOO_LARGE, f"a round would take about {told}core seconds"):
            floors.check_cost(WorkEstimate(seconds=seconds, num_bytes=0), "a round")


def test_the_floors_are_these_unless_the_operator_says_otherwise() -> None:
    """docs/reference names them; a task that one release serves the next one serves, too."""
    assert Floors() == Floors(
        min_batch_size=20,
        max_epsilon=8.0,
        max_collusion_epsilon=16.0,
        max_delta=1e-5,
        min_decoys=1,
        max_dataset_size=1_048_576,
        max_dataset_bytes=4 * 2**30,
        max_tasks_per_origin=200,
        max_round_seconds=3_600.0,
        max_round_bytes=4 * 2**30,
        max_parameters=HELPER_PARAMETERS,
        is_noise_optional=False,
        is_split_noise_allowed=False,
        is_proof_required=False,
        peers=frozenset(),
    )
    assert (PREPARED_BYTES, MOST_HELD_BYTES) == (4 * 2**30, 64 * 2**30)


def test_cells_of_a_measurement_hold_as_many_reports_as_a_batch(parties: tuple[Party, Party]) -> None:
    def measured(min_cell_count: int) -> Task:
        return task(parties, measurement={**SHOP, "min_cell_count": min_cell_count})

    FLOORS.check(measured(50))
    with refused(JobReason.TASK_REFUSED, r"measurement\.min_cell_count is 49.* requires at least 50"):
        FLOORS.check(measured(49))


@pytest.mark.parametrize(
    ("setting", "below"),
    [
        ("min_batch_size", 49),
        ("epsilon", 4.01),
        ("collusion_epsilon", 20.01),
        ("delta", 1.01e-6),
        ("num_decoys", 1),
        ("max_dataset_size", 1001),
        ("mechanism", "none"),
    ],
)
def test_a_task_below_one_floor_is_refused_by_its_name(
    parties: tuple[Party, Party], setting: str, below: Any
) -> None:
    with refused(JobReason.TASK_REFUSED, setting):
        FLOORS.check(task(parties, **{setting: below}))


def test_a_task_whose_datasets_take_too_much_memory_is_refused(parties: tuple[Party, Party]) -> None:
    at = task(parties)
    with refused(JobReason.TASK_REFUSED, "bytes"):
        replace(FLOORS, max_dataset_bytes=1000 * at.share_length - 1).check(at)


def test_no_noise_is_accepted_only_where_the_operator_said_so(parties: tuple[Party, Party]) -> None:
    replace(FLOORS, is_noise_optional=True).check(task(parties, mechanism="none"))


@pytest.mark.parametrize("value", [0.0, -3.0, float("nan")])
@pytest.mark.parametrize("limit", ["max_epsilon", "max_collusion_epsilon", "max_delta"])
def test_a_limit_that_allows_nothing_is_noticed_when_the_helper_starts(limit: str, value: float) -> None:
    never: dict[str, Any] = {limit: value}
    with pytest.raises(InvalidTask, match=f"--{limit.replace('_', '-')} is {value:g}.* more than 0"):
        replace(FLOORS, **never)


@pytest.mark.parametrize("value", [1.0, 2.0, float("inf")])
def test_a_delta_that_is_no_probability_is_noticed_when_the_helper_starts(value: float) -> None:
    with pytest.raises(InvalidTask, match=f"--max-delta is {value:g}.* less than 1"):
        replace(FLOORS, max_delta=value)


def test_a_batch_that_no_dataset_can_hold_is_noticed_when_the_helper_starts() -> None:
    size = FLOORS.max_dataset_size
    replace(FLOORS, min_batch_size=size)
    with pytest.raises(InvalidTask, match=f"--min-batch-size-floor is {size + 1}.* at most {size} "):
        replace(FLOORS, min_batch_size=size + 1)
    with pytest.raises(InvalidTask, match="expected at most 33000000"):
        replace(FLOORS, min_batch_size=33_000_001, max_dataset_size=1 << 40)


def test_decoys_that_no_task_can_have_are_noticed_when_the_helper_starts() -> None:
    replace(FLOORS, min_decoys=1_023)
    with pytest.raises(InvalidTask, match="--min-decoys is 1024, which would refuse everything"):
        replace(FLOORS, min_decoys=1_024)


def test_split_noise_is_refused_unless_the_operator_allows_it(parties: tuple[Party, Party]) -> None:
    split = task(parties, noise="split")
    with refused(JobReason.TASK_REFUSED, "--allow-split-noise"):
        FLOORS.check(split)
    replace(FLOORS, is_split_noise_allowed=True).check(split)


def test_a_task_without_proofs_is_refused_where_the_operator_requires_them(
    parties: tuple[Party, Party],
) -> None:
    strict = replace(FLOORS, is_proof_required=True)
    with refused(JobReason.TASK_REFUSED, "--require-proof"):
        strict.check(task(parties))
    strict.check(task(parties, proof=True))
    lenient: dict[str, Any] = {
        "is_noise_optional": True,
        "min_batch_size": 1,
        "min_decoys": 0,
        "max_dataset_size": 1 << 40,
        "max_epsilon": 1e9,
        "max_collusion_epsilon": 1e9,
        "max_delta": 0.5,
    }
    replace(strict, **lenient).check(update_world().task)  # updates have no such proofs
    FLOORS.check(task(parties))


def test_any_peer_is_accepted_unless_the_operator_names_some(parties: tuple[Party, Party]) -> None:
    ours, theirs = (party.keys.identity for party in parties)
    FLOORS.check_peer(theirs)
    replace(FLOORS, peers=frozenset({theirs.fingerprint, "0" * 64})).check_peer(theirs)
    with refused(JobReason.TASK_REFUSED, f"{theirs.fingerprint}.*--peer"):
        replace(FLOORS, peers=frozenset({ours.fingerprint})).check_peer(theirs)


def test_a_fingerprint_is_of_both_keys_and_not_of_the_name(parties: tuple[Party, Party]) -> None:
    ours, theirs = (party.keys.identity for party in parties)
    assert replace(ours, name="another").fingerprint == ours.fingerprint
    changed = (
        theirs,
        replace(ours, verify_key=theirs.verify_key),
        replace(ours, agreement_key=theirs.agreement_key),
    )
    assert len({one.fingerprint for one in (ours, *changed)}) == 4


@pytest.mark.parametrize("wrong", ["", "0" * 63, "0" * 65, "G" * 64, "F" * 64])
def test_what_is_no_fingerprint_is_noticed_when_the_helper_starts(wrong: str) -> None:
    with pytest.raises(InvalidTask, match="not a fingerprint"):
        Floors(peers=frozenset({wrong}))
