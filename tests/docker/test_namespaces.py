"""How policies become packet filters; that pods run in them is for `make chart-pods`, as root."""

from copy import deepcopy

import pytest

from tests.docker.chart import VERSIONS, found_helm, rendered
from tests.docker.namespaces import ADDRESSES, HEAD, WORKERS, filters

pytestmark = pytest.mark.skipif(found_helm() is None, reason="no helm: `make chart` brings one")


def chains(pod: str) -> dict[str, list[str]]:
    """What a pod may get and send, one rule each."""
    text = filters(rendered("large", VERSIONS[-1]), pod)
    incoming, _, outgoing = text.partition("chain output")
    return {
        way: [line.strip() for line in part.splitlines() if " dport " in line]
        for way, part in (("in", incoming), ("out", outgoing))
    }


def test_filters_hold_a_worker_to_its_own_cluster() -> None:
    allowed = chains(WORKERS)
    both = f"ip saddr {{ {ADDRESSES[HEAD]}, {ADDRESSES[WORKERS]} }} tcp dport"
    from_head = f"ip saddr {{ {ADDRESSES[HEAD]} }} tcp dport 20000-20999 accept;"
    assert sorted(allowed["in"]) == sorted(
        [from_head, *(f"{both} {port} accept;" for port in ("6380", "6381", "10002-10999"))]
    )
    assert f"ip daddr {{ {ADDRESSES[HEAD]} }} tcp dport 6379 accept;" in allowed["out"]
    assert not any("8443" in rule or "5432" in rule for rule in allowed["out"])


def test_callers_that_are_elsewhere_are_in_no_filter() -> None:
    assert not any("8443" in rule for rule in chains(HEAD)["in"])


def test_what_no_rule_allows_is_dropped_and_counted_both_ways() -> None:
    text = filters(rendered("large", VERSIONS[-1]), HEAD)
    assert text.count("policy drop;") == text.count("counter; }") == 2


def test_a_policy_that_opens_less_gives_a_filter_that_does() -> None:
    objects = [dict(deepcopy(one)) for one in rendered("large", VERSIONS[-1])]
    (policy,) = (
        one for one in objects if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == WORKERS
    )
    policy["spec"]["ingress"] = []
    assert "saddr" not in filters(objects, WORKERS)
