"""Spoils spec files: a seeded stream of mutated texts, and the texts that were made by hand to be as bad as they can.

Nothing here knows what is right. `mutations` takes good texts and changes bytes, lines, tokens, scalars, types, sizes
and keys; `BOMBS` are the files that cost the most for their size.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

from kit import SPECS

EMBEDDED = """
tnmars: 1
kind: linear
modes:
  in: {i: 4}
  out: {o: 5}
bonds: {r: 2}
cores:
  A: [i, r]
  B: [r, o]
=====
tnmars: 1
kind: tensor
family: ht
free: [2, 3, 4, 5]
tree: [[1, 2], [3, 4]]
rank: 2
=====
tnmars: 1
kind: map
modes: {in: {i: 4, j: 3}, out: {o: 5}}
inputs: {x: [b, (i j)]}
output: [b, o]
cores: {A: [i, j, o]}
=====
tnmars: 1
kind: conv
params: {c: 4}
modes:
  in: {i: c}
  kernel: {k: 9}
  out: {o: 5}
kernel_size: [3, 3]
options: {stride: [1, 2], padding: 1, bias: false}
terms:
  t:
    copies: 3
    bonds: {r: 2}
    cores: {A: [i, k, r], B: [r, o]}
=====
{"tnmars": 1, "kind": "embedding", "modes": {"lookup": {"v": 9}, "out": {"d": 4}}, "vocab": 8,
 "options": {"padding_idx": -1}, "bonds": {"on": 2}, "cores": {"A": ["v", "on"], "B": ["on", "d"]}}
