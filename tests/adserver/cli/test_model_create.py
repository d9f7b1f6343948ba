"""`adserver model create`: what it writes is what its options say."""

from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from adserver.cli.main import app
from maskedlark.canonical import encode
from maskedlark.encoding.encoder import Encoder, NumberColumn
from maskedlark.model.dense import dense_network
from maskedlark.model.table_network import table_network


def test_numbers_are_centred_on_the_means_of_ones_own_records(tmp_path: Path) -> None:
    features = np.array([[0, 10, 255], [1, 20, 255], [3, 30, 0]], np.uint8)
    np.savez(tmp_path / "panel.npz", features=features, labels=np.zeros(3, np.int64))
    centres = (1, 20, 170)
    columns = tuple(NumberColumn(name=name, first=0, missing=0, edges=(1.0,)) for name in "abc")
    (tmp_path / "encoder.json").write_bytes(encode(encoder := Encoder(columns=columns)))
    for form, expected in (
        (("--layers", "3,1"), dense_network([3, 1], "relu", seed=5, centres=centres)),
        (
            ("--encoder", tmp_path / "encoder.json"),
            table_network(encoder, hidden=(), outputs=1, seed=5, centres=centres),
        ),
    ):
        options = (*form, "--centred-on", tmp_path / "panel.npz", "--seed", 5)
        asked = ("model", "create", tmp_path / "made.onnx", *options)
        made = CliRunner().invoke(app, list(map(str, asked)))
        assert made.exit_code == 0, made.output
        assert (tmp_path / "made.onnx").read_bytes() == expected
