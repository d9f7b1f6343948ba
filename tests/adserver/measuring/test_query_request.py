"""From names to a query: what is filled in, and what is refused before anybody is asked."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adserver.measuring.domains import _read_domains, codes_by_key, condition_code, distinct_codes
from adserver.measuring.request import (
    Request,
    keys_to_discover,
    name_groups,
    plan_discovery,
    plan_query,
    read_request,
)
from adserver.records.dataset_state import DatasetState
from adserver.records.defaults import REST
from maskedlark.canonical import build
from maskedlark.encoding.encoder import CategoryColumn, Encoder
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.privacy.accounting import spent
from maskedlark.releases.counting import measurement_of
from maskedlark.releases.query import MAX_DOMAIN, MeasureKind, QuerySpec
from maskedlark.reports.measurement import Key, Measurement
from tests.adserver.views.test_query_plot import estimate, result
from tests.builders import world
from tests.measured import dataset_of, measuring_world

OF = measuring_world(mechanism="gaussian", norm="l2", epsilon=5.0)
TASK = OF.task
DATASET = dataset_of(OF, 1000)
ID = b"q" * 16


def plan(**asked: Any) -> QuerySpec:
    return plan_query(
        Request(**{"values": ("count",), **asked}), task=TASK, dataset=DATASET, query_id=ID
    ).spec


def refusal(**asked: Any) -> JobReason:
    with pytest.raises(JobRefused) as refused:
        plan(**asked)
    return refused.value.reason


def test_names_become_axes_conditions_and_measures() -> None:
    spec = plan(
        values=("count", "purchase"),
        histograms=("purchase",),
        group_by=("place", "language"),
        where={"place": "oslo"},
    )
    assert [(axis.key, axis.size) for axis in spec.group_by] == [("place", 3), ("language", 4)]
    assert [(one.key, one.code) for one in spec.where] == [("place", 1)]
    assert [(one.value, one.kind) for one in spec.measures] == [
        ("count", MeasureKind.SUM),
        ("purchase", MeasureKind.SUM),
        ("purchase", MeasureKind.HISTOGRAM),
    ]
    assert spec.levels == (2,)
    assert plan(group_by=("place", "language"), is_rolled_up=True).levels == (0, 1, 2)


def test_every_value_is_carried_in_about_as_many_units() -> None:
    count, purchase = plan(values=("count", "purchase")).measures
    assert count.scale == 1 << 30
    assert purchase.scale * 100 == pytest.approx(1 << 30, rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.9])
def test_the_noise_follows_from_epsilon(epsilon: float) -> None:
    cost = spent(plan(epsilon=epsilon).charges(TASK), TASK.delta).ad_server
    assert 0.97 * epsilon < cost <= epsilon


def test_an_epsilon_above_the_whole_budget_is_refused_and_not_made_smaller() -> None:
    with pytest.raises(InvalidTask, match=r"but the whole budget of task .* ask for at most that"):
        plan(epsilon=1.01 * TASK.epsilon)


def test_a_domain_travels_as_its_codes_with_their_digest() -> None:
    request = Request(
        values=("count",), group_by=("campaign",), domains={"campaign": distinct_codes([9, 3, 9])}
    )
    planned = plan_query(request, task=TASK, dataset=DATASET, query_id=ID)
    assert planned.beside == np.array([3, 9], "<u4").tobytes()
    assert planned.spec.group_by[0].size == 2
    assert planned.spec.group_by[0].codes_digest is not None


def test_what_a_task_does_not_declare_is_refused() -> None:
    assert refusal(values=("view",)) is JobReason.UNDECLARED
    assert refusal(values=(), histograms=("click",)) is JobReason.UNDECLARED
    assert refusal(group_by=("age",)) is JobReason.UNDECLARED
    assert refusal(where={"age": "3"}) is JobReason.UNDECLARED


def test_a_request_says_enough() -> None:
    assert refusal(values=()) is JobReason.MALFORMED
    assert refusal(group_by=("campaign",)) is JobReason.MALFORMED
    with pytest.raises(InvalidTask, match=r"no category 'Osl'; did you mean 'oslo'\? It has "):
        plan(where={"place": "Osl"})
    with pytest.raises(JobRefused, match=r"declares no value 'Panier \(€\)'; it has count, "):
        plan(values=("Panier (€)",))
    with pytest.raises(JobRefused, match=r"no key 'Land'; .* takes a new task \(in quickstart, name it in"):
        read_request(measurement_of(TASK), values=["count"], group_by=["Land"])
    with pytest.raises(InvalidTask, match="category"):
        plan(where={"place": "rome"})
    with pytest.raises(InvalidTask, match="epsilon"):
        plan(epsilon=0.0)


def test_a_word_is_found_however_its_accents_are_written() -> None:
    composed, decomposed = "Été à Paris", "E\u0301te\u0301 a\u0300 Paris"
    for listed, said in ((composed, decomposed), (decomposed, composed)):
        key = build(Key, {"name": "campaign", "size": 2, "categories": ["x", listed]})
        assert condition_code(key, said) == 1
    # Both may be listed
    key = build(Key, {"name": "campaign", "size": 2, "categories": [composed, decomposed]})
    assert [condition_code(key, said) for said in (composed, decomposed)] == [0, 1]
    # Of a key without a list by the words of the encoder
    words = (composed, "Winter")
    encoder = Encoder(columns=(CategoryColumn(name="campaign", first=0, categories=words, missing=0),))
    declared = build(Measurement, {"min_cell_count": 1, "keys": [{"name": "campaign"}]})
    asked = [
        read_request(
            declared,
            values=["count"],
            where={"campaign": said},
            domains={"campaign": [said, "Herbst", 7]},
            encoder=encoder,
        )
        for said in (composed, decomposed)
    ]
    assert asked[0].words == asked[1].words
    assert asked[0].domains["campaign"].tolist() == asked[1].domains["campaign"].tolist()


def test_a_refused_key_says_how_its_title_may_be_written() -> None:
    declared = build(
        Measurement, {"min_cell_count": 1, "keys": [{"name": "geraet_typ", "title": "Gerät, Typ"}]}
    )
    with pytest.raises(JobRefused, match=r"\('Gerät, Typ' may be written as geraet_typ\)"):
        read_request(declared, values=["count"], group_by=["Gerät"])


def test_groups_that_were_discovered_are_named_by_words_at_no_cost() -> None:
    [campaign] = (key for key in measurement_of(TASK).keys if key.name == "campaign")
    codes = [str(campaign.code(word)) for word in ("Été", "Winter")]
    groups = [(codes[0], "oslo"), (codes[1], "lima"), (REST, REST)]
    found = result(("campaign", "place"), groups, {"count": [estimate(9.0)] * 3})
    domains = {"campaign": ["Été", "Herbst"], "place": ["oslo"]}
    named = name_groups(found, measurement_of(TASK), domains)
    assert [row.group for row in named.rows] == [("Été", "oslo"), (codes[1], "lima"), (REST, REST)]
    with pytest.raises(InvalidTask, match="no category 'rome'"):
        name_groups(found, measurement_of(TASK), {"place": ["rome"]})


def test_a_key_is_grouped_by_once() -> None:
    with pytest.raises(JobRefused, match=r"^group_by names the key 'place' twice: name it once$") as refused:
        read_request(measurement_of(TASK), values=["count"], group_by=["place", "place"])
    assert refused.value.reason is JobReason.MALFORMED
    with pytest.raises(JobRefused, match="the key 'place' twice, once as 'Place': name it once"):
        read_request(measurement_of(TASK), values=["count"], where={"place": "oslo", "Place": "lima"})


@pytest.mark.parametrize(
    ("key", "said"), [("place", "oslo,lima"), ("place", "oslo, Rom"), ("language", "1,2")]
)
def test_a_condition_on_several_words_says_what_to_do_instead(key: str, said: str) -> None:
    with pytest.raises(InvalidTask, match="a condition has one value: for several, group by the key and add"):
        plan(where={key: said})


def test_a_condition_on_a_word_without_a_group_says_where_its_reports_count() -> None:
    listed = {"name": "land", "size": 3, "categories": ["at", "de", "other"]}
    for categories, is_told in ((listed["categories"], True), (["at", "de", "fr"], False)):
        key = build(Key, {**listed, "categories": categories})
        with pytest.raises(InvalidTask, match="key 'land' has no category 'MX'") as refused:
            condition_code(key, "MX")
        told = "words that it does not list count as 'other', one group of them all"
        assert (told in str(refused.value)) == is_told


def test_a_domain_over_the_limit_is_refused() -> None:
    many = np.arange(MAX_DOMAIN + 1, dtype=np.uint32)
    assert refusal(group_by=("campaign",), domains={"campaign": many}) is JobReason.DOMAIN_TOO_LARGE
    assert (
        refusal(group_by=("campaign", "place"), domains={"campaign": many[:-1]}) is JobReason.DOMAIN_TOO_LARGE
    )


def test_a_dataset_that_is_not_committed_or_of_another_task_is_refused() -> None:
    for wrong in (replace(DATASET, state=DatasetState.COMMITTING), replace(DATASET, task_id=b"x" * 32)):
        with pytest.raises(JobRefused) as refused:
            plan_query(Request(values=("count",)), task=TASK, dataset=wrong, query_id=ID)
        assert refused.value.reason is JobReason.UNKNOWN_DATASET


def test_a_task_that_only_trains_answers_no_query() -> None:
    of = world()
    with pytest.raises(JobRefused) as refused:
        plan_query(Request(values=("count",)), task=of.task, dataset=dataset_of(of, 10), query_id=ID)
    assert refused.value.reason is JobReason.UNDECLARED


def test_a_query_without_noise_takes_no_epsilon() -> None:
    of = measuring_world()
    with pytest.raises(JobRefused) as refused:
        plan_query(
            Request(values=("count",), epsilon=1.0), task=of.task, dataset=dataset_of(of, 10), query_id=ID
        )
    assert refused.value.reason is JobReason.NOISE_OUT_OF_RANGE
    assert (
        plan_query(
            Request(values=("count",)), task=of.task, dataset=dataset_of(of, 10), query_id=ID
        ).spec.noise_multiplier
        == 0
    )


def test_only_open_keys_without_a_domain_are_discovered_at_a_part_of_the_epsilon() -> None:
    request = Request(values=("count",), group_by=("campaign", "place"), is_discovered=True, epsilon=2.0)
    assert keys_to_discover(request, TASK) == ("campaign",)
    assert keys_to_discover(replace(request, domains={"campaign": distinct_codes([1])}), TASK) == ()
    found = plan_discovery(request, task=TASK, dataset=DATASET, query_id=ID, keys=("campaign",)).spec
    assert 0.45 < spent(found.charges(TASK), TASK.delta).ad_server <= 0.5
    assert found.delta == pytest.approx(TASK.delta / 100)


def test_a_domain_file_lists_categories_codes_or_a_range() -> None:
    said = _read_domains('{"place": ["lima", 0], "language": [3, 1], "campaign": {"first": 5, "last": 8}}')
    domains = codes_by_key(said, measurement_of(TASK))
    assert {name: codes.tolist() for name, codes in domains.items()} == {
        "place": [0, 2],
        "language": [1, 3],
        "campaign": [5, 6, 7, 8],
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        '{"place": "lima"}',
        '{"place": [1.5]}',
        '{"place": ["rome"]}',
        '{"language": [4]}',
        '{"campaign": {"first": 1}}',
        '{"place": [true]}',
        '{"campaign": ["(all)"]}',
    ],
)
def test_a_wrong_domain_file_is_refused(text: str) -> None:
    with pytest.raises(InvalidTask):
        codes_by_key(_read_domains(text), measurement_of(TASK))


def test_a_range_over_the_limit_is_refused() -> None:
    with pytest.raises(JobRefused) as refused:
        codes_by_key({"campaign": {"first": 0, "last": 4294967295}}, measurement_of(TASK))
    assert refused.value.reason is JobReason.DOMAIN_TOO_LARGE
