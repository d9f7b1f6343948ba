"""What both helpers draw and answer, written from docs/spec alone, in Python integers and decimals.

Of the product it imports nothing. Slow: it is read beside rounds.md, queries.md and numerics.md.
"""

import hashlib
import hmac
import json
from collections.abc import Iterator, Sequence
from decimal import Decimal, localcontext
from math import isqrt
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

P = 2**64 - 2**32 + 1
PREFIX = b"maskedlark/v1 "


def framed(purpose: str, *parts: bytes) -> bytes:
    joined = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return hashlib.sha256(PREFIX + purpose.encode() + joined).digest()


def derive(secret: bytes, purpose: bytes, context: bytes = b"") -> bytes:
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, PREFIX + purpose + b"\0" + context + b"\1", "sha256")


def words(key: bytes, size: int) -> Iterator[int]:
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    while True:
        yield int.from_bytes(stream.update(bytes(size)), "little")


def taken(source: Iterator[int], count: int) -> list[int]:
    return [next(source) for _ in range(count)]


# rounds.md


def pair_key(private: bytes, other: bytes, task_id: bytes) -> bytes:
    shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(other))
    return derive(shared, b"pair", task_id)


def transcript(job: bytes, round_index: int, sent: bytes, numerics: bytes) -> bytes:
    return framed("round", framed("job", job), round_index.to_bytes(8, "little"), sent, numerics)


def sample(pair: bytes, job: bytes, round_index: int, script: bytes, records: int) -> list[int]:
    spec = json.loads(job)
    steps = spec.get("epoch_steps")
    if steps is None:
        drawn = taken(words(derive(pair, b"sample", script), 4), records)
        return [i for i, word in enumerate(drawn) if word < spec["sampling_numerator"]]
    epoch = 0 if spec.get("carried") else round_index // steps
    key = derive(pair, b"slots", framed("job", job) + epoch.to_bytes(8, "little"))
    mask = (1 << (steps - 1).bit_length()) - 1
    slots: list[int] = []
    for word in words(key, 8):
        if len(slots) == records:
            break
        if word & mask < steps:
            slots.append(word & mask)
    return [i for i, slot in enumerate(slots) if slot == round_index % steps]


def work(task: dict[str, Any], job: bytes, records: int) -> int:
    m = records * json.loads(job)["sampling_numerator"] >> 32
    room = m + 12 + isqrt(121 + 64 * (m + 1)) + task.get("reports_per_user", 1)
    return int(min(records, max(task["min_batch_size"], room)))


def added(pair: bytes, script: bytes, sampled: list[int], records: int, wanted: int) -> list[int]:
    others = [i for i in range(records) if i not in set(sampled)]
    drawn = taken(words(derive(pair, b"padding", script), 4), len(others))
    ranked = sorted(range(len(others)), key=lambda i: (drawn[i], i))
    return sorted(others[i] for i in ranked[: max(0, wanted - len(sampled))])


def blind(pair: bytes, script: bytes, count: int) -> list[int]:
    below_p = (word for word in words(derive(pair, b"blind", script), 8) if word < P)
    return [next(below_p) for _ in range(count)]


def agreement_tag(pair: bytes, script: bytes, values_digest: bytes) -> bytes:
    return hmac.digest(derive(pair, b"agreement"), script + values_digest, "sha256")


# numerics.md, Noise


def rho(law: str, scale: int, x: int) -> Decimal:
    if law == "laplace":
        return (Decimal(-x) / scale).exp()
    return (Decimal(-x * x) / (2 * scale * scale)).exp()


