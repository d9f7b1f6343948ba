"""A party of another protocol version is refused for that, and the message says what to upgrade."""

import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from adserver.peers.client import HelperClient
from adserver.peers.replies import Replies
from maskedlark.canonical import decode, encode
from maskedlark.errors import InvalidTask, UnsupportedVersion
from maskedlark.releases.job import JobSpec
from maskedlark.releases.update import UpdateRound
from maskedlark.reports.task import Task, TaskBundle
from maskedlark.rpc.faults import calling
from maskedlark.rpc.protocols import PROTOCOLS, check_spoken
from protos import helper_pb2 as pb
from tests.builders import job_spec, world
from tests.helper.parties import Scene
from tests.helper.served import served, stub_of
from tests.patience import HANGS_S
from tests.update_builders import update_round, update_world

WORLD = world()
JOB = job_spec(WORLD.task.task_id)
ROUND = update_round(update_world().task)


def respell(value: Any, *path: str, version: Any, more: bool = False) -> bytes:
    """An object's canonical bytes with another version, and fields that only that version has."""
    plain = json.loads(encode(value))
    inner = plain
    for step in path:
        inner = inner[step]
    inner["version"] = version
    if more:
        inner["zeta"] = 1
        inner.pop("task_id", None)
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("told", "behind"),
    [
        ([2], "this software"),
        ([2, 3], "this software"),
        ([0], "the helper at x"),
    ],
)
def test_a_peer_without_this_version_is_refused(told: list[int], behind: str) -> None:
    with pytest.raises(UnsupportedVersion, match=f"upgrade {behind}$"):
        check_spoken(told, "the helper at x")


@pytest.mark.parametrize("told", [[], [1], [2, 1], [1, 1]])
def test_a_peer_that_says_nothing_or_this_version_among_others_is_not(told: list[int]) -> None:
    check_spoken(told, "the helper at x")


def test_a_message_names_few_versions_however_many_a_peer_tells() -> None:
    with pytest.raises(UnsupportedVersion) as refused:
        check_spoken(range(2, 1_000_000), "the helper at x")
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("kind", "value", "path"),
    [
        (Task, WORLD.task, ()),
        (TaskBundle, WORLD.bundle, ("task",)),
        (JobSpec, JOB, ()),
        (UpdateRound, ROUND, ("job",)),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
@pytest.mark.parametrize(("version", "behind"), [(2, "this software"), (0, "the party that sent it")])
def test_an_object_of_another_version_is_refused_for_that_whatever_its_other_fields_are(
    kind: type[Any], value: Any, path: tuple[str, ...], version: int, behind: str
) -> None:
    for more in (False, True):
        with pytest.raises(
            UnsupportedVersion, match=rf"is of version {version}, .* implements 1: upgrade {behind}$"
        ):
            decode(kind, respell(value, *path, version=version, more=more))


@pytest.mark.parametrize("version", ["2", None, True, 1.0])
def test_what_is_no_version_is_a_wrong_field(version: Any) -> None:
    with pytest.raises(InvalidTask) as refused:
        decode(Task, respell(WORLD.task, version=version))
    assert type(refused.value) is InvalidTask


def test_a_helper_says_which_versions_it_implements(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    with stub_of(scene.cores[0]) as stub:
        assert list(stub.GetStatus(pb.StatusRequest(), timeout=HANGS_S).protocols) == list(PROTOCOLS) == [1]


def test_an_ad_server_goes_no_further_with_a_helper_of_another_version(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    with served(scene.cores[0]) as address, HelperClient(address, None, HANGS_S) as client:
        assert client.status().identity == scene.task.helpers[0]
    with stub_of(scene.cores[0]) as stub:
        reply = stub.GetStatus(pb.StatusRequest(), timeout=HANGS_S)
    del reply.protocols[:]
    assert (
        Replies("north").parse_status(reply).identity == scene.task.helpers[0]
    )  # of before the field: version 1
    other = pb.StatusReply(protocols=[2])  # the rest has a form that this server does not know
    with pytest.raises(UnsupportedVersion, match="the helper at north implements protocol version 2"):
        Replies("north").parse_status(other)


def test_a_helper_refuses_a_task_of_another_version_and_the_ad_server_learns_why(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    request = pb.RegisterTaskRequest(task=respell(scene.task, version=2, more=True))
    with stub_of(scene.cores[0]) as stub:
        with pytest.raises(UnsupportedVersion, match=r"^north: the Task is of version 2"), calling("north"):
            stub.RegisterTask(request, timeout=HANGS_S)
        with pytest.raises(grpc.RpcError) as refused:
            stub.RegisterTask(request, timeout=HANGS_S)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
