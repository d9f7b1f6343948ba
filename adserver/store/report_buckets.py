"""The buckets that reports lie in: a row for each, so that whoever reads a report finds its object.

    store = PutsReports(ReportBucket.of(engine, "s3://bucket/prefix", may_add=True), opened(url))

Only a writer needs the URL as an option; a reader takes it from the row that the manifest names. Each
database has a separate folder in a bucket, so two ad servers that share one never sweep each other's.
"""

from secrets import token_hex
from typing import Final

from sqlalchemy import Connection, Engine, select

from adserver.store.database import insert_or_ignore
from adserver.store.schema import report_buckets
from maskedlark.errors import InvalidSetting
from maskedlark.frozen import frozen
from maskedlark.runtime.bucket import SHARED, check_bucket_url, open_bucket
from maskedlark.runtime.database import reading
from maskedlark.runtime.objects import Retrying

_FOLDER_BYTES: Final = 8
# A put that fails so often makes rows of its reports; a browser waits for it.
_TRIES: Final = 4


@frozen
class ReportBucket:
    """Where objects of reports lie.

    Attributes:
        number: Of its row.
        folder: What the names of its objects begin with.
        url: As it was given to the ad server.
    """

    number: int
    folder: str
    url: str

    @classmethod
    def of(cls, engine: Engine, url: str, *, may_add: bool) -> "ReportBucket":
        """Return the bucket of a URL, for processes that write reports to it or sweep it.

        Args:
            engine: The ad server's database.
            url: Of object storage.
            may_add: Whether it becomes known with this call; an intake replica's account may not add it.

        Raises:
            InvalidSetting: the database does not know it; or it is no URL of object storage that keeps what
                is put, for every machine (`file://` and `memory://` do not), or holds credentials.
        """
        check_bucket_url(url, SHARED)
        url = url.rstrip("/")
        with reading(engine) as connection:
            found = _found(connection, url)
        if found is None and may_add:
            adding = insert_or_ignore(engine, report_buckets, ["url"])
            with engine.begin() as connection:
                connection.execute(adding.values(url=url, folder=token_hex(_FOLDER_BYTES)))
                found = _found(connection, url)
        if found is None:
            raise InvalidSetting(
                "the ad server does not know this object storage: first start its `serve` with the "
                "same --report-objects"
            )
        return found

    def open(self) -> Retrying:
        """Open its store without a request to it.

        Raises:
            InvalidSetting: obstore is not installed, or the URL or what the environment says of it is wrong.
        """
        return Retrying(open_bucket(self.url), whose="the ad server", tries=_TRIES)


def _found(connection: Connection, url: str) -> ReportBucket | None:
    c = report_buckets.c
    row = connection.execute(select(c.bucket, c.folder, c.url).where(c.url == url)).one_or_none()
    return None if row is None else ReportBucket(number=row[0], folder=row[1], url=row[2])
