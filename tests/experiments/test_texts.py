"""Texts become padded ids, and the networks that read them do not see the padding."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
import torch

from tnmars.errors import TnmarsError
from tnmars.experiments import readers, texts


def test_files_are_read_line_by_line(tmp_path: Path) -> None:
    raw = "1\tgood \u0085 film\n0\tbad\n"
    (tmp_path / "a.tsv").write_text(raw, encoding="utf-8")
    (tmp_path / "a.tsv.xz").write_bytes(lzma.compress(raw.encode()))
    for name in ("a.tsv", "a.tsv.xz"):
        found, labels = texts.read(tmp_path / name)
        assert (found, labels.tolist()) == (["good \u0085 film", "bad"], [1, 0])
    with pytest.raises(TnmarsError, match="does not exist"):
        texts.read(tmp_path / "b.tsv")
    (tmp_path / "b.tsv").write_text("nothing", encoding="utf-8")
    with pytest.raises(TnmarsError, match="without a tab"):
        texts.read(tmp_path / "b.tsv")


def test_the_vocabulary_is_capped_and_other_words_are_unknown() -> None:
    ids = texts.vocabulary([["a", "b", "c"], ["a", "b"], ["a"]], 4)
    assert texts.encoded([["a", "c", "b", "a"], []], ids, 3) == [[2, 1, 3], [1]]


def test_batches_hold_every_text_once() -> None:
    rows = [[at + 2] * (1 + at % 7) for at in range(50)]
    batches = list(texts.TextBatches(rows, torch.arange(50), 5))
    assert sorted(int(label) for _, labels in batches for label in labels) == list(range(50))
    for ids, labels in batches:
        assert ids[:, 0].tolist() == [int(label) + 2 for label in labels]
        assert ids.ne(0).sum(1).tolist() == [1 + int(label) % 7 for label in labels]


@pytest.mark.parametrize("make", [readers.sst_reader, readers.imdb_reader])
@pytest.mark.parametrize("rank", [3, None])
def test_padding_changes_no_answer(make: type, rank: int | None) -> None:
    model = make(rank).eval()
    ids = torch.tensor([[5, 17_000, 9], [7, 0, 0]])
    more = torch.cat((ids, torch.zeros(2, 4, dtype=torch.long)), 1)
    torch.testing.assert_close(model(more), model(ids))
    torch.testing.assert_close(model(ids[1:, :1]), model(ids)[1:])


@pytest.mark.parametrize("count", [3, 640, 1333])
def test_an_order_by_length_has_every_text_once_and_little_padding(count: int) -> None:
    lengths = torch.randint(1, 50, (count,)).tolist()
    found = texts.near_lengths(lengths, 16, torch.Generator().manual_seed(1))
    assert sorted(found.tolist()) == list(range(count))
    assert torch.equal(found, texts.near_lengths(lengths, 16, torch.Generator().manual_seed(1)))
    assert count < 16 or not torch.equal(found, texts.near_lengths(lengths, 16, torch.Generator().manual_seed(2)))
    if count > 100:
        batches = [[lengths[at] for at in part] for part in found.split(16)]
        padded = sum(len(part) * max(part) for part in batches)
        assert padded < 1.15 * sum(lengths), "unsorted it would be almost twice as much"
        firsts = [part[0] for part in batches[:20]]
        assert firsts != sorted(firsts), "batches are shuffled again"
