"""The run of `test_canaries.py`.

Real processes over mutual TLS do all that they can do, and every secret of it is known here.
"""

import base64
import json
import sqlite3
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import httpx
import numpy as np
import pytest

from adserver.peers.client import HelperClient
from adserver.quickstart.ports import free_ports
from docs.tutorial.fleet import HELPERS, HOST, ORIGIN, CommandFailed, Fleet
from helper.core import DATASETS_FOLDER
from helper.datasets.frames import KeyFor
from helper.datasets.vault import Vault
from helper.gradient.choose import choose_engine
from helper.ledger.ledger import LEDGER_FILE, Ledger, sqlite_url
from helper.trust.keys import HelperKeys
from maskedlark import canonical
from maskedlark.model import weights
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.numbers.field import subtract, to_signed
from maskedlark.randomness import seeded
from maskedlark.releases.job import JobSpec
from maskedlark.releases.query import QuerySpec
from maskedlark.releases.release import combine
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.input_shares import InputShares
from maskedlark.reports.measurement import MAX_CODE
from maskedlark.reports.report import Example, SplitExample
from maskedlark.reports.task import REPORT_ID_BYTES, Task, TaskBundle
from maskedlark.reports.upload import Sealer
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.wire import encode_report
from maskedlark.runtime.database import open_database
from tests.builders import decode_shares, split
from tests.e2e import canary_forms
from tests.e2e.canary_people import (
    BUCKETS,
    CAMPAIGNS,
    FEATURES,
    MAX_LABEL,
    MEASUREMENT,
    REPORTS,
    broken,
    person,
    sealed,
)
from tests.e2e.span_reading import Span, spans_in
from tests.fleet_commands import create_task, submit
from tests.helper.stored import name_objects, write
from tests.patience import HANGS_S

IN_ALL_FORMS = 10
"""So many reports are searched for in every form; the others as they are."""
LOSS = Loss.MSE


@dataclass(kw_only=True)
class Run:
    """What was planted, and everything that could be seen of the run besides its files."""

    fleet: Fleet
    ports: list[int]
    people: list[Example] = field(default_factory=list)
    report_ids: list[bytes] = field(default_factory=list)
    plaintexts: tuple[list[bytes], list[bytes]] = field(default_factory=lambda: ([], []))
    broken: list[SplitExample] = field(default_factory=list)
    forms: dict[str, set[bytes]] = field(default_factory=dict)
    seen: dict[str, bytes] = field(default_factory=dict)
    spans: dict[str, list[Span]] = field(default_factory=dict)

    def plant(self, kind: str, forms: set[bytes]) -> None:
        self.forms.setdefault(kind, set()).update(forms)

    def keep_metrics(self, when: str) -> None:
        for name, port in zip((*HELPERS, "adserver"), self.ports, strict=True):
            with urlopen(f"http://{HOST}:{port}/metrics", timeout=HANGS_S) as answer:  # our own server
                self.seen[f"metrics of {name} {when}"] = answer.read()

    def shares(self, task: Task, role: int) -> InputShares:
        """What a helper holds of the dataset."""
        rows = np.frombuffer(b"".join(self.plaintexts[role]), np.uint8).reshape(REPORTS, -1)
        return decode_shares(task, rows, role=role, report_ids=self.report_ids)[0]

    def traced(self, *command: str) -> Any:
        """The answer of a command whose spans are kept."""
        arguments = [*command, *self.fleet.common(), "--traces", "console", "--json"]
        done = subprocess.run(
            [str(Path(sys.executable).parent / "adserver"), *arguments], capture_output=True, check=True
        )  # ours
        name = " ".join(command[:2] if command[0] == "dataset" else command[:1])
        self.seen[f"what {name} said"] = done.stderr
        self.spans[name] = spans_in(done.stderr.decode())
        return json.loads(done.stdout)

    def spans_of(self, party: str) -> list[Span]:
        """Of what a serving party did."""
        return spans_in(self.fleet.log(party))

    @property
    def adserver_tls(self) -> TlsFiles:
        files = self.fleet.data("adserver")
        return TlsFiles(
            certificate=files / "tls.crt",
            private_key=files / "tls.key",
            trusted_authorities=files / "trusted.crt",
        )


