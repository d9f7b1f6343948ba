"""What is kept in memory takes no more than its bytes, and one ad server cannot flush what another keeps."""

from collections import Counter, OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from helper.datasets.fair_cache import FairCache

OWNERS = ("ads.example", "evil.example", "other.example")


def test_values_leave_in_order_of_their_last_use() -> None:
    cache = FairCache[str, int](20)
    assert cache.put("one", 1, num_bytes=10, owner="ads.example") == []
    assert cache.put("two", 2, num_bytes=10, owner="ads.example") == []
    assert cache.get("one") == 1
    assert cache.put("three", 3, num_bytes=10, owner="ads.example") == [2]
    assert [cache.get(key) for key in ("one", "two", "three")] == [1, None, 3]


def test_who_brings_much_gives_up_its_own_and_leaves_what_others_keep() -> None:
    cache = FairCache[str, int](100)
    cache.put("victim", 0, num_bytes=40, owner="ads.example")
    for number in range(1_000):
        cache.put(f"junk {number}", number, num_bytes=15, owner="evil.example")
    assert cache.get("victim") == 0
    assert [key for key in cache._kept if key != "victim"] == [
        f"junk {number}" for number in range(996, 1_000)
    ]


def test_what_has_no_room_at_all_is_given_back_at_once_and_pushes_nothing_else_out() -> None:
    cache = FairCache[str, int](10)
    cache.put("small", 1, num_bytes=4, owner="ads.example")
    for owner in ("evil.example", "ads.example"):
        assert cache.put("large", 2, num_bytes=11, owner=owner) == [2]
        assert (cache.get("small"), cache.get("large"), cache._taken.total()) == (1, None, 4)
    assert cache.put("small", 3, num_bytes=11, owner="ads.example") == [1, 3]
    assert (cache.get("small"), cache._taken.total()) == (None, 0)


def test_a_value_is_replaced_and_popped_once() -> None:
    cache = FairCache[str, int](10)
    cache.put("key", 1, num_bytes=10, owner="ads.example")
    assert cache.put("key", 2, num_bytes=5, owner="evil.example") == [1]
    assert (cache.pop("key"), cache.pop("key"), cache.get("key")) == (2, None, None)
    assert not cache._taken


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from(OWNERS), st.integers(0, 60), st.booleans()), max_size=60
    )
)
def test_bytes_are_counted_and_only_who_holds_most_gives_up(
    steps: list[tuple[int, str, int, bool]],
) -> None:
    cache = FairCache[int, int](100)
    known: OrderedDict[int, tuple[str, int]] = OrderedDict()
    for number, (key, owner, num_bytes, is_popped) in enumerate(steps):
        if is_popped:
            assert (cache.pop(key) is None) is (known.pop(key, None) is None)
            continue
        known.pop(key, None)
        known[key] = (owner, num_bytes)
        cache.put(key, number, num_bytes=num_bytes, owner=owner)
        while sum(size for _, size in known.values()) > 100:
            held = Counter[str]()
            for one, size in known.values():
                held[one] += size
            holds_most = [one for one, size in held.items() if size == max(held.values())]
            oldest = [next(key for key in known if known[key][0] == one) for one in holds_most]
            del known[next(key for key in oldest if key not in cache._kept)]
        assert list(cache._kept) == list(known)
