"""A server that speaks S3 (moto, without a disk): in this process for tests, beside it for benches.

`python -m tests.s3` prints its URL and serves until its standard input ends.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def leading_to(endpoint: str) -> dict[str, str]:
    """The environment in which object storage is that server."""
    return {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "key",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
    }


@contextmanager
def running_s3() -> Iterator[str]:
    """The URL of a server in threads of this process."""
    from moto.server import ThreadedMotoServer  # takes a second, which only those who want it wait

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@contextmanager
def s3_beside() -> Iterator[str]:
    """The URL of a server in a process of its own, whose processor time is not this one's."""
    command = [sys.executable, "-m", "tests.s3"]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


if __name__ == "__main__":
    with running_s3() as url:
        print(url, flush=True)
        sys.stdin.read()
