"""Secrets planted in a full run of real processes, over mutual TLS, are found afterwards in no file, log, trace, metric or answer in clear.

What may hold a secret is its owner's own: a helper's keys.json and each party's tls.key. Everything else that the parties wrote is
searched, each secret in the forms in which it could have got there.
"""

import base64
import json
import os
import signal
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import httpx
import numpy as np
import pytest

from adserver.helper_client import HelperClient
from docs.tutorial.fleet import HELPERS, HOST, ORIGIN, CommandFailed, Fleet, free_port
from helper.core import DATASETS_FOLDER
from helper.gradient.choose import engine_for
from helper.keys import HelperKeys
from helper.vault import Vault
from maskedlark import canonical
from maskedlark.field import subtract, to_signed
from maskedlark.job import JobSpec
from maskedlark.model import weights
from maskedlark.model.graph import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.randomness import seeded
from maskedlark.report import Example, InputShares, decode_shares, split
from maskedlark.round import combine, transcript
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.wire import encode_report
from maskedlark.sealing import HpkeSuite
from maskedlark.task import Task, TaskBundle
from maskedlark.upload import Sealer
from tests.e2e import canary_forms

pytestmark = pytest.mark.slow
FEATURES = 24
REPORTS = 120
IN_ALL_FORMS = 20
"""So many reports are searched for in every form; the others as they are."""
LOSS = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
_SALT = slice(8, 40)
"""Of a dataset at rest: behind the magic bytes; see helper/vault.py."""


@dataclass(kw_only=True)
class Run:
    """What was planted, and everything that could be seen of the run besides its files."""

    fleet: Fleet
    ports: tuple[int, int, int]
    people: list[Example] = field(default_factory=list)
    plaintexts: tuple[list[bytes], list[bytes]] = field(default_factory=lambda: ([], []))
    forms: dict[str, set[bytes]] = field(default_factory=dict)
    seen: dict[str, bytes] = field(default_factory=dict)

    def plant(self, kind: str, forms: set[bytes]) -> None:
        self.forms.setdefault(kind, set()).update(forms)

    @property
    def adserver_tls(self) -> TlsFiles:
        files = self.fleet.data("adserver")
        return TlsFiles(certificate=files / "tls.crt", private_key=files / "tls.key", trusted_authorities=files / "trusted.crt")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("canaries")
    ports = (free_port(), free_port(), free_port())
    watching = ("--traces", "console", "--log-format", "json")
    with Fleet(
        folder=folder / "parties",
        is_tls=True,
        helper_options=watching,
        helper_options_of=(("--metrics-listen", f"{HOST}:{ports[0]}"), ("--metrics-listen", f"{HOST}:{ports[1]}")),
        adserver_options=(*watching, "--metrics-listen", f"{HOST}:{ports[2]}"),
    ) as fleet:
        made = Run(fleet=fleet, ports=ports)
        task, dataset = sealed_dataset(made)
        fleet.run("adserver", "model", "create", str(folder / "model.onnx"), "--layers", f"{FEATURES},4,1", "--seed", "5")
        trained(made, task, dataset, folder / "model.onnx")
        plant_reports(made)
        plant_noise(made, task, dataset, folder / "model.onnx")
        provoke_errors(made, task)
        for name, port in zip((*HELPERS, "adserver"), ports, strict=True):
            with urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as answer:  # our own server
                made.seen[f"metrics of {name}"] = answer.read()
        plant_keys(made, task)
        yield made


def sealed_dataset(run: Run) -> tuple[Task, str]:
    """A dataset of reports whose every secret is known here. Half of them are sealed after a rotation of the helpers' HPKE keys."""
    fleet = run.fleet
    name = fleet.adserver(
        "task", "create", "--name", "canaries", "--origin", ORIGIN, "--classes", "2", "--num-features", str(FEATURES),
        "--min-batch-size", "50", "--epsilon", "3", "--collusion-epsilon", "50", "--clip-norm", "1",
    ).strip()  # fmt: skip
    features = np.frombuffer(seeded(1, "canary features")(REPORTS * FEATURES), np.uint8).reshape(REPORTS, FEATURES)
    context = ssl.create_default_context(cafile=str(fleet.data("adserver") / "tls.crt"))
    with httpx.Client(base_url=f"https://{fleet.http}", verify=context) as browser:
        for half in (0, 1):
            bundle = canonical.decode(TaskBundle, browser.get(f"/v1/tasks/{name}").content)
            assert bundle.key_lists[0].key_list.keys[0].key_id == 1 + half
            sealer = Sealer(bundle)
            for number in range(half, REPORTS, 2):
                example = Example(features=features[number], label=float(number % 3 == 0))
                report = sealer.report(example, unix_s=time.time(), randomness=seeded(number, "canary report"))
                run.people.append(example)
                for role, plaintext in enumerate(split(bundle.task, example, seeded(number, "canary report"))):
                    run.plaintexts[role].append(plaintext)
                assert browser.post("/v1/reports", content=encode_report(report)).status_code == 201
            if half == 0:
                rotate_keys(fleet)
    sealed = fleet.adserver_json("dataset", "seal", "--task", name)
    assert sealed["admitted"] == REPORTS
    return bundle.task, sealed["dataset_id"]


