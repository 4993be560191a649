"""Faults in the operations on large arrays: what both backends share, the CPU's, and the host's."""

from __future__ import annotations

from ..fault import Fault

BACKEND = "pyg_direct/ops/backend.py"
BUFFERS = "pyg_direct/ops/buffers.py"
DEVICES = "pyg_direct/ops/devices.py"
HOST_MEMORY = "pyg_direct/ops/host_memory.py"
IDS = "pyg_direct/ops/ids.py"
PICKS = "pyg_direct/ops/picks.py"
PRODUCTS = "pyg_direct/ops/products.py"
CPU_BACKEND = "pyg_direct/ops/cpu/backend.py"
CHECKS = "pyg_direct/ops/cpu/checks.py"
DRAWING = "pyg_direct/ops/cpu/drawing.py"
PAGES = "pyg_direct/ops/cpu/file_pages.py"
OUTPUTS = "pyg_direct/ops/cpu/outputs.py"
PAGED = "pyg_direct/ops/cpu/paged_workspace.py"
SCRATCH = "pyg_direct/ops/cpu/scratch.py"
WORKSPACE = "pyg_direct/ops/cpu/workspace.py"
BUDGET = "pyg_direct/ops/host/budget.py"
INDUCED = "pyg_direct/ops/host/induced.py"
KEYS = "pyg_direct/ops/host/keys.py"
LISTS = "pyg_direct/ops/host/lists.py"
SEARCH = "pyg_direct/ops/host/search.py"
WALKS = "pyg_direct/ops/host/walks.py"

CPU = "tests/unit/ops/cpu/test_backend.py"
POOL = "tests/unit/ops/test_buffers.py"
SUMS = "tests/unit/ops/test_products.py"
WINDOW = "tests/loader/test_time_window.py"
DAMAGED = "tests/unit/files/test_damaged_graphs.py"
CHECKED = "tests/unit/ops/cpu/test_checks.py"
SEAM = "tests/kernels/test_seam.py"
LABOR = "tests/loader/test_labor.py"
STATE = "tests/loader/test_random_state.py tests/unit/loading/test_progress.py"
METAPATHS = "pyg_direct/ops/metapaths.py"
ADAPTIVE = "tests/unit/ops/test_metapaths.py tests/loader/test_adaptive.py"

