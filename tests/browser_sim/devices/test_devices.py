from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from browser_sim.devices.answers import AnswerStore, Outcome
from browser_sim.devices.device import Device, DeviceRequest
from maskedlark.canonical import encode
from maskedlark.errors import InvalidTask, ReportReason
from maskedlark.federated.bounding import UpdateBound
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.local_training import Examples
from maskedlark.federated.strategies.dp_fedavg import DpFedAvg
from maskedlark.federated.strategy import Round, device_stream
from maskedlark.numbers.field import reconstruct, to_signed
from maskedlark.randomness import Randomness, seeded
from maskedlark.releases.instructions import update_job, update_round
from maskedlark.releases.update import Phase
from maskedlark.reports.update_sealing import UpdateOpener, UpdateSealer
from maskedlark.reports.updates import UpdateForm, UpdateSum
from maskedlark.rpc.wire import decode_report
from tests.builders import NOW, World
from tests.refusals import refused
from tests.update_builders import update_world

MODEL = DenseModel(widths=(4, 2))
FORM = UpdateForm(num_parameters=MODEL.size)
WORLD = update_world(updates=FORM)
HALF = 0.5


def strategy(**changes: object) -> DpFedAvg:
    bound = UpdateBound(clip_norm=1.0, frac_bits=24)
    settings = {
        "devices": 9,
        "sampling_rate": HALF,
        "rounds": 4,
        "noise_multiplier": 0.0,
        "bound": bound,
        **changes,
    }
    return DpFedAvg(**settings)  # type: ignore[arg-type]


def body(of: World = WORLD, index: int = 0, scale: float = 0.0, **changes: object) -> bytes:
    """What the ad server serves of a round."""
    wanted = strategy(**changes)
    job = update_job(job_id=b"f" * 16, task_id=of.task.task_id, strategy=wanted, model=MODEL)
    weights = np.full(MODEL.size, scale, np.float32)
    content = Round(terms=wanted.terms(index), parameters=weights)
    one = encode(update_round(job, content))
    return len(one).to_bytes(4, "little") + one + content.encode()


def asked(**changes: object) -> DeviceRequest:
    return DeviceRequest.read(body(**changes), WORLD.task)  # type: ignore[arg-type]


def device(
    answers: AnswerStore, number: int = 0, seed: int = 5, cap: int | None = None, held: int = 6
) -> Device:
    drawn = seeded(number, "examples")
    features = np.frombuffer(drawn(4 * held), np.uint8).reshape(held, 4)

    def sealing(round_index: int, device: int) -> Randomness:
        return seeded(1000 * round_index + device, "sealing")

    return Device(
        number=number,
        examples=Examples(features=features, labels=np.arange(held) % 2),
        sealer=UpdateSealer(WORLD.bundle, now=NOW),
        answers=answers,
        cap=cap,
        training=lambda round_index, device: device_stream(seed, round_index, device),
        sealing=sealing,
    )


def opened(of: DeviceRequest, reports: list[bytes]) -> np.ndarray:
    """What reports add up to."""
    sums = []
    for role in (0, 1):
        opener = UpdateOpener(
            task=WORLD.task,
            role=role,
            round_id=of.round.round_id,
            opening_keys=[WORLD.keys[role].opening],
            view_key=WORLD.pair(role).view_key,
        )
        total = UpdateSum(form=FORM, role=role, task_id=WORLD.task.task_id)
        for encoded in reports:
            report = decode_report(encoded)
            total.add(
                report.report_id,
                opener.open(report.report_id, report.time_bucket, report.shares[role]).payload,
            )
        sums.append(total.total())
    return to_signed(reconstruct(*sums))


def answered(of: Device, one: DeviceRequest, **how: bool) -> bytes:
    answer = of.answer(one, unix_s=NOW, **how)
    assert answer.report is not None
    return answer.report


def test_a_device_stores_its_answer_and_sends_the_same_bytes_ever_after(tmp_path: Path) -> None:
    one = asked()
    with AnswerStore(tmp_path / "a") as answers:
        before = answered(device(answers), one)
    with AnswerStore(tmp_path / "a") as answers:
        assert answered(device(answers, seed=99), one) == before


def test_a_round_of_other_weights_is_not_answered_a_second_time(tmp_path: Path) -> None:
    with AnswerStore(tmp_path / "a") as answers:
        answered(device(answers), asked())
        with refused(ReportReason.ROUND_CHANGED):
            device(answers).answer(asked(scale=0.5), unix_s=NOW)
        answered(device(answers), asked(index=1))


def test_drawn_devices_send_the_strategys_vector_and_the_others_zeros(tmp_path: Path) -> None:
    one, expected, covers = asked(), np.zeros(MODEL.size, np.int64), 0
    with AnswerStore(tmp_path / "a") as answers:
        reports = []
        for number in range(9):
            of = device(answers, number)
            reports.append(answered(of, one))
            vector = opened(one, reports[-1:])
            stream = device_stream(5, 0, number)
            drawn = int.from_bytes(stream(16)[:8], "little") < HALF * 2**64
            wanted = strategy().device_vectors(MODEL, one.content, [of.examples], [stream])[0]
            assert (vector == (wanted if drawn else 0)).all()
            expected, covers = expected + vector, covers + (not drawn)
    assert 0 < covers < 9
    assert (opened(one, reports) == expected).all()
    assert len({len(report) for report in reports}) == 1


