"""A column that names people who have several rows is warned of; one that may do so is asked about."""

from collections.abc import Callable

import pytest

from adserver.quickstart.repeated_people import warn_of_repeated_people
from adserver.quickstart.sample_table import sample_table
from maskedlark.encoding.table import Table, parse_table


def shop_of(
    column: str,
    spell: Callable[[int], str] = lambda one: f"{1_000 + 7 * one}",
    *,
    people: int = 30,
    rows: int = 50,
) -> Table:
    """A table of so many ids, the first ones in two rows."""
    lines = "".join(f"{spell(row % people)};{row % 3}\n" for row in range(rows))
    return parse_table(f"{column};bought\n{lines}".encode(), "shop.csv")


@pytest.mark.parametrize(
    "column",
    ["user_id", "userId", "USERID", "customer", "CustomerNo", "fullVisitorId", "ad_user_id", "client key",
     "user_email", "email", "device_id", "account_id", "household",
     "Kunde", "Kundennr", "Kunden-ID", "KundenNr", "kundennummer", "Mitgliedsnummer", "PatientenID",
     "Käufer-Nr", "cliente", "id_cliente", "código_cliente", "numero de client", "idUsuario", "klant_nummer"],
)  # fmt: skip
def test_a_column_whose_name_says_people_is_warned_of_if_it_repeats(column: str) -> None:
    [line] = warn_of_repeated_people(shop_of(column), "bought")
    assert f"column {column!r} repeats (30 different in 50 rows, up to 2 each): epsilon is of one row" in line
    assert (
        f'[task] person = "{column}" makes it of a person; if it names no people, [data] not_people' in line
    )
    assert not warn_of_repeated_people(shop_of(column), "bought", not_people=(column,))


@pytest.mark.parametrize(
    "column",
    ["device", "account", "users", "Kunden", "user_rating", "customer_type", "Kundentyp", "minutes",
     "clientele", "num_client"],
)  # fmt: skip
def test_numbers_that_name_no_people_are_passed_over(column: str) -> None:
    assert not warn_of_repeated_people(shop_of(column), "bought")


@pytest.mark.parametrize(
    ("column", "spell"),
    [
        ("who", lambda one: f"K-{10_442 + one}"),
        ("who", lambda one: f"ann{chr(97 + one)}@mail.example"),
        ("who", lambda one: f"{one:08x}-0000-4000-8000-000000000000"),
        ("who", lambda one: f"{104_421 + 37 * one}"),
        ("who", lambda one: f"10-{4_421 + 37 * one}"),
        ("who", lambda one: f"10.0.0.{one}"),
        ("article_no", lambda one: f"{100 + one}"),
        ("zip", lambda one: f"0{1_000 + one}"),
        ("sku", lambda one: f"AB{100 + one}"),
        ("campaign_id", lambda one: f"{1_000 + one}"),
    ],
)  # fmt: skip
def test_words_that_look_like_ids_are_asked_about(column: str, spell: Callable[[int], str]) -> None:
    [line] = warn_of_repeated_people(shop_of(column, spell), "bought")
    assert line == (
        f"column {column!r} repeats (30 different in 50 rows, up to 2 each): if it names people, "
        "epsilon is of one row, and of all rows of one such person more; "
        f'[task] person = "{column}" makes it of a person; if not, [data] not_people = ["{column}"] says so'
    )


@pytest.mark.parametrize(
    "spell",
    [
        lambda one: f"{one + 1}",
        lambda one: f"{one + 0.5}",
        lambda one: f"{125_000 + 5_000 * one}",
        lambda one: f"{990 + one}5",
        lambda one: f"{12_000 * 3**(one % 9) + one}",
        lambda one: f"{1_790_000_000 + 3_607 * one}",
        lambda one: f"202601{one + 1:02}",
        lambda one: f"2026-01-{one + 1:02}",
        lambda one: f"2026-01-02 {one % 24:02}:{one:02}",
        lambda one: f"10:{one + 10}",
        lambda one: f"{one + 1}kg",
        lambda one: f"{one + 1}5 %",
        lambda one: f"{one + 100}x{one + 300}",
        lambda one: f"Main Street {one}",
        lambda one: f"Chrome {one}.0",
        lambda one: f"word{chr(97 + one)}",
    ],
)  # fmt: skip
def test_measures_dates_and_words_are_not_asked_about(spell: Callable[[int], str]) -> None:
    assert not warn_of_repeated_people(shop_of("what", spell), "bought")


@pytest.mark.parametrize(("people", "asked"), [(24, 0), (26, 1), (470, 1), (480, 0), (500, 0)])
def test_ids_are_asked_about_between_one_in_twenty_and_nineteen_in_twenty_of_the_rows(
    people: int, asked: int
) -> None:
    table = shop_of("order", lambda one: f"A{one}", people=people, rows=500)
    assert len(warn_of_repeated_people(table, "bought")) == asked