=====
tnmars: 1
kind: linear
modes: {in: {a: 4, b: 4}, out: {c: 4}}
shared: [b]
bonds: {r: 2}
cores: {L: [a, b, r], R: [r, b, c]}
origin: {selector: mars, sizes: {r: 8}, pi: 1e-2, note: [null, true, x]}
"""

NASTY = (
    *(
        "on",
        "no",
        "yes",
        "null",
        "~",
        "true",
        "False",
        "1e3",
        "010",
        "12:30",
        "0x10",
        "0o7",
        "1_000",
        "+7",
        "-0",
        "1.0",
    ),
    *(
        "0",
        "-1",
        "2147483647",
        "2147483648",
        "1" + "0" * 30,
        "9" * 5000,
        "3.5",
        ".nan",
        ".inf",
        "nan",
        "1e999",
        "=",
        "<<",
    ),
    *(
        '"7"',
        "'on'",
        '""',
        '"\\0"',
        '"\\x1b[31m"',
        '"\\ud83d"',
        "'",
        '"',
        "`",
        "@",
        "%",
        "!x y",
        "&a",
        "*a",
        "|",
        ">",
        "?",
    ),
    *(
        "#",
        ",",
        ":",
        "-",
        "---",
        "...",
        "{",
        "}",
        "[",
        "]",
        "{}",
        "[]",
        "[[]]",
        "{a: }",
        "- - a",
        "a: b: c",
        "\t",
        "é",
        "模",
    ),
    *(
        "\U0001f600",
        "\u2028",
        "\x85",
        "\x00",
        "\x1b",
        "\x7f",
        "\ufeff",
        "\ufffe",
        "x" * 101,
        "x" * 5000,
        "a b c",
        "(i j)",
        "(i)",
    ),
    *(
        "linear",
        "conv",
        "tt",
        "rank",
        "in",
        "out",
        "i1",
        "r1",
        "G1",
        "main",
        "tnmars",
        "__class__",
        "${x}",
        "{{x}}",
        "../x",
    ),
)
SIZES = ("0", "-1", "1", "2147483647", "2147483648", str(2**63), "1" + "0" * 30, "7.0", "1e9", "'4'", "true", "x")

_TOKEN = re.compile(r"[A-Za-z0-9_.]+|\s+|.", re.DOTALL)
_NUMBER = re.compile(r"(?<=[ \[])\d+(?=[ ,\]}\n])")
_KEY = re.compile(r"(?m)(^ *|[{,] ?)([A-Za-z_]\w*)(?=:)")


def sources() -> list[str]:
    """The good texts: every example file, and a few with what those lack."""
    return [*(path.read_text(encoding="utf-8") for path in SPECS), *EMBEDDED.split("=====\n")]


def mutations(start: int, end: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """The spoiled texts with these numbers, each with what was done to it; the same for the same number and seed."""
    texts = sources()
    for at in range(start, end):
        rng = random.Random(f"{seed} {at}")
        data = rng.choice(texts).encode()
        done = []
        for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
            change = rng.choice(CHANGES)
            data = change(data, rng)[:1_200_000]
            done.append(change.__name__)
        yield f"{at} {'+'.join(done)}", data


def _span(data: bytes | str, rng: random.Random, most: int = 20) -> tuple[int, int]:
    start = rng.randint(0, len(data))
    return start, min(len(data), start + rng.randint(1, most))


def flip_bits(data: bytes, rng: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if found:
            found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def insert_bytes(data: bytes, rng: random.Random) -> bytes:
    at, _ = _span(data, rng)
    return data[:at] + rng.randbytes(rng.randint(1, 8)) + data[at:]


def delete_bytes(data: bytes, rng: random.Random) -> bytes:
    start, end = _span(data, rng)
    return data[:start] + data[end:]


def cut_off(data: bytes, rng: random.Random) -> bytes:
    return data[: _span(data, rng)[0]]


def change_lines(data: bytes, rng: random.Random) -> bytes:
    """Deletes, doubles, swaps or indents a line."""
    lines = data.split(b"\n")
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    what = rng.randrange(5)
    if what == 0:
        del lines[a]
    elif what == 1:
        lines.insert(b, lines[a])
    elif what == 2:
        lines[a], lines[b] = lines[b], lines[a]
    elif what == 3:
        lines[a] = b" " * rng.randint(1, 5) + lines[a]
    else:
        lines[a] = lines[a].lstrip()
    return b"\n".join(lines)


def change_tokens(data: bytes, rng: random.Random) -> bytes:
    """Deletes, doubles or swaps tokens, or puts another one in their place."""
    tokens = _TOKEN.findall(data.decode("utf-8", "replace")) or [""]
    a, b = rng.randrange(len(tokens)), rng.randrange(len(tokens))
    what = rng.randrange(4)
    if what == 0:
        del tokens[a]
    elif what == 1:
        tokens.insert(b, tokens[a])
    elif what == 2:
        tokens[a], tokens[b] = tokens[b], tokens[a]
    else:
        tokens[a] = rng.choice(tokens)
    return "".join(tokens).encode()


def nasty_scalar(data: bytes, rng: random.Random) -> bytes:
    """Puts a nasty scalar in the place of a word."""
    tokens = _TOKEN.findall(data.decode("utf-8", "replace")) or [""]
    words = [at for at, token in enumerate(tokens) if re.match(r"\w", token)] or [0]
    tokens[rng.choice(words)] = rng.choice(NASTY)
    return "".join(tokens).encode("utf-8", "replace")


def change_type(data: bytes, rng: random.Random) -> bytes:
    """Wraps a value in a list or a table, or takes brackets off."""
    text = data.decode("utf-8", "replace")
    values = list(re.finditer(r"(?<=: )(\w+|\[[^\[\]]*\]|\{[^{}]*\})", text))
    if not values:
        return data
    found = rng.choice(values)
    value = found.group()
    bare = value.strip("[]{}")
    new = rng.choice(
        (f"[{value}]", f"{{a: {value}}}", bare, f"[{bare}]", f"{{{bare}}}", f"'{bare}'", "", "null", "[[[]]]")
    )
    return (text[: found.start()] + new + text[found.end() :]).encode()


def change_size(data: bytes, rng: random.Random) -> bytes:
    text = data.decode("utf-8", "replace")
    numbers = list(_NUMBER.finditer(text))
    if not numbers:
        return data
    found = rng.choice(numbers)
    return (text[: found.start()] + rng.choice(SIZES) + text[found.end() :]).encode()


def change_key(data: bytes, rng: random.Random) -> bytes:
    """Renames a key: to another of the file, to a nasty one, by a slip, or to a merge key."""
    text = data.decode("utf-8", "replace")
    keys = list(_KEY.finditer(text))
    if not keys:
        return data
    found = rng.choice(keys)
    name = found.group(2)
    new = rng.choice(
        (rng.choice(keys).group(2), rng.choice(NASTY), name[:-1], name + "s", f'"{name}"', "<<", f"? {name}\n")
    )
    return (text[: found.start(2)] + new + text[found.end(2) :]).encode("utf-8", "replace")


def nest(data: bytes, rng: random.Random) -> bytes:
    """Puts many brackets around something, or many levels of indentation before it."""
    start, end = _span(data, rng)
    depth = rng.choice((5, 31, 33, 1000, 100_000))
    opening, closing = rng.choice(((b"[", b"]"), (b"{a: ", b"}"), (b"- ", b""), (b"? ", b"")))
    return data[:start] + opening * depth + data[start:end] + closing * depth + data[end:]


CHANGES = (
    *(flip_bits, insert_bytes, delete_bytes, cut_off, change_lines, change_tokens, nasty_scalar, nasty_scalar),
    *(change_type, change_type, change_size, change_size, change_key, change_key, nest),
)


def _flow(entries: Sequence[str] | Iterator[str]) -> str:
    return ", ".join(entries)


def _names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{at}" for at in range(1, count + 1)]


def _with_sizes(names: Sequence[str], size: int | str = 1) -> str:
    return "{" + _flow(f"{name}: {size}" for name in names) + "}"


def _family(family: str, *rows: str, kind: str = "tensor") -> str:
    return "\n".join(("tnmars: 1", f"kind: {kind}", f"family: {family}", *rows, ""))


def _explicit(modes: str, *rows: str, kind: str = "tensor") -> str:
    return "\n".join(("tnmars: 1", f"kind: {kind}", f"modes: {modes}", *rows, ""))


def _ones(count: int, size: int = 1) -> str:
    return f"[{_flow([str(size)] * count)}]"


def _laughs() -> str:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{at}: &a{at} [{_flow([f'*a{at - 1}'] * 9)}]" for at in range(1, 40)]
    return "\n".join(rows)


def _alike(count: int, first: str) -> list[str]:
    """Long names that differ in a few letters: the worst case of a search for the nearest one."""
    return [first + "a" * 88 + format(at, "010b").translate({48: "a", 49: "b"}) for at in range(count)]


BOMBS: dict[str, str | bytes] = {
    "billion_laughs": _laughs(),
    "alias_loop": "a: &a [*a]\nb: &b {c: *b}\n",
    "merge_loop": "a: &a\n  <<: *a\n",
    "aliases": "a: [" + _flow(["*a"] * 9000) + "]",
    "anchors": "a: [" + _flow(f"&a{at} x" for at in range(9000)) + "]",
    "brackets": "[" * 1_000_000,
    "braces": "{" * 1_000_000,
    "brace_keys": "{a: " * 250_000,
    "dashes": "- " * 500_000,
    "question_marks": "? " * 500_000,
    "colons": ": " * 500_000,
    "one_scalar": "a" * 1_000_000,
    "one_quoted": '"' + "\\x41" * 249_000 + '"',
    "one_block_scalar": "a: |\n" + " x\n" * 330_000,
    "one_long_key": "? " + "a" * 900_000 + "\n: 1\n",
    "one_long_kind": "tnmars: 1\nkind: " + "linear" * 150_000,
    "one_long_size": _explicit("{free: {n: " + "9" * 900_000 + "}}", "cores: {A: [n]}"),
    "one_long_float": _explicit("{free: {n: 0." + "9" * 900_000 + "}}", "cores: {A: [n]}"),
    "long_names": "tnmars: 1\nkind: tensor\n" + "\n".join(f"? {'modes' * 1000}{at}\n: 1" for at in range(190)),
    "comments": "# x\n" * 249_000,
    "blank_lines": "\n" * 1_000_000,
    "spaces": " " * 1_000_000,
    "tabs": "\t" * 1_000_000,
    "returns": "\r" * 1_000_000,
    "deep_indents": "".join(f"{' ' * at}a:\n" for at in range(1400)),
    "directives": "".join(f"%TAG !a{at}! b\n" for at in range(60_000)) + "--- a\n",
    "documents": "--- a\n" * 160_000,
    "too_many_bytes": "# " + "x" * 1_100_000,
    "too_many_nodes": "a: " + _ones(11_000),
    "zero_bytes": b"\x00" * 1_000_000,
    "high_bytes": b"\xff" * 1_000_000,
    "utf16": "tnmars: 1\n".encode("utf-16"),
    "unknown_keys": "tnmars: 1\nkind: linear\n" + "".join(f"key{at}: 1\n" for at in range(4990)),
    "similar_keys": "tnmars: 1\nkind: map\n" + "".join(f"kernel_size{at}: 1\n" for at in range(4990)),
    "duplicate_keys": "tnmars: 1\nkind: linear\n" + "name: x\n" * 4990,
    "unknown_params": _explicit(f"{{free: {_with_sizes(_names('n', 4990), 'rank')}}}"),
    "many_params": "tnmars: 1\nkind: tensor\nparams: " + _with_sizes(_names("p", 4990)),
    "many_cores": _explicit("{free: {n: 2}}", f"cores: {{{_flow(f'{name}: []' for name in _names('G', 4990))}}}"),
    "many_loose_cores": _explicit(
        f"{{free: {_with_sizes(_names('n', 1990))}}}",
        f"cores: {{{_flow(f'G{name}: [{name}]' for name in _names('n', 1990))}}}",
    ),
    "many_edges": _explicit(
        f"{{free: {_with_sizes(_names('n', 3300))}}}", f"cores: {{G: [{_flow(_names('n', 3300))}]}}"
    ),
    "many_undeclared": _explicit("{free: {n: 2}}", f"cores: {{G: [n, {_flow(_names('x', 9000))}]}}"),
    "many_alike": _explicit(f"{{free: {_with_sizes(_alike(300, 'a'))}}}", f"cores: {{G: [{_flow(_alike(300, 'b'))}]}}"),
    "many_repeats": _explicit("{free: {n: 2}}", f"cores: {{G: [{_flow(['n'] * 9000)}]}}"),
    "huge_core": _explicit(
        f"{{free: {_with_sizes(_names('n', 3300), 2147483647)}}}", f"cores: {{G: [{_flow(_names('n', 3300))}]}}"
    ),
    "huge_patch": _explicit(
        f"{{patch: {_with_sizes(_names('n', 3000), 2147483647)}, out: {{o: 1}}}}",
        f"cores: {{G: [o, {_flow(_names('n', 3000))}]}}",
        "kernel_size: [3, 3]",
        kind="conv",
    ),
    "huge_kernel": _explicit(
        f"{{in: {{i: 1}}, kernel: {_with_sizes(_names('n', 3000), 2147483647)}, out: {{o: 1}}}}",
        f"cores: {{G: [o, i, {_flow(_names('n', 3000))}]}}",
        "kernel_size: [3, 3]",
        kind="conv",
    ),
    "huge_lookup": _explicit(
        f"{{lookup: {_with_sizes(_names('n', 3000), 2147483647)}, out: {{o: 1}}}}",
        f"cores: {{G: [o, {_flow(_names('n', 3000))}]}}",
        "options: {padding_idx: -5}",
        "vocab: 2147483647",
        kind="embedding",
    ),
    "huge_copies": _explicit("{free: {n: 2}}", "terms: {t: {copies: 2147483647, cores: {A: [n]}}}"),
    "wide_copies": _explicit(
        f"{{free: {_with_sizes(_names('n', 3000))}}}",
        f"terms: {{t: {{copies: 6000, cores: {{G: [{_flow(_names('n', 3000))}]}}}}}}",
    ),
    "many_copies": _explicit("{free: {n: 2}}", "terms: {t: {copies: 9990, cores: {A: [n]}}}"),
    "many_terms": _explicit(
        "{free: {n: 2}}", f"terms: {{{_flow(f't{at}: {{cores: {{A: [n]}}}}' for at in range(1400))}}}"
    ),
    "many_axes": "tnmars: 1\nkind: map\nmodes: {in: {i: 2}}\ncores: {A: [i]}\noutput: [b]\n"
    f"inputs: {{x: [i, b, {_flow(_names('n', 9000))}]}}\n",
    "flattened": "tnmars: 1\nkind: map\nmodes: {in: {i: 2}}\ncores: {A: [i]}\noutput: [b]\n"
    f"inputs: {{x: [i, b, ({' '.join(_names('n', 90_000))})]}}\n",
    "broken_flattened": "tnmars: 1\nkind: map\nmodes: {in: {i: 2}}\ncores: {A: [i]}\noutput: [b]\n"
    f"inputs: {{x: [i, b, ({' '.join(_names('n', 90_000))} !)]}}\n",
    "complete": _family("complete", f"free: {_ones(5000)}", "rank: 2"),
    "complete_cycles": _family("complete", f"free: {_ones(20, 9)}", "rank: 1"),
    "complete_wide": _family("complete", f"free: {_ones(20, 9)}", "rank: 3"),
    "complete_refused": _family("complete", f"free: {_ones(140, 2)}", "rank: 2"),
    "btd_terms": _family("btd", "free: [2, 3]", "rank: 2", "terms: 1000000000"),
    "btd_many": _family("btd", "free: [2, 3]", "rank: 2", "terms: 1990"),
    "btd_ranks": _family("btd", "free: [2, 3]", f"ranks: [{_flow(['[2, 2]'] * 1990)}]"),
    "ht_flat_tree": _family("ht", f"free: {_ones(3000)}", f"tree: [{_flow(map(str, range(1, 3001)))}]", "rank: 1"),
    "ht_deep_tree": _family("ht", f"free: {_ones(30)}", "tree: " + "[1, " * 28 + "2" + "]" * 28, "rank: 1"),
    "ht_many": _family("ht", f"free: {_ones(9000)}", "rank: 1"),
    "ht_leaves": _family("ht", f"free: {_ones(3000)}", f"tree: [{_flow(['1'] * 6000)}]", "rank: 1"),
    "peps_huge_grid": _family("peps", "free: [2, 2]", f"grid: {_ones(8, 2147483647)}", "rank: 1"),
    "peps_line": _family("peps", f"free: {_ones(9000)}", "grid: [9000]", "rank: 1"),
    "peps_square": _family("peps", f"free: {_ones(9000)}", "grid: [90, 100]", "rank: 1"),
    "peps_allowed": _family("peps", f"free: {_ones(2400)}", "grid: [40, 60]", "rank: 1"),
    "btt_many": _family("btt", f"in: {_ones(4900)}", f"out: {_ones(4900)}", "rank: 1", kind="linear"),
    "lowrank_many": _family("lowrank", f"free: {_ones(9000)}", "rank: 1"),
    "cp_many": _family("cp", f"free: {_ones(4990)}", "rank: 1"),
    "tucker_many": _family("tucker", f"free: {_ones(3300, 2)}", "rank: 2"),
    "tt_many": _family("tt", f"free: {_ones(3330)}", f"ranks: {_ones(3329)}"),
    "tt_named_ranks": _family("tt", f"free: {_ones(3300)}", f"ranks: {_with_sizes(_names('r', 3299))}"),
    "tr_long": _family("tr", f"free: {_ones(199, 2)}", "rank: 2147483647"),
    "tt_naive_many": _family("tt_naive", f"free: {_ones(3300)}", "rank: 1", f"order: [{_flow(['free'] * 5000)}]"),
}
