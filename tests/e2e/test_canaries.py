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

from docs.tutorial.fleet import HELPERS, HOST, ORIGIN, CommandFailed, Fleet, free_port
from helper.gradient.choose import engine_for
from helper.keys import HelperKeys
from maskedlark import canonical
from maskedlark.field import to_signed
from maskedlark.model import weights
from maskedlark.model.graph import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.randomness import seeded
from maskedlark.report import Example, InputShares, split
from maskedlark.rpc.wire import encode_report
from maskedlark.sealing import HpkeSuite
from maskedlark.task import Task, TaskBundle
from maskedlark.upload import Sealer

pytestmark = pytest.mark.slow
FEATURES = 24
REPORTS = 120
LOSS = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS


@dataclass(kw_only=True)
class Run:
    """What was planted, and everything that could be seen of the run besides its files."""

    fleet: Fleet
    ports: tuple[int, int, int]
    secrets: dict[str, list[bytes]] = field(default_factory=dict)
    seen: dict[str, bytes] = field(default_factory=dict)


def forms(secret: bytes) -> list[bytes]:
    """A secret as it is, and as logs, JSON, arrays and databases would write it."""
    numbers = [str(byte) for byte in secret]
    written = [", ".join(numbers), ",".join(numbers), " ".join(number.rjust(3) for number in numbers), " ".join(numbers), secret.hex()]
    written += [secret.hex().upper(), base64.b64encode(secret).decode().rstrip("=")[:-2], repr(secret)[2:-1]]
    return [secret, *(form.encode() for form in written)]


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
        trained(made, task, dataset, folder / "model.onnx")
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
                plaintexts = split(bundle.task, example, seeded(number, "canary report"))
                for plaintext in plaintexts:
                    run.secrets.setdefault("features, labels and masks", []).append(plaintext[1:])
                    run.secrets.setdefault("masks", []).extend((plaintext[-8:], plaintext[-16:-8]))
                run.secrets.setdefault("features", []).append(features[number].tobytes()[: FEATURES // 2])
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
    """A job of a few rounds; the sum of its first round, before noise, is a secret too."""
    run.fleet.run("adserver", "model", "create", str(model), "--layers", f"{FEATURES},4,1", "--seed", "5")
    job = run.fleet.adserver_json(
        "job", "submit", "--task", task.task_id.hex(), "--dataset", dataset, "--model", str(model), "--loss", LOSS.value, "--rounds", "3",
        "--epsilon", "2", "--learning-rate", "0.1", "--wait", options=False,
    )  # fmt: skip
    assert job["state"] == "done"
    parsed = parse(model.read_bytes(), num_features=FEATURES)
    tensors = weights.decode(weights.encode([weights.quantise(value) for value in parsed.initial_values]), parsed.parameters)
    rows = np.array([np.frombuffer(secret, np.uint8, FEATURES) for secret in run.secrets["features, labels and masks"][::2]])
    labels = np.array([[int(number % 3 == 0)] for half in (0, 1) for number in range(half, REPORTS, 2)], np.uint32)
    batch = InputShares(features=rows, labels=labels, mask_shares=np.ones_like(labels, np.uint64))
    summed = to_signed(engine_for(parsed, LOSS, task.clip, 2).masked_sum(tensors, batch).vector)
    large = [int(value) for value in summed if abs(int(value)) > 1 << 28]
    assert large
    run.secrets["un-noised sums"] = [value.to_bytes(8, "little", signed=True) for value in large]
    run.secrets["un-noised sums in decimal"] = [str(value).encode() for value in large]


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
        broken = run.secrets["features, labels and masks"][0]
        said += [browser.post(path, content=broken).text for path in ("/v1/reports", "/v1/reports/batch")]
        said.append(browser.get("/v1/counts").text)
    run.seen["errors"] = "\n".join(said).encode()


def plant_keys(run: Run, task: Task) -> None:
    """Every long-term, agreement, storage, HPKE, TLS and pair key."""
    keys = []
    for role, helper in enumerate(HELPERS):
        folder = run.fleet.data(helper)
        stored = json.loads((folder / "keys.json").read_text())
        keys += [bytes.fromhex(stored[name]) for name in ("signing_key", "agreement_key", "storage_key")]
        keys += [bytes.fromhex(key["secret"]) for key in stored["opening_keys"]]
        held = HelperKeys.read(folder)
        keys.append(held.vault_key(b""))
        assert held.pair(task, role)
    for party in (*HELPERS, "adserver"):
        lines = (run.fleet.data(party) / "tls.key").read_text().splitlines()
        keys.append(base64.b64decode("".join(lines[1:-1]))[36:68])
    run.secrets["keys"] = keys


def places(run: Run) -> Iterator[tuple[str, bytes]]:
    """Everything that was written or said, but for the owners' key files."""
    yield from run.seen.items()
    for path in sorted(run.fleet.folder.rglob("*")):
        if path.is_file() and path.name not in ("keys.json", "tls.key"):
            yield str(path.relative_to(run.fleet.folder)), path.read_bytes()


@pytest.mark.parametrize("kind", ["features", "masks", "features, labels and masks", "un-noised sums", "un-noised sums in decimal", "keys"])
def test_no_planted_secret_is_found_anywhere_in_clear(run: Run, kind: str) -> None:
    assert run.secrets[kind]
    found = []
    wanted = {form for secret in run.secrets[kind] for form in ([secret] if "decimal" in kind else forms(secret)) if len(form) >= 8}
    for name, content in places(run):
        found += [f"{kind} in {name}" for form in wanted if form in content]
    assert not found


def test_the_search_finds_what_is_there(run: Run) -> None:
    """The same search over what may hold secrets: it does."""
    keys = (run.fleet.data("helper-0") / "keys.json").read_bytes()
    assert any(form in keys for form in forms(run.secrets["keys"][0]))
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
    assert "helper_rounds_answered_total 3.0" in metrics
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
