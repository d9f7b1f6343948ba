import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from maskedlark.autodiff.one_thread import one_thread
from maskedlark.errors import InvalidTask
from maskedlark.federated.local_training import Examples, LocalTraining, TrainingSteps, batch_schedule
from maskedlark.federated.strategy import device_stream
from maskedlark.randomness import seeded
from tests.bench.corpus import BEGIN, read_corpus
from tests.bench.word_model import WordModel

MODEL = WordModel(words=12, embedding=4, hidden=5)
START = MODEL.initial(seeded(1))


def sequences(count: int, seed: int) -> Examples:
    words = np.random.default_rng(seed).integers(0, 12, (count, 7))
    return Examples(features=words[:, :-1], labels=words[:, 1:])


def train(stack: list[Examples], devices: range, epochs: int = 1) -> np.ndarray:
    schedule = batch_schedule(
        [len(one) for one in stack],
        LocalTraining(epochs=epochs, batch_size=3),
        [device_stream(1, 0, device) for device in devices],
    )
    return MODEL.train(START, stack, TrainingSteps(schedule=schedule, learning_rate=0.5))


def test_a_device_trains_alike_alone_and_among_others() -> None:
    stack = [sequences(count, count) for count in (5, 2, 7)]
    together = train(stack, range(3))
    for device in range(3):
        alone = train(stack[device : device + 1], range(device, device + 1))
        assert alone[0] == pytest.approx(together[device], abs=1e-6)


def test_the_gates_are_those_of_torchs_lstm() -> None:
    sizes = np.cumsum(MODEL.layer_sizes)[:-1].tolist()
    table, *gates, project, offset = (torch.from_numpy(part) for part in np.split(START, sizes))
    lstm = torch.nn.LSTM(4, 5, batch_first=True)
    with torch.no_grad():
        matrices = [gate.view(9, 5) for gate in gates[0::2]]
        lstm.load_state_dict(
            {
                "weight_ih_l0": torch.cat([matrix[:4].T for matrix in matrices]),
                "weight_hh_l0": torch.cat([matrix[4:].T for matrix in matrices]),
                "bias_ih_l0": torch.cat(list(gates[1::2])),
                "bias_hh_l0": torch.zeros(20),
            }
        )
        words = torch.from_numpy(sequences(3, 1).features)
        unit = torch.nn.functional.normalize(table.view(12, 4), dim=1)
        states, _ = lstm(unit[words])
        theirs = 3.0 * (states @ project.view(5, 4) + offset) @ unit.T
        ours = MODEL._logits(torch.from_numpy(START)[None], words[None])[0]
    assert ours.numpy() == pytest.approx(theirs.numpy(), abs=1e-5)


def test_training_learns_a_repeated_sentence() -> None:
    words = np.tile(np.arange(3, 10), (3, 1))  # one batch, whose gradient more copies would not change
    said = Examples(features=words[:, :-1], labels=words[:, 1:])
    with one_thread():  # more would wait for each other on a busy machine, step by step
        trained = START + train([said], range(1), epochs=60)[0]
    assert MODEL.accuracy(START, said) < 0.5
    assert MODEL.accuracy(trained, said) == 1.0


def test_an_unknown_word_counts_as_missed_whatever_is_predicted() -> None:
    unknown = Examples(features=np.full((2, 3), 5), labels=np.zeros((2, 3), np.int64))
    assert MODEL.accuracy(START, unknown) == 0.0


def test_a_corpus_keeps_speakers_apart_and_follows_their_words(tmp_path: Path) -> None:
    path = tmp_path / "plays.json.gz"
    spoken = {f"play/{name}": ["To be, or not to be"] * (3 + place) for place, name in enumerate("ABCDEFGH")}
    path.write_bytes(gzip.compress(json.dumps(spoken).encode()))
    corpus = read_corpus(path, vocabulary=6, tokens=4, most=3, least=2, held_out=2, randomness=seeded(1))
    assert len(corpus.population) == 6
    assert sorted(np.concatenate(corpus.population.members)) == list(range(len(corpus.words)))
    assert corpus.words[0, 0] == BEGIN
    assert (corpus.words[0, 1:] == corpus.targets[0, :-1]).all()
    assert 0 < corpus.majority < 1
    assert max(len(one) for one in corpus.population.members) <= 3


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", gzip.compress(b"[1]", mtime=0), gzip.compress(b'{"a": ["b"]}', mtime=0)],
    ids=["empty", "not packed", "no speakers", "one speaker"],
)
def test_a_file_without_enough_speakers_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.json.gz"
    path.write_bytes(content)
    with pytest.raises(InvalidTask):
        read_corpus(path, vocabulary=6, tokens=4, most=3, least=1, held_out=1, randomness=seeded(1))
