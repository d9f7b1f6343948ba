from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from helper.datasets import vault as vault_module
from helper.datasets.vault import Vault, VaultDamaged
from helper.trust.keys import HelperKeys
from maskedlark.randomness import seeded
from maskedlark.reports.dataset import OpenedDataset
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.report import InputShares

KEYS = HelperKeys.generate(name="north", suite=HpkeSuite.X25519_AES128GCM)
ID = b"d" * 32
PATTERN = b"\xde\xad\xbe\xef" * 8


def dataset(records: int, features: int = 32, candidates: int = 2, dataset_id: bytes = ID) -> OpenedDataset:
    draw = seeded(records)
    return OpenedDataset(
        dataset_id=dataset_id,
        report_ids=np.frombuffer(draw(16 * records), np.uint8).reshape(records, 16),
        shares=InputShares(
            features=np.frombuffer(draw(features * records), np.uint8).reshape(records, features),
            labels=np.frombuffer(draw(4 * candidates * records), np.uint32).reshape(records, candidates),
            mask_shares=np.frombuffer(draw(8 * candidates * records), np.uint64).reshape(records, candidates),
        ),
    )


def assert_equal(first: OpenedDataset, second: OpenedDataset) -> None:
    assert first.dataset_id == second.dataset_id
    np.testing.assert_array_equal(first.report_ids, second.report_ids)
    for name in ("features", "labels", "mask_shares"):
        ours, theirs = getattr(first.shares, name), getattr(second.shares, name)
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault(tmp_path, KEYS.vault_key)


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


@pytest.mark.parametrize("segment", [1, 7, 64, 8 << 20])
def test_a_dataset_reads_back_whatever_the_segments(
    vault: Vault, monkeypatch: pytest.MonkeyPatch, segment: int
) -> None:
    monkeypatch.setattr(vault_module, "SEGMENT_BYTES", segment)
    written = dataset(5)
    vault.write(written)
    assert_equal(vault.read(ID), written)


@given(records=st.integers(1, 40), features=st.integers(1, 50), candidates=st.integers(2, 5))
@hypothesis_settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_dataset_of_any_shape_reads_back(
    vault: Vault, records: int, features: int, candidates: int
) -> None:
    written = dataset(records, features, candidates)
    vault.write(written)
    assert_equal(vault.read(ID), written)


def test_writing_again_replaces_the_file_and_uses_another_key(vault: Vault, tmp_path: Path) -> None:
    vault.write(dataset(5))
    before = only_file(tmp_path).read_bytes()
    vault.write(dataset(5))
    after = only_file(tmp_path).read_bytes()
    assert len(before) == len(after)
    assert before[-100:] != after[-100:]


def test_what_a_crash_left_unfinished_is_removed_at_the_start_and_the_rest_stays(
    vault: Vault, tmp_path: Path
) -> None:
    vault.write(dataset(5))
    whole = only_file(tmp_path)
    (tmp_path / f"{bytes(32).hex()}.unfinished").write_bytes(b"half")
    assert_equal(Vault(tmp_path, KEYS.vault_key).read(ID), dataset(5))
    assert only_file(tmp_path) == whole


def test_nothing_of_a_dataset_is_on_the_disk_in_clear(vault: Vault, tmp_path: Path) -> None:
    one = dataset(3)
    planted = np.tile(np.frombuffer(PATTERN, np.uint8), (3, 1))
    secret = OpenedDataset(
        dataset_id=ID,
        report_ids=one.report_ids,
        shares=InputShares(features=planted, labels=one.shares.labels, mask_shares=one.shares.mask_shares),
    )
    vault.write(secret)
    stored = only_file(tmp_path).read_bytes()
    for clear in (
        PATTERN[:8],
        one.report_ids[0].tobytes(),
        one.shares.mask_shares[0].tobytes(),
        one.shares.labels[0].tobytes(),
    ):
        assert clear not in stored
    assert only_file(tmp_path).stat().st_mode & 0o077 == 0


Damage = Callable[[bytes], bytes]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda stored: stored[:-1], id="cut"),
        pytest.param(lambda stored: stored + b"\0", id="extended"),
        pytest.param(lambda stored: b"", id="emptied"),
        pytest.param(lambda stored: stored[:40], id="cut in the header"),
        pytest.param(lambda stored: b"X" + stored[1:], id="another magic"),
        pytest.param(lambda stored: stored[:10] + bytes([stored[10] ^ 1]) + stored[11:], id="another salt"),
        pytest.param(lambda stored: stored[:40] + bytes([4]) + stored[41:], id="fewer records"),
        pytest.param(lambda stored: stored[:40] + b"\xff" * 24 + stored[64:], id="a giant shape"),
        pytest.param(lambda stored: stored[:-1] + bytes([stored[-1] ^ 1]), id="another last bit"),
        pytest.param(
            lambda stored: stored[:64] + stored[64 + 96 :] + stored[64 : 64 + 96], id="segments moved"
        ),
    ],
)
def test_a_damaged_file_is_noticed(vault: Vault, tmp_path: Path, damage: Damage) -> None:
    vault.write(dataset(5))
    path = only_file(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(VaultDamaged):
        vault.read(ID)


def test_a_file_under_another_datasets_name_is_noticed(vault: Vault, tmp_path: Path) -> None:
    vault.write(dataset(5))
    other = b"e" * 32
    only_file(tmp_path).rename(tmp_path / f"{other.hex()}.sealed")
    with pytest.raises(VaultDamaged):
        vault.read(other)


def test_another_helpers_storage_key_opens_nothing(vault: Vault, tmp_path: Path) -> None:
    vault.write(dataset(5))
    other = HelperKeys.generate(name="south", suite=HpkeSuite.X25519_AES128GCM)
    with pytest.raises(VaultDamaged):
        Vault(tmp_path, other.vault_key).read(ID)


def test_a_missing_file_is_noticed_and_removing_it_again_is_harmless(vault: Vault) -> None:
    vault.write(dataset(5))
    vault.remove(ID)
    vault.remove(ID)
    with pytest.raises(VaultDamaged):
        vault.read(ID)
