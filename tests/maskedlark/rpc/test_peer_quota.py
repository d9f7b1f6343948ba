from collections import Counter
from contextlib import ExitStack
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskedlark.rpc.callers import peers_of
from maskedlark.rpc.fair_quota import FairQuota
from maskedlark.rpc.peer_quota import _is_light


class Context:
    """What a connection says of its client."""

    def __init__(self, peer: str, names: tuple[bytes, ...] = (), /, **auth: bytes) -> None:
        self._peer = peer
        self._auth: dict[str, tuple[bytes, ...]] = {name: (value,) for name, value in auth.items()}
        if names:
            self._auth["x509_subject_alternative_name"] = names

    def auth_context(self) -> Any:
        return self._auth

    def peer(self) -> str:
        return self._peer


def test_each_peer_gets_at_most_half_of_what_the_others_leave() -> None:
    room = FairQuota(16)
    with ExitStack() as stack:
        got = {
            peer: sum(room.try_enter(stack, peer) for _ in range(1_000)) for peer in ("a", "b", "c", "d", "e")
        }
    assert got == {"a": 8, "b": 4, "c": 2, "d": 1, "e": 1}
    with ExitStack() as stack:  # all of it was given back
        assert sum(room.try_enter(stack, "e") for _ in range(1_000)) == 8


def test_nobody_in_particular_may_take_every_place_and_no_more() -> None:
    room = FairQuota(3)
    with ExitStack() as stack:
        assert [room.try_enter(stack, None) for _ in range(4)] == [True, True, True, False]
        assert not room.try_enter(stack, "a")


def test_a_room_of_one_place_lets_one_peer_in() -> None:
    room = FairQuota(1)
    with ExitStack() as stack:
        assert room.try_enter(stack, "a")
        assert not room.try_enter(stack, "b")


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 40)), max_size=200), st.integers(1, 64))
def test_no_peer_holds_more_than_half_and_all_no_more_than_there_is(
    asked: list[tuple[str, int]], places: int
) -> None:
    room, held = FairQuota(places), Counter[str]()
    with ExitStack() as stack:
        for peer, count in asked:
            if room.try_enter(stack, peer, places=count):
                held[peer] += count
    assert held.total() <= places
    assert all(count <= (places + 1) // 2 for count in held.values())


def test_calls_of_one_peer_leave_room_for_the_largest_of_another() -> None:
    room = FairQuota(200)
    with ExitStack() as stack:
        assert [room.try_enter(stack, "a", places=60) for _ in range(2)] == [True, False]
        assert room.try_enter(stack, "b", places=100)


def test_a_peer_is_known_by_its_certificate_whatever_its_address() -> None:
    secured = {
        "transport_security_type": b"ssl",
        "x509_pem_cert": b"PEM",
        "x509_subject_alternative_name": b"https://ads.example",
    }
    assert peers_of(Context("ipv4:10.0.0.1:1", **secured)) == peers_of(Context("ipv4:10.0.0.2:2", **secured))


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ("ipv4:192.0.2.7:4711", "192.0.2.7"),
        ("ipv6:%5B2001:db8::1%5D:4711", "2001:db8::/64"),
        ("ipv6:[2001:db8::2]:4711", "2001:db8::/64"),
        ("ipv6:%5B::ffff:192.0.2.7%5D:1", "192.0.2.7"),
        ("unix:/a/socket", ""),
    ],
)
def test_without_a_certificate_a_peer_is_its_site(peer: str, expected: str) -> None:
    assert peers_of(Context(peer, transport_security_type=b"ssl")) == frozenset({expected})


def test_a_plaintext_peer_is_nobody_in_particular() -> None:
    assert peers_of(Context("ipv4:127.0.0.1:4711")) == frozenset()


def test_status_and_health_are_light_and_nothing_else() -> None:
    assert _is_light("/maskedlark.v1.Helper/GetStatus")
    assert _is_light("/grpc.health.v1.Health/Check")
    assert not any(
        map(
            _is_light,
            [
                "/maskedlark.v1.Helper/PrepareDataset",
                "/grpc.health.v1.Health/Watch",
                "/maskedlark.v1.Ingest/Submit",
            ],
        )
    )


def test_an_authoritys_choices_of_names_of_one_host_are_one_peer() -> None:
    names = (b"https://ads.example", b"ads.example", b"https://ads.example:8443")
    secured = {"transport_security_type": b"ssl", "x509_pem_cert": b"PEM"}
    chosen = [choice for size in (1, 2, 3) for choice in combinations(names, size)]
    peers = {peers_of(Context("ipv4:10.0.0.1:1", one, **secured)) for one in chosen}
    assert peers == {frozenset({"ads.example"})}


def test_where_a_server_is_reached_makes_it_no_peer_of_others() -> None:
    secured = {"transport_security_type": b"ssl", "x509_pem_cert": b"PEM"}
    ours, theirs = (
        peers_of(Context("ipv4:10.0.0.1:1", (origin, b"adserver", b"localhost"), **secured))
        for origin in (b"https://zeta.example", b"https://evil.example")
    )
    assert (ours, theirs) == (frozenset({"zeta.example"}), frozenset({"evil.example"}))


def test_choices_of_several_hosts_get_no_more_places_than_the_hosts_alone() -> None:
    def places(*callers: tuple[str, ...]) -> int:
        room = FairQuota(12)
        with ExitStack() as stack:
            return sum(room.try_enter(stack, *names) for _ in range(12) for names in callers)

    assert places(("a",), ("a", "a")) == places(("a",)) == 6
    assert places(("a", "b")) == 6
    alone = places(("a",), ("b",))
    assert places(("a",), ("b",), ("a", "b")) <= alone
    assert places(("a", "b"), ("b",), ("a",)) <= alone
