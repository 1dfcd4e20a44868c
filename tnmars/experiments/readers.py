"""Networks that classify texts by a table of word vectors, dense or a tensor train: SST-5 with an LSTM, IMDB with a bag
of words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from tnmars import families
from tnmars.compiler import compile_quietly as compile
from tnmars.experiments.texts import IMDB_VOCABULARY, PADDING, SST_VOCABULARY
from tnmars.graph import Graph

WIDTH = 256
RANK = 16
SST_SHAPES = {
    3: ((24, 25, 30), (4, 8, 8)),
    4: ((10, 12, 10, 15), (4, 4, 4, 4)),
    6: ((4, 5, 5, 6, 5, 6), (2, 2, 2, 4, 2, 4)),
}
IMDB_SHAPES = {6: ((5, 5, 5, 6, 5, 8), (2, 2, 2, 4, 2, 4))}
"""The paper's shapes of rows and columns, by the number of cores; the rows are padded to their product."""


def sst_table(rank: int | Sequence[int] = RANK, cores: int = 4) -> Graph:
    """The paper's trains for SST-5.

    >>> from tnmars.graph import counts
    >>> [round(counts.count(sst_table(cores=cores)).compression, 2) for cores in (3, 4, 6)]
    [77.83, 182.49, 307.14]
    """
    return _table(SST_VOCABULARY, SST_SHAPES[cores], rank, {})


def imdb_table(rank: int | Sequence[int] = RANK, cores: int = 6, mode: str | None = "mean") -> Graph:
    """The paper's train for IMDB, by default as a bag that takes the mean of its rows.

    >>> from tnmars.graph import counts
    >>> round(counts.count(imdb_table()).compression, 2)
    441.5
    """
    return _table(IMDB_VOCABULARY, IMDB_SHAPES[cores], rank, {} if mode is None else {"mode": mode})


def _table(
    vocabulary: int, shape: tuple[Sequence[int], Sequence[int]], rank: int | Sequence[int], more: Mapping[str, object]
) -> Graph:
    ranks = [rank] * (len(shape[0]) - 1) if isinstance(rank, int) else list(rank)
    options: dict[str, object] = {"padding_idx": PADDING, **more}
    return families.tt("embedding", lookup=shape[0], outputs=shape[1], vocab=vocabulary, options=options, ranks=ranks)


class Sentences(nn.Module):
    """A bidirectional LSTM over word vectors; its last states, after dropout, are classified.

    With several layers there is dropout between them too.
    """

    def __init__(self, embedding: nn.Module, classes: int = 5, hidden: int = 64, dropout: float = 0.5, depth: int = 1):
        super().__init__()
        self.embedding = embedding
        between = dropout if depth > 1 else 0.0
        self.lstm = nn.LSTM(WIDTH, hidden, depth, batch_first=True, bidirectional=True, dropout=between)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(2 * hidden, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """From ids of shape (texts, tokens), padded at the end, to logits."""
        lengths = ids.ne(PADDING).sum(1)
        packed = pack_padded_sequence(self.embedding(ids), lengths, batch_first=True, enforce_sorted=False)
        _, (last, _) = self.lstm(packed)
        logits: Tensor = self.head(self.dropout(torch.cat((last[-2], last[-1]), 1)))
        return logits


def sst_reader(rank: int | None = RANK) -> Sentences:
    """The network for SST-5; a rank of None means a dense table."""
    if rank is None:
        return Sentences(nn.Embedding(SST_VOCABULARY, WIDTH, padding_idx=PADDING))
    return Sentences(compile(sst_table(rank), batch=1024))


class Bags(nn.Module):
    """The mean of word vectors, a hidden layer and two classes."""

    def __init__(self, embedding: nn.Module, hidden: int = 64):
        super().__init__()
        self.embedding = embedding
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(WIDTH, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def forward(self, ids: Tensor) -> Tensor:
        """From ids of shape (texts, tokens) to logits."""
        logits: Tensor = self.rest(self.embedding(ids))
        return logits


def imdb_reader(rank: int | None = RANK) -> Bags:
    """The network for IMDB; a rank of None means a dense table."""
    if rank is None:
        return Bags(nn.EmbeddingBag(IMDB_VOCABULARY, WIDTH, padding_idx=PADDING, mode="mean"))
    return Bags(compile(imdb_table(rank), batch=4096))