def rotate_keys(fleet: Fleet) -> None:
    for helper in HELPERS:
        fleet.run("helper", "keys", "rotate", "--data", str(fleet.data(helper)), "--suite", HpkeSuite.MLKEM768_X25519_CHACHA20POLY1305)
    assert "1 tasks" in fleet.adserver("task", "refresh-keys")


def trained(run: Run, task: Task, dataset: str, model: Path) -> None:
    """A job of a few rounds, from its submission to its end."""
    job = run.fleet.adserver_json(
        "job", "submit", "--task", task.task_id.hex(), "--dataset", dataset, "--model", str(model), "--loss", LOSS.value, "--rounds", "3",
        "--epsilon", "2", "--learning-rate", "0.1", "--wait", options=False,
    )  # fmt: skip
    assert job["state"] == "done"


def plant_reports(run: Run) -> None:
    """What browsers know and each helper learns; the labels in the order of upload."""
    for number, example in enumerate(run.people):
        for plaintexts in run.plaintexts:
            run.plant("whole shares", {plaintexts[number][1:]})
            run.plant("masks", {plaintexts[number][-8:], plaintexts[number][-16:-8]})
            if number < IN_ALL_FORMS:
                run.plant("masks", canary_forms.of_bytes(plaintexts[number][-16:]))
        run.plant("features", {example.features.tobytes()[: FEATURES // 2]})
        if number < IN_ALL_FORMS:
            run.plant("features", canary_forms.of_bytes(example.features.tobytes()[: FEATURES // 2]))
    run.plant("labels", canary_forms.of_labels(np.array([example.label for example in run.people], np.int64)[:32]))


def plant_noise(run: Run, task: Task, dataset: str, model: Path) -> None:
    """One more round, asked for as the ad server does: its sum before noise, and each helper's noise and blind, are known here only.

    Each is worked out from the browsers' plaintexts and the helpers' key files, and they explain the helpers' answers to the bit.
    """
    parsed = parse(model.read_bytes(), num_features=FEATURES)
    encoded = weights.encode([weights.quantise(value) for value in parsed.initial_values])
    engine, tensors = engine_for(parsed, LOSS, task.clip, 2), weights.decode(encoded, parsed.parameters)
    spec = JobSpec(
        job_id=b"of noisy canarys", task_id=task.task_id, dataset_id=bytes.fromhex(dataset), model_digest=parsed.digest, loss=LOSS,
        rounds=2, sampling_numerator=1 << 32, noise_multiplier=40.0,
    )  # fmt: skip
    answers, noises = [], []
    for role, helper in enumerate(HELPERS):
        with HelperClient((run.fleet.folder / f"helper-{role}.address").read_text(), run.adserver_tls, 30.0) as client:
            numerics = client.start_job(spec, model.read_bytes()).numerics_digest
            answer = client.run_round(spec.job_id, 0, encoded, parsed.num_parameters)
        shares, _ = decode_shares(task, np.frombuffer(b"".join(run.plaintexts[role]), np.uint8).reshape(REPORTS, -1))
        told = transcript(spec, round_index=0, weights=encoded, numerics=numerics)
        blind = HelperKeys.read(run.fleet.data(helper)).pair(task, role).blind(told, len(answer.vector))
        noise = to_signed(subtract(subtract(answer.vector, blind), engine.masked_sum(tensors, shares).vector))
        run.plant("noise", canary_forms.of_numbers(noise, task.frac_bits))
        run.plant("blinds", {blind[first : first + 2].tobytes() for first in range(len(blind) - 1)})
        answers.append(answer)
        noises.append(noise)
    labels = np.array([[example.label] for example in run.people], np.uint32)
    clear = InputShares(features=np.stack([one.features for one in run.people]), labels=labels, mask_shares=np.ones_like(labels, np.uint64))
    summed = to_signed(engine.masked_sum(tensors, clear).vector)
    assert np.array_equal(combine(*answers), summed + noises[0] + noises[1])
    assert all(0.2 < np.std(noise) / (40.0 * 2**task.frac_bits) < 2 for noise in noises)
    run.plant("un-noised sums", canary_forms.of_numbers(summed, task.frac_bits))


def provoke_errors(run: Run, task: Task) -> None:
    """Refusals, whose messages are kept."""
    fleet = run.fleet
    said = []
    for command in (
        ("dataset", "seal", "--task", task.task_id.hex()),
        ("task", "create", "--name", "x", "--origin", ORIGIN, "--classes", "2", "--num-features", "3", "--min-batch-size", "1",
         "--epsilon", "1", "--clip-norm", "1"),
    ):  # fmt: skip
        with pytest.raises(CommandFailed) as failed:
            fleet.adserver(*command)
        said.append(str(failed.value))
    context = ssl.create_default_context(cafile=str(fleet.data("adserver") / "tls.crt"))
    with httpx.Client(base_url=f"https://{fleet.http}", verify=context) as browser:
        broken = run.plaintexts[0][0]
        said += [browser.post(path, content=broken).text for path in ("/v1/reports", "/v1/reports/batch")]
        said.append(browser.get("/v1/counts").text)
    run.seen["errors"] = "\n".join(said).encode()


def plant_keys(run: Run, task: Task) -> None:
    """Every long-term, agreement, storage, HPKE, TLS and pair key, and the key of each dataset at rest."""
    keys = []
    for role, helper in enumerate(HELPERS):
        folder = run.fleet.data(helper)
        stored = json.loads((folder / "keys.json").read_text())
        keys += [bytes.fromhex(stored[name]) for name in ("signing_key", "agreement_key", "storage_key")]
        keys += [bytes.fromhex(key["secret"]) for key in stored["opening_keys"]]
        held = HelperKeys.read(folder)
        sealed = list((folder / DATASETS_FOLDER).iterdir())
        assert sealed
        at_rest = [held.vault_key(bytes.fromhex(path.stem) + path.read_bytes()[_SALT]) for path in sealed]
        for path, key in zip(sealed, at_rest, strict=True):
            assert len(Vault(path.parent, lambda _, key=key: key).read(bytes.fromhex(path.stem)))  # type: ignore[misc]  # it is the key
        keys += at_rest
        keys.append(held.pair(task, role)._secret)
    for party in (*HELPERS, "adserver"):
        lines = (run.fleet.data(party) / "tls.key").read_text().splitlines()
        keys.append(base64.b64decode("".join(lines[1:-1]))[36:68])
    for key in keys:
        run.plant("keys", canary_forms.of_bytes(key))


def places(run: Run) -> Iterator[tuple[str, bytes]]:
    """Everything that was written or said, but for the owners' key files."""
    yield from run.seen.items()
    for path in sorted(run.fleet.folder.rglob("*")):
        if path.is_file() and path.name not in ("keys.json", "tls.key"):
            yield str(path.relative_to(run.fleet.folder)), path.read_bytes()


@pytest.mark.parametrize("kind", ["features", "labels", "masks", "whole shares", "un-noised sums", "noise", "blinds", "keys"])
def test_no_planted_secret_is_found_anywhere_in_clear(run: Run, kind: str) -> None:
    assert run.forms[kind]
    assert not [f"{kind} in {name}" for name, content in places(run) for form in run.forms[kind] if form in content]


def test_the_search_finds_what_is_there(run: Run) -> None:
    """The same search over what may hold secrets: it does."""
    keys = (run.fleet.data("helper-0") / "keys.json").read_bytes()
    assert any(form in keys for form in run.forms["keys"])
    names = [name for name, _ in places(run)]
    for expected in ("helper-0.log", "adserver.log", "helper-0/ledger.sqlite3", "metrics of helper-1", "errors"):
        assert any(name.startswith(expected) for name in names), expected
    assert any("datasets" in name for name in names)
    decoded = [json.loads(line) for line in run.fleet.log("helper-0").splitlines() if line.startswith('{"time"')]
    assert any(line["message"].startswith("job closed") or "dataset committed" in line["message"] for line in decoded)


def test_logs_name_traces_and_metrics_count_what_happened(run: Run) -> None:
    assert '"name": "PrepareDataset"' in run.fleet.log("helper-0")
    assert '"name": "job"' in run.fleet.log("adserver")
    metrics = run.seen["metrics of helper-0"].decode()
    assert f'helper_shares_opened_total{{outcome="admitted"}} {REPORTS}.0' in metrics
    assert "helper_rounds_answered_total 4.0" in metrics
    assert "helper_budget_left{" in metrics
    assert f'adserver_reports_total{{outcome="accepted"}} {REPORTS}.0' in run.seen["metrics of adserver"].decode()


def test_a_helper_that_crashes_leaves_no_core_file(run: Run) -> None:
    pid = run.fleet.pid("helper-1")
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert next(line for line in limits.splitlines() if "core file" in line).split()[4:6] == ["0", "0"]
    os.kill(pid, signal.SIGABRT)
    time.sleep(1.0)
    assert not [path for path in (*Path.cwd().glob("core*"), *run.fleet.folder.rglob("core*")) if path.is_file()]
    run.fleet.kill("helper-1")
    run.fleet.start_helper(1)
