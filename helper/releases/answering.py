"""The only way by which an answer leaves this helper: of a round, a query, a discovery or an evaluation.

    stored already? -> compute -> hold -> still awaited? -> commit charge and answer
                                                            or give what another process stored

An answer is not visible before its charge is durable. A caller that has gone is not charged, unless it has
left the same round too often (`attempts`). The order matters: the hold comes before the charge, because the
moment of a charge is visible in later budgets and must not show how long the work took. Each kind of
release supplies only the lookup, the work and the commit. The caller of this module lets the answer out
once the ledger's witness knows the charge (`HelperService.RunRound`).

>>> ledger = {}
>>> def commit(answer, check_awaited):
...     check_awaited()
...     return ledger.setdefault("round 0", answer) is answer
>>> def asked(answer):
...     return answer_once(
...         Call(caller=None),
...         stored=lambda: ledger.get("round 0"),
...         compute=lambda: answer,
...         commit=commit,
...         superseded=lambda: None,
...     )
>>> asked(b"first"), asked(b"second")
(b'first', b'first')
"""

from collections.abc import Callable

from helper.releases.release_grid import Hold
from helper.trust.tasks import Caller
from maskedlark.audit_log import THIS_SERVICE, Actor
from maskedlark.errors import JobRefused
from maskedlark.frozen import frozen
from maskedlark.interrupt import Interrupt, never


@frozen
class Call:
    """A call of the ad server that waits for an answer.

    Attributes:
        caller: The names in its certificate.
        actor: How the audit log names it.
        check_awaited: Called before the work, often during it, and last before the charge. It raises if the
            caller has gone, which ends the work: nothing is charged and nothing leaves.
        hold: Called once there is an answer, before it is charged. It returns when the answer may leave, so
            that no charge shows how long the work took.
        check_serving: Called in place of `check_awaited` where the work is finished even if the caller has
            gone. It raises only if this helper is being shut down.
    """

    caller: Caller
    actor: Actor = THIS_SERVICE
    check_awaited: Interrupt = never
    hold: Hold = never
    check_serving: Interrupt = never


def answer_once(
    call: Call,
    *,
    stored: Callable[[], bytes | None],
    compute: Callable[[], bytes],
    commit: Callable[[bytes, Interrupt], bool],
    superseded: Callable[[], JobRefused],
) -> bytes:
    """Answer a release: compute and charge it once, then return the same bytes each time.

    Args:
        call: The waiting caller, and when the answer may leave.
        stored: The answer if the release was charged before. Raises if something else was charged under its
            name, or if it can no longer be asked for.
        compute: The encoded aggregate share. What it raises ends the call, uncharged.
        commit: Charges the release and keeps its answer in one transaction, after a last call of the function
            that it is given, or of the one that it chose instead while it computed. False, and nothing
            changed, if another thread or process was faster.
        superseded: The refusal if another one was faster and left no answer either.

    Guarantees: when it returns, the charge and the answer are durable; when it raises, this call made neither
        and nothing left.
    """
    known = stored()
    if known is not None:
        call.hold()
        return known
    # Nothing is reserved beforehand, so two calls may compute one release at once: the commit decides between
    # them.
    computed = compute()
    call.hold()
    # The hold comes first: a charge is visible in the next answer's budget, and must not show how long the
    # work took.
    if commit(computed, call.check_awaited):
        return computed
    # What the other one stored counts, and what was computed here is forgotten.
    known = stored()
    if known is None:
        raise superseded()
    return known
