"""What a checkpoint costs in PostgreSQL and in a data folder: `python -m tests.bench.job_files [--mib 512]`.

Each is written twice, the second in place of the first, and read back. Seconds of wall time.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from adserver.store.database import create_tables, default_url
from adserver.store.job_files import JobFiles
from maskedlark.runtime.database import open_database
from tests.postgres import running_postgres

JOB: Final = bytes(16)


def measured(files: JobFiles, content: bytes, beside: Callable[[], float]) -> dict[str, float]:
    """Seconds to write, to write again, and to read; and what was written besides, in bytes a byte."""
    seconds, written = [], beside()
    for rounds_done in (1, 2):
        began = time.perf_counter()
        files.write_checkpoint(content, rounds_done=rounds_done)
        seconds.append(time.perf_counter() - began)
    log = (beside() - written) / 2 / len(content)
    began = time.perf_counter()
    assert files.checkpoint() == content
    read_s = time.perf_counter() - began
    return {"first_s": seconds[0], "second_s": seconds[1], "read_s": read_s, "log_bytes_a_byte": log}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What a checkpoint costs.")
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    content = os.urandom(arguments.mib << 20)
    with running_postgres() as server, TemporaryDirectory() as folder:
        engine = open_database(server.new_database())
        create_tables(engine)

        def log_bytes() -> float:
            with engine.connect() as connection:
                told = connection.exec_driver_sql("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
                return float(told.scalar_one())

        embedded = open_database(default_url(Path(folder)))
        create_tables(embedded)
        places = {
            "PostgreSQL": (JobFiles(engine, Path(folder), JOB), log_bytes),
            "folder": (JobFiles(embedded, Path(folder), JOB), lambda: 0.0),
        }
        figures = {
            name: {key: round(value, 2) for key, value in measured(files, content, beside).items()}
            for name, (files, beside) in places.items()
        }
        engine.dispose()
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, seconds in figures.items():
        print(f"{name:10}", seconds)


if __name__ == "__main__":
    main()
