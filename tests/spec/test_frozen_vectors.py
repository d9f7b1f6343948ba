"""Today's code reads the vectors of 1.0, and makes the same of them."""

import base64
import json
import struct
from typing import Any, Final

import numpy as np
import pytest

from maskedlark.canonical import decode, digest, encode
from maskedlark.hmac_sha256 import hmac_sha256
from maskedlark.model import weights
from maskedlark.model.onnx_file import parse
from maskedlark.numbers.field import random_vector, to_bytes
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import noise_scale, noise_vector, split_scale, tail_bound
from maskedlark.randomness import Stream, below, derive_key
from maskedlark.releases.discovery import DiscoverySpec, answer_discovery
from maskedlark.releases.evaluation import EvaluationSpec, answer_evaluation
from maskedlark.releases.grouping import answer_query, cells_to_show
from maskedlark.releases.job import JobSpec
from maskedlark.releases.kinds import QUERY_KINDS
from maskedlark.releases.query import QuerySpec
from maskedlark.releases.release import AggregateShare, combine
from maskedlark.releases.update import UpdateRound, UpdateSpec, answer_update
from maskedlark.reports.input_shares import MeasuredShares
from maskedlark.reports.sealing import share_info
from maskedlark.reports.task import TaskBundle
from maskedlark.reports.updates import UpdateSum, update_info
from maskedlark.rpc.wire import encode_report
from tests.builders import World, id_of_reports, shares_for
from tests.update_builders import update_opener
from tests.vectors.frozen import FILES, FOLDER, case_digests
from tests.vectors.protocol.generate import NUMERICS, datasets_of, keys, report_of

KNOWN: Final[dict[str, Any]] = json.loads((FOLDER / "1.0" / "protocol.json").read_text())
REPORTS: Final = KNOWN["reports"]
WORLDS: Final = {
    name: World(task=(bundle := decode(TaskBundle, told["bundle"].encode())).task, bundle=bundle, keys=keys())
    for name, told in KNOWN["tasks"].items()
}
UPDATES: Final = KNOWN["updates"]
FUNCTIONS: Final = KNOWN["functions"]


def of_task(name: str) -> list[dict[str, Any]]:
    return [one for one in REPORTS if one["task"] == name]


def silent(_: Mechanism, __: int, count: int) -> Any:
    return np.zeros(count, np.int64)


def unhex(text: str) -> bytes:
    return bytes.fromhex(text)


def test_functions() -> None:
    for one in FUNCTIONS["H"]:
        assert digest(one["purpose"], *map(unhex, one["parts"])).hex() == one["digest"]
    for one in FUNCTIONS["K"]:
        key = derive_key(unhex(one["secret"]), one["purpose"].encode(), unhex(one["context"]))
        assert key.hex() == one["key"]
    for one in FUNCTIONS["E"]:
        info = b"maskedlark/v1 " + one["purpose"].encode() + b"\0" + unhex(one["context"]) + b"\1"
        key = hmac_sha256(unhex(one["secret"]), info)
        assert key.hex() == one["key"]
        assert [str(element) for element in random_vector(4, Stream(key)).tolist()] == one["field"]
    for one in FUNCTIONS["stream"]:
        assert Stream(unhex(one["key"]))(40).hex() == one["bytes"]
    for one in FUNCTIONS["field"]:
        assert [str(element) for element in random_vector(5, Stream(unhex(one["key"]))).tolist()] == one[
            "elements"
        ]
    for one in FUNCTIONS["below"]:
        assert below(one["t"], 8, Stream(unhex(one["key"]))).tolist() == one["numbers"]


def test_floats_are_spelled_as_they_were() -> None:
    for encoded, spelled in KNOWN["floats"]:
        assert json.dumps(struct.unpack("<d", unhex(encoded))[0]) == spelled


@pytest.mark.parametrize("name", WORLDS)
def test_bundles_are_read_and_name_the_same_tasks(name: str) -> None:
    of, told = WORLDS[name], KNOWN["tasks"][name]
    of.bundle.verify()
    assert encode(of.bundle).decode() == told["bundle"]
    assert of.task.task_id.hex() == told["task_id"]
    assert [of.task.plaintext_length(role) for role in (0, 1)] == told["plaintext_lengths"]
    for role in (0, 1):
        assert of.pair(role)._secret.hex() == told["pair_key"]
        assert of.pair(role).view_key.secret_bytes().hex() == told["view_key"]


