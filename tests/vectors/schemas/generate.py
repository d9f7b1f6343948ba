"""Write the tables of a party's schema version as SQL: `python -m tests.vectors.schemas.generate`.

Run it whenever a `SCHEMA_VERSION` grows, and keep the files of older versions: they are what real databases
have. Files that exist are left alone.
"""

from pathlib import Path

from sqlalchemy import Dialect, MetaData, make_url
from sqlalchemy.schema import CreateIndex, CreateTable

from adserver.store import schema as adserver_schema
from adserver.store import version as adserver_version
from helper.ledger import schema

FOLDER = Path(__file__).parent
PARTIES = {
    "helper": (schema.METADATA, schema.SCHEMA_VERSION),
    "adserver": (adserver_schema.metadata, adserver_version.SCHEMA_VERSION),
}
DIALECTS: dict[str, Dialect] = {
    name: make_url(f"{driver}://").get_dialect()()
    for name, driver in (("sqlite", "sqlite"), ("postgresql", "postgresql+psycopg"))
}


def statements(metadata: MetaData, dialect: Dialect) -> list[str]:
    """What creates every table and index."""
    made = [str(CreateTable(table).compile(dialect=dialect)).strip() for table in metadata.sorted_tables]
    indexes = sorted(
        (index for table in metadata.sorted_tables for index in table.indexes), key=lambda i: str(i.name)
    )
    return made + [str(CreateIndex(index).compile(dialect=dialect)).strip() for index in indexes]


def main() -> None:
    """Write the file of each party's version and each engine."""
    for party, (metadata, version) in PARTIES.items():
        for name, dialect in DIALECTS.items():
            path = FOLDER / f"{party}-{version}-{name}.sql"
            if not path.exists():
                path.write_text(";\n\n".join(statements(metadata, dialect)) + ";\n")


if __name__ == "__main__":
    main()
