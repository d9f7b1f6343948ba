"""The encoder in JavaScript gives every cell Python's byte, and refuses what Python refuses."""

import json
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest
from playwright.sync_api import Page

from maskedlark.canonical import digest, encode
from maskedlark.encoding import dates
from maskedlark.encoding.cells import said
from maskedlark.encoding.encoder import (
    CategoryColumn,
    Encoder,
    ImageColumn,
    NumberColumn,
    WrongCell,
    read_encoder,
)
from maskedlark.encoding.fit import FitSettings, fit
from maskedlark.errors import InvalidTask
from tests.browser_sim.js.scene import open_world
from tests.browser_sim.js.site import Site
from tests.vectors.browser.generate import FILE as BROWSER_FILE
from tests.vectors.encoder.generate import FILE

CODED: Final = """
async ({ encoder, named, rows, label }) => {
  const { openEncoder } = await import("/dist/encoder.js"), { fromHex } = await import("/dist/core.js");
  const opened = await openEncoder(new TextEncoder().encode(encoder), fromHex(named));
  return rows.map((row) => {
    try {
      return [[...opened.features(row)], label === null ? null : opened.label(row[label])];
    } catch (error) {
      if (error.kind !== "InvalidExample") throw error;
      return error.column;
    }
  });
}
"""
REFUSED: Final = """
async (written) => {
  const { openEncoder } = await import("/dist/encoder.js"), { fromHex } = await import("/dist/core.js");
  const kinds = [];
  for (const [encoder, named] of written) {
    await openEncoder(new TextEncoder().encode(encoder), fromHex(named)).then(
      () => kinds.push(""),
      (error) => kinds.push(error.kind ?? String(error)),
    );
  }
  return kinds;
}
"""
MADE: Final = """
async (known) => {
  const core = await import("/dist/core.js"), { openEncoder } = await import("/dist/encoder.js");
  const bundle = await core.openBundle(core.fromHex(known.bundle), known.trusted.map(core.fromHex));
  const encoder = await openEncoder(new TextEncoder().encode(known.encoder), bundle.task.encoder);
  const sealer = await core.Sealer.of(bundle), made = [];
  for (const one of known.cases) {
    const draws = core.replayed(await core.keyStream(core.fromHex(one.stream_key), 200_000));
    const reportId = draws(16);
    const label = encoder.label(one.row.income);
    const example = { features: encoder.features(one.row), label, measured: null };
    const plaintexts = await sealer.plaintexts(example, reportId, draws);
    const shares = await Promise.all(plaintexts.map(async (plaintext, role) => {
      const key = known.keys[role];
      const seed = new Uint8Array(await crypto.subtle.digest("SHA-256", plaintext));
      return { keyId: key.key_id, ciphertext: await core.keyStream(seed, plaintext.length + key.overhead) };
    }));
    const timeBucket = core.timeBucket(sealer.task, one.unix_s);
    const upload = core.encodeReport({ taskId: sealer.task.id, reportId, timeBucket, shares });
    made.push({
      features: core.toHex(example.features),
      label: example.label,
      plaintexts: plaintexts.map(core.toHex),
      upload_sha256: core.toHex(new Uint8Array(await crypto.subtle.digest("SHA-256", upload))),
    });
  }
  return made;
}
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site({"/": "<!doctype html><title>encoder</title>"}) as served:
        yield served


@pytest.fixture
def at(site: Site, page: Page) -> Page:
    page.goto(site.origin)
    return page


def rows_of(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def coded(page: Page, encoder: str, columns: dict[str, list[Any]]) -> Any:
    """What JavaScript makes of each row: its features and label, or the column that it refuses."""
    opened = read_encoder(encoder.encode())
    label = opened.label.name if opened.label else None
    asked = {"encoder": encoder, "named": opened.digest.hex(), "rows": rows_of(columns), "label": label}
    return page.evaluate(CODED, asked)


def test_every_vector_of_python_is_the_same(at: Page) -> None:
    known = json.loads(FILE.read_text())
    for name, case in known["cases"].items():
        labels = case["labels"] or [None] * len(case["features"])
        expected = [list(pair) for pair in zip(case["features"], labels, strict=True)]
        assert coded(at, case["encoder"], case["cells"]) == expected, name
    for name, case in known["refused"].items():
        found = coded(at, case["encoder"], case["cells"])
        assert found[case["row"]] == case["column"], name
        assert all(isinstance(one, list) for one in found[: case["row"]]), name


def test_raw_rows_make_the_uploads_that_python_makes(at: Page) -> None:
    known = json.loads(BROWSER_FILE.read_text())["rows"]
    expected = [
        {name: case[name] for name in ("features", "label", "plaintexts", "upload_sha256")}
        for case in known["cases"]
    ]
    assert len(expected) == 10
    assert at.evaluate(MADE, known) == expected


def random_cell(dice: np.random.Generator) -> str:
    """A cell that is nearly a number, nearly missing, nearly a word of the encoder, or anything."""
    pieces = [
        "1", "0", "9.", ".5", "e", "E+", "-", "+", "nan", "NULL", "?", "n/a", " ", "\t", "\u00a0", "\x0b",
        "\x1c", "red", "Red", "blue", "\u0130", "\u0131", "\ufeff", "Infinity", "0x1", "1_0", "\u0663", "308",
        "17", "\U0001d7d7", ".", "--", "#N/A", "<na>", "NaT",
    ]  # fmt: skip
    return "".join(pieces[at] for at in dice.integers(len(pieces), size=dice.integers(1, 5)))


def test_random_cells_get_the_bytes_of_python(at: Page) -> None:
    dice = np.random.default_rng(20_261_122)
    edges = np.unique(
        np.concatenate([dice.normal(size=80), 10.0 ** dice.integers(-300, 300, 60), [-0.0, 1, 17]])
    )
    number = NumberColumn(name="n", first=1, missing=0, edges=tuple(edges.tolist()))
    words = CategoryColumn(name="w", first=1, missing=0, categories=("red", "blue", "1", "1.0", "\u0130"))
    encoder = Encoder(columns=(number, words))
    cells = [random_cell(dice) for _ in range(2_000)] + [repr(one) for one in edges.tolist()]
    expected: list[Any] = []
    for cell in cells:
        read = {"n": [said(cell)], "w": [said(cell)]}
        try:
            expected.append([encoder.features(read)[0].tolist(), None])
        except WrongCell as wrong:
            expected.append(wrong.column)
    assert expected.count("n") > 200
    assert len({str(one) for one in expected}) > 100
    assert coded(at, encode(encoder).decode(), {"n": cells, "w": cells}) == expected


DATES: Final = (
    "2026-11-28", "2026-1-3 4:50", "2026/02/28T23:59:59.5Z", "2026.12.31 00:00 +0130", "28.11.2026",
    "1.2.1969",
    "31/12/2025 12:30", "12/31/2025", "29.02.2024", "0001-01-01", "9999-12-31 23:00 UTC", "1732768200",
    "999999999", "1732768200.75", "1732755599.9999999", "1732768200123",
    "2026-11-28  07:00", " 2026-11-28 ", "", "NULL",
    "28 Nov 2026", "1-sept-2025 09:05", "March 5, 2024", "Dec. 31 1999 23:59Z", "05 June, 2026",
    "31 Apr 2026", "3 Mai 2026", "5 \u017fep 2026",
    "2026-02-29", "31.04.2026", "0000-01-01", "1/2/2026", "2026-11-28 24:00", "28.11.26", "noon", "12345678",
    "2026-11-28 10:60", "2026-13-01", "12345678901",
)  # fmt: skip
"""Dates in every form that is read, and what is none."""


def test_a_page_gives_dates_and_gets_the_bytes_of_their_parts(at: Page) -> None:
    days = NumberColumn(name="seen@day", first=1, missing=0, edges=tuple(map(float, range(-20, 20_790, 90))))
    hours = NumberColumn(name="seen@hour", first=1, missing=0, edges=tuple(map(float, range(24))))
    week = CategoryColumn(
        name="seen@weekday", first=1, missing=0, categories=("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
    )
    encoder = Encoder(columns=(week, days, hours))
    expected: list[Any] = []
    for cell in DATES:
        read = {"seen": [said(cell)]}
        try:
            made = dates.with_parts(read, [column.name for column in encoder.columns])
            expected.append([encoder.features({**read, **made})[0].tolist(), None])
        except InvalidTask:
            expected.append("seen")
    assert expected.count("seen") == 14
    assert coded(at, encode(encoder).decode(), {"seen": list(DATES)}) == expected
    given: dict[str, list[Any]] = {
        "seen": ["no date"],
        "seen@weekday": ["Sat"],
        "seen@day": ["3"],
        "seen@hour": [None],
    }
    assert coded(at, encode(encoder).decode(), given)[0][0] == [6, 2, 0]


IMAGED: Final = """
async ({ encoder, named, images }) => {
  const { openEncoder } = await import("/dist/encoder.js"), { fromHex } = await import("/dist/core.js");
  const opened = await openEncoder(new TextEncoder().encode(encoder), fromHex(named));
  return images.map((image) => {
    try {
      return [...opened.features({ i: fromHex(image), n: "0" })];
    } catch (error) {
      if (error.kind !== "InvalidExample") throw error;
      return error.message;
    }
  });
}
"""


def test_images_as_bytes_get_the_histograms_of_python(at: Page) -> None:
    dice = np.random.default_rng(51)
    images = dice.integers(0, 256, (200, 16, 12), dtype=np.uint8)
    images[50:100] = np.where(images[50:100] > 200, images[50:100], 0)  # mostly black
    images[100:150] >>= 6  # faint: few directions, most lengths below the least norm
    encoder = Encoder(
        columns=(
            ImageColumn(name="i", height=16, width=12),
            NumberColumn(name="n", first=0, missing=0, edges=()),
        )
    )
    hexed = [image.tobytes().hex() for image in images]
    asked = {"encoder": encode(encoder).decode(), "named": encoder.digest.hex()}
    expected = encoder.features({"i": hexed, "n": ["0"] * len(hexed)}).tolist()
    assert at.evaluate(IMAGED, {**asked, "images": hexed}) == expected
    for wrong in ("", hexed[0][:-2], hexed[0] + "00"):
        (said_why,) = at.evaluate(IMAGED, {**asked, "images": [wrong]})
        assert "16 x 12 pixels has 192 bytes" in said_why


def test_a_page_reports_an_image_as_bytes_and_one_of_another_size_is_refused(scenes: Any) -> None:
    encoder = Encoder(columns=(ImageColumn(name="i", height=8, width=8),))
    scene = scenes(open_world(encoder=encoder.digest, num_features=encoder.num_features), encoder=encoder)
    assert scene.open()
    image = np.arange(64, dtype=np.uint8).tobytes().hex()
    scene.call("saveImpression", row={"i": image}, matchValue=1, lifetimeDays=1)
    scene.call("measureConversion", label=1, matchValues=[1], lookbackDays=1)
    as_bytes = """async (pixels) => lark.saveImpression(
        { row: { i: Uint8Array.from(pixels) }, matchValue: 2, lifetimeDays: 1 })"""
    scene.page.evaluate(as_bytes, list(range(64)))
    scene.call("measureConversion", label=1, matchValues=[2], lookbackDays=1)
    for wrong in (list(range(63)), [0] * ((1 << 20) + 1)):
        with pytest.raises(Exception, match=r"InvalidExample.*(8 x 8 pixels|characters)"):
            scene.page.evaluate(as_bytes, wrong)
    with pytest.raises(Exception, match=r'InvalidExample.*column "i": an image of 8 x 8 pixels'):
        scene.call("saveImpression", row={"i": image[:-2]}, matchValue=1, lifetimeDays=1)
    scene.skip_days(2)
    scene.await_reports(2)
    assert scene.sent.found()[0].tolist() == 2 * encoder.features({"i": [image]}).tolist()


def spoiled() -> dict[str, str]:
    """Encoders with one thing wrong, or nothing wrong though it is rare."""
    people = fit(
        {"age": ["1", "2", "3.5"], "work": ["a", "b", None], "y": ["no", "yes", "no"]}, FitSettings(label="y")
    )
    good = json.loads(encode(people))

    def changed(path: str, value: Any) -> str:
        made = json.loads(json.dumps(good))
        *parents, last = [int(step) if step.isdecimal() else step for step in path.split("/")]
        holder = made
        for step in parents:
            holder = holder[step]
        if value is None and not isinstance(last, int):
            del holder[last]
        else:
            holder[last] = value
        return json.dumps(made, sort_keys=True, separators=(",", ":"))

    def dated(orders: list[dict[str, Any]]) -> str:
        day = json.loads(changed("columns/0/name", "seen@day"))
        return json.dumps({**day, "dates": orders}, sort_keys=True, separators=(",", ":"))

    plain = encode(people).decode()
    return {
        "as it is": plain,
        "with space": plain.replace(":", ": ", 1),
        "cut short": plain[:-1],
        "something behind": f"{plain}\n",
        "not sorted": json.dumps(dict(reversed(good.items())), separators=(",", ":")),
        "another version": changed("version", 2),
        "no version": changed("version", None),
        "no label's field": changed("label", None),
        "a field more": changed("more", 1),
        "a field more in a column": changed("columns/0/more", 1),
        "no columns": changed("columns", []),
        "an unknown kind": changed("columns/0/kind", "word"),
        "no kind": changed("columns/0/kind", None),
        "the other kind": changed("columns/0/kind", "category"),
        "edges that fall": changed("columns/0/edges", [2.0, 1.0]),
        "equal edges": changed("columns/0/edges", [1.0, 1.0]),
        "zeros of both signs": changed("columns/0/edges", [-0.0, 0.0]),
        "whole edges": changed("columns/0/edges", [1, 2]),
        "no edges": changed("columns/0/edges", []),
        "as many edges as bytes": changed("columns/0/edges", [float(one) for one in range(255)]),
        "an edge too many": changed("columns/0/edges", [float(one) for one in range(256)]),
        "first of 2": changed("columns/0/first", 2),
        "first of true": changed("columns/0/first", True),
        "missing of 256": changed("columns/0/missing", 256),
        "missing below 0": changed("columns/0/missing", -1),
        "a name of nothing": changed("columns/0/name", ""),
        "a name of 200": changed("columns/0/name", "n" * 200),
        "a name of 200 beyond 16 bits": changed("columns/0/name", "\U0001f600" * 200),
        "a name of 201": changed("columns/0/name", "n" * 201),
        "half a character": changed("columns/0/name", "x").replace('"x"', '"\\ud83d"'),
        "two columns of a name": changed("columns/0/name", "work"),
        "the label's name twice": changed("label/name", "work"),
        "categories twice": changed("columns/1/categories", ["a", "a"]),
        "254 categories": changed("columns/1/categories", [f"{one}" for one in range(254)]),
        "256 categories": changed("columns/1/categories", [f"{one}" for one in range(256)]),
        "an empty category": changed("columns/1/categories", [""]),
        "classes twice": changed("label/classes", ["a", "a"]),
        "no classes": changed("label/classes", []),
        "images": changed("columns/0", {"kind": "image", "name": "i", "height": 256, "width": 4}),
        "images of no height": changed("columns/0", {"kind": "image", "name": "i", "height": 0, "width": 4}),
        "images of odd width": changed("columns/0", {"kind": "image", "name": "i", "height": 8, "width": 10}),
        "images too high": changed("columns/0", {"kind": "image", "name": "i", "height": 260, "width": 8}),
        "images of 2^40": changed("columns/0", {"kind": "image", "name": "i", "height": 1 << 40, "width": 8}),
        "images without width": changed("columns/0", {"kind": "image", "name": "i", "height": 8}),
        "images with more": changed(
            "columns/0", {"kind": "image", "name": "i", "height": 8, "width": 8, "missing": 0}
        ),
        "an order of dates": dated([{"name": "seen", "order": "mdy"}]),
        "orders of no dates": dated([]),
        "an unknown order": dated([{"name": "seen", "order": "ymd"}]),
        "a date's field more": dated([{"name": "seen", "order": "mdy", "more": 1}]),
        "an order without a name": dated([{"order": "mdy"}]),
        "two orders of a column": dated([{"name": "seen", "order": one} for one in ("dmy", "mdy")]),
        "an order of no column": dated([{"name": "shown", "order": "mdy"}]),
        "an order of a word": dated([{"name": "work", "order": "mdy"}]),
        "a label of no kind": changed("label/kind", "words"),
        "a label of values with classes": changed("label/kind", "values"),
        "a label of values": changed("label", {"kind": "values", "name": "y"}),
        "no label": plain.replace(json.dumps(good["label"], sort_keys=True, separators=(",", ":")), "null"),
        "no object": "[]",
        "nothing": "",
    }


def is_read(encoded: str) -> bool:
    try:
        read_encoder(encoded.encode())
    except InvalidTask:
        return False
    return True


def test_what_python_refuses_javascript_refuses(at: Page) -> None:
    asked = spoiled()
    named = [[text, digest("encoder", text.encode()).hex()] for text in asked.values()]
    found = dict(zip(asked, at.evaluate(REFUSED, named), strict=True))
    expected = {name: "" if is_read(text) else "InvalidTask" for name, text in asked.items()}
    assert found == expected
    assert 5 < list(expected.values()).count("") < len(expected) - 20


def test_an_encoder_under_another_name_is_refused(at: Page) -> None:
    assert at.evaluate(REFUSED, [[spoiled()["as it is"], "00" * 32]]) == ["InvalidTask"]


PEOPLE: Final = fit(
    {"age": ["20", "30", "40"], "work": ["Private", "State", None], "bought": ["no", "yes", "no"]},
    FitSettings(label="bought"),
)


def encoded_world() -> Any:
    return open_world(encoder=PEOPLE.digest, num_features=len(PEOPLE.columns))


def test_a_page_reports_raw_rows_and_labels(scenes: Any) -> None:
    scene = scenes(encoded_world(), encoder=PEOPLE)
    assert scene.open()
    rows: list[dict[str, Any]] = [
        {"age": 25, "work": " Private "},
        {"age": "31.5", "work": None},
        {"age": "?", "work": "Abroad"},
    ]
    for number, row in enumerate(rows):
        scene.call("saveImpression", row=row, matchValue=number, lifetimeDays=1)
        scene.call("measureConversion", label="yes", matchValues=[number], lookbackDays=1)
    scene.skip_days(2)
    scene.await_reports(len(rows))
    features, labels = scene.sent.found()
    cells = {name: [None if row[name] is None else said(str(row[name])) for row in rows] for name in rows[0]}
    assert sorted(features.tolist()) == sorted(PEOPLE.features(cells).tolist())
    assert labels.tolist() == [1, 1, 1]
    assert sum(seen.path.endswith("/encoder") for seen in scene.host.seen) == 1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"row": {"age": "elderly", "work": "State"}}, 'InvalidExample.*column "age": it holds a word'),
        ({"row": {"age": "25"}}, 'InvalidExample.*column "work": the row has no cell'),
        ({}, "InvalidExample.*either features or a row"),
        ({"row": {"age": "25", "work": "State"}, "features": [1, 2]}, "InvalidExample.*either"),
    ],
    ids=["a word", "a column is missing", "nothing", "both"],
)
def test_a_row_that_does_not_fit_is_refused_and_nothing_is_kept(
    scenes: Any, given: dict[str, Any], why: str
) -> None:
    scene = scenes(encoded_world(), encoder=PEOPLE)
    scene.open()
    with pytest.raises(Exception, match=why) as refused:
        scene.call("saveImpression", matchValue=1, lifetimeDays=1, **given)
    assert "elderly" not in str(refused.value).splitlines()[0]
    assert scene.kept()["conversions"] == scene.kept()["impressions"] == 0


def test_a_label_that_is_no_class_is_refused(scenes: Any) -> None:
    scene = scenes(encoded_world(), encoder=PEOPLE)
    scene.open()
    with pytest.raises(Exception, match=r'InvalidExample.*column "bought"'):
        scene.call("measureConversion", label="perhaps", matchValues=[1], lookbackDays=1)


def test_another_encoder_than_the_signed_one_opens_no_task(scenes: Any) -> None:
    mine = fit({"age": ["20", "30"], "work": ["Private", "my city"]}, FitSettings())
    scene = scenes(encoded_world(), encoder=mine)
    with pytest.raises(Exception, match="InvalidTask"):
        scene.open()


def test_without_the_encoder_a_task_takes_features_and_no_rows(scenes: Any) -> None:
    scene = scenes(encoded_world())
    scene.open()
    with pytest.raises(Exception, match="Unavailable"):
        scene.call("saveImpression", row={"age": "25", "work": "State"}, lifetimeDays=1)
    scene.call("saveImpression", features=[7, 9], matchValue=5, lifetimeDays=1)
    scene.call("measureConversion", label=1, matchValues=[5], lookbackDays=1)
    scene.skip_days(2)
    scene.await_reports(1)
    assert scene.sent.found()[0].tolist() == [[7, 9]]


def test_a_task_that_names_no_encoder_takes_no_rows(scenes: Any) -> None:
    scene = scenes()
    scene.open()
    with pytest.raises(Exception, match=r"InvalidExample.*no encoder"):
        scene.call("saveImpression", row={"age": "25"}, lifetimeDays=1)