def test_the_keys_are_those_of_the_file() -> None:
    for told, one in zip(KNOWN["helpers"], keys(), strict=True):
        public = one.opening.public()
        assert one.signing.public_key().public_bytes_raw().hex() == told["verify_key"]
        assert one.agreement.public_key().public_bytes_raw().hex() == told["agreement_key"]
        assert (public.key_id, public.suite.value, public.public_key.hex()) == (
            told["hpke"]["key_id"],
            told["hpke"]["suite"],
            told["hpke"]["public_key"],
        )


@pytest.mark.parametrize("number", range(len(REPORTS)))
def test_reports_open_to_the_same_plaintexts_and_tags(number: int) -> None:
    told = REPORTS[number]
    of, report = WORLDS[told["task"]], report_of(told)
    assert encode_report(report).hex() == told["upload"]
    for role, share in enumerate(report.shares):
        info = share_info(
            task_id=report.task_id,
            report_id=report.report_id,
            time_bucket=report.time_bucket,
            role=role,
            key_id=share.key_id,
        )
        assert info.hex() == told["info"][role]
        assert share.ciphertext.hex() == told["sealed"][role]
        assert of.keys[role].opening.open(share.ciphertext, info).hex() == told["plaintexts"][role]
        opened = of.opener(role).open(shares_for([report], role)).admitted
        assert opened.view_tags.tobytes().hex() == told["view_tags"][role]
    assert told["view_tags"][0] == told["view_tags"][1]


@pytest.mark.parametrize("told", KNOWN["datasets"], ids=lambda told: str(told["task"]))
def test_datasets_have_the_same_ids(told: dict[str, Any]) -> None:
    for dataset in datasets_of(WORLDS[told["task"]], of_task(told["task"])):
        assert dataset.dataset_id.hex() == told["dataset_id"]


@pytest.mark.parametrize("told", KNOWN["rounds"], ids=lambda told: str(told["transcript"][:8]))
def test_rounds_draw_the_same(told: dict[str, Any]) -> None:
    of = WORLDS["labels"]
    spec, index, records = decode(JobSpec, told["spec"].encode()), told["round_index"], told["records"]
    assert spec.digest.hex() == told["job_digest"]
    script = spec.round_transcript(
        round_index=index, weights=unhex(told["sent"]), numerics=unhex(told["numerics_digest"])
    )
    assert script.hex() == told["transcript"]
    for role in (0, 1):
        pair = of.pair(role)
        sampled = spec.draw_sample(pair, index, script, records)
        assert np.flatnonzero(sampled).tolist() == told["sampled"]
        assert spec.records_evaluated(of.task, records) == told["work"]
        others = np.flatnonzero(~sampled)
        added = others[pair.padding(script, len(others), told["work"] - len(told["sampled"]))]
        assert added.tolist() == told["added"]
        tag = pair.agreement_tag(script, unhex(told["values_digest"]))
        assert tag.hex() == told["agreement_tag"]
    assert to_bytes(of.pair(0).blind(script, 5)).hex() == told["blind"]


@pytest.mark.parametrize("told", KNOWN["queries"], ids=lambda told: f"{told['kind']} {told['task']}")
def test_queries_get_the_same_answers(told: dict[str, Any]) -> None:
    of = WORLDS[told["task"]]
    spec: Any = decode(QUERY_KINDS[told["kind"]], told["spec"].encode())
    assert spec.transcript.hex() == told["transcript"]
    if "cells" in told:
        measured = MeasuredShares(
            keys=np.array(told["keys"], np.uint32), value_shares=np.empty((len(told["keys"]), 0), np.uint64)
        )
        common, domains = (
            of.pair(1).common_noise(spec.transcript),
            spec.decode_domains(unhex(told["beside"])),
        )
        shown = cells_to_show(of.task, spec, common, measured, domains)
        assert [one.tolist() for one in shown] == told["cells"]
        return
    opened = datasets_of(of, of_task(told["task"]))
    answers = [answer_of(told, of, spec, role, opened[role].shares) for role in (0, 1)]
    assert [one.encode().hex() for one in answers] == told["answers"]
    read = [AggregateShare.decode(unhex(one), len(told["sum"])) for one in told["answers"]]
    assert combine(*read).tolist() == told["sum"]


