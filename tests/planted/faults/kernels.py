"""Faults in the CPU's kernels."""

from __future__ import annotations

from ..fault import Fault

AGGREGATE = "pyg_direct/kernels/aggregate.py"
ALIAS = "pyg_direct/kernels/alias.py"
BOUNDS = "pyg_direct/kernels/bounds.py"
BUDGET = "pyg_direct/kernels/budget.py"
DECODE = "pyg_direct/kernels/decode.py"
EMIT = "pyg_direct/kernels/emit.py"
EXCLUDE = "pyg_direct/kernels/exclude.py"
GAPS = "pyg_direct/kernels/gaps.py"
GATHER = "pyg_direct/kernels/gather.py"
GROUPS = "pyg_direct/kernels/groups.py"
HOPS = "pyg_direct/kernels/hops.py"
JIT = "pyg_direct/kernels/jit.py"
LABOR = "pyg_direct/kernels/labor.py"
MEMBERS = "pyg_direct/kernels/members.py"
ORDERING = "pyg_direct/kernels/ordering.py"
PAGES = "pyg_direct/kernels/pages.py"
PHILOX = "pyg_direct/kernels/philox.py"
POWER = "pyg_direct/kernels/power_law.py"
REDUCE = "pyg_direct/kernels/reduce.py"
RELABEL = "pyg_direct/kernels/relabel.py"
SAMPLE = "pyg_direct/kernels/sample.py"
SORT = "pyg_direct/kernels/counting_sort.py"
TEMPORAL = "pyg_direct/kernels/temporal.py"
TRAVERSE = "pyg_direct/kernels/traverse.py"
WALK = "pyg_direct/kernels/walk.py"
WEIGHTED = "pyg_direct/kernels/weighted.py"

PRODUCTS = "tests/unit/ops/test_products.py"
TABLES = "tests/unit/graph/test_weights.py tests/loader/test_weighted.py"
CPU = "tests/unit/ops/cpu/test_backend.py"
EXCLUDING = "tests/unit/ops/cpu/test_excluded_edges.py tests/loader/test_exclude_seed_edges.py"
WALKS = "tests/unit/loaders/test_walks.py tests/statistics/test_family_laws.py"
TIMES = (
    "tests/kernels/test_temporal.py tests/loader/test_time_window.py tests/loader/test_temporal.py"
)
LAWS = "tests/kernels/test_philox.py tests/statistics/test_statistics.py"
SORTING = "tests/unit/graph/test_coo_to_csc.py"
OF_BOUNDS = "tests/kernels/test_bounds.py"
PUSH = "pyg_direct/kernels/push.py"
OF_PAGERANK = "tests/unit/loaders/test_pagerank.py"