@pytest.mark.parametrize("how", [{"is_ready": False}, {}])
def test_who_cannot_train_or_holds_nothing_sends_cover(tmp_path: Path, how: dict[str, bool]) -> None:
    one = asked(sampling_rate=1.0)
    with AnswerStore(tmp_path / "a") as answers:
        of = device(answers, held=6 if how else 0)
        assert not opened(one, [answered(of, one, **how)]).any()


@pytest.mark.parametrize(("rate", "is_drawn"), [(1.0, True), (2.0**-60, False)])
def test_a_cap_counts_answered_rounds_whether_drawn_or_not(
    tmp_path: Path, rate: float, is_drawn: bool
) -> None:
    with AnswerStore(tmp_path / "a") as answers:
        of = device(answers, cap=2)
        for index in range(2):
            one = asked(index=index, sampling_rate=rate)
            assert opened(one, [answered(of, one)]).any() == is_drawn
            answers.mark(0, one.round, Outcome.ANSWERED)
        with refused(ReportReason.CAP_REACHED):
            of.answer(asked(index=2), unix_s=NOW)


def test_an_ad_server_that_never_acknowledges_gets_no_more_rounds_of_a_device(tmp_path: Path) -> None:
    with AnswerStore(tmp_path / "a") as answers:
        of = device(answers, cap=2)
        stored = [answered(of, asked(index=index)) for index in range(2)]
        with refused(ReportReason.CAP_REACHED):
            of.answer(asked(index=2), unix_s=NOW)
        assert [answered(of, asked(index=index)) for index in range(2)] == stored


@pytest.mark.parametrize("scale", [3e38, -3e38, 1e20])
@pytest.mark.filterwarnings("error")
def test_weights_on_which_training_fails_do_not_show_who_was_drawn(tmp_path: Path, scale: float) -> None:
    """An ad server that sends them sees every device answer alike: who was drawn sends zeros too."""
    one = asked(scale=scale)
    with AnswerStore(tmp_path / "a") as answers:
        reports = [answered(device(answers, number), one) for number in range(9)]
        drawn = [
            int.from_bytes(device_stream(5, 0, number)(16)[:8], "little") < HALF * 2**64
            for number in range(9)
        ]
    assert 0 < sum(drawn) < 9
    assert len({len(report) for report in reports}) == 1
    assert np.abs(opened(one, reports)).max() <= sum(drawn) * 2**24


def test_a_device_whose_training_raises_sends_cover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(DpFedAvg, "device_vectors", fails)
    one = asked(sampling_rate=1.0)
    with AnswerStore(tmp_path / "a") as answers:
        assert not opened(one, [answered(device(answers), one)]).any()


def test_without_cover_a_device_that_is_not_drawn_stays_silent_and_stores_that(tmp_path: Path) -> None:
    of = update_world(updates=replace(FORM, cover=0.0))
    one = DeviceRequest.read(body(of, cover_rate=0.0, sampling_rate=1e-9), of.task)
    with AnswerStore(tmp_path / "a") as answers:
        silent = replace(device(answers), sealer=UpdateSealer(of.bundle, now=NOW))
        first, second = (silent.answer(one, unix_s=NOW) for _ in range(2))
        assert first == second
        assert first.report is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"cover_rate": 0.5}, "cover_rate"),
        ({"bound": UpdateBound(clip_norm=2.0, frac_bits=24)}, "clip_norm"),
        ({"bound": UpdateBound(clip_norm=1.0, frac_bits=20)}, "frac_bits"),
        (
            {"bound": UpdateBound(clip_norm=1.0, frac_bits=24, is_counted=True), "quantile": None},
            "quantile|is_counted",
        ),
    ],
)
def test_a_round_that_the_task_does_not_hold_is_refused(change: dict[str, object], told: str) -> None:
    with pytest.raises((InvalidTask, ValueError), match=told):
        asked(**change)


def test_a_round_with_other_weights_or_terms_than_it_names_is_refused() -> None:
    good, other = body(), body(scale=1.0)
    end = 4 + int.from_bytes(good[:4], "little")
    with pytest.raises(InvalidTask, match="weights or terms"):
        DeviceRequest.read(good[:end] + other[end:], WORLD.task)
    with pytest.raises(InvalidTask, match="another task"):
        DeviceRequest.read(good, update_world(updates=FORM).task)
    with pytest.raises(InvalidTask, match="Invalid JSON"):
        DeviceRequest.read(b"", WORLD.task)


def test_a_round_at_another_rate_than_helpers_charge_is_refused() -> None:
    wanted = strategy()
    job = update_job(job_id=b"f" * 16, task_id=WORLD.task.task_id, strategy=wanted, model=MODEL)
    job = replace(job, phases=(Phase(rounds=4, sampling_rate=0.25, noise_multiplier=0.0),))
    content = Round(terms=wanted.terms(0), parameters=np.zeros(MODEL.size, np.float32))
    one = encode(update_round(job, content))
    with pytest.raises(InvalidTask, match="rate or noise"):
        DeviceRequest.read(len(one).to_bytes(4, "little") + one + content.encode(), WORLD.task)
