"""Networks that classify texts by a table of word vectors, dense or a tensor train: SST-5 with an LSTM, IMDB with a bag
of words."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from tnmars import families
from tnmars.compiler import compile
from tnmars.experiments.texts import PADDING
from tnmars.graph import Graph

WIDTH = 256
RANK = 16
SST_VOCABULARY, SST_ROWS, SST_COLUMNS = 17_200, (10, 12, 10, 15), (4, 4, 4, 4)
IMDB_VOCABULARY, IMDB_ROWS, IMDB_COLUMNS = 25_000, (5, 5, 5, 6, 5, 8), (2, 2, 2, 4, 2, 4)
"""The paper's shapes; the rows of the trains are padded to their product."""


def sst_table(rank: int = RANK) -> Graph:
    """The paper's train for SST-5.

    >>> from tnmars.graph import counts
    >>> round(counts.count(sst_table()).compression, 2)
    182.49
    """
    options = {"padding_idx": PADDING}
    return families.tt(
        "embedding", lookup=SST_ROWS, outputs=SST_COLUMNS, vocab=SST_VOCABULARY, options=options, rank=rank
    )


def imdb_table(rank: int = RANK) -> Graph:
    """The paper's train for IMDB, as a bag that takes the mean of its rows.

    >>> from tnmars.graph import counts
    >>> round(counts.count(imdb_table()).compression, 2)
    441.5
    """
    options: dict[str, object] = {"padding_idx": PADDING, "mode": "mean"}
    return families.tt(
        "embedding", lookup=IMDB_ROWS, outputs=IMDB_COLUMNS, vocab=IMDB_VOCABULARY, options=options, rank=rank
    )


class Sentences(nn.Module):
    """A bidirectional LSTM over word vectors; its last states, after dropout, are classified."""

    def __init__(self, embedding: nn.Module, classes: int = 5, hidden: int = 64, dropout: float = 0.5):
        super().__init__()
        self.embedding = embedding
        self.lstm = nn.LSTM(WIDTH, hidden, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(2 * hidden, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """From ids of shape (texts, tokens), padded at the end, to logits."""
        lengths = ids.ne(PADDING).sum(1)
        packed = pack_padded_sequence(self.embedding(ids), lengths, batch_first=True, enforce_sorted=False)
        _, (last, _) = self.lstm(packed)
        logits: Tensor = self.head(self.dropout(torch.cat((last[0], last[1]), 1)))
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
