"""Labeled texts from files, as token ids: lines `label<TAB>text`, a vocabulary by frequency, and batches."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from tnmars.errors import TnmarsError
from tnmars.experiments.idx import folder, unpacked

SST_VOCABULARY, IMDB_VOCABULARY = 17_200, 25_000
"""The paper's."""
PADDING, UNKNOWN = 0, 1
"""The ids of padding and of words that are not in the vocabulary."""
WORD = re.compile(r"[a-z0-9']+|[!?]")
SORTED = 20
"""This many shuffled batches are sorted by length together, so that little is padded."""


def read(path: Path) -> tuple[list[str], Tensor]:
    """The texts and labels of a file, which may be compressed (`.xz`). Raises `TnmarsError`."""
    if not path.exists():
        raise TnmarsError(f"{path} does not exist.")
    raw = unpacked(path) if path.suffix == ".xz" else path.read_bytes()
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TnmarsError(f"{path} is not a file of texts: {error}.") from None
    rows = [line.split("\t", 1) for line in text.split("\n") if line]  # not splitlines: reviews have U+0085
    if any(len(row) < 2 for row in rows):
        raise TnmarsError(f"{path} has a line without a tab; each line must be a label, a tab and a text.")
    return [words for _, words in rows], torch.tensor([int(label) for label, _ in rows])


def split(text: str) -> list[str]:
    """The tokens of a text that is tokenized already, in lower case.

    >>> split("It 's Good .")
    ['it', "'s", 'good', '.']
    """
    return text.lower().split()


def words(text: str) -> list[str]:
    """The words of a plain text, without markup and most punctuation, in lower case.

    >>> words("Great!<br />I've seen it.")
    ['great', '!', "i've", 'seen', 'it']
    """
    return WORD.findall(text.lower().replace("<br />", " "))


def vocabulary(texts: Iterable[Sequence[str]], size: int) -> dict[str, int]:
    """The id of each word, the most frequent first; of words that occur equally often, the first in the alphabet.

    >>> vocabulary([["b", "a", "b"], ["c"]], 4)
    {'b': 2, 'a': 3}
    """
    counts = Counter(word for text in texts for word in text)
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: at for at, word in enumerate(ordered[: size - 2], UNKNOWN + 1)}


def encoded(texts: Iterable[Sequence[str]], ids: dict[str, int], longest: int) -> list[list[int]]:
    """Texts as token ids, cut to the longest; an empty one is a single unknown word."""
    return [[ids.get(word, UNKNOWN) for word in text[:longest]] or [UNKNOWN] for text in texts]


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Token ids of shape (texts, length of the longest).

    >>> padded([[5, 6, 7], [8]])
    tensor([[5, 6, 7],
            [8, 0, 0]])
    """
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[PADDING] * (longest - len(row))] for row in rows])


def near_lengths(lengths: Sequence[int], size: int, random: torch.Generator) -> Tensor:
    """A random order of all texts in which those of a batch have similar lengths; only the last batch may be smaller.

    >>> near_lengths([3, 1, 3, 1, 2], 2, torch.Generator().manual_seed(0)).tolist()
    [4, 0, 1, 3, 2]
    """
    order = torch.randperm(len(lengths), generator=random)
    whole = len(order) - len(order) % size
    found = []
    for start in range(0, whole, SORTED * size):
        near = sorted(order[start : min(start + SORTED * size, whole)].tolist(), key=lambda at: lengths[at])
        batches = torch.tensor(near).reshape(-1, size)
        found.append(batches[torch.randperm(len(batches), generator=random)].flatten())
    return torch.cat([*found, order[whole:]])


class TextBatches:
    """Shuffled batches of texts of similar length and their labels, again and again."""

    def __init__(self, rows: Sequence[Sequence[int]], labels: Tensor, size: int):
        self.rows, self.labels, self.size = rows, labels, size

    def __len__(self) -> int:
        return len(self.rows) // self.size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.rows)).tolist()[: len(self) * self.size]
        for start in range(0, len(order), SORTED * self.size):
            near = sorted(order[start : start + SORTED * self.size], key=lambda at: len(self.rows[at]))
            for part in torch.randperm(len(near) // self.size).tolist():
                taken = near[part * self.size : (part + 1) * self.size]
                yield padded([self.rows[at] for at in taken]), self.labels[taken]


Part = tuple[list[list[int]], Tensor]
"""Token ids and labels."""


@cache
def sst(data: str | None = None) -> tuple[Part, Part, Part]:
    """SST-5: the official parts for training, validation and test. Raises `TnmarsError`."""
    parts = [read(folder(data) / "sst5" / f"{part}.tsv") for part in ("train", "dev", "test")]
    tokens = [[split(text) for text in own] for own, _ in parts]
    ids = vocabulary(tokens[0], SST_VOCABULARY)
    train, held, test = ((encoded(own, ids, 256), labels) for own, (_, labels) in zip(tokens, parts, strict=True))
    return train, held, test


@cache
def imdb(data: str | None = None, longest: int = 200) -> tuple[Part, Part, Part]:
    """IMDB, reviews cut to their first words. A fifth of the official training part is for validation.

    It is split off by a fixed permutation. Raises `TnmarsError`.
    """
    parts = [read(folder(data) / "imdb" / f"{part}.tsv.xz") for part in ("train", "test")]
    tokens = [[words(text) for text in own] for own, _ in parts]
    (known, labels), (tested, test_labels) = ((own, labels) for own, (_, labels) in zip(tokens, parts, strict=True))
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(0)).tolist()
    kept, held = order[len(order) // 5 :], order[: len(order) // 5]
    ids = vocabulary((known[at] for at in kept), IMDB_VOCABULARY)
    rows = encoded(known, ids, longest)
    train, valid = (([rows[at] for at in part], labels[part]) for part in (kept, held))
    return train, valid, (encoded(tested, ids, longest), test_labels)