class Draws:
    """Draws of one law and scale."""

    def __init__(self, law: str, scale: int) -> None:
        self.law, self.scale = law, scale
        self.w = 1 << max(0, scale.bit_length() - 4)
        with localcontext(prec=60):
            e = 1 + Decimal(10) ** -40
            heights = [rho(law, scale, k * self.w) for k in range(256)]
            tail = int(2**32 * heights[255] * e) + 1
            self.m = int((2**32 - tail - 256) / (e * sum(heights[:255])))
            self.c = [int(self.m * height * e) + 1 for height in heights[:255]] + [tail]
        self.c[0] += 2**32 - sum(self.c)
        left, self.coin, self.other = list(self.c), [2**24] * 256, list(range(256))
        small = [k for k in range(256) if left[k] < 2**24]
        large = [k for k in range(256) if left[k] >= 2**24]
        while small:
            k, g = small.pop(), large[-1]
            self.coin[k], self.other[k] = left[k], g
            left[g] -= 2**24 - left[k]
            if left[g] < 2**24:
                small.append(large.pop())

    def draw(self, count: int, source: Iterator[int]) -> list[int]:
        found: list[int] = []
        while (missing := count - len(found)) > 0:
            q = min(32768, missing + missing // 8 + 16)
            a, b = taken(source, q), taken(source, q)
            kept = [x for i in range(q) if (x := self._proposal(a[i], b[i], source)) is not None]
            found += kept[:missing]
        return found

    def _strip(self, a: int) -> int:
        column = a % 256
        return column if (a >> 8) % 2**24 < self.coin[column] else self.other[column]

    def _proposal(self, a: int, b: int, source: Iterator[int]) -> int | None:
        k, start, bits = self._strip(a), 0, 47
        x, u, c = k * self.w + b % self.w, (a >> 33 << 16) + (b >> 48), self.c[k]
        while k == 255:
            start += 255 * self.w
            first, second = taken(source, 2)
            k = self._strip(first)
            x, c, bits = start + k * self.w + second % self.w, c * self.c[k], bits + 32
        while True:
            with localcontext(prec=60 + bits):
                bound = self.m * 2**bits * rho(self.law, self.scale, x)
            if c * (u + 1) <= bound:
                break
            if c * u >= bound:
                return None
            u, bits = (u << 64) + next(source), bits + 64
        is_negative = a >> 32 & 1
        if is_negative and x == 0:
            return None
        return -x if is_negative else x


def units(multiplier: float, sensitivity: int) -> int:
    numerator, denominator = multiplier.as_integer_ratio()
    return -(-numerator * sensitivity // denominator)


# queries.md, Cells that are shown


def cells_to_show(
    task: dict[str, Any], query: bytes, pair: bytes, keys: Sequence[Sequence[int]], beside: bytes
) -> list[list[int]]:
    """Each report's cell at each released level, of a task with Laplace noise or none; -1 for no cell."""
    spec, declared = json.loads(query), task["measurement"]
    named = [key["name"] for key in declared["keys"]]
    sizes, positions = [], []
    for axis in spec["group_by"]:
        codes = list(range(axis["size"]))
        if axis["codes_digest"] is not None:
            listed, beside = beside[: 4 * axis["size"]], beside[4 * axis["size"] :]
            assert framed("domain", listed).hex() == axis["codes_digest"]
            codes = [int.from_bytes(listed[at : at + 4], "little") for at in range(0, len(listed), 4)]
        held = [row[named.index(axis["key"])] for row in keys]
        sizes.append(axis["size"])
        positions.append([codes.index(code) if code in codes else None for code in held])
    counted = [all(row[named.index(one["key"])] == one["code"] for one in spec["where"]) for row in keys]
    source = words(derive(pair, b"common noise", framed("query", query)), 8)
    scale = units(spec["threshold_noise_multiplier"], 2**16 * len(spec["levels"]))
    draws = None if task["mechanism"] == "none" else Draws("laplace", scale)
    least = declared["min_cell_count"] * 2**16

    def enough(cells: list[int | None], count: int) -> list[bool]:
        noise = [0] * count if draws is None else draws.draw(count, source)
        return [cells.count(cell) * 2**16 + noise[cell] >= least for cell in range(count)]

    own: list[list[int | None]] = []
    rests: list[list[int | None]] = []
    num_cells: list[int] = []
    for level in spec["levels"]:
        cells: list[int | None] = []
        of_level: list[int | None] = []
        for i, is_counted in enumerate(counted):
            place = [positions[axis][i] for axis in range(level)]
            parent = 0
            for size, position in zip(sizes, place[:-1], strict=False):
                parent = parent * size + (position or 0)
            is_there = is_counted and all(position is not None for position in place[:-1])
            rest = parent * (sizes[level - 1] + 1) + sizes[level - 1] if level else None
            last = place[-1] if level else 0
            cell = rest if last is None else (parent * (sizes[level - 1] + 1) + last if level else 0)
            cells.append(cell if is_there else None)
            of_level.append(rest if is_there else None)
        own.append(cells)
        rests.append(of_level)
        product = 1
        for size in sizes[: max(0, level - 1)]:
            product *= size
        num_cells.append(product * (sizes[level - 1] + 1) if level else 1)
    shown = [enough(cells, count) for cells, count in zip(own, num_cells, strict=True)]
    alive = [len(keys) >= task["min_batch_size"]] * len(keys)
    placed: list[list[int]] = []
    for cells, of_level, is_shown in zip(own, rests, shown, strict=True):
        row, still = [], []
        for i, (cell, rest) in enumerate(zip(cells, of_level, strict=True)):
            is_own = alive[i] and cell is not None and cell != rest and is_shown[cell]
            in_rest = alive[i] and not is_own and rest is not None
            row.append(cell if is_own else rest if in_rest else -1)
            still.append(is_own)
        placed.append([-1 if cell is None else cell for cell in row])
        alive = still
    for at, level in enumerate(spec["levels"]):
        if level and not spec.get("are_rests_shown", False):
            width = sizes[level - 1] + 1
            in_rest_of = [
                cell // width if cell >= 0 and cell % width == width - 1 else None for cell in placed[at]
            ]
            kept = enough(in_rest_of, num_cells[at] // width)
            placed[at] = [
                cell if parent is None or kept[parent] else -1
                for cell, parent in zip(placed[at], in_rest_of, strict=True)
            ]
    return placed


# datasets.md, reports.md: what a helper reads and tells


def view_tag(pair: bytes, report_id: bytes, covered: bytes) -> bytes:
    return hmac.digest(derive(pair, b"view"), report_id + covered, "sha256")[:16]


def dataset_id(task_id: bytes, tags: dict[bytes, bytes]) -> bytes:
    ids = sorted(tags)
    return framed("dataset", task_id, b"".join(ids), b"".join(tags[one] for one in ids))


class Opened:
    """One plaintext of a task without proofs."""

    def __init__(self, task: dict[str, Any], plaintext: bytes) -> None:
        measurement = task["measurement"] or {"keys": []}
        d, num_candidates = task["num_features"], task["num_decoys"] + 1
        labels = 17 + d
        keys = labels + 4 * num_candidates
        end = keys + 4 * len(measurement["keys"])
        self.view = plaintext[:end]
        self.labels = _integers(plaintext[labels:keys], 4)
        self.keys = _integers(plaintext[keys:end], 4)
        elements = _integers(plaintext[end:], 8)
        self.masks, self.columns = elements[:num_candidates], elements[num_candidates:]


def _integers(encoded: bytes, size: int) -> list[int]:
    return [int.from_bytes(encoded[at : at + size], "little") for at in range(0, len(encoded), size)]


# rounds.md, queries.md, updates.md: answers without noise


def answer(pair: bytes, role: int, script: bytes, total: list[int], values_digest: bytes) -> bytes:
    blinds = blind(pair, script, len(total))
    blinded = [(x + (b if role == 0 else -b)) % P for x, b in zip(total, blinds, strict=True)]
    return agreement_tag(pair, script, values_digest) + b"".join(x.to_bytes(8, "little") for x in blinded)


def answer_query(
    task: dict[str, Any], query: bytes, pair: bytes, role: int, *, opened: list[Opened], beside: bytes
) -> bytes:
    spec, columns, scales = json.loads(query), list[int](), list[int]()
    first = {"count": 0}
    buckets, at = {"count": 0}, 1
    for value in task["measurement"]["values"]:
        first[value["name"]], buckets[value["name"]] = at, len(value["bucket_starts"])
        at += 1 + len(value["bucket_starts"])
    for measure in spec["measures"]:
        start, count = first[measure["value"]], buckets[measure["value"]]
        held = [start] if measure["kind"] == "sum" else list(range(start + 1, start + 1 + count))
        columns += held
        scales += [measure["scale"]] * len(held)
    levels = cells_to_show(task, query, pair, [one.keys for one in opened], beside)
    sizes, total = [axis["size"] for axis in spec["group_by"]], list[int]()
    for level, cells in zip(spec["levels"], levels, strict=True):
        num_cells = 1
        for depth, size in enumerate(sizes[:level], start=1):
            num_cells *= size + (depth == level)
        for cell in range(num_cells):
            placed = [one for one, of_one in zip(opened, cells, strict=True) if of_one == cell]
            total += [
                scale * sum(one.columns[column] for one in placed) % P
                for column, scale in zip(columns, scales, strict=True)
            ]
    told = b"".join(cell.to_bytes(4, "little", signed=True) for cells in levels for cell in cells)
    return answer(pair, role, framed("query", query), total, hashlib.sha256(told).digest())


def answer_discovery(
    task: dict[str, Any], discovery: bytes, pair: bytes, role: int, opened: list[Opened]
) -> bytes:
    """Of a task without noise."""
    spec, declared = json.loads(discovery), task["measurement"]
    named, found = [key["name"] for key in declared["keys"]], list[int]()
    for name in spec["keys"]:
        codes = [one.keys[named.index(name)] for one in opened]
        counts = {code: codes.count(code) for code in codes}
        enough = [code for code, count in counts.items() if count >= declared["min_cell_count"]]
        kept = sorted(enough, key=lambda code: (-counts[code], code))[: spec["max_codes"]]
        found += [len(kept), *sorted(kept), *[0] * (spec["max_codes"] - len(kept))]
    told = b"".join(one.to_bytes(8, "little") for one in found)
    total = found if role == 0 else [0] * len(found)
    return answer(pair, role, framed("discovery", discovery), total, hashlib.sha256(told).digest())


def answer_evaluation(
    evaluation: bytes, pair: bytes, role: int, opened: list[Opened], bins: Sequence[int]
) -> bytes:
    """Of a model of one output, whose scores fall into these bins."""
    num_bins = json.loads(evaluation)["num_bins"]
    total, told = [0] * (2 * num_bins), b""
    for one, score in zip(opened, bins, strict=True):
        for label, mask in zip(one.labels, one.masks, strict=True):
            cell = num_bins * label + score
            total[cell] = (total[cell] + 2**20 * mask) % P
            told += cell.to_bytes(4, "little")
    return answer(pair, role, framed("evaluation", evaluation), total, hashlib.sha256(told).digest())