@contextmanager
def canary_run(folder: Path) -> Iterator[Run]:
    """A fleet that has done its work, and what was planted in it."""
    ports = free_ports(3)
    watching = ("--traces", "console", "--log-format", "json")
    with Fleet(
        folder=folder / "parties",
        is_tls=True,
        helper_options=watching,
        helper_options_of=(
            ("--metrics-listen", f"{HOST}:{ports[0]}"),
            ("--metrics-listen", f"{HOST}:{ports[1]}"),
        ),
        adserver_options=(*watching, "--metrics-listen", f"{HOST}:{ports[2]}"),
    ) as fleet:
        made = Run(fleet=fleet, ports=ports)
        task, dataset = sealed_dataset(made)
        fleet.run(
            "adserver",
            "model",
            "create",
            str(folder / "model.onnx"),
            "--layers",
            f"{FEATURES},4,1",
            "--seed",
            "5",
        )
        trained(made, task, dataset, folder / "model.onnx")
        plant_reports(made, task)
        plant_noise(made, task, dataset, folder / "model.onnx")
        plant_sums(made, measured(made))
        provoke_errors(made, task)
        made.keep_metrics("after the work")
        plant_keys(made, task)
        damage_a_dataset(made, dataset)
        made.keep_metrics("after the damage")
        yield made


def sealed_dataset(run: Run) -> tuple[Task, str]:
    """A dataset of reports whose every secret is known here.

    Half of them are sealed after a rotation of the helpers' HPKE keys.

    Among them are some that are sealed as they should be, and broken inside: the helpers open and drop them.
    """
    fleet = run.fleet
    measurement = fleet.folder / "measurement.json"
    measurement.write_text(MEASUREMENT)
    name = create_task(
        fleet,
        "canaries",
        f"--max-value {MAX_LABEL} --num-buckets {BUCKETS} --decoys 2 --num-features {FEATURES} --measurement"
        f" {measurement} --min-batch-size 50 --epsilon 8 --collusion-epsilon 16 --clip-norm 1",
    )
    context = ssl.create_default_context(cafile=str(fleet.data("adserver") / "tls.crt"))
    with httpx.Client(base_url=f"https://{fleet.http}", verify=context, timeout=HANGS_S) as browser:
        for half in (0, 1):
            bundle = canonical.decode(TaskBundle, browser.get(f"/v1/tasks/{name}").content)
            assert bundle.key_lists[0].key_list.keys[0].key_id == 1 + half
            sealer = Sealer(bundle, now=time.time())
            for number in range(half, REPORTS, 2):
                example = person(number)
                report = sealer.report(
                    example, unix_s=time.time(), randomness=seeded(number, "canary report")
                )
                run.people.append(example)
                run.report_ids.append(report.report_id)
                again = seeded(number, "canary report")
                assert again(REPORT_ID_BYTES) == report.report_id
                for role, plaintext in enumerate(split(bundle.task, example, again, report.report_id)):
                    run.plaintexts[role].append(plaintext)
                assert browser.post("/v1/reports", content=encode_report(report)).status_code == 201
            if half == 0:
                whole = split(bundle.task, person(1), seeded(0, "broken canary"))
                run.broken += broken(bundle.task, whole).values()
                for number, plaintexts in enumerate(run.broken):
                    report = sealed(bundle, plaintexts, unix_s=time.time(), number=number)
                    assert browser.post("/v1/reports", content=encode_report(report)).status_code == 201
                rotate_keys(fleet)
    made = run.traced("dataset", "seal", "--task", name)
    assert (made["received"], made["admitted"]) == (REPORTS + len(run.broken), REPORTS)
    run.seen["what was dropped"] = json.dumps(made["dropped"]).encode()
    return bundle.task, made["dataset_id"]


def rotate_keys(fleet: Fleet) -> None:
    for helper in HELPERS:
        suite = HpkeSuite.MLKEM768_X25519_CHACHA20POLY1305
        fleet.run("lark-helper", "keys", "rotate", "--data", str(fleet.data(helper)), "--suite", suite)
    fleet.adserver("task", "refresh-keys")


def trained(run: Run, task: Task, dataset: str, model: Path) -> None:
    """A job of a few rounds, from its submission to its end."""
    job = submit(
        run.fleet,
        f"--task {task.task_id.hex()} --dataset {dataset} --model {model} --loss {LOSS.value} --rounds 3"
        " --epsilon 2 --learning-rate 0.1 --wait",
    )
    assert job["state"] == "done"


def measured(run: Run) -> Any:
    """A query whose groups are found privately first.

    Of the two keys only the campaigns are ever released.
    """
    answer = run.traced(
        "aggregate", "--value", "spend", "--group-by", "campaign", "--discover", "--epsilon", "4"
    )
    assert {row["group"]["campaign"] for row in answer["rows"]} >= {str(code) for code in CAMPAIGNS}
    return answer


