"""`pyg_direct.rank_links`: where links stand among all destinations, without all pairs at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.arguments import (
    check_bytes,
    check_callable,
    check_count,
    check_ids,
    shown,
)

Score = Callable[[Tensor, Tensor], Tensor]
BYTES_PER_PAIR = 5  # of comparisons, beside the score itself
ROWS_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class LinkRanks:
    """What `pyg_direct.rank_links` found.

    Attributes:
        rank: float64 [links], from 1 on, of each link's destination among its candidates. Of t
            destinations with equal scores each has the mean of their t ranks.
        candidates: int64 [links], how many destinations stood for choice, its own among them.

    Example:
        >>> ranks = pyg_direct.rank_links(data.x, data.x, data.edge_index[:, :50])
        >>> 0 <= ranks.mrr() <= ranks.hits(300) <= 1.0
        True
    """

    rank: Tensor
    candidates: Tensor

    def mrr(self) -> float:
        """Return the mean of 1 / rank."""
        return float(self.rank.reciprocal().mean())

    def hits(self, k: int) -> float:
        """Return the share of links whose rank is at most `k`."""
        check_count("k", k, least=1)
        return float((self.rank <= k).to(torch.float64).mean())


def rank_links(
    source: Tensor,
    destination: Tensor,
    links: Tensor,
    known: Tensor | None = None,
    *,
    score: Score | None = None,
    memory_bytes: int = 1 << 28,
) -> LinkRanks:
    """Rank the destination of each link among all destinations, by the scores of a model.

    As many links are scored at a time as `memory_bytes` hold rows of scores, so no matrix of all
    pairs is made. With `known`, ranks are those of the filtered setting (Bordes et al.,
    "Translating Embeddings for Modeling Multi-relational Data", NIPS 2013): another destination of
    the same source that is known to be right is not a candidate. It is looked up in the sorted
    edges, and its scores are taken off the counts.

    Args:
        source: [num_src, ...], a row of each source, as `pyg_direct.inference` returns them.
        destination: [num_dst, ...], a row of each destination.
        links: int64 [2, n], at least one: sources and their right destinations.
        known: int64 [2, E]: links that are right as well, in any order, also twice; those of
            `links` may be among them. Give the edges of training, validation and test together.
        score: called with the rows of b sources and of all destinations, on their device; returns
            [b, num_dst], larger for better, and the same number for destinations that are to be
            ties. None: the inner product, in which equal rows are.
        memory_bytes: for scores and their comparisons; at least one link is scored at a time.

    Raises:
        ValueError: no links, tensors of other shapes, or scores that are not finite.
        IndexError: ids out of range.

    Example:
        >>> out = pyg_direct.inference(model, data)
        >>> links = data.edge_index[:, :100]
        >>> ranks = pyg_direct.rank_links(out, out, links, known=data.edge_index)
        >>> ranks.rank.shape, bool((ranks.candidates <= 300).all())
        (torch.Size([100]), True)
    """
    memory_bytes = check_bytes("memory_bytes", memory_bytes) or 0
    check_callable("score", score)
    for name, rows in (("source", source), ("destination", destination)):
        if not isinstance(rows, Tensor) or rows.dim() == 0:
            raise TypeError(f"{name} must be a tensor with a row for each node, got {shown(rows)}.")
    if score is None and source.shape[1:] != destination.shape[1:]:
        raise ValueError(
            f"Rows of source have the shape {tuple(source.shape[1:])}, and rows of destination "
            f"{tuple(destination.shape[1:])}. Give rows of one shape, or a score= of both."
        )
    num_src, num_dst = len(source), len(destination)
    links = _checked(links, "links", num_src, num_dst).to(source.device)
    if links.shape[1] == 0:
        raise ValueError("links is empty: there is nothing to rank.")
    codes = None
    if known is not None:
        known = _checked(known, "known", num_src, num_dst).to(source.device)
        codes = torch.unique(known[0] * num_dst + known[1])
    score = _products_with(destination) if score is None else score
    per_link = num_dst * (destination.element_size() + BYTES_PER_PAIR)
    blocks = torch.split(links, max(1, memory_bytes // per_link), dim=1)
    with torch.no_grad():
        found = [_ranked(source, destination, block, codes, score) for block in blocks]
    rank, candidates = (torch.cat(part).cpu() for part in zip(*found, strict=True))
    return LinkRanks(rank, candidates)


def _ranked(
    source: Tensor, destination: Tensor, block: Tensor, codes: Tensor | None, score: Score
) -> tuple[Tensor, Tensor]:
    """Return ranks and numbers of candidates of some links, whose scores are freed with this call.

    Args:
        source, destination, score: as given to `rank_links`.
        block: int64 [2, b], links.
        codes: of the known links, see `_known_to`; None for none.
    """
    (row, col), num_dst = block, len(destination)
    scores = score(source[row], destination)
    if scores.shape != (len(row), num_dst):
        raise ValueError(
            f"score must return one number for each of {len(row)} sources and {num_dst} "
            f"destinations, got a tensor of shape {tuple(scores.shape)}."
        )
    if not all(bool(bound.isfinite().all()) for bound in scores.aminmax(dim=1)):
        raise ValueError("Scores must be finite: among those of a block are inf or NaN.")
    own = scores.gather(1, col[:, None])
    better, equal = _count(scores > own), _count(scores == own) - 1
    candidates = torch.full_like(row, num_dst)
    if codes is not None:
        link, other = _known_to(codes, row, num_dst)
        kept = other != col[link]  # the link itself stays
        link, other = link[kept], other[kept]
        theirs, ones = scores[link, other], torch.ones_like(link)
        candidates.index_add_(0, link, ones, alpha=-1)
        better.index_add_(0, link, (theirs > own[link, 0]).to(better.dtype), alpha=-1)
        equal.index_add_(0, link, (theirs == own[link, 0]).to(equal.dtype), alpha=-1)
    return 1.0 + better.to(torch.float64) + equal.to(torch.float64) / 2, candidates


def _count(found: Tensor) -> Tensor:
    """Return how many entries of each row are True, int64 [b]; torch counts faster in 32 bits."""
    dtype = torch.int32 if found.shape[1] < 2**31 else torch.int64
    return found.sum(1, dtype=dtype).to(torch.int64)


def _known_to(codes: Tensor, row: Tensor, num_dst: int) -> tuple[Tensor, Tensor]:
    """Return the known destinations of sources.

    Args:
        codes: int64, source * num_dst + destination of each known link, sorted, each once.
        row: int64 [b], sources.
        num_dst: the number of destinations.

    Returns:
        int64 [found] each: the position of the source in `row`, and a destination.

    With num_dst = 10, codes = [3, 12, 15, 21] and row = [1, 2, 1], the lists of source 1 are codes
    1 to 2 and that of source 2 is code 3: positions [0, 0, 1, 2, 2], destinations [2, 5, 1, 2, 5].
    """
    first = torch.searchsorted(codes, row * num_dst)
    count = torch.searchsorted(codes, (row + 1) * num_dst) - first
    link = torch.arange(len(row), device=row.device).repeat_interleave(count)
    begin = (count.cumsum(0) - count)[link]
    position = torch.arange(len(link), device=row.device) - begin + first[link]
    return link, codes[position] - row[link] * num_dst


def _products_with(destination: Tensor) -> Score:
    """Return the inner product, which is the same number for equal rows of `destination`.

    Of a matrix product, entries of equal rows may differ in the last digit, by where they stand.
    """
    kept, place = _distinct_rows(destination)
    if len(kept) == len(destination):
        return lambda source, rows: source @ rows.T
    return lambda source, rows: (source @ rows[kept].T)[:, place]


def _distinct_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return one place of each different row, int64 [d], and which of these each is, int64 [n].

    Rows are told by 64 bits of each, and compared entry by entry with the one that they go by.
    """
    flat = rows.detach().reshape(len(rows), -1)
    own = torch.Generator().manual_seed(0)
    odd = torch.randint(1 << 62, (flat.shape[1],), generator=own).to(flat.device) * 2 + 1
    codes = torch.empty(len(flat), dtype=torch.int64, device=flat.device)
    for first in range(0, len(flat), ROWS_AT_ONCE):
        part = slice(first, first + ROWS_AT_ONCE)
        bits = (flat[part].to(torch.float64) + 0.0).view(torch.int64)  # of -0.0 as of 0.0
        codes[part] = ((bits ^ (bits >> 31)) * odd).sum(1)
    distinct, place = torch.unique(codes, return_inverse=True)
    every = torch.arange(len(flat), device=flat.device)
    kept = torch.empty_like(distinct).index_copy_(0, place, every)
    for places in torch.split(every, ROWS_AT_ONCE):
        if not torch.equal(flat[places], flat[kept[place[places]]]):  # two rows of the same bits
            return every, every
    return kept, place


def _checked(links: Tensor, name: str, num_src: int, num_dst: int) -> Tensor:
    """Return links as int64."""
    if not isinstance(links, Tensor):
        raise TypeError(f"{name} must be a tensor of shape [2, n], got {shown(links)}.")
    is_integer = not (links.is_floating_point() or links.is_complex() or links.dtype == torch.bool)
    if links.dim() != 2 or len(links) != 2 or not is_integer:
        raise ValueError(
            f"{name} must be integers of shape [2, n], got {links.dtype} of shape "
            f"{tuple(links.shape)}."
        )
    check_ids(links[0], num_src, f"sources of {name}")
    check_ids(links[1], num_dst, f"destinations of {name}")
    return links.to(torch.int64)
