"""`pyg_direct.rank_links`: where links stand among all destinations, without all pairs at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.arguments import check_bytes, check_callable, check_count, check_ids, check_tensor

Score = Callable[[Tensor, Tensor], Tensor]
BYTES_PER_PAIR = 5  # of comparisons, beside the score itself


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
    the same source that is known to be right is no candidate. It is looked up in the sorted edges,
    and the scores that it had are taken off the counts.

    Args:
        source: [num_src, ...], a row of each source, as `pyg_direct.inference` returns them.
        destination: [num_dst, ...], a row of each destination.
        links: int64 [2, n], at least one: sources and their right destinations.
        known: int64 [2, E]: links that are right as well, in any order, also twice; those of
            `links` may be among them. Give the edges of training, validation and test together.
        score: called with the rows of b sources and of all destinations, on their device; returns
            [b, num_dst], larger for better. None: the inner product.
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
    per_link = num_dst * (destination.element_size() + BYTES_PER_PAIR)
    blocks = torch.split(links, max(1, memory_bytes // per_link), dim=1)
    with torch.no_grad():
        found = [
            _ranked(source, destination, block, codes, score or _inner_product) for block in blocks
        ]
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


def _inner_product(source: Tensor, destination: Tensor) -> Tensor:
    return source @ destination.T


def _checked(links: Tensor, name: str, num_src: int, num_dst: int) -> Tensor:
    """Return links as int64."""
    check_tensor(name, links)
    is_integer = not (links.is_floating_point() or links.is_complex() or links.dtype == torch.bool)
    if links.dim() != 2 or len(links) != 2 or not is_integer:
        raise ValueError(
            f"{name} must be integers of shape [2, n], got {links.dtype} of shape "
            f"{tuple(links.shape)}."
        )
    check_ids(links[0], num_src, f"sources of {name}")
    check_ids(links[1], num_dst, f"destinations of {name}")
    return links.to(torch.int64)
