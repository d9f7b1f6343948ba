"""What the head orders of a worker that adds updates up, and what it gets back. They only travel sealed.

    order = write_order(AddingOrder(...), part.rows)    # the head; the shares go beside it, as they lie there
    answer = added(order, frames, interrupt)            # the worker
    summed = read_added(answer, adding, records)        # the head, which checks what can be checked

An order holds all that it takes, so any worker can do it, and do it again. How long an answer is follows from
the form of the task's updates.
"""

from collections.abc import Sequence
from typing import Annotated, Final

import numpy as np
from pydantic import Field

from helper.datasets.update_vault import open_updates
from helper.executors.executor import Adding, SummedUpdates
from helper.executors.orders import Count, Message, elements, read, write
from helper.executors.summing import sum_updates
from maskedlark.canonical import Bytes32, canonical
from maskedlark.errors import InvalidTask
from maskedlark.interrupt import Interrupt
from maskedlark.numbers.field import to_bytes
from maskedlark.reports.updates import UpdateForm

ADD: Final = b"add"


@canonical
class AddingOrder:
    """The sum of some shares of a round; their places in their file follow.

    Attributes:
        order_id: Names the order.
        form: What the task's update reports hold.
        role: Whose shares they are.
        task_id: The task's.
        header: See `SealedUpdates`.
        key: See `SealedUpdates`.
    """

    order_id: Bytes32
    form: UpdateForm
    role: Annotated[int, Field(ge=0, le=1)]
    task_id: Bytes32
    header: Annotated[bytes, Field(max_length=1024)]
    key: Bytes32 = Field(repr=False)


@canonical
class _Added:
    """Of how many shares the sum is that follows."""

    records: Count


def write_order(order: AddingOrder, rows: Sequence[int]) -> bytes:
    """Write an order for the shares at these positions of their file."""
    return write(order, [np.array(rows, "<u8").tobytes()])


def add(message: Message, frames: bytes, interrupt: Interrupt) -> bytes:
    """Do an order of `write_order`; the answer.

    Raises:
        InvalidTag, ValueError: the frames are not those of the order.
    """
    order: AddingOrder = message.head
    (places,) = message.parts
    rows = np.frombuffer(places, "<u8").tolist()
    adding = Adding(form=order.form, role=order.role, task_id=order.task_id)
    summed = sum_updates(adding, open_updates(order.header, rows, order.key, frames), interrupt)
    return write(_Added(records=summed.records), [to_bytes(summed.vector)])


def read_added(answer: bytes, adding: Adding, records: int) -> SummedUpdates:
    """Read a worker's answer, if it is a sum of so many shares in this form.

    Raises:
        InvalidTask: it is not.
    """
    message = read(_Added, answer)
    if message.head.records != records or len(message.parts) != 1:
        raise InvalidTask("an answer is not a sum of the shares that were sent")
    return SummedUpdates(vector=elements(message.parts[0], adding.form.length), records=records)