def plant_reports(run: Run, task: Task) -> None:
    """What browsers know and each helper learns: per report, as the helpers hold it."""
    opened = [run.shares(task, role) for role in (0, 1)]
    assert task.proof
    for number, example in enumerate(run.people):
        for role, plaintexts in enumerate(run.plaintexts):
            plaintext, shares = plaintexts[number], opened[role]
            assert shares.measured is not None
            masks, values = (
                shares.mask_shares[number].tobytes(),
                shares.measured.value_shares[number].tobytes(),
            )
            run.plant("whole shares", {plaintext[1:]})
            run.plant("proofs", {plaintext[-32:], plaintext[task.view_length :][:24]})
            run.plant("masks", {masks[start : start + 8] for start in range(0, 8 * task.num_candidates, 8)})
            run.plant("value shares", {values[:8], values[8:]})
            if number < IN_ALL_FORMS:
                run.plant("masks", canary_forms.of_bytes(masks[:16]))
                run.plant("value shares", canary_forms.of_bytes(values))
                run.plant("proofs", canary_forms.of_bytes(plaintext[-32:]))
        run.plant("features", {example.features.tobytes()[: FEATURES // 2]})
        if number < IN_ALL_FORMS:
            run.plant("features", canary_forms.of_bytes(example.features.tobytes()[: FEATURES // 2]))
        assert example.measured is not None
        run.plant("measured values", canary_forms.of_large(example.measured.values[0]))
        run.plant("measured keys", canary_forms.of_large(example.measured.keys[1]))
    shares = opened[0]
    assert shares.measured is not None
    for kind, rows, highest in (
        ("labels", shares.labels, MAX_LABEL),
        ("measured keys", shares.measured.keys, MAX_CODE),
    ):
        for row in rows:
            run.plant(kind, canary_forms.as_held(row))
        for row in rows[:IN_ALL_FORMS]:
            run.plant(kind, canary_forms.of_neighbours(row, len(str(highest))))
    for plaintext in (one for plaintexts in run.broken for one in plaintexts):
        run.plant(
            "whole shares",
            {
                plaintext[1 : task.view_length - 4 * (task.num_candidates + 2)],
                plaintext[task.view_length + 8 : -8],
            },
        )
        run.plant("proofs", {plaintext[task.view_length + 8 : task.view_length + 16]})


def plant_sums(run: Run, answer: Any) -> None:
    """What the query would have answered without noise, in units and as people read it."""
    [(encoded,)] = rows(
        run.fleet.data("adserver"),
        "SELECT spec FROM queries WHERE query_id = ?",
        bytes.fromhex(answer["query_id"]),
    )
    scale = canonical.decode(QuerySpec, encoded).measures[0].scale
    spent = dict.fromkeys(CAMPAIGNS, 0)
    for one in run.people:
        assert one.measured is not None
        spent[one.measured.keys[0]] += one.measured.values[0]
    for total in (*spent.values(), sum(spent.values())):
        run.plant("un-noised sums", canary_forms.of_large(total) | canary_forms.of_large(total * scale))


def rows(folder: Path, query: str, *values: bytes) -> list[tuple[bytes, ...]]:
    [path] = (file for file in folder.glob("*.sqlite3") if file.stem != "local")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute(query, values).fetchall()


def plant_noise(run: Run, task: Task, dataset: str, model: Path) -> None:
    """One more round, asked for as the ad server does.

    Its sum before noise, and each helper's noise and blind, are known here only.

    Each is worked out from the browsers' plaintexts and the helpers' key files, and they explain the helpers'
    answers to the bit.
    """
    parsed = parse(model.read_bytes(), num_features=FEATURES)
    encoded = weights.encode([weights.quantise(value) for value in parsed.initial_values])
    engine, tensors = (
        choose_engine(parsed, LOSS, task.clip, task.num_candidates),
        weights.decode(encoded, parsed.parameters),
    )
    spec = JobSpec(
        job_id=b"of noisy canarys", task_id=task.task_id, dataset_id=bytes.fromhex(dataset),
        model_digest=parsed.digest, loss=LOSS,
        rounds=2, sampling_numerator=1 << 32, noise_multiplier=40.0,
    )  # fmt: skip
    answers, noises = [], []
    for role, helper in enumerate(HELPERS):
        with HelperClient(
            (run.fleet.folder / f"helper-{role}.address").read_text(), run.adserver_tls, 30.0
        ) as client:
            numerics = client.start_job(spec, model.read_bytes()).numerics_digest
            answer = client.run_round(spec, 0, encoded, parsed.num_parameters)
        shares = run.shares(task, role)
        told = spec.round_transcript(round_index=0, weights=encoded, numerics=numerics)
        blind = HelperKeys.read(run.fleet.data(helper)).pair(task, role).blind(told, len(answer.vector))
        noise = to_signed(subtract(subtract(answer.vector, blind), engine.masked_sum(tensors, shares).vector))
        run.plant("noise", canary_forms.of_numbers(noise, task.frac_bits))
        run.plant("blinds", {blind[first : first + 2].tobytes() for first in range(len(blind) - 1)})
        answers.append(answer)
        noises.append(noise)
    labels = np.array([[example.label] for example in run.people], np.uint32)
    clear = InputShares(
        features=np.stack([one.features for one in run.people]),
        labels=labels,
        mask_shares=np.ones_like(labels, np.uint64),
    )
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
        ("task", "create", "--name", "x", "--origin", ORIGIN, "--classes", "2", "--num-features", "3",
        "--min-batch-size", "1",
         "--epsilon", "1", "--clip-norm", "1"),
    ):  # fmt: skip
        with pytest.raises(CommandFailed) as failed:
            fleet.adserver(*command)
        said.append(str(failed.value))
    context = ssl.create_default_context(cafile=str(fleet.data("adserver") / "tls.crt"))
    with httpx.Client(base_url=f"https://{fleet.http}", verify=context, timeout=HANGS_S) as browser:
        broken = run.plaintexts[0][0]
        said += [browser.post(path, content=broken).text for path in ("/v1/reports", "/v1/reports/batch")]
        said.append(browser.get("/v1/counts").text)
    run.seen["errors"] = "\n".join(said).encode()


def vault_of(folder: Path, key_for: KeyFor) -> Vault:
    """The vault of a helper's data folder."""
    return Vault(folder / DATASETS_FOLDER, Ledger(open_database(sqlite_url(folder / LEDGER_FILE))), key_for)


def damage_a_dataset(run: Run, dataset: str) -> None:
    """Errors inside a helper that handles secrets.

    First a stored dataset that does not open, then one that opens and is no such dataset.

    The second one no attacker could make: it is a bug in the middle of a query, and all that the helper knows
    of it goes to its log.
    """
    fleet, said, dataset_id = run.fleet, [], bytes.fromhex(dataset)

    def query() -> None:
        fleet.start_helper(1)
        with pytest.raises(CommandFailed) as failed:
            fleet.adserver("aggregate", "--value", "spend", "--epsilon", "0.5")
        said.append(str(failed.value))
        fleet.kill(HELPERS[1])

    fleet.kill(HELPERS[1])
    vault = vault_of(fleet.data(HELPERS[1]), HelperKeys.read(fleet.data(HELPERS[1])).vault_key)
    opened, manifest = vault.read(dataset_id), vault._ledger.manifests.of(dataset_id)
    stored = vault._disk.path(manifest[0].name)
    whole = stored.read_bytes()
    stored.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    query()
    stored.write_bytes(whole)
    write(vault, replace(opened, shares=replace(opened.shares, measured=None)))
    query()
    name_objects(vault, dataset_id, manifest, len(opened))
    vault._ledger.close()
    fleet.start_helper(1)
    assert "dataset_lost" in said[0]
    assert "AttributeError" not in said[1]
    run.seen["errors of a damaged dataset"] = "\n".join(said).encode()


def keys_at_rest(folder: Path, held: HelperKeys) -> list[bytes]:
    """The keys that open the datasets of a helper, all of which are opened by them."""
    at_rest = dict[bytes, bytes]()
    vault = vault_of(folder, lambda context: at_rest.setdefault(context, held.vault_key(context)))
    at_rest.clear()  # what is in the names of objects
    datasets = vault._ledger.manifests.dataset_ids()
    assert datasets
    assert all(len(vault.read(dataset_id)) for dataset_id in datasets)
    assert len(at_rest) >= 2 * len(datasets)
    vault._ledger.close()
    return list(at_rest.values())


def plant_keys(run: Run, task: Task) -> None:
    """Every long-term, agreement, storage, HPKE, TLS and pair key, and the key of each dataset at rest."""
    keys = []
    for role, helper in enumerate(HELPERS):
        folder = run.fleet.data(helper)
        stored = json.loads((folder / "keys.json").read_text())
        keys += [bytes.fromhex(stored[name]) for name in ("signing_key", "agreement_key", "storage_key")]
        keys += [bytes.fromhex(key["secret"]) for key in stored["opening_keys"]]
        held = HelperKeys.read(folder)
        keys += keys_at_rest(folder, held)
        keys.append(held.pair(task, role)._secret)
    for party in (*HELPERS, "adserver"):
        lines = (run.fleet.data(party) / "tls.key").read_text().splitlines()
        keys.append(base64.b64decode("".join(lines[1:-1]))[36:68])
    for key in keys:
        run.plant("keys", canary_forms.of_bytes(key))
