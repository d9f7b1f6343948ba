"""Which columns of a table seem to name people.

A column's name says so, such as `user_id` or `Kundennr`, or its words look like ids. Those of things, such as
of articles, look alike: of words alone one can only ask.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from maskedlark.encoding import dates
from maskedlark.encoding.cells import Cells, number
from maskedlark.encoding.close_names import fold
from maskedlark.encoding.identifiers import (
    FEWEST_ROWS,
    MOSTLY,
    are_in_unix_years,
    find_kind,
    identifiers,
    why_codes,
)
from maskedlark.encoding.table import Table
from maskedlark.frozen import frozen

# Last words of the names of columns that name people: `user_id`, `CustomerNo`, `ad_visitor_key`
_PEOPLE: Final = frozenset(
    {
        "account", "anonymous", "buyer", "client", "consumer", "cookie", "customer", "device", "email",
        "guest", "household", "member", "patient", "person", "player", "shopper", "subscriber", "user",
        "visitor",
        "abonnent", "benutzer", "besucher", "haushalt", "kaufer", "kunde", "klient", "mitglied", "nutzer",
        "teilnehmer",
        "abonne", "acheteur", "membre", "utilisateur", "visiteur",
        "cliente", "comprador", "miembro", "paciente", "socio", "utente", "usuario", "visitante",
        "gebruiker", "klant",
    }
)  # fmt: skip
# Of these, the ones that name something else without an id word: `device` holds phone and desktop
_NOT_ALONE: Final = frozenset({"account", "anonymous", "cookie", "device"})
_ID_WORD: Final = (
    "(?:id|uuid|guid|key|no|nr|num|number|nummer|numero|kennung|code|codigo|hash|token|email|mail|phone)"
)
_ONE: Final = f"(?:{'|'.join(sorted(_PEOPLE))})"
# `Kundennr`, `Mitgliedsnummer`; and `id_cliente`, `numero de client`, but no `num_client`, a count
_PERSON_ID: Final = re.compile(
    f"(?:.* )?{_ONE}(?:e?n|e?s)?(?: ?{_ID_WORD})+"
    f"|(?:.* )?(?:id|uuid|code|codigo|numero) (?:(?:de|del|do|du) )?{_ONE}"
)
# Such as `Full Name`, `vorname` and `Kundenname`, but no `product name`
_PERSON_NAME: Final = re.compile(
    f"(?:(?:full|first|last|middle|given|family|sur|person|maiden|contact) ?|{_ONE}(?:e?n|e?s)? ?)?names?"
    "|(?:voll|vor|nach|familien)(?:e? ?)namen?|(?:pre)?nom(?: (?:complet|de famille))?|prenom"
    "|nombre(?: completo)?|apellidos?|nome(?: completo)?|cognome|sobrenome|(?:voor|achter)?naam"
    "|(?:(?:account|card|policy|ticket) ?)?holder|(?:home |policy )?owner|insured(?: person)?|beneficiary"
    "|(?:versicherungs|konto|karten)inhaber|inhaber|versicherter?|versicherungsnehmer|eigentumer|titular"
)
# The most frequent given names of several countries: of a long column of full names many begin with one
_GIVEN_NAMES: Final = """
ahmed albert aleksandra alessandro alex alexander alexandra ali alice amanda amit amy ana andrea andreas
andrew angela anita anja ann anna anne annette anthony antoine antonio ashley barbara ben benjamin bernd
betty bianca birgit brandon brian bruno camille carla carlos carmen carol caroline catherine charles
christian christina christine christopher claire clara claudia cristina cynthia daniel daniela david
deborah debra dennis diana diego dieter dirk donald donna dorothy edward elena elisabeth elizabeth emily
emma eric erik eva fabian fatima felix fernando francesca francesco francois frank franz gabriela gary
george gerhard giulia giuseppe greg gregory guillaume hannah hans harald heather heike heinz helen helena
helga ines ingrid isabel isabelle ivan jack jacob jacqueline jakub james jan jana jane janet jason javier
jean jeffrey jennifer jens jerry jessica joan joanna joe john jonas jonathan jorge jose joseph joshua
juan julia julian julie jurgen justin karen karin karl karsten katarzyna katharina katherine kathleen
kathrin kelly kenneth kevin kim klaus krzysztof lars laura lauren lea lena leon linda lisa louis louise
luca lucas luis luisa lukas manfred manuel marc marco margaret maria marie mario marion mark markus marta
martin martina mary matteo matthew matthias mehmet melanie melissa michael michaela michel michelle
miguel mike mohamed mohammed monica monika mustafa nadine nancy natalia nathalie nicholas nicola nicolas
nicole nina noah olga oliver olivia pablo pamela paolo patricia patrick paul paula pedro peter petra
philip philipp philippe pierre rachel rainer ralf raj ralph rebecca renate ricardo richard rita robert
roberto ronald rosa ruth ryan sabine sandra sara sarah scott sebastian sergio sharon silvia simon sophie
stefan stefanie stephan stephanie stephen steven susan susanne sven tanja teresa thomas tim timothy
tobias tom torsten tyler ulrich ursula ute uwe valentina vanessa veronika victor virginie walter werner
wilhelm william wolfgang yasmin zoe
"""
_GIVEN: Final = frozenset(_GIVEN_NAMES.split())
_TITLES: Final = frozenset({"dr", "frau", "herr", "miss", "mme", "mr", "mrs", "ms", "prof", "sr", "sra"})
# The least share of full names that begin with one of those: of places, brands and products few do
_KNOWN_GIVEN: Final = 0.25
_MOST_PARTS: Final = 5
_LETTERS: Final = re.compile(r"[^\W\d_](?:[^\W\d_]|['\u2019-])*")
_NAME_PART: Final = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Between these shares of its rows the words of a column may be ids of people who repeat: fewer are mostly
# groups of people, or of things
_FEWEST_OF_ROWS: Final = 0.05
_MOST_OF_ROWS: Final = 0.95
# The fewest digits of numbers that are ids by themselves, all of the same length
_LONG: Final = 6
# Amounts are round more often than ids, of which one in ten ends in 0
_ROUND: Final = 0.25
_DAY: Final = re.compile("(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])")
# One word of digits and letters, such as `K-10442` and `a81f`; no amount or size, as `5kg` and `30x40`
_ID: Final = re.compile(
    r"(?=.*[0-9])(?=.*[^\W\d_])(?![0-9.,]{1,5}[a-zA-Z%]{1,3}$)(?![0-9]+x[0-9]+$)[\w#@.:/+-]+"
)
_MOST_JUDGED: Final = 2_000


@frozen
class PeopleColumns:
    """Columns that seem to name people, each with how many rows have each of its words.

    Attributes:
        named: Those whose name says so.
        asked: Those whose words look like ids, of people or of things; as many as people who repeat would
            have.
    """

    named: Mapping[str, Counter[str]]
    asked: Mapping[str, Counter[str]]


def find_people_columns(table: Table, names: Collection[str]) -> PeopleColumns:
    """Return which of a table's columns with these names seem to name people, in the table's order.

    Edge cases: a column of fewer than `FEWEST_ROWS` different words names none, since a column `user` of few
    words holds kinds of users; nor does one of amounts.
    """
    counted = {
        name: counts
        for name, cells in table.columns.items()
        if name in names and len(counts := Counter(cell for cell in cells if cell is not None)) >= FEWEST_ROWS
    }
    named = {name: counts for name, counts in counted.items() if _names_people(name)}
    asked = {
        name: counts
        for name, counts in counted.items()
        if name not in named and name not in table.amounts and _may_be_people(name, counts)
    }
    return PeopleColumns(named=named, asked=asked)


def why_private(column: str, cells: Cells) -> str | None:
    """Return why the words of a column are not to be published unasked, for a message; None if they may be.

    They look like identifiers, or name people: by the column's name, or because most are full names of which
    many have a frequent given name. Fewer than `FEWEST_ROWS` different words name kinds of people.
    """
    words = {cell for cell in cells if cell is not None}
    found = identifiers(cells)
    if found or len(words) < FEWEST_ROWS or all(number(one) is not None for one in words):
        return found
    if _PERSON_NAME.fullmatch(_split_name(column)):
        return "names of people, by the column's name"
    if _names_people(column):
        return "ids of people, by the column's name"
    given = [one for one in map(_find_given_name, words) if one]
    known = sum(one in _GIVEN for one in given)
    are_names = len(given) >= MOSTLY * len(words) and known >= _KNOWN_GIVEN * len(given)
    return "names of people" if are_names else None


def _find_given_name(word: str) -> str:
    """Return the given name of a full name, as of `Dr. Anna Lang` and `Lang, Anna`; empty if it is none."""
    last, _, first = fold(word).replace(".", " ").partition(",")
    parts = [part for part in f"{first} {last}".split() if part not in _TITLES]
    is_full = 1 < len(parts) <= _MOST_PARTS and all(_LETTERS.fullmatch(part) for part in parts)
    return parts[0].partition("-")[0] if is_full else ""


def _split_name(column: str) -> str:
    """Return the words of a column's name, in lower case and without accents."""
    # Accents are parted from their letters, whose case tells words apart
    letters = "".join(one for one in unicodedata.normalize("NFKD", column) if not unicodedata.combining(one))
    return " ".join(_NAME_PART.findall(letters)).lower()