def answer_of(told: dict[str, Any], of: World, spec: Any, role: int, shares: Any) -> AggregateShare:
    common: dict[str, Any] = {"task": of.task, "spec": spec, "pair": of.pair(role), "shares": shares}
    match spec:
        case QuerySpec():
            return answer_query(**common, domains=spec.decode_domains(unhex(told["beside"])), noise=silent)
        case DiscoverySpec():
            return answer_discovery(**common, role=role)
        case EvaluationSpec():
            return answer_evaluation(**common, bins=np.array(told["bins"]), choices=None, noise=silent)
    raise AssertionError("a kind of query without vectors")


def test_updates_are_read_and_summed_alike() -> None:
    of = WORLDS["updates"]
    one = decode(UpdateRound, UPDATES["round"].encode())
    spec = decode(UpdateSpec, UPDATES["spec"].encode())
    assert one.job.digest.hex() == UPDATES["job_digest"]
    assert digest("federated round", unhex(UPDATES["content"])) == one.content_digest
    assert one.round_id.hex() == UPDATES["round_id"]
    assert one.query_id.hex() == UPDATES["release_id"]
    assert spec.transcript.hex() == UPDATES["transcript"]
    form = of.task.updates
    assert form is not None
    sealed, answers = [report_of(told) for told in UPDATES["reports"]], []
    for role in (0, 1):
        total = UpdateSum(form=form, role=role, task_id=of.task.task_id)
        tags = []
        for told, report in zip(UPDATES["reports"], sealed, strict=True):
            bound: dict[str, Any] = {"task_id": report.task_id, "report_id": report.report_id}
            bound |= {"time_bucket": report.time_bucket, "role": role, "key_id": report.shares[role].key_id}
            assert update_info(round_id=one.round_id, **bound).hex() == told["info"][role]
            opener = update_opener(of, role, one)
            opened = opener.open(report.report_id, report.time_bucket, report.shares[role])
            assert opened.view_tag.hex() == told["view_tags"][role]
            assert told["plaintexts"][role].endswith(opened.payload.hex())
            total.add(report.report_id, opened.payload)
            tags.append(list(opened.view_tag))
        assert id_of_reports(of.task.task_id, sealed, np.array(tags, np.uint8)) == spec.dataset_id
        answer = answer_update(
            task=of.task,
            spec=spec,
            pair=of.pair(role),
            records=len(sealed),
            vector=total.total(),
            noise=silent,
        )
        answers.append(answer)
    assert [answer.encode().hex() for answer in answers] == UPDATES["answers"]
    assert combine(*answers).tolist() == UPDATES["sum"]
    sent = np.array([list(map(int, told["update"])) for told in UPDATES["reports"]], np.int64)
    assert sent.sum(axis=0).tolist() == UPDATES["sum"]


def test_noise_and_its_scales_are_the_same_integers() -> None:
    for one in KNOWN["noise"]:
        drawn = noise_vector(
            Mechanism(one["mechanism"]), one["scale"], len(one["numbers"]), Stream(unhex(one["key"]))
        )
        assert [str(number) for number in drawn.tolist()] == one["numbers"]
    for one in KNOWN["scales"]:
        units = noise_scale(Mechanism.GAUSSIAN, one["multiplier"], one["sensitivity"])
        assert (units, split_scale(units)) == (one["units"], one["split"])
        assert {mechanism.value: tail_bound(mechanism, units, 1000) for mechanism in Mechanism} == one[
            "tail of 1000"
        ]


def test_weights_and_models_have_the_same_digests() -> None:
    told = KNOWN["weights"]
    tensors = [np.frombuffer(unhex(one), "<f4").astype(np.float32) for one in told["tensors"]]
    encoded = weights.encode([weights.quantise(one) for one in tensors])
    assert (encoded.hex(), weights.digest(encoded).hex()) == (told["encoded"], told["weights_digest"])
    cases = {case["name"]: case for case in json.loads(NUMERICS.read_text())}
    for one in KNOWN["models"]:
        case = cases[one["name"]]
        model = parse(base64.b64decode(case["onnx"]), num_features=len(case["features"][0]))
        assert model.digest.hex() == one["model_digest"]
        assert weights.digest(base64.b64decode(case["weights"])).hex() == one["weights_digest"]


@pytest.mark.parametrize("name", FILES)
def test_no_other_vector_of_1_0_was_changed(name: str) -> None:
    frozen = json.loads((FOLDER / "1.0" / "cases.json").read_text())[name]
    gone = set(frozen) - set(case_digests(name))
    assert not gone, "vectors of 1.0 stay as they are: add cases, and change none"