def test_people_of_one_row_kinds_of_people_and_the_label_are_passed_over() -> None:
    assert not warn_of_repeated_people(shop_of("user_id", people=50), "bought")
    assert not warn_of_repeated_people(shop_of("user", people=19), "bought")
    assert not warn_of_repeated_people(shop_of("user_id"), "user_id")


def test_of_two_columns_of_people_the_one_with_fewer_is_named() -> None:
    lines = "".join(f"d{row % 40},u{row % 25}\n" for row in range(60))
    [line] = warn_of_repeated_people(parse_table(f"device_id,user_id\n{lines}".encode(), "a.csv"), "")
    assert "column 'user_id' repeats (25 different in 60 rows, up to 3 each)" in line


def test_of_many_columns_of_ids_the_two_with_the_most_different_words_are_asked_about() -> None:
    lines = "".join(f"a{row % 20},o{row % 90},z{row % 40},{row % 60}.5\n" for row in range(100))
    table = parse_table(f"article,order,zip,amount\n{lines}".encode(), "a.csv")
    found = warn_of_repeated_people(table, "")
    assert [line.split("'")[1] for line in found] == ["order", "zip"]
    left = warn_of_repeated_people(table, "", measured=("order",))
    assert [line.split("'")[1] for line in left] == ["zip", "article"]
    assert not warn_of_repeated_people(table, "", ("order",), not_people=("zip", "article"))


def test_a_column_that_says_people_answers_the_question_for_all_others() -> None:
    lines = "".join(f"u{row},a{row % 40}\n" for row in range(100))
    assert not warn_of_repeated_people(parse_table(f"user_id,article\n{lines}".encode(), "a.csv"), "")


def test_of_the_sample_its_people_are_warned_of_and_no_other_column() -> None:
    table = parse_table(sample_table().encode(), "sample.csv")
    [line] = warn_of_repeated_people(table, "bought")
    assert "column 'person' repeats (400 different in 6,019 rows, up to 25 each)" in line
    assert not warn_of_repeated_people(table.without("person"), "bought")


def shop_with_buyers(buyer: str = "Buyer") -> Table:
    """A table of 60 orders of 25 buyers, with addresses of most and a column of articles."""
    lines = "".join(
        f"{100_417 + 13 * row},u{row % 25},{'' if row % 7 == 0 else f'b{row % 25}@mail'},a{row % 20}\n"
        for row in range(60)
    )
    return parse_table(f"Order number,{buyer},email,article\n{lines}".encode(), "shop.csv")


def test_a_person_of_one_row_each_is_warned_of_next_to_people_who_repeat() -> None:
    once, repeats = warn_of_repeated_people(shop_with_buyers(), "", person="Order number")
    assert once.startswith("[task] person is 'Order number', which is different in each of 60 rows: epsilon")
    assert "column 'Buyer' repeats (25 different in 60 rows" in repeats
    assert "epsilon is of one 'Order number'" in repeats
    assert '[task] person = "Buyer"' in repeats
    no_people = ("Buyer", "email")
    once_again, asked = warn_of_repeated_people(shop_with_buyers(), "", (), no_people, person="Order number")
    assert once_again == once
    assert "column 'article' repeats" in asked
    assert "if it names people" in asked


def test_devices_of_one_row_each_are_warned_of_next_to_people_who_repeat() -> None:
    once, repeats = warn_of_repeated_people(
        shop_with_buyers(), "", person="Order number", section="federated"
    )
    assert once.startswith(
        "[federated] person is 'Order number', which is different in each of 60 rows: a dev"
    )
    assert "column 'Buyer' repeats (25 different in 60 rows" in repeats
    assert '[federated] person = "Buyer" makes it of a person' in repeats
    assert not warn_of_repeated_people(shop_with_buyers(), "", person="Buyer", section="federated")


@pytest.mark.parametrize("section", ["task", "federated"])
def test_ids_of_people_in_several_spellings_are_counted_and_not_shown(section: str) -> None:
    lines = "".join(f"{'kK'[row % 3 == 0]}-{row % 20},{row}\n" for row in range(60))
    table = parse_table(f"member,minutes\n{lines}".encode(), "shop.csv")
    [line] = warn_of_repeated_people(table, "", person="member", section=section)
    assert line == (
        f"[{section}] person is 'member', whose ids partly differ in case, accents or space only: 40 "
        "different ids, 20 without that; each spelling has an epsilon of its own: if they mean the same "
        "person, write them in one way"
    )


def test_with_people_who_repeat_only_a_column_that_puts_them_together_is_warned_of() -> None:
    assert not warn_of_repeated_people(shop_with_buyers(), "", person="Buyer")
    lines = "".join(f"u{row % 50},h{row % 50 // 2}\n" for row in range(120))
    households = parse_table(f"user_id,household\n{lines}".encode(), "shop.csv")
    [line] = warn_of_repeated_people(households, "", person="user_id")
    assert "column 'household' repeats (25 different in 120 rows" in line
    assert not warn_of_repeated_people(households, "", person="household")
    assert not warn_of_repeated_people(households, "", (), ("household",), person="user_id")
