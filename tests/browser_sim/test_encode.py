"""An encoder that lasts: fitted once, the same bytes from every file, served beside its task."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from hashlib import sha256
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from browser_sim.cli import app
from browser_sim.draws import Draws
from browser_sim.endpoint import Protection
from browser_sim.kinds import SourceKind
from browser_sim.people import Habits
from browser_sim.run import RunSettings, _with_encoder_of
from browser_sim.source import InvalidCell, InvalidSource
from browser_sim.sources import SourceSettings, load_source
from browser_sim.sources.table import TableSettings, fit_counting, load_table
from maskedlark.canonical import encode
from maskedlark.encoding.column_kinds import ColumnKind
from maskedlark.encoding.dates import DateOrder
from maskedlark.encoding.encoder import Encoder, read_encoder
from maskedlark.encoding.idx import TEST, TRAIN
from maskedlark.errors import InvalidTask
from maskedlark.reports.task_kinds import LabelKind
from tests.browser_sim.idx import idx, write_mnist
from tests.browser_sim.sinks import http_sink
from tests.builders import world

WORK = ("Private", "State", "", "Self")
ROWS = [
    f"{17 + row % 60},{WORK[row % 4]},{row * row % 977},{'no' if row % 3 else 'yes'}" for row in range(400)
]
HEADER = "age,work,gain,y"


def table(folder: Path, rows: list[str], name: str = "table.csv") -> Path:
    path = folder / name
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def features(path: Path, encoder: Encoder | None) -> Any:
    return load_table(TableSettings(path=path, encoder=encoder, label="y")).records.features


def test_halves_of_a_table_get_the_bytes_of_the_whole(tmp_path: Path) -> None:
    whole = table(tmp_path, ROWS)
    first, second = table(tmp_path, ROWS[:200], "1.csv"), table(tmp_path, ROWS[200:], "2.csv")
    encoder = fit_counting(TableSettings(path=whole, label="y")).encoder
    apart = np.concatenate([features(first, encoder), features(second, encoder)])
    assert (apart == features(whole, encoder)).all()
    assert (apart == features(whole, None)).all()
    by_file = np.concatenate([features(first, None), features(second, None)])
    assert (by_file != apart).any()


def test_the_command_fits_writes_and_applies_an_encoder(tmp_path: Path) -> None:
    whole, out, rows = table(tmp_path, ROWS), tmp_path / "new" / "encoder.json", tmp_path / "rows.npz"
    told = json.loads(invoke("encode", "--fit", whole, "--label", "y", "-o", out, "--json").stdout)
    encoder = read_encoder(out.read_bytes())
    assert told["digest"] == encoder.digest.hex()
    assert (told["features"], told["numbers"], told["categories"]) == (3, 2, 1)
    assert told["classes"] == ["no", "yes"]
    result = invoke("encode", "--csv", whole, "--encoder", out, "-o", rows, "--json")
    assert json.loads(result.stdout)["rows"] == 400
    with np.load(rows, allow_pickle=False) as saved:
        assert (saved["features"] == features(whole, encoder)).all()
        assert saved["labels"].tolist() == [int(row.endswith("yes")) for row in ROWS]
        assert saved["encoder"].tobytes() == encoder.digest


def test_fitting_again_gives_the_same_file(tmp_path: Path) -> None:
    for name, rows in (("a", ROWS), ("b", ROWS[::-1])):
        invoke(
            "encode", "--fit", table(tmp_path, rows, name), "--label", "y", "-o", tmp_path / f"{name}.json"
        )
    one, other = ((tmp_path / f"{name}.json").read_bytes() for name in "ab")
    assert sha256(one).digest() == sha256(other).digest()


@pytest.mark.parametrize(
    "arguments",
    [(), ("--fit", "a.csv", "--csv", "b.csv"), ("--csv", "a.csv"), ("--fit", "a.csv", "--encoder", "e.json")],
)
def test_the_command_either_fits_or_applies(arguments: tuple[str, ...]) -> None:
    assert invoke("encode", *arguments).exit_code == 2


def test_a_wrong_cell_is_told_with_file_line_and_column_and_not_echoed(tmp_path: Path) -> None:
    encoder = fit_counting(TableSettings(path=table(tmp_path, ROWS), label="y")).encoder
    broken = table(tmp_path, [*ROWS[:7], "ancient,Private,3,no"], "broken.csv")
    with pytest.raises(InvalidCell, match=r"broken\.csv, line 9, column 'age'") as wrong:
        features(broken, encoder)
    assert (wrong.value.line, wrong.value.column) == (9, "age")
    assert "ancient" not in str(wrong.value)
    with pytest.raises(InvalidCell, match=r"line 2, column 'y'.*none of the encoder's 2 classes"):
        features(table(tmp_path, ["20,Private,3,maybe"], "label.csv"), encoder)


def test_a_column_is_a_number_or_a_category_as_a_person_says(tmp_path: Path) -> None:
    path = table(tmp_path, ROWS)
    kinds = {"age": ColumnKind.CATEGORY}
    assert (
        fit_counting(TableSettings(path=path, label="y", kinds=kinds)).encoder.columns[0].kind == "category"
    )
    result = invoke("encode", "--fit", path, "--label", "y", "--type", "work=number")
    assert result.exit_code == 1
    assert "line 2, column 'work'" in result.stderr
    assert invoke("encode", "--fit", path, "--type", "age").exit_code == 2


def test_amounts_are_numbers_and_as_words_they_keep_their_currency(tmp_path: Path) -> None:
    path = tmp_path / "shop.csv"
    rows = "".join(f"{10 * (row % 3)} %;1.0{row:02},50 €;{'no' if row % 3 else 'yes'}\n" for row in range(40))
    path.write_text(f"discount;price;y\n{rows}", encoding="utf-8")
    as_numbers = fit_counting(TableSettings(path=path, label="y")).encoder
    assert [column.kind for column in as_numbers.columns] == ["number", "number"]
    kinds = {"discount": ColumnKind.CATEGORY}
    encoder = fit_counting(TableSettings(path=path, label="y", kinds=kinds)).encoder
    assert encoder.columns[0].words == ("0 %", "10 %", "20 %")
    assert encoder.columns[1] == as_numbers.columns[1]
    assert features(path, encoder)[:3, 0].tolist() == [0, 1, 2]
    hashed = fit_counting(TableSettings(path=path, label="y", words={"discount": 2})).encoder
    assert hashed.columns[0].words == ("0 %", "10 %")


def test_a_label_of_amounts_is_of_words_or_of_numbers(tmp_path: Path) -> None:
    path = tmp_path / "shop.csv"
    path.write_text("x;y\n1;2,50 €\n2;3 €\n", encoding="utf-8")
    words = load_table(TableSettings(path=path, label="y"))
    assert sorted(words.label_names) == ["2,50 €", "3 €"]
    values = load_table(TableSettings(path=path, label="y", label_kind=LabelKind.VALUES))
    assert values.records.labels.tolist() == [2.5, 3]


def test_an_encoder_reads_amounts_without_a_unit_and_names_one_of_another(tmp_path: Path) -> None:
    path = tmp_path / "shop.csv"
    lines = [f"{row},50 €;{'no' if row % 3 else 'yes'}" for row in range(40)]
    path.write_text("\n".join(["price;y", *lines]), encoding="utf-8")
    encoder = fit_counting(TableSettings(path=path, label="y")).encoder
    expected = features(path, encoder).tolist()
    path.write_text("\n".join(["price;y", "0,50;yes", *lines[1:]]), encoding="utf-8")
    assert features(path, encoder).tolist() == expected
    path.write_text("\n".join(["price;y", "0,50 USD;yes", *lines[1:]]), encoding="utf-8")
    why = "line 2, column 'price': it is an amount in USD, where the others are in €"
    with pytest.raises(InvalidCell, match=why):
        features(path, encoder)


def test_a_measured_value_is_no_feature_of_an_encoder(tmp_path: Path) -> None:
    path = table(tmp_path, ROWS)
    secret = TableSettings(path=path, label="y", values={"spend": "gain"})
    assert [column.name for column in fit_counting(secret).encoder.columns] == ["age", "work"]
    encoder = fit_counting(TableSettings(path=path, label="y")).encoder
    with pytest.raises(InvalidSource, match="measured value, which helpers may not see"):
        load_table(TableSettings(path=path, encoder=encoder, values={"spend": "gain"}))


def test_the_label_is_the_encoders(tmp_path: Path) -> None:
    path = table(tmp_path, ROWS)
    encoder = fit_counting(TableSettings(path=path, label="y")).encoder
    assert load_table(TableSettings(path=path, encoder=encoder)).label_names == ("no", "yes")
    with pytest.raises(InvalidSource, match="label is column 'y'"):
        load_table(TableSettings(path=path, encoder=encoder, label="work"))
    with pytest.raises(InvalidSource, match="fitted without a label"):
        load_table(TableSettings(path=path, encoder=fit_counting(TableSettings(path=path)).encoder))
    with pytest.raises(InvalidSource, match="--label"):
        load_table(TableSettings(path=path))


def test_rows_are_not_encoded_without_a_label_though_a_value_is_measured(tmp_path: Path) -> None:
    path, out = table(tmp_path, ROWS), tmp_path / "encoder.json"
    assert invoke("encode", "--fit", path, "--ignore", "y", "--value", "gain", "-o", out).exit_code == 0
    panel = tmp_path / "panel.npz"
    refused = invoke("encode", "--csv", path, "--encoder", out, "--value", "gain", "-o", panel)
    assert refused.exit_code == 1
    assert "fitted without a label" in refused.output
    assert not panel.exists()


def settings(path: Path, task: str, encoder: Encoder | None = None) -> RunSettings:
    return RunSettings(
        task=task,
        destination="127.0.0.1:1",
        source=SourceSettings(
            kind=SourceKind.CSV, table=TableSettings(path=path, encoder=encoder, label="y")
        ),
        habits=Habits(),
        draws=Draws(seed=1),
        protection=Protection(insecure=True),
    )


def used(task: Any, asked: RunSettings) -> Encoder | None:
    table = _with_encoder_of(task, asked).table
    assert table is not None
    return table.encoder


def test_browsers_use_the_encoder_that_the_task_names(tmp_path: Path) -> None:
    path = table(tmp_path, ROWS)
    encoder = fit_counting(TableSettings(path=path, label="y")).encoder
    other = fit_counting(TableSettings(path=table(tmp_path, ROWS[:9], "few.csv"), label="y")).encoder
    task = world(num_features=3, encoder=encoder.digest).task
    for served, why in (
        (encoder, None),
        (other, "the task requires"),
        (None, "404, not found, .* --encoder"),
    ):
        files = {} if served is None else {"/v1/tasks/t/encoder": encode(served)}
        with http_sink(files=files) as url:
            asked = settings(path, f"{url}/v1/tasks/t")
            if why is None:
                assert used(task, asked) == encoder
            else:
                with pytest.raises(InvalidTask, match=why):
                    used(task, asked)
    assert used(task, settings(path, "bundle.json", encoder)) == encoder
    with pytest.raises(InvalidTask, match="with --encoder"):
        used(task, settings(path, "bundle.json"))
    assert used(world(num_features=3).task, settings(path, "bundle.json")) is None


def test_a_task_without_an_encoder_has_the_bytes_that_it_always_had() -> None:
    task = world(num_features=3).task
    assert b"encoder" not in encode(task)
    assert b"encoder" in encode(world(num_features=3, encoder=bytes(32)).task)


def test_measured_words_are_counted_and_others_are_other(tmp_path: Path) -> None:

    path = table(tmp_path, ROWS)
    said = TableSettings(
        path=path, label="y", values={"bought": "y==yes", "same": "y"}, keys={"work": "work"}
    )
    of = world(
        num_features=3,
        measurement={
            "min_cell_count": 1,
            "values": [{"name": "bought", "low": 0, "high": 1}, {"name": "same", "low": 0, "high": 1}],
            "keys": [{"name": "work", "size": 2, "categories": ["Private", "other"]}],
        },
    )
    source = load_table(said)
    measured = source.with_measurement(of.task).records.measured
    assert measured is not None
    assert (measured.values[:, 0] == measured.values[:, 1]).all()
    assert measured.values[:, 0].tolist() == source.records.labels.tolist()
    assert measured.keys[:, 0].tolist() == [int(row.split(",")[1] != "Private") for row in ROWS]


@pytest.mark.parametrize(
    ("values", "key"), [({}, "y"), ({"bought": "y==yes"}, "y"), ({"hours": "work==Private"}, "work")]
)
def test_a_secret_column_is_no_key(tmp_path: Path, values: dict[str, str], key: str) -> None:
    path = table(tmp_path, ROWS)
    of = TableSettings(path=path, label="y", ignore=("work",), values=values, keys={"group": key})
    with pytest.raises(InvalidSource, match=f"column '{key}' is the label or a measured value"):
        load_table(of)


def test_an_encoder_holds_no_words_that_look_like_identifiers_unless_their_column_is_named(
    tmp_path: Path,
) -> None:
    path = tmp_path / "people.csv"
    path.write_text(
        "mail,age,y\n" + "".join(f"p{row}@mail.example,{row % 9},{row % 2}\n" for row in range(50))
    )
    for options, status in (((), 1), (("--ignore", "mail"), 0), (("--publish", "mail"), 0)):
        made = invoke("encode", "--fit", path, "--label", "y", *options)
        assert made.exit_code == status, made.output
        assert "mail.example" not in made.output
        assert ("(e-mail addresses)" in made.output) == bool(status)


@pytest.mark.parametrize(("column", "cell"), [("user id", "u{}"), ("Policyholder", "Holder {}")])
def test_an_encoder_holds_no_words_of_a_column_whose_name_says_people_unless_it_is_published(
    column: str, cell: str, tmp_path: Path
) -> None:
    path = tmp_path / "people.csv"
    path.write_text(
        f"{column},age,y\n" + "".join(f"{cell.format(row % 30)},{row % 9},{row % 2}\n" for row in range(100))
    )
    for options, status in (((), 1), (("--ignore", column), 0), (("--publish", column), 0)):
        made = invoke("encode", "--fit", path, "--label", "y", *options)
        assert made.exit_code == status, made.output
        assert ("of people, by the column's name)" in made.output) == bool(status)


def test_a_column_of_dates_that_nobody_named_is_told_its_option(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    for cell, is_told in (("2026-{:02}-{:02} 04:50", True), ("x{}y{}", False)):
        cells = [cell.format(1 + row % 12, 1 + row // 12) for row in range(50)]
        path.write_text("seen,y\n" + "".join(f"{one},{row % 2}\n" for row, one in enumerate(cells)))
        made = invoke("encode", "--fit", path, "--label", "y", "--type", "seen=category")
        assert made.exit_code == 1
        assert ("--date 'seen'" in made.output) is is_told


def test_a_mistyped_column_is_answered_with_those_of_the_table(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    path.write_text("id,seen,pages,y\n1,2026-11-27 09:30,2,0\n2,2026-11-28 21:00,3,1\n")
    given = ("--label", "y", "--date", "seen", "--ignore", "id", "--type", "paegs=number")
    refused = invoke("encode", "--fit", path, *given)
    assert refused.exit_code == 1
    said = "visits.csv has no column 'paegs'; did you mean 'pages'? It has id, seen, pages, y"
    assert said in " ".join(refused.output.split())


def test_dates_become_numbers_and_words_for_every_later_table(tmp_path: Path) -> None:
    path, out = tmp_path / "visits.csv", tmp_path / "encoder.json"
    path.write_text("seen,y\n2026-11-27 09:30,0\n28.11.2026 21:00,1\n,0\n")
    assert invoke("encode", "--fit", path, "--label", "y", "--date", "seen", "-o", out).exit_code == 0
    encoder = read_encoder(out.read_bytes())
    assert [(column.name, column.kind) for column in encoder.columns] == [
        ("seen@weekday", "category"),
        ("seen@day", "number"),
        ("seen@hour", "number"),
    ]
    assert features(path, encoder).tolist() == [[1, 1, 1], [2, 255, 255], [0, 0, 0]]
    path.write_text("seen,y\n2026-11-27,0\n")
    assert features(path, encoder).tolist() == [[1, 1, 0]]
    path.write_text("seen,y\nyesterday,0\n")
    with pytest.raises(InvalidSource, match=r"visits.csv, line 2, column 'seen': it holds no date: write"):
        features(path, encoder)


@pytest.mark.parametrize("order", ["dmy", "mdy", None])
def test_an_encoder_reads_later_dates_in_the_order_that_it_was_fitted_to(
    order: str | None, tmp_path: Path
) -> None:
    """Said, or shown by a cell of the fitted table with a day above 12."""
    path, out = tmp_path / "visits.csv", tmp_path / "encoder.json"
    shown = "" if order else "28/11/2026,1\n"
    path.write_text(f"seen,y\n03/04/2026,0\n05/06/2026,1\n{shown}")
    fit = ("encode", "--fit", path, "--label", "y", "-o", out)
    if order:
        refused = invoke(*fit, "--date", "seen")
        assert refused.exit_code == 1
        assert "or say it with --date COLUMN=dmy (the day) or --date COLUMN=mdy" in refused.output
    assert invoke(*fit, "--date", f"seen={order}" if order else "seen").exit_code == 0
    encoder = read_encoder(out.read_bytes())
    assert encoder.date_orders == {"seen": DateOrder(order or "dmy")}
    path.write_text("seen,y\n03/04/2026,0\n")
    day = features(path, encoder).tolist()
    path.write_text(f"seen,y\n{'2026-03-04' if order == 'mdy' else '2026-04-03'},0\n")
    assert features(path, encoder).tolist() == day
    path.write_text(f"seen,y\n{'13/04/2026' if order == 'mdy' else '04/13/2026'},0\n03/04/2026,0\n")
    with pytest.raises(InvalidSource, match=r"visits.csv, line 2, column 'seen': its dates with slashes"):
        features(path, encoder)
    other = DateOrder.DAY_FIRST if order == "mdy" else DateOrder.MONTH_FIRST
    with pytest.raises(InvalidSource, match=f"reads the dates of column 'seen' as .*, not as {other}"):
        load_table(TableSettings(path=path, encoder=encoder, dates={"seen": other}))


def test_a_fit_says_which_words_have_no_code_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "sites.csv"
    # 250 words of three rows and 20 of one: of 254 codes the last are the first of these by the alphabet
    sites = [f"site {row % 250}" for row in range(750)] + [f"rare {row:02}" for row in range(20)]
    path.write_text("site,y\n" + "".join(f"{site},{row % 2}\n" for row, site in enumerate(sites)))
    fit = ("encode", "--fit", path, "--label", "y")
    (note,) = json.loads(invoke(*fit, "--json").stdout)["notes"]
    encoder = fit_counting(TableSettings(path=path, label="y")).encoder
    known = len(encoder.columns[0].words)
    others = sum(site not in encoder.columns[0].words for site in sites)
    assert 0 < others < 20
    assert note == (
        f"'site' has 270 words: {known} have codes of their own; the others, in {others / 770:.1%} of its "
        "rows, share one; --words site=270 tells them apart"
    )
    assert json.loads(invoke(*fit, "--words", "site=270", "--json").stdout)["notes"] == []


def test_a_fit_says_which_numbers_seem_to_name_things_unless_it_is_told_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text(
        "campaign_id,pages,y\n" + "".join(f"{row % 7},{row % 9},{row % 2}\n" for row in range(40))
    )
    fit = ("encode", "--fit", path, "--label", "y", "--json")
    (note,) = json.loads(invoke(*fit).stdout)["notes"]
    assert note.startswith(
        "'campaign_id' is read as numbers, and seems to hold numbers that name things, by the column's name; "
        "--type campaign_id=category"
    )
    for kind in ("number", "category"):
        assert json.loads(invoke(*fit, "--type", f"campaign_id={kind}").stdout)["notes"] == []


def test_a_column_that_names_rows_is_no_feature_unless_its_owner_says_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "ads.csv"
    rows = [f"{row + 1},A/5 {row},{row % 9},{row % 2}\n" for row in range(100)]
    path.write_text("line,Ticket,pages,y\n" + "".join(rows))
    fit = ("encode", "--fit", path, "--label", "y", "--ignore", "Ticket", "--json")
    told = json.loads(invoke(*fit).stdout)
    assert told["numbers"] == 1
    assert told["notes"] == [
        "'line' is left out: row numbers: 100 different values in 100 filled cells; --type line=number says "
        "that they are amounts"
    ]
    kept = json.loads(invoke(*fit, "--type", "line=number").stdout)
    assert (kept["numbers"], kept["notes"]) == (2, [])
    # Devices that fit to their own table leave out words too, which a public encoder is refused for
    held = load_table(TableSettings(path=path, label="y"))
    assert held.feature_names == ("pages",)
    assert any(
        note.startswith("'Ticket' is left out: looks like identifiers (100 different words in 100 ")
        for note in held.notes
    )
    published = load_table(TableSettings(path=path, label="y", publish=("Ticket",)))
    assert published.feature_names == ("Ticket", "pages")


@pytest.mark.parametrize(
    ("name", "spell", "why"),
    [
        ("Kundennr", lambda row: f"{10_000 + row % 30}", "seems to name people, and helpers read features: "),
        ("who", lambda row: f"K-{10_442 + row % 30}", "looks like ids: if they name people, "),
        ("campaign_id", lambda row: f"{7_000 + row % 30}", "by the column's name; "),
    ],
)
def test_a_fit_says_which_features_seem_to_name_people_and_how_to_leave_them_out(
    name: str, spell: Callable[[int], str], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "ads.csv"
    path.write_text(
        f"{name},pages,y\n" + "".join(f"{spell(row)},{row % 9},{row % 2}\n" for row in range(100))
    )
    fit = ("encode", "--fit", path, "--label", "y", "--json")
    told = json.loads(invoke(*fit).stdout)
    (note,) = told["notes"]
    assert note.startswith(f"'{name}' ")
    assert why in note
    assert f"leave it out with --ignore {quote(name)}" in note
    assert json.loads(invoke(*fit, "--ignore", name).stdout)["notes"] == []
    kind = "number" if told["numbers"] == 2 else "category"
    assert f"{name}={kind}" in note
    assert json.loads(invoke(*fit, "--type", f"{name}={kind}").stdout)["notes"] == []


def test_a_fit_names_no_option_for_dates_that_would_refuse_them(tmp_path: Path) -> None:
    path = tmp_path / "ads.csv"
    path.write_text(
        "seen,y\n" + "".join(f"{'1795841400' if row % 3 else '2026-11-28'},{row % 2}\n" for row in range(60))
    )
    fit = ("encode", "--fit", path, "--label", "y", "--json")
    assert json.loads(invoke(*fit).stdout)["notes"] == []


@pytest.mark.parametrize("rows", [20, 300])
def test_a_fit_says_which_words_are_dates(rows: int, tmp_path: Path) -> None:
    path, first = tmp_path / "ads.csv", date(2026, 1, 1)
    path.write_text(
        "seen,y\n" + "".join(f"{first + timedelta(days=row % rows)},{row % 2}\n" for row in range(10 * rows))
    )
    fit = ("encode", "--fit", path, "--label", "y", "--json")
    (note,) = json.loads(invoke(*fit).stdout)["notes"]
    assert note.startswith(
        "'seen' holds dates, each a word of its own: --date seen makes weekday, day and hour"
    )
    assert json.loads(invoke(*fit, "--date", "seen").stdout)["notes"] == []


def test_the_command_says_what_became_of_the_rows(tmp_path: Path) -> None:
    path, out = table(tmp_path, [*ROWS, "20,Private,3,", "20,Private,3,maybe"]), tmp_path / "encoder.json"
    chosen = ("--label", "y", "--class", "no", "--class", "yes", "--json")
    told = json.loads(invoke("encode", "--fit", path, *chosen, "-o", out).stdout)
    left_out = {"column 'y': no label": 1, "column 'y': not a declared class": 1}
    assert told["rows"] == {"read": 402, "used": 400, "left_out": left_out}
    assert told["classes"] == ["no", "yes"]
    reverse = ("--label", "y", "--class", "yes", "--class", "no", "--json")
    told = json.loads(invoke("encode", "--fit", path, *reverse, "-o", tmp_path / "reverse.json").stdout)
    assert told["classes"] == ["yes", "no"]
    told = json.loads(invoke("encode", "--csv", path, "--encoder", out, *chosen).stdout)
    assert (told["rows"], told["left_out"]) == (400, left_out)


def test_columns_of_ids_become_bytes_of_rows(tmp_path: Path) -> None:
    path, out = tmp_path / "ids.csv", tmp_path / "encoder.json"
    rows = [f"word{index % 300},tag{index % 50},{index % 2}" for index in range(3_000)]
    path.write_text("\n".join(["item,tag,y", *rows]) + "\n")
    fitted = invoke(
        "encode", "--fit", path, "--label", "y", "-o", out, "--json",
        "--words", "item=280", "--hash", "tag=70000", "--publish", "item",
    )  # fmt: skip
    told = json.loads(fitted.stdout)
    assert (told["features"], told["ids"], told["categories"]) == (5, 2, 0)
    planned = invoke(
        "encode", "--fit", path, "--label", "y", "--json", "--ignore", "tag", "--publish", "item",
        "--words", "item=planned", "--planned-reports", "3000", "--planned-epsilon", "1",
    )  # fmt: skip
    assert json.loads(planned.stdout)["features"] == 1  # each word is in ten reports, and twelve would pay
    source = load_table(TableSettings(path=path, encoder=read_encoder(out.read_bytes())))
    assert source.feature_names == ("item", "item byte 1", "tag", "tag byte 1", "tag byte 2")
    assert "columns of ids: item (282 rows), tag (70000 rows)" in source.notes


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--words", "item"), "expected COLUMN=planned or COLUMN=N"),
        (("--words", "item=-1"), "expected COLUMN=planned or COLUMN=N"),
        (("--words", "item=planned"), "needs --planned-reports"),
        (("--hash", "item=1"), "ROWS from 2 to 1048576"),
        (("--hash", "item=1048577"), "ROWS from 2 to 1048576"),
    ],
)
def test_columns_of_ids_that_are_not_said_right_are_refused(
    tmp_path: Path, options: tuple[str, str], why: str
) -> None:
    refused = invoke("encode", "--fit", table(tmp_path, ROWS), "--label", "y", *options)
    assert refused.exit_code == 2
    assert why in " ".join(refused.output.replace("│", " ").split())


def test_images_are_fitted_applied_and_reported_with_the_tasks_encoder(tmp_path: Path) -> None:
    write_mnist(tmp_path, train=30, test=20, packed=True)
    train, test = ([tmp_path / f"{name}.gz" for name in names] for names in (TRAIN, TEST))
    out, rows = tmp_path / "new" / "encoder.json", tmp_path / "panel.npz"
    fitted = invoke("encode", "--images", train[0], "--labels", train[1], "-o", out, "--json")
    told = json.loads(fitted.stdout)
    assert (told["features"], told["images"], told["classes"]) == (392, 1, list("0123456789"))
    encoder = read_encoder(out.read_bytes())
    applied = ("--images", test[0], "--labels", test[1], "--encoder", out, "-o", rows, "--json")
    assert json.loads(invoke("encode", *applied).stdout)["rows"] == 20
    task = world(num_features=392, encoder=encoder.digest).task
    with http_sink(files={"/v1/tasks/t/encoder": encode(encoder)}) as url:
        asked = replace(
            settings(out, f"{url}/v1/tasks/t"),
            source=SourceSettings(kind=SourceKind.MNIST, mnist_folder=tmp_path),
        )
        source = load_source(_with_encoder_of(task, asked), Draws(seed=1))
    assert source.feature_names == encoder.feature_names
    assert source.records.features.shape == (30, 392)
    with np.load(rows, allow_pickle=False) as saved:
        assert source.own_test is not None
        assert (saved["features"] == source.own_test.features).all()
        assert saved["labels"].tolist() == source.own_test.labels.tolist()


@pytest.mark.parametrize(
    ("shape", "labels", "why"),
    [
        ((2, 28, 30), [0, 1], "width"),
        ((2, 2, 4), [0, 1], "height"),
        ((2, 260, 4), [0, 1], "height"),
        ((2, 8, 8), [0], "2 images"),
        ((0, 8, 8), [], "classes"),
    ],
)
def test_images_that_no_encoder_takes_are_refused(
    tmp_path: Path, shape: tuple[int, ...], labels: list[int], why: str
) -> None:
    images, named = tmp_path / "images", tmp_path / "labels"
    images.write_bytes(idx(np.zeros(shape, np.uint8)))
    named.write_bytes(idx(np.array(labels, np.uint8)))
    refused = invoke("encode", "--images", images, "--labels", named)
    assert refused.exit_code == 1
    assert why in refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_encoder_is_of_a_table_or_of_images_of_one_size(tmp_path: Path) -> None:
    path, out = table(tmp_path, ROWS), tmp_path / "encoder.json"
    images, labels = tmp_path / "images", tmp_path / "labels"
    images.write_bytes(idx(np.zeros((2, 8, 8), np.uint8)))
    labels.write_bytes(idx(np.array([0, 1], np.uint8)))
    given = ("--images", images, "--labels", labels)
    assert invoke("encode", "--fit", path, "--label", "y", "-o", out).exit_code == 0
    assert "fitted to images" in invoke("encode", *given, "--encoder", out).stderr
    assert invoke("encode", *given, "-o", out).exit_code == 0
    images.write_bytes(idx(np.zeros((2, 8, 12), np.uint8)))
    assert "the encoder takes 8 x 8" in invoke("encode", *given, "--encoder", out).stderr
    labels.write_bytes(idx(np.array([0, 7], np.uint8)))
    images.write_bytes(idx(np.zeros((2, 8, 8), np.uint8)))
    assert "none of the encoder's 2 classes" in invoke("encode", *given, "--encoder", out).stderr
    for half in (given[:2], given[2:], (*given, "--fit", path)):
        assert invoke("encode", *half).exit_code == 2


def test_what_is_printed_for_people_is_lines_of_names_and_words(tmp_path: Path) -> None:
    path, out = table(tmp_path, [*ROWS, "18,State,3,"]), tmp_path / "e.json"
    said = invoke("encode", "--fit", path, "--label", "y", "-o", out).stdout.splitlines()
    assert "classes: no; yes" in said
    assert "predicted: the chance of 'yes'; of 'no' with --class yes --class no" in said
    assert "rows, read: 401" in said
    assert "rows, left out, column 'y': no label: 1" in said
    said += invoke("encode", "--csv", path, "--encoder", out).stdout.splitlines()
    assert not [line for line in said if set(line) & set("{}[]")]