FAULTS = [
    Fault(
        "PageRank: mass that cannot go on is lost",
        PUSH,
        "        for e in range(first, max(last, first + 1)):",
        "        for e in range(first, last):",
        OF_PAGERANK,
    ),
    Fault(
        "PageRank: scores do not count what is on its way",
        PUSH,
        "found = mass[u, 0] + alpha * mass[u, 1]",
        "found = mass[u, 0]",
        OF_PAGERANK,
    ),
    Fault(
        "PageRank: of equal scores the last node found comes first",
        PUSH,
        "found > score[i, j - 1]",
        "found >= score[i, j - 1]",
        OF_PAGERANK,
    ),
    Fault(
        "PageRank: the table of a seed's nodes is not cleared for the next",
        PUSH,
        "        clear_table(node, count, keys, np.uint64(shift))",
        "        clear_table(node, 0, keys, np.uint64(shift))",
        OF_PAGERANK,
    ),
    Fault(
        "the transpose of a matrix has its positions one off",
        AGGREGATE,
        "                out_position[at] = e\n",
        "                out_position[at] = at\n",
        "tests/unit/ops/test_products.py::test_transposes_agree",
    ),
    Fault(
        "a mean over one entry less",
        AGGREGATE,
        "if mean and count > 1:",
        "if mean and count > 2:",
        PRODUCTS,
    ),
    Fault(
        "shares above a half lose their sign and with it their precision",
        ALIAS,
        "    return kept - 1.0\n",
        "    return kept\n",
        "tests/unit/graph/test_weights.py::test_alias_tables_do_not_add_up_roundings",
    ),
    Fault(
        "a heavy edge that has become light is not topped up",
        ALIAS,
        "                light = heavy\n                heavy = next_heavy",
        "                heavy = next_heavy",
        TABLES,
    ),
    Fault(
        "a weight far below the largest becomes 0",
        ALIAS,
        "weight[p] = max(math.ldexp(weight[p], -exponent), SMALLEST)",
        "weight[p] = math.ldexp(weight[p], -exponent)",
        TABLES,
    ),
    Fault(
        "an id that is just too large is taken for one",
        BOUNDS,
        "if ids[i] < 0 or ids[i] >= end:",
        "if ids[i] < 0 or ids[i] > end:",
        OF_BOUNDS,
    ),
    Fault(
        "a list that ends behind its edges is read",
        BOUNDS,
        "degree[item] > end - start[item]:",
        "degree[item] > end:",
        OF_BOUNDS,
    ),
    Fault(
        "an alias table that gives edges without weight is taken",
        BOUNDS,
        "if instead >= degree or weight[start + instead] == 0.0:",
        "if instead >= degree:",
        OF_BOUNDS,
    ),
    Fault(
        "an edge twice in a list is not found",
        BOUNDS,
        "            seen[indices[p]] = v\n",
        "            seen[indices[p]] = p\n",
        "tests/loader/test_labor.py::test_edges_are_those_of_smallest_variates",
    ),
    Fault(
        "HGT's draws go by the budget and not by its square",
        BUDGET,
        "weight[i] = budget[i] * budget[i] if budget[i] > 0.0 else 0.0",
        "weight[i] = budget[i] if budget[i] > 0.0 else 0.0",
        "tests/statistics/test_family_laws.py tests/unit/loaders/test_hgt.py",
    ),
    Fault(
        "nodes that HGT has drawn get a budget again",
        BUDGET,
        "            if budget[place] >= 0.0:\n                budget[place] += share",
        "            if budget[place] > TAKEN:\n                budget[place] += share\n"
        "            else:\n                budget[place] = share",
        "tests/unit/loaders/test_hgt.py",
    ),
    Fault(
        "a large bucket of edges is sorted without their numbers",
        SORT,
        "                indices[i] = (word >> shift) & edge_mask\n",
        "                indices[i] = word >> (shift + edge_bits)\n",
        SORTING,
    ),
    Fault(
        "words of edges lose their upper bits",
        SORT,
        "            word = np.int64(low_words[at]) | np.int64(high_words[at]) << WORD_BITS\n"
        "            words[i]",
        "            word = np.int64(low_words[at]) | np.int64(high_words[at] & 0xFFFF) << WORD_BITS\n"
        "            words[i]",
        SORTING,
    ),
    Fault(
        "equal destinations do not count as sorted",
        SORT,
        "        if col[e] < previous:\n",
        "        if e > 0 and col[e] <= previous:\n",
        SORTING,
    ),
    Fault(
        "nodes behind the last edge have no list",
        SORT,
        "    while v < indptr.shape[0]:\n        indptr[v] = base + col.shape[0]",
        "    while v < indptr.shape[0]:\n        indptr[v] = base",
        "tests/unit/graph/test_coo_to_csc.py::test_any_graph",
    ),
    Fault(
        "float16 numbers below 2^-14 lose their sign",
        DECODE,
        "return normal if size >= 0x0400 else (-tiny if sign else tiny)",
        "return normal if size >= 0x0400 else tiny",
        "tests/unit/core/test_quantized.py",
    ),
    Fault(
        "halves are rounded up and not to the even number",
        DECODE,
        "normal = (size + np.uint32(0xFFF) + (size >> np.uint32(13) & np.uint32(1))) >> np.uint32(13)",
        "normal = (size + np.uint32(0x1000)) >> np.uint32(13)",
        "tests/unit/core/test_quantized.py tests/loader/test_feature_dtype.py",
    ),
    Fault(
        "a NaN becomes infinity in bfloat16",
        DECODE,
        "return bits >> np.uint32(16) | np.uint32(0x40) if is_nan else rounded",
        "return rounded",
        "tests/unit/core/test_quantized.py::test_numbers_are_rounded_as_by_torch",
    ),
    Fault(
        "an id out of range of a long gather is told one block early",
        DECODE,
        "            return at + bad\n",
        "            return bad\n",
        "tests/unit/core/test_quantized.py tests/loader/test_feature_dtype.py",
    ),
    Fault(
        "edges of a later hop are written over those of an earlier one",
        EMIT,
        "            at += end - begin\n",
        "            at += end - begin - (hop > 0)\n",
        CPU + " tests/loader/test_drop_in.py",
    ),
    Fault(
        "threads copy the edges between their shares twice or not at all",
        EMIT,
        "end = end if end < last else last",
        "end = end if end < last - 1 else last - 1",
        "tests/unit/ops/cpu/test_backend.py::test_emit_edges",
    ),
    Fault(
        "the set of sampled nodes is not emptied",
        EMIT,
        "members[at >> WORD_BITS] | bit if add else np.uint64(0)",
        "members[at >> WORD_BITS] | bit if add else members[at >> WORD_BITS]",
        CPU + " tests/unit/ops/cpu/test_node_set.py",
    ),
    Fault(
        "excluded edges between sampled nodes are listed",
        EMIT,
        "piece, skip = piece_end + 1, skip + 1",
        "piece, skip = piece_end, skip + 1",
        EXCLUDING,
    ),
    Fault(
        "of several excluded edges of a list the last one is drawn",
        EXCLUDE,
        "if excluded[middle] - (middle - first) > rank:",
        "if excluded[middle] - (middle - first) >= rank:",
        EXCLUDING,
    ),
    Fault(
        "an excluded edge of the next list counts",
        EXCLUDE,
        "if begin < bounds[1, group] and excluded[begin] < start[i] + degree[i]:",
        "if begin < bounds[1, group] and excluded[begin] <= start[i] + degree[i]:",
        EXCLUDING,
        equivalent="the search for the end ends where it begins",
    ),
    Fault(
        "parallel seed edges are not all found",
        EXCLUDE,
        "                    found += 1\n                i += 1",
        "                    found += 1\n                    break\n                i += 1",
        EXCLUDING,
    ),
    Fault(
        "a seed edge of another time counts as the link",
        EXCLUDE,
        "if time.shape[0] == 0 or time[p] == wanted_time[i]:",
        "if time.shape[0] == 0 or time[p] <= wanted_time[i]:",
        EXCLUDING,
    ),
    Fault(
        "draws from gaps take the weight of the gap before",
        GAPS,
        "                before, gap = cumulative[stop], stop + 1\n",
        "                gap = stop + 1\n",
        EXCLUDING + " " + TABLES,
    ),
    Fault(
        "what rounding has left of a list is drawn from",
        GAPS,
        "if left > TINY_SHARE * (cumulative[end - 1] - low):",
        "if left > 0.0:",
        TABLES + " tests/statistics/test_exclusion_laws.py",
    ),
    Fault(
        "two slots of a weighted draw share their words",
        GAPS,
        "return to_unit(words[2 * (slot & 1)], words[2 * (slot & 1) + 1])",
        "return to_unit(words[0], words[1])",
        "tests/unit/graph/test_weights.py::test_large_lists_equal_a_plain_reference",
    ),
    Fault(
        "the excluded edges of a weighted list are drawn again",
        GAPS,
        "            taken[place] = chosen\n            count += 1",
        "            taken[place] = chosen",
        EXCLUDING + " tests/statistics/test_exclusion_laws.py",
    ),
    Fault(
        "rows that are longer than a line lose their last bytes",
        GATHER,
        "    if last > 0:\n        copy_bytes(source + last, target + last, PIECE_BYTES)",
        "    if last > PIECE_BYTES:\n        copy_bytes(source + last, target + last, PIECE_BYTES)",
        CPU + " tests/unit/batch/test_assemble.py",
    ),
    Fault(
        "an id just behind a table is read",
        GATHER,
        "if row < 0 or row >= num_rows:",
        "if row < 0 or row > num_rows:",
        "tests/unit/ops/cpu/test_backend.py::test_gather_tables_stops_at_an_id_out_of_range",
    ),
    Fault(
        "long lists are searched for their first edge alone",
        GROUPS,
        "        while p < end and indices[p] == wanted:",
        "        if p < end and indices[p] == wanted:",
        "tests/unit/ops/host/test_groups.py tests/unit/loaders/test_shadow.py",
    ),
    Fault(
        "nodes of a group with one hash are taken for each other",
        GROUPS,
        "        kept += np.uint64(keys[slot] == indices[p])\n",
        "        kept += ONE\n",
        "tests/unit/ops/host/test_groups.py tests/unit/loaders/test_shadow.py",
    ),
    Fault(
        "now and then the first node of the next type is overwritten",
        HOPS,
        "if edges > row.shape[0] or node_bound[t] >= node_room[t]:",
        "if edges > row.shape[0] or node_bound[t] > node_room[t]:",
        CPU + " tests/unit/sampling/test_batch_sizes.py",
    ),
    Fault(
        "seeds of a batch with a bad one are known to the next",
        HOPS,
        """            node[start + i] = v
            seed += 1
        node_ptr[1, t] = num_seeds[t]
""",
        """            node[start + i] = v
            seed += 1
            enter_dense(node, start, start + i + 1, node_base[t], table, stamp)
        node_ptr[1, t] = num_seeds[t]
""",
        CPU,
        equivalent="what any batch enters is below the stamp of the next one",
    ),
    Fault(
        "a seed just behind the nodes is taken for one",
        HOPS,
        "            if v < 0 or v >= end:",
        "            if v < 0 or v > end:",
        CPU,
    ),
    Fault(
        "counts by hop are those of the first relation",
        HOPS,
        "hop_edges[r, h] = edge_ptr[h, r + 1] - edge_ptr[h, r]",
        "hop_edges[r, h] = edge_ptr[h, r + 1] - edge_ptr[h, 0]",
        "tests/loader/test_hetero_full.py tests/loader/test_hetero.py",
    ),
    Fault(
        "variates of LABOR are those of the next window",
        LABOR,
        "if words[2] < share else out[i]",
        "if words[2] >= share else out[i]",
        "tests/statistics/test_labor_laws.py tests/loader/test_labor.py",
    ),
    Fault(
        "long lists of LABOR lose excluded edges of other blocks",
        LABOR,
        "                count, skip = 0, begin\n",
        "                count, skip = 0, 0\n",
        "tests/loader/test_labor.py",
    ),
    Fault(
        "LABOR takes too few where its bound was too low",
        LABOR,
        "            while count < size:\n",
        "            for _ in range(1):\n",
        "tests/loader/test_labor.py tests/statistics/test_labor_laws.py",
    ),
    Fault(
        "places of nodes in large subgraphs of GraphSAINT are wrong",
        MEMBERS,
        "place[e] = before[word] + count_ones(lower)",
        "place[e] = before[word] + count_ones(lower & np.uint64(0xFFFFFFFF))",
        "tests/unit/ops/host/test_induced.py tests/unit/loaders/test_saint.py",
    ),
    Fault(
        "members of a batch are still there in the next",
        MEMBERS,
        "            words[(np.uint64(i) << WORD_BITS) + trailing_zeros(rest)] = NONE\n",
        "            words[trailing_zeros(rest)] = NONE\n",
        "tests/unit/ops/host/test_induced.py tests/unit/loaders/test_saint.py",
    ),
    Fault(
        "nodes of equal digits change their order",
        ORDERING,
        "        counts[digit] += 1\n",
        "        counts[digit] += 1 if digit > 0 else 0\n",
        "tests/unit/loaders/test_shadow.py",
    ),
    Fault(
        "the last page of a row is not asked for",
        PAGES,
        "for page in range(first, last + 1):",
        "for page in range(first, max(first + 1, last)):",
        "tests/unit/ops/cpu/test_file_pages.py",
    ),
    Fault(
        "refused words are not replaced",
        PHILOX,
        "        while low < threshold:\n",
        "        while low < threshold and attempt > TWO_TO_32:\n",
        LAWS,
    ),
    Fault(
        "batches beyond the first keys of an epoch are those of another seed",
        PHILOX,
        "np.uint64(epoch), np.uint64(domain), np.uint64(low),\n            np.uint64(high),",
        "np.uint64(epoch), np.uint64(domain), np.uint64(high),\n            np.uint64(low),",
        LAWS,
    ),
    Fault(
        "negatives share random words",
        PHILOX,
        "        out[i] = below(words[i & 3], bound, slot, zero, stream, k0, k1)",
        "        out[i] = below(words[0], bound, slot, zero, stream, k0, k1)",
        LAWS + " tests/loader/test_link.py tests/unit/graph/test_weights.py",
    ),
    Fault(
        "edges within a community leave the graph",
        POWER,
        "                if rank >= num_nodes:\n                    rank -= num_groups\n",
        "                rank = min(rank, num_nodes - 1)\n",
        "tests/unit/files/test_generate.py",
    ),
    Fault(
        "the mean over neighbours is a sum where there is one weight",
        REDUCE,
        "if kind == MEAN and stop > begin:",
        "if kind == MEAN and stop > begin + 1 and stop < begin + 3:",
        "tests/kernels/test_reduce.py",
    ),
    Fault(
        "NaN loses against the extremum",
        REDUCE,
        "if is_first or better or found != found:",
        "if is_first or better:",
        "tests/kernels/test_reduce.py",
    ),
    Fault(
        "weights of a range of nodes are those of the first nodes",
        REDUCE,
        "factor = weight[p - start]",
        "factor = weight[p - begin]",
        "tests/kernels/test_reduce.py",
    ),
    Fault(
        "of a seed that repeats the last place counts",
        RELABEL,
        "        if table[base + v] < stamp:\n            table[base + v] = stamp + np.uint32(i - first)",
        "        table[base + v] = stamp + np.uint32(i - first)",
        CPU + " tests/loader/test_input_nodes.py",
    ),
    Fault(
        "disjoint subgraphs share nodes of one hash",
        RELABEL,
        "while (table[at + ONE] >= stamp) & (table[at] != key):",
        "while (table[at + ONE] > stamp) & (table[at] != key):",
        CPU + " tests/loader/test_drop_in.py",
    ),
    Fault(
        "nodes of two types are one in a disjoint subgraph",
        RELABEL,
        "            key = np.uint64(subgraph * total + base + v)\n",
        "            key = np.uint64(subgraph * total + v)\n",
        CPU + " tests/loader/test_hetero_full.py tests/kernels/test_cuda_kernels.py",
    ),
    Fault(
        "fan-outs above 64 pick an edge twice",
        SAMPLE,
        "            pick = top\n            enter(slots, size, pick)\n",
        "            pick = top\n",
        LAWS,
    ),
    Fault(
        "lists of more than 64 are drawn with collisions",
        SAMPLE,
        "                    pick = top\n                    break\n",
        "                    break\n",
        LAWS,
    ),
    Fault(
        "lists of exactly 64 lose their last bit",
        SAMPLE,
        "        if degree <= WORD_BITS:\n",
        "        if degree <= WORD_BITS + 1:\n",
        LAWS + " tests/kernels/test_cuda_kernels.py",
        equivalent="position 64 is drawn in the last round alone, which takes it either way",
    ),
    Fault(
        "edges of weight 0 fill up a fan-out",
        SAMPLE,
        "        elif weight[p] > 0.0:\n            found += 1",
        "        else:\n            found += 1",
        TABLES,
    ),
    Fault(
        "an excluded weight counts where a list is short of them",
        SAMPLE,
        "        if begin < end and excluded[begin] == p:\n            begin += 1\n",
        "        if begin < end and excluded[begin] == p:\n            begin += 1\n"
        "            found += weight[p] > 0.0\n",
        EXCLUDING,
    ),
    Fault(
        "with replacement nodes without edges draw some",
        SAMPLE,
        "edges += k if replace and there > 0 else there",
        "edges += k if replace and degree > 0 else there",
        TABLES,
    ),
    Fault(
        "relations of a hop share their random numbers",
        SAMPLE,
        "        stream = stream_of(hop, r)\n",
        "        stream = stream_of(hop, 0)\n",
        "tests/kernels/test_cuda_kernels.py tests/loader/test_recorded_batches.py",
    ),
    Fault(
        "a neighbour of exactly the seed's time is too late",
        TEMPORAL,
        "past = np.int64(time_at(middle, indices, time, time_base) <= latest[lane])",
        "past = np.int64(time_at(middle, indices, time, time_base) < latest[lane])",
        TIMES,
    ),
    Fault(
        "lists beyond the first 64 are cut by other seeds",
        TEMPORAL,
        "latest[lane] = seed_time[seed_of[seed_first + begin - first + lane]]",
        "latest[lane] = seed_time[seed_of[seed_first + lane]]",
        TIMES,
    ),
    Fault(
        "the latest neighbours beside excluded ones are the wrong ones",
        TEMPORAL,
        "item_excluded[0, item] = begin + start - item_start[item] - dropped",
        "item_excluded[0, item] = begin",
        EXCLUDING,
    ),
    Fault(
        "the latest neighbours are counted over excluded ones",
        TEMPORAL,
        "                start = position_of(start, excluded, begin, end)\n",
        "                pass\n",
        EXCLUDING,
    ),
    Fault(
        "weights of the latest are those of the whole list",
        TEMPORAL,
        "                item_low[item] = cumulative[start - 1]\n",
        "                item_low[item] = 0.0\n",
        TABLES + " tests/loader/test_time_window.py",
    ),
    Fault(
        "weights of a window are those of the whole list",
        TEMPORAL,
        "                item_low[item] = cumulative[item_start[item] - 1]\n",
        "                item_low[item] = 0.0\n",
        TIMES,
    ),
    Fault(
        "an earlier neighbour behind a later one counts as sorted",
        TEMPORAL,
        "        for p in range(indptr[v] + 1, indptr[v + 1]):\n",
        "        for p in range(indptr[v] + 1, indptr[v + 1] - 1):\n",
        "tests/loader/test_temporal.py tests/unit/files/test_saved_parts.py",
    ),
    Fault(
        "a search by breadth misses node types",
        TRAVERSE,
        "            while node >= node_base[kind + 1]:",
        "            while node > node_base[kind + 1]:",
        "tests/loader/test_order.py",
    ),
    Fault(
        "uniform walks use random words again after four steps",
        WALK,
        "                    four = np.uint64(step >> 2)\n",
        "                    four = np.uint64(0)\n",
        WALKS,
    ),
    Fault(
        "walks beyond the first block repeat its draws",
        WALK,
        "                walk = np.uint64(block + lane)\n",
        "                walk = np.uint64(lane)\n",
        WALKS,
    ),
    Fault(
        "steps back go by the number of edges there",
        WALK,
        "back[lane] = count_of(indices, indptr[v], indptr[v + 1], previous[lane])",
        "back[lane] = 1",
        WALKS,
    ),
    Fault(
        "a step refused often goes back too rarely",
        WALK,
        "    if x == previous:\n        return 1.0 / p\n",
        "    if x == previous:\n        return 1.0\n",
        WALKS,
    ),
    Fault(
        "weighted lists of more than 64: the same edge twice",
        WEIGHTED,
        "            is_new = i == first + found\n",
        "            is_new = True\n",
        "tests/unit/graph/test_weights.py::test_large_lists_equal_a_plain_reference",
    ),
    Fault(
        "weighted lists of more than 64: edges of one bit are never drawn together",
        WEIGHTED,
        "if degree > SEEN_BITS and not is_new:",
        "if degree > 2**62 and not is_new:",
        TABLES,
    ),
    Fault(
        "weighted draws of later blocks repeat those of earlier ones",
        WEIGHTED,
        "            local[counters + j] = local_of(item, offset, item_local)\n",
        "            local[counters + j] = local_of(item - first_item, offset, item_local)\n",
        TABLES + " tests/kernels/test_cuda_attributes.py",
    ),
    Fault(
        "a slot of an alias table gives the edge of another list",
        WEIGHTED,
        "return start + slot + np.int64(scaled - slot >= kept) * (instead - slot)",
        "return start + slot + np.int64(scaled - slot >= kept) * (instead - slot - start)",
        TABLES,
    ),
    Fault(
        "kernels are not compiled anew where what they call has changed",
        JIT,
        "        cache._cache_file._source_stamp = source_stamp()\n",
        "        pass\n",
        "tests/kernels/test_jit.py",
    ),
    Fault(
        "machine code of another signature is run",
        JIT,
        "return found if found is not None and found.signature.args == tuple(sig) else None",
        "return found",
        "tests/kernels/test_jit.py",
    ),
    Fault(
        "the garbage collector stays off after a compilation",
        JIT,
        "        if self._depth == 0 and self._collected:\n",
        "        if self._depth < 0 and self._collected:\n",
        "tests/kernels/test_jit.py",
    ),
]