FAULTS = [
    Fault(
        "memory of a batch that is kept is written over",
        BUFFERS,
        "            self._leases[id(lease)] = lease\n",
        "            self._leases[id(lease)] = lease\n            self._idle.append(block)\n",
        POOL,
    ),
    Fault(
        "idle memory grows without a limit",
        BUFFERS,
        "while self._idle_bytes > limit and self._idle:",
        "while self._idle_bytes > 100 * limit and self._idle:",
        POOL,
    ),
    Fault(
        "a forked child waits for a lock that nobody holds",
        BUFFERS,
        "if self._pid != os.getpid():  # a forked child: the lock may be held by a thread of another",
        "if False:",
        "tests/unit/ops/test_large_ids.py",
    ),
    Fault(
        "blocks much too large are handed out",
        BUFFERS,
        "best, least = -1, 2 * nbytes + 1",
        "best, least = -1, 2**62",
        POOL,
    ),
    Fault(
        "the rank of a process is not looked at",
        DEVICES,
        "elif rank in used and current in (0, *(i for i in held if i not in used)):",
        "elif rank in used and current in (i for i in held if i not in used):",
        "tests/unit/ops/test_devices.py",
    ),
    Fault(
        "data on two devices decides for one of them",
        DEVICES,
        'return Choice(devices.pop(), "the data is there") if len(devices) == 1 else None',
        'return Choice(devices.pop(), "the data is there") if devices else None',
        "tests/unit/ops/test_devices.py::test_data_on_a_device_decides",
    ),
    Fault(
        "an error of memory counts as a device that cannot be used",
        DEVICES,
        """    except torch.cuda.OutOfMemoryError:
        raise  # no lack of software, and over when somebody frees memory
    except RuntimeError as error:
        warnings""",
        """    except RuntimeError as error:
        warnings""",
        "tests/unit/ops/cuda/test_certificate.py",
    ),
    Fault(
        "a limit of a parent group is not looked at",
        HOST_MEMORY,
        "for folder in (group, *group.parents):",
        "for folder in (group,):",
        "tests/unit/ops/test_host_memory.py",
    ),
    Fault(
        "a tensor that got the number of a freed one gets its ids",
        IDS,
        "self._copies[id(tensor)] = tensor, host",
        "self._copies[id(tensor)] = host, host",
        "tests/loader/test_places_of_ids.py tests/unit/ops",
    ),
    Fault(
        "ids of a copy that has not come are handed out",
        IDS,
        "            self._streams.synchronize(event)\n",
        "            pass\n",
        "tests/loader/test_places_of_ids.py::test_ids_are_there_when_the_batch_is",
    ),
    Fault(
        "a frontier of subgraphs is taken without them",
        PICKS,
        "if (items.seed_of is not None) != disjoint:",
        "if items.seed_of is not None and not disjoint:",
        "tests/unit/ops/test_picks.py",
    ),
    Fault(
        "picks that are fewer than counted are entered",
        PICKS,
        "if least < 0 or total != len(picks.source):",
        "if least < 0 or total > len(picks.source):",
        SEAM,
    ),
    Fault(
        "ids of picks of a later hop are put to those of the first",
        PICKS,
        "first = sum(by_hop[:hop])",
        "first = 0",
        "tests/kernels/test_seam.py::test_everything_at_once",
    ),
    Fault(
        "threads share the rows unevenly and leave some out",
        PRODUCTS,
        "cuts = [0, *torch.searchsorted(matrix.indptr, wanted).clamp_(max=rows).tolist(), rows]",
        "cuts = [0, *torch.searchsorted(matrix.indptr, wanted).clamp_(max=rows).tolist(), rows - 1]",
        SUMS,
    ),
    Fault(
        "a gather by threads leaves out its last row",
        "pyg_direct/core/threads.py",
        "cuts = [n * i // pieces for i in range(pieces + 1)]",
        "cuts = [(n - 1) * i // pieces for i in range(pieces + 1)]",
        "tests/unit/core/test_threads.py",
    ),
    Fault(
        "an error in a thread goes unseen",
        "pyg_direct/core/threads.py",
        "return results + [future.result() for future in futures]",
        "return results + [results[0] for future in futures]",
        CPU + " tests/unit/graph/test_coo_to_csc.py tests/unit/core/test_quantized.py",
    ),
    Fault(
        "the error of a row out of range names another table's size",
        CPU_BACKEND,
        "raise row_out_of_range(int(index[bad]), int(tables[4 * table + 1]))",
        "raise row_out_of_range(int(index[bad]), int(tables[1]))",
        CPU,
    ),
    Fault(
        "rows that are gathered by several threads are those of one",
        CPU_BACKEND,
        "split(rows, threads, partial(_gather, described, index))",
        "split(rows // max(1, threads), 1, partial(_gather, described, index))",
        CPU,
    ),
    Fault(
        "a strided list of ids is read as if it were not",
        CPU_BACKEND,
        "if index.dtype != torch.int64 or not (index.is_contiguous() and index.is_cpu):",
        "if index.dtype != torch.int64 or not index.is_cpu:",
        "tests/unit/batch/test_gather.py",
    ),
    Fault(
        "a mean weighted by edges is taken for a sum",
        CPU_BACKEND,
        'if weight is not None and (kind != "sum" or weight.dtype != dtype):',
        "if weight is not None and weight.dtype != dtype:",
        "tests/kernels/test_reduce.py",
    ),
    Fault(
        "lists of a damaged file are read before they are looked at",
        CHECKS,
        "if bounds.first_bad_list(start, degree, first, last, edges[0], edges[1]) >= 0:",
        "if bounds.first_bad_list(start, degree, first, last, 0, edges[1]) >= 0:",
        CHECKED,
    ),
    Fault(
        "sources of a damaged file are taken for nodes",
        CHECKS,
        "            _check_ids(csc, r, row, first, last)\n",
        "            pass\n",
        DAMAGED,
    ),
    Fault(
        "whole lists of a damaged file are not looked at",
        CHECKS,
        "            _check_ids(csc, relation, csc.indices, first, first + size)\n",
        "            pass\n",
        CHECKED,
    ),
    Fault(
        "edges that the batch before left out are left out again",
        DRAWING,
        "        self._rules = rules\n        self._excluded = self._excluded_bounds = NO_INTS",
        "        self._rules = rules\n        if not hasattr(self, '_excluded'):\n"
        "            self._excluded = self._excluded_bounds = NO_INTS",
        SEAM + " tests/unit/ops/cpu/test_excluded_edges.py",
    ),
    Fault(
        "weights before a list are those of the batch before",
        DRAWING,
        "        self._item_low[:items] = 0.0\n",
        "",
        "tests/loader/test_weighted.py tests/loader/test_time_window.py",
    ),
    Fault(
        "with layer_dependency hops have variates of their own",
        DRAWING,
        "0 if self._plan.layer_dependency else hop, *self._variates, *items_of_hop,",
        "hop, *self._variates, *items_of_hop,",
        "tests/loader/test_labor.py::test_edges_are_those_of_smallest_variates",
    ),
    Fault(
        "nodes that are to draw nothing draw some in later hops",
        DRAWING,
        "begin = self._starts[t] + int(self._node_ptr[hop, t])",
        "begin = self._starts[t]",
        SEAM,
    ),
    Fault(
        "threads of a hop draw from the first items only",
        DRAWING,
        "split(items, min(self._resources.threads, items // MIN_ITEMS_PER_THREAD), task)",
        "split(min(items, 2 * MIN_ITEMS_PER_THREAD), min(self._resources.threads, "
        "items // MIN_ITEMS_PER_THREAD), task)",
        "tests/reference/test_matrix.py::test_every_batch_keeps_what_is_promised",
    ),
    Fault(
        "disjoint batches have room for the nodes of the graph alone",
        DRAWING,
        "self._node_limit = no_limit if plan.disjoint else csc.num_nodes",
        "self._node_limit = csc.num_nodes",
        CPU + " tests/loader/test_drop_in.py",
    ),
    Fault(
        "a table is read alone for ever after",
        PAGES,
        "                if not self._readers[span]:\n",
        "                if False:\n",
        "tests/unit/ops/cpu/test_file_pages.py",
    ),
    Fault(
        "memory that only looks like a file is asked for",
        PAGES,
        'on_disk = inode != "0" and bool(path) and not path[0].startswith(NOT_ON_DISK)',
        'on_disk = inode != "0" and bool(path)',
        "tests/unit/ops/cpu/test_file_pages.py",
    ),
    Fault(
        "a page that cannot be read ends the process",
        PAGES,
        "            for found in asked:\n                _read(found)\n",
        "",
        "tests/unit/ops/cpu/test_file_pages.py",
    ),
    Fault(
        "edges are copied out by threads with a gap",
        OUTPUTS,
        "split(total, threads, lambda a, b: emit.emit_edges(*arguments, a, b, *targets))",
        "split(total, threads, lambda a, b: emit.emit_edges(*arguments, a, b - 1, *targets))",
        "tests/reference/test_matrix.py::test_every_batch_keeps_what_is_promised",
    ),
    Fault(
        "pages of other types' pointers are asked for",
        PAGED,
        "places.append(self._node[begin + first[t] : begin + last[t]].astype(np.int64) + base)",
        "places.append(self._node[begin + first[t] : begin + last[t]].astype(np.int64))",
        "tests/unit/ops/cpu/test_paged_workspace.py",
    ),
    Fault(
        "stamps wrap after many batches",
        SCRATCH,
        "        if self._stamp >= STAMP_LIMIT:\n            self._table[:] = 0\n",
        "        if self._stamp >= 4 * STAMP_LIMIT:\n            self._table[:] = 0\n",
        CPU,
    ),
    Fault(
        "nodes of a batch are known to the next",
        SCRATCH,
        "        self._stamp += self._most_nodes\n",
        "        self._stamp += 1\n",
        "tests/unit/ops/cpu/test_backend.py::test_reuse_leaves_no_trace",
    ),
    Fault(
        "subgraphs of nodes are lost where the lists grow",
        SCRATCH,
        "seed_of[new : new + known] = self._seed_of[old : old + known]",
        "seed_of[new : new + known] = 0",
        CPU + " tests/loader/test_drop_in.py",
    ),
    Fault(
        "nodes are lost where the hash table grows",
        SCRATCH,
        "self._node, self._seed_of, first, first + known, 0, int(self._csc.node_base[t]),",
        "self._node, self._seed_of, first, first + known // 2, 0, int(self._csc.node_base[t]),",
        CPU + " tests/loader/test_drop_in.py",
    ),
    Fault(
        "edges of earlier hops are lost where there is no room",
        SCRATCH,
        "            self._grow_edges(edges + edges // 2, kept)\n",
        "            self._grow_edges(edges + edges // 2, 0)\n",
        CPU,
    ),
    Fault(
        "what short lists leave is lost where fan-outs adapt",
        METAPATHS,
        "level = rest // long.clamp(min=1)",
        "level = torch.minimum(rest // long.clamp(min=1), self._fanouts[hop].max())",
        ADAPTIVE,
    ),
    Fault(
        "metapaths that meet in a node type share one budget",
        METAPATHS,
        "group = (is_used.cumsum(0) - 1)[pair]",
        "group = torch.zeros_like(pair)",
        ADAPTIVE,
    ),
    Fault(
        "LABOR is drawn as if it were uniform",
        WORKSPACE,
        "and not (plan.disjoint or plan.replace or plan.labor or plan.adaptive)",
        "and not (plan.disjoint or plan.replace or plan.adaptive)",
        LABOR,
    ),
    Fault(
        "a damaged file is read by the kernel that checks nothing",
        WORKSPACE,
        "            csc.verified\n            and csc.times is None",
        "            csc.times is None",
        DAMAGED,
    ),
    Fault(
        "large fan-outs are drawn by the kernel that has no table for them",
        WORKSPACE,
        "and self._largest_fanout <= hops.LARGEST_FANOUT",
        "and self._largest_fanout <= 2 * hops.LARGEST_FANOUT",
        "tests/kernels/test_philox.py tests/statistics/test_statistics.py",
        equivalent="a search of the list finds what a table finds, in more time",
    ),
    Fault(
        "excluded edges are drawn where one call samples all hops",
        WORKSPACE,
        "if self._is_plain and rules.excluded is None and alone:",
        "if self._is_plain and alone:",
        "tests/unit/ops/cpu/test_excluded_edges.py tests/loader/test_exclude_seed_edges.py",
    ),
    Fault(
        "subgraphs of a second type begin at 0",
        WORKSPACE,
        "                subgraph += sizes[t]\n",
        "                pass\n",
        CPU + " tests/loader/test_link.py tests/kernels/test_cuda_kernels.py",
    ),
    Fault(
        "a seed that is no node is entered",
        WORKSPACE,
        "        if not in_range(seed, self._num_nodes[t]):\n            return False\n",
        "",
        "tests/unit/ops/cpu/test_backend.py::test_what_is_no_node_is_not_entered",
    ),
    Fault(
        "induced subgraphs of a window hold edges that are too old",
        WORKSPACE,
        "            if len(self._seed_before) > 0:\n                temporal.skip_until",
        "            if False:\n                temporal.skip_until",
        WINDOW + " tests/kernels/test_cuda_attributes.py",
    ),
    Fault(
        "induced subgraphs that outgrow their room begin anew",
        WORKSPACE,
        "*between, item, size, self._row, self._col, self._position",
        "*between, 0, 0, self._row, self._col, self._position",
        CPU,
        equivalent="the same edges are found again from the first node on, in more time",
    ),
    Fault(
        "HGT: draws of node types depend on each other",
        BUDGET,
        "stream_of_ints(hop, t), *words,",
        "stream_of_ints(hop, 0), *words,",
        "tests/loader/test_epochs.py",
    ),
    Fault(
        "HGT: candidates are lost where their list grows",
        BUDGET,
        "node[:known], value[:known] = self._node[t][:known], self._value[t][:known]",
        "node[:known] = self._node[t][:known]\n            value[:known] = 0",
        "tests/unit/loaders/test_hgt.py tests/statistics/test_family_laws.py",
    ),
    Fault(
        "HGT: stamps of the batch before are taken for this one's",
        BUDGET,
        "        self._stamp += max(self._count)\n",
        "        self._stamp += self._count[0]\n",
        "tests/loader/test_epochs.py",
    ),
    Fault(
        "GraphSAINT: a set that an error left is used again",
        INDUCED,
        "        if bad >= 0:\n            raise IndexError(",
        "        if bad >= 0:\n            self._idle.append(chosen)\n            raise IndexError(",
        "tests/unit/ops/host/test_induced.py",
    ),
    Fault(
        "GraphSAINT: threads of a batch write to each other's places",
        INDUCED,
        "            out_at += size\n",
        "            out_at += size - 1\n",
        "tests/unit/ops/host/test_induced.py",
    ),
    Fault(
        "epochs of one seed draw the same",
        KEYS,
        "words = (batch & 0xFFFFFFFF, batch >> 32, epoch, domain, seed & 0xFFFFFFFF, seed >> 32)",
        "words = (batch & 0xFFFFFFFF, batch >> 32, 0, domain, seed & 0xFFFFFFFF, seed >> 32)",
        "tests/unit/loading/test_progress.py::test_the_rest_of_the_epoch_is_the_same",
    ),
    Fault(
        "the 65th batches of an epoch are those after the first",
        KEYS,
        "        batch += KEYS_AT_ONCE\n",
        "        batch = first + 1\n",
        "tests/kernels/test_philox.py",
    ),
    Fault(
        "dependent batches of a resumed epoch begin their window anew",
        KEYS,
        "for batch, key in enumerate(keys(seed, epoch, first), first):",
        "for batch, key in enumerate(keys(seed, epoch, first)):",
        LABOR,
    ),
    Fault(
        "draws of negatives are those of hop 0",
        KEYS,
        "stream: np.uint64 = np.uint64(255 | draw << 8)",
        "stream: np.uint64 = np.uint64(draw << 8)",
        "tests/kernels/test_philox.py",
    ),
    Fault(
        "seeds above 2^62 come up alike",
        KEYS,
        "return (key.low | key.high << 32) >> 1",
        "return key.low",
        "tests/kernels/test_philox.py",
    ),
    Fault(
        "ShaDow: lists in part sorted count as sorted",
        LISTS,
        "if bool(((end[1:] > end[:-1]) | (indices[1:] >= indices[:-1])).all()):",
        "if bool(((end[1:] > end[:-1]) | (indices[1:] >= indices[:-1]))[:4].all()):",
        "tests/unit/ops/host/test_groups.py",
    ),
    Fault(
        "ShaDow: threads write the edges of groups to one place",
        LISTS,
        "        at += count\n",
        "        at += 0 * count\n",
        "tests/unit/ops/host/test_groups.py::test_hubs_and_growing_lists",
    ),
    Fault(
        "ShaDow: ids above 2,048 are not sorted",
        LISTS,
        "for shift in range(0, max(num_nodes - 1, 1).bit_length(), DIGIT_BITS):",
        "for shift in range(0, 1, DIGIT_BITS):",
        "tests/unit/ops/host/test_groups.py",
    ),
    Fault(
        "seed edges behind the first room are lost",
        SEARCH,
        "        if count <= size:\n            return",
        "        if True:\n            count = min(count, size)\n            return",
        "tests/loader/test_exclude_seed_edges.py tests/unit/ops/cpu/test_excluded_edges.py",
    ),
    Fault(
        "seed edges belong to the links in sorted order",
        SEARCH,
        "return order[query[:count]], position[:count]",
        "return query[:count], position[:count]",
        "tests/loader/test_exclude_seed_edges.py::test_a_disjoint_subgraph_leaves_out_its_own_link",
    ),
    Fault(
        "biased walks search lists that are not sorted",
        WALKS,
        "indices: Ints = sorted_lists(self._csc).indices",
        "indices: Ints = self._csc.indices",
        "tests/statistics/test_family_laws.py tests/unit/loaders/test_walks.py",
    ),
]
