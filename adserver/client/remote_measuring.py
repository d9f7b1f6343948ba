"""Queries and evaluations of an ad server elsewhere: asked over its admin API, read as results are here."""

import json
import math
import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from adserver.client.far_answer import reads_answer
from adserver.client.remote import RemoteAdServer, safe_id
from adserver.measuring.evaluation_result import CurvePoint, EvaluationResult, Metric
from adserver.measuring.result import NOT_KNOWN, AggregateResult, Column, Estimate, ResultRow
from adserver.peers.retrying import Backoff, with_retries
from adserver.records.defaults import QUERY_ID_BYTES
from maskedlark.errors import HelperUnavailable, InvalidTask, JobReason
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.mechanism import Mechanism


def aggregate(
    far: RemoteAdServer, asked: Mapping[str, Any], *, query_id: str, backoff: Backoff
) -> AggregateResult:
    """Ask a query until an answer arrives, always under the same id, so that it is charged once.

    Args:
        far: The ad server.
        asked: The fields of `adserver.admin.queries.QueryBody` but the id.
        query_id: 32 hex digits; empty: a new one.
        backoff: How long it is asked again when no answer comes.

    Raises:
        HelperUnavailable: none came; it names the id.
        MaskedLarkError: what the ad server refuses with.
    """
    return result_from_json(_ask(far, "/queries", asked, query_id, backoff))


def evaluate(
    far: RemoteAdServer, asked: Mapping[str, Any], model: bytes | None, *, query_id: str, backoff: Backoff
) -> EvaluationResult:
    """Ask an evaluation of an ONNX file, or of the job that is named, as `aggregate` asks a query."""
    file = {} if model is None else {"model": b64encode(model).decode()}
    return evaluation_from_json(_ask(far, "/evaluations", {**asked, **file}, query_id, backoff))


def _ask(
    far: RemoteAdServer, path: str, asked: Mapping[str, Any], query_id: str, backoff: Backoff
) -> Mapping[str, Any]:
    named = query_id or os.urandom(QUERY_ID_BYTES).hex()
    body = json.dumps({**asked, "query_id": named})
    try:
        return with_retries(lambda: far.post(path, body, is_once=True), backoff)
    except HelperUnavailable as away:
        told = f"{away}; repeat the same request with query id {named}: it is charged only once"
        raise HelperUnavailable(told) from None


def read_aggregate(far: RemoteAdServer, query: str) -> AggregateResult:
    """Return the stored answer to an earlier query."""
    return result_from_json(_read_stored(far, "queries", query))


def read_evaluation(far: RemoteAdServer, query: str) -> EvaluationResult:
    """Return the stored answer to an earlier evaluation."""
    return evaluation_from_json(_read_stored(far, "evaluations", query))


def _read_stored(far: RemoteAdServer, kind: str, query: str) -> Mapping[str, Any]:
    result = far.get(f"/{kind}/{safe_id(query, JobReason.UNKNOWN_QUERY)}").get("result")
    if not isinstance(result, dict):
        raise InvalidTask("that ad server has no stored answer: repeat the query on its machine, at no cost")
    return result


@reads_answer
def result_from_json(sent: Mapping[str, Any]) -> AggregateResult:
    """Parse the output of `adserver.views.query.result_json`."""
    columns = tuple(
        Column(**{**one, "bucket": None if one["bucket"] is None else tuple(one["bucket"])})
        for one in sent["columns"]
    )
    rows = tuple(
        ResultRow(
            group=tuple(one["group"].values()),
            estimates=tuple(_estimate(one[column.name]) for column in columns),
        )
        for one in sent["rows"]
    )
    group_by = tuple(sent["rows"][0]["group"]) if sent["rows"] else ()
    return AggregateResult(
        **_parse_release(sent),
        group_by=group_by,
        columns=columns,
        rows=rows,
        min_cell_count=sent["min_cell_count"],
    )


@reads_answer
def evaluation_from_json(sent: Mapping[str, Any]) -> EvaluationResult:
    """Parse the output of `adserver.views.evaluation.evaluation_json`."""
    return EvaluationResult(
        **_parse_release(sent),
        is_of_classes=sent["positives"] != "label 1",
        metrics=tuple(Metric(name=name, estimate=_estimate(one)) for name, one in sent["metrics"].items()),
        roc=_points(sent["roc"], "false_positive_rate", "true_positive_rate"),
        pr=_points(sent["pr"], "recall", "precision"),
        calibration=_points(sent["calibration"], "predicted", "observed"),
        num_bins=sent["num_bins"],
        noise_scale=sent["noise_scale"],
    )


def _parse_release(sent: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the fields that every release has."""
    return {
        **{name: sent[name] for name in ("query_id", "task_id", "dataset_id", "records", "delta")},
        "mechanism": Mechanism(sent["mechanism"]),
        "cost": _epsilons(sent["epsilon"]),
        "dataset_spent": _epsilons(sent["dataset_epsilon_spent"]),
    }


def _epsilons(sent: Mapping[str, float] | None) -> Epsilons:
    """Parse both epsilons; infinite without noise."""
    return Epsilons(ad_server=math.inf, colluding=math.inf) if sent is None else Epsilons(**sent)


def _estimate(sent: Mapping[str, float | None]) -> Estimate:
    """Parse an estimate; null stands for an unknown number."""
    return Estimate(
        **{name: getattr(NOT_KNOWN, name) if figure is None else figure for name, figure in sent.items()}
    )


def _points(sent: Sequence[Mapping[str, Any]], across: str, up: str) -> tuple[CurvePoint, ...]:
    return tuple(
        CurvePoint(threshold=one["threshold"], x=_estimate(one[across]), y=_estimate(one[up])) for one in sent
    )
