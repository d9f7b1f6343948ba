from helper.shelves import MAX_PREPARED, MAX_PREPARED_PER_TASK, Handle, OpenedShelf, PreparedShelf
from maskedlark.dataset import OpenedDataset, PreparedShares, open_dataset
from tests.builders import examples, reports, shares_for, world

WORLD = world()
PREPARED: PreparedShares = WORLD.opener(0).open(shares_for(reports(WORLD, examples(WORLD.task, 3)), 0))


def opened(number: int) -> OpenedDataset:
    return open_dataset(bytes([number]) * 32, PREPARED, PREPARED.admitted.is_admitted)


def handle(task: int, name: int) -> Handle:
    return Handle(task_id=bytes([task]) * 32, name=bytes([name]) * 16)


def test_a_preparation_is_found_until_it_is_dropped() -> None:
    shelf = PreparedShelf()
    shelf.put(handle(1, 1), PREPARED)
    assert shelf.get(handle(1, 1)) is PREPARED
    assert shelf.get(handle(2, 1)) is None
    shelf.drop(handle(1, 1))
    shelf.drop(handle(1, 1))
    assert shelf.get(handle(1, 1)) is None


def test_a_task_keeps_its_newest_preparations_only() -> None:
    shelf = PreparedShelf()
    for name in range(MAX_PREPARED_PER_TASK + 1):
        shelf.put(handle(1, name), PREPARED)
    kept = [shelf.get(handle(1, name)) is not None for name in range(MAX_PREPARED_PER_TASK + 1)]
    assert kept == [False] + [True] * MAX_PREPARED_PER_TASK


def test_preparing_again_under_a_handle_makes_it_the_newest() -> None:
    shelf = PreparedShelf()
    for name in (0, 1, 0, 2):
        shelf.put(handle(1, name), PREPARED)
    assert [shelf.get(handle(1, name)) is not None for name in (0, 1, 2)] == [True, False, True]


def test_all_tasks_together_keep_a_bounded_number() -> None:
    shelf = PreparedShelf()
    for task in range(MAX_PREPARED + 3):
        shelf.put(handle(task, 0), PREPARED)
    assert sum(shelf.get(handle(task, 0)) is not None for task in range(MAX_PREPARED + 3)) == MAX_PREPARED


def test_opened_datasets_leave_in_order_of_their_last_use() -> None:
    one = opened(1)
    size = one.report_ids.nbytes + one.shares.features.nbytes + one.shares.labels.nbytes + one.shares.mask_shares.nbytes
    shelf = OpenedShelf(capacity_bytes=2 * size)
    others = [one, opened(2)]
    for dataset in others:
        shelf.put(dataset)
    assert shelf.get(one.dataset_id) is one
    third = opened(3)
    shelf.put(third)
    assert shelf.get(others[1].dataset_id) is None
    assert shelf.get(one.dataset_id) is one
    assert shelf.get(third.dataset_id) is third


def test_the_last_dataset_stays_however_large() -> None:
    shelf = OpenedShelf(capacity_bytes=1)
    one = opened(1)
    shelf.put(one)
    assert shelf.get(one.dataset_id) is one