def _names_people(column: str) -> bool:
    """Return whether a column's name says that it names people, one by one."""
    name = _split_name(column)
    return name in _PEOPLE - _NOT_ALONE or bool(_PERSON_ID.fullmatch(name))


def _may_be_people(column: str, counts: Counter[str]) -> bool:
    """Return whether a column's words look like ids, as many as people who repeat would have."""
    if not _FEWEST_OF_ROWS <= len(counts) / counts.total() <= _MOST_OF_ROWS:
        return False
    words = [*counts][:: max(1, len(counts) // _MOST_JUDGED)]
    numbers = [word for word in words if number(word) is not None]
    if len(numbers) >= MOSTLY * len(words):
        return bool(why_codes(column, numbers)) or _are_long_numbers(numbers)
    if sum(dates.is_date(word) or dates.has_short_year(word) for word in words) >= MOSTLY * len(words):
        return False
    if find_kind(Counter(words), least=MOSTLY):
        return True
    parted = [word.replace("-", "").replace("/", "") for word in words]
    return sum(bool(_ID.fullmatch(word)) for word in words) >= MOSTLY * len(words) or _are_long_numbers(
        parted
    )


def _are_long_numbers(words: Sequence[str]) -> bool:
    """Return whether words are digits of one length as ids are: not days, times or round amounts."""
    length = len(words[0])
    if length < _LONG or not all(len(word) == length and word.isdecimal() for word in words):
        return False
    if are_in_unix_years([*map(int, words)]) or all(_DAY.fullmatch(word) for word in words):
        return False
    return sum(word.endswith("0") for word in words) <= _ROUND * len(words)
