"""Faults in the CUDA backend's own Python: memory, launches and streams."""

from __future__ import annotations

from ..fault import Fault

ARRAYS = "pyg_direct/ops/cuda/arrays.py"
BACKEND = "pyg_direct/ops/cuda/backend.py"
FORECAST = "pyg_direct/ops/cuda/bounds.py"
CACHE = "pyg_direct/ops/cuda/cache_file.py"
CERTIFICATE = "pyg_direct/ops/cuda/certificate.py"
COMPILER = "pyg_direct/ops/cuda/compiler.py"
DESCRIPTOR = "pyg_direct/ops/cuda/descriptor.py"
DRAWING = "pyg_direct/ops/cuda/drawing.py"
EMIT = "pyg_direct/ops/cuda/emit.py"
LAUNCH = "pyg_direct/ops/cuda/launch.py"
LINK = "pyg_direct/ops/cuda/link_file.py"
PINNING = "pyg_direct/ops/cuda/pinning.py"
PLACER = "pyg_direct/ops/cuda/placer.py"
RUNTIME = "pyg_direct/ops/cuda/runtime.py"
SOURCE = "pyg_direct/ops/cuda/source.py"
STREAMS = "pyg_direct/ops/cuda/streams.py"
TABLE = "pyg_direct/ops/cuda/table.py"
WORKSPACE = "pyg_direct/ops/cuda/workspace.py"

KERNELS = "tests/kernels/test_cuda_kernels.py"
GATHER = "tests/kernels/test_cuda_gather.py tests/kernels/test_cuda_decode.py"
SEAM = "tests/kernels/test_seam.py"
PINS = "tests/unit/ops/cuda/test_pinning.py tests/unit/ops/cuda/test_placer_order.py"
PLACES = (
    "tests/unit/ops/cuda/test_placer.py tests/unit/ops/cuda/test_placed_tables.py "
    "tests/unit/ops/cuda/test_placer_order.py"
)
CERTIFIED = "tests/unit/ops/cuda/test_certificate.py"
ARGUMENTS = "tests/unit/ops/cuda/test_launch_arguments.py tests/unit/ops/cuda/test_launch.py"
SIDE = "tests/unit/ops/cuda/test_cuda_streams.py tests/unit/ops/cuda/test_streams.py"

FAULTS = [
    Fault(
        "the state of a batch goes to memory that is too short",
        ARRAYS,
        "        moved = size > len(self._all)\n",
        "        moved = size > len(self._all) + 8\n",
        KERNELS,
    ),
    Fault(
        "seed times of a batch of other sizes are read where the last lay",
        ARRAYS,
        "        if moved or lengths != self._lengths:\n",
        "        if moved or lengths[0] != self._lengths[0]:\n",
        "tests/kernels/test_cuda_excluded.py tests/kernels/test_cuda_attributes.py",
    ),
    Fault(
        "excluded edges of the batch before hold for a batch without",
        ARRAYS,
        "        left_out = self._left_out(subgraphs, rules.excluded)\n",
        "        left_out = self._left_out(subgraphs, rules.excluded or getattr(self, 'last', None))\n"
        "        self.last = rules.excluded\n",
        "tests/kernels/test_cuda_excluded.py::test_batches_with_and_without_excluded_edges_share_a_workspace",
    ),
    Fault(
        "variates of dependent batches are those of their keys",
        ARRAYS,
        "first, following, share = rules.variates or Variates(key, key, 0)",
        "first, following, share = Variates(key, key, 0)",
        "tests/loader/test_labor.py",
    ),
    Fault(
        "rows at odd addresses are read by words of 16 bytes",
        BACKEND,
        "word = math.gcd(16, table.data_ptr(), out.data_ptr(), row_bytes)",
        "word = math.gcd(16, out.data_ptr(), row_bytes)",
        GATHER,
    ),
    Fault(
        "rows that begin amid a line lose their last piece",
        BACKEND,
        "reach = row_bytes + LINE_BYTES - step + address % step",
        "reach = row_bytes",
        "tests/kernels/test_cuda_gather.py::test_every_dtype",
    ),
    Fault(
        "ids without a known end are read unchecked",
        BACKEND,
        "low, high = (0, end - 1) if end is not None else map(int, torch.aminmax(index))",
        "low, high = (0, (end or num_rows) - 1)",
        PLACES + " tests/loader/test_bad_input.py",
    ),
    Fault(
        "tables of another device are counted as reads over the link",
        BACKEND,
        "if table.device == self.device or table.numel() == 0:",
        "if table.numel() == 0:",
        "tests/unit/loading/test_stats.py",
    ),
    Fault(
        "hops behind a counted one are forecast from what was guessed",
        FORECAST,
        "        self.nodes = nodes\n        self._append(edges)\n        self._look_ahead()",
        "        self._append(edges)\n        self._look_ahead()",
        KERNELS,
    ),
    Fault(
        "repeated seeds get too little room for their edges",
        FORECAST,
        "if hop > 0 and self._distinct:",
        "if self._distinct:",
        KERNELS,
    ),
    Fault(
        "disjoint subgraphs get room for each edge once",
        FORECAST,
        "self._distinct = not plan.disjoint and not plan.replace",
        "self._distinct = not plan.replace",
        KERNELS,
    ),
    Fault(
        "more nodes than ids can count go unnoticed",
        FORECAST,
        "if max(most_nodes, num_edges) >= ID_LIMIT:",
        "if num_edges >= ID_LIMIT:",
        KERNELS,
    ),
    Fault(
        "two processes write to one file at once",
        CACHE,
        '        part = path.with_suffix(f".{os.getpid()}")\n',
        "        part = path\n",
        "tests/unit/ops/cuda/test_cache_file.py",
    ),
    Fault(
        "a device that failed its check is kept as one that passed",
        CERTIFICATE,
        "    write_json(PASSED, [*_passed(), identity])  # where that fails, it is checked again\n",
        "    write_json(PASSED, [identity])\n",
        CERTIFIED,
    ),
    Fault(
        "the check of a device looks at one of its two ways",
        CERTIFICATE,
        '        backend.one_block = place == "device"\n',
        "        backend.one_block = True\n",
        "tests/unit/ops/cuda/test_certificate.py::test_both_ways_of_small_hops_are_checked",
    ),
    Fault(
        "decoding is not part of the check of a device",
        CERTIFICATE,
        "            yield name, _digest([decoded.float()])\n",
        "            yield name, _digest([decoded.float() * 0])\n",
        CERTIFIED,
    ),
    Fault(
        "an old driver's certificate holds for a new one",
        COMPILER,
        'f"{runtime.driverGetVersion()} {driver_version()}, NVRTC {nvrtc}, CuPy "',
        'f"NVRTC {nvrtc}, CuPy "',
        "tests/unit/ops/cuda/test_compiler.py",
    ),
    Fault(
        "a CuPy of another major of CUDA is taken",
        COMPILER,
        "    if built_for != major:\n",
        "    if built_for < major:\n",
        "tests/unit/ops/cuda/test_compiler.py",
    ),
    Fault(
        "kernels read host memory that is not pinned",
        DESCRIPTOR,
        'return parameter.kind == "In" and in_host and (value.numel() == 0 or value.is_pinned())',
        'return parameter.kind == "In" and in_host',
        ARGUMENTS + " tests/kernels/test_emulated_device.py",
    ),
    Fault(
        "arrays at odd addresses are read",
        DESCRIPTOR,
        "if value.data_ptr() % value.element_size():  # no read on a GPU may be misaligned",
        "if False:",
        ARGUMENTS + " " + PLACES,
    ),
    Fault(
        "a value too large for the kernel is cut",
        DESCRIPTOR,
        "    if not low <= value <= high:\n",
        "    if not low <= value:\n",
        "tests/unit/ops/cuda/test_launch_arguments.py::test_the_launcher_refuses_what_is_wrong",
    ),
    Fault(
        "LABOR's hops have variates of their own with layer_dependency",
        DRAWING,
        "layer = 0 if self._plan.layer_dependency else hop",
        "layer = hop",
        "tests/loader/test_labor.py",
    ),
    Fault(
        "fan-outs above 32 beside smaller ones draw nothing",
        DRAWING,
        "return drawn and uniform.max(initial=0) > SMALL_FANOUT",
        "return drawn and uniform.min(initial=2**40) > SMALL_FANOUT",
        KERNELS,
    ),
    Fault(
        "hash tables of large fan-outs are too small",
        DRAWING,
        "slots = power_of_two(2 * min(int(uniform.max()), self._max_degree()))",
        "slots = power_of_two(min(int(uniform.max()), self._max_degree()) // 2)",
        KERNELS,
    ),
    Fault(
        "a list behind a counted hop lies over that of another hop",
        DRAWING,
        "kept = list(zip(self._hop_start, counted, strict=False))",
        "kept = []",
        KERNELS,
    ),
    Fault(
        "edges of an induced relation are written behind the wrong one",
        EMIT,
        "(edge_index[2 * a : 2 * b].view(2, b - a), edge[a:b])",
        "(edge_index[2 * a : 2 * b].view(b - a, 2).t(), edge[a:b])",
        KERNELS,
    ),
    Fault(
        "a struct of another instance is launched",
        LAUNCH,
        "        if value.fields != parameter.fields:\n",
        "        if len(value.fields) != len(parameter.fields):\n",
        ARGUMENTS,
    ),
    Fault(
        "an entry of another kind is taken for a measurement",
        LINK,
        "if type(value) is int and value > 0}",
        "if value}",
        "tests/unit/ops/cuda/test_link_file.py",
    ),
    Fault(
        "a pinned copy is freed while a kernel reads it",
        PINNING,
        "    runtime.synchronize()\n    runtime.free(address)\n",
        "    runtime.free(address)\n",
        "tests/unit/ops/cuda/test_placer_order.py::test_pinned_memory_is_waited_for_before_it_is_freed",
    ),
    Fault(
        "memory is unregistered while a kernel reads it",
        PINNING,
        "                    self.runtime.synchronize()  # before the storage can be freed\n",
        "                    pass\n",
        PINS,
    ),
    Fault(
        "pages are unregistered that another table needs",
        PINNING,
        "            other.leases += 1\n",
        "            pass\n",
        "tests/unit/ops/cuda/test_pinning.py::test_tensors_that_share_a_page",
    ),
    Fault(
        "pages that a table has lent are given back too late",
        PINNING,
        "self._ended.extend((other, other.storage) for other in entry.neighbours)",
        "pass",
        "tests/unit/ops/cuda/test_pinning.py::test_tensors_that_share_a_page",
    ),
    Fault(
        "a table whose end is on a page of its own is not pinned there",
        PINNING,
        "self.last = -(-last // PAGE_BYTES) * PAGE_BYTES",
        "self.last = last // PAGE_BYTES * PAGE_BYTES",
        "tests/unit/ops/cuda/test_pinning.py::test_registered_in_place_and_unregistered_once",
    ),
    Fault(
        "memory of which one page is pinned counts as pinned",
        PINNING,
        "if all(self.runtime.is_pinned(address) for address in probes):",
        "if any(self.runtime.is_pinned(address) for address in probes):",
        PINS,
    ),
    Fault(
        "memory of which only the begin is pinned counts as pinned",
        PINNING,
        "probes = (*range(first, last, PROBE_BYTES), last - PAGE_BYTES)",
        "probes = (*range(first, last, PROBE_BYTES),)",
        PINS,
    ),
    Fault(
        "a forked child unregisters its parent's memory",
        PINNING,
        "        if self._pid != os.getpid():\n            return  # CUDA",
        "        if False:\n            return  # CUDA",
        "tests/unit/ops/cuda/test_placed_tables.py::test_a_forked_child_makes_no_calls_of_cuda",
    ),
    Fault(
        "a forked child frees its parent's pinned memory",
        PINNING,
        "    if pid != os.getpid():  # as in `Registry._end`\n",
        "    if False:\n",
        PINS + " " + PLACES,
    ),
    Fault(
        "chunks that were registered stay so where one fails",
        PINNING,
        "        except CudaError as error:\n            self._unregister(entry)\n",
        "        except CudaError as error:\n",
        PINS,
    ),
    Fault(
        "memory that a storage has left counts as registered",
        PINNING,
        "                self._retire_moved()\n",
        "",
        PINS,
    ),
    Fault(
        "a copy goes across the end of a registration",
        PINNING,
        "ends = {end for entry in self._entries for owned in entry.owned for end in owned}",
        "ends = {owned[0] for entry in self._entries for owned in entry.owned}",
        PINS,
    ),
    Fault(
        "copies of a conjugate or negated view have the wrong sign",
        PINNING,
        "source = source.detach().resolve_conj().resolve_neg()",
        "source = source.detach()",
        PINS + " " + PLACES,
    ),
    Fault(
        "a damaged file is placed unread",
        PLACER,
        "        if not csc.verified:\n            raise ValueError(",
        "        if False:\n            raise ValueError(",
        "tests/unit/ops/cuda/test_placer.py::test_a_graph_that_was_not_verified_is_refused",
    ),
    Fault(
        "a tensor that takes the place of a freed one is taken for it",
        PLACER,
        "known = held is not None and held.source() is table and held.lies == whereabouts(table)",
        "known = held is not None and held.lies == whereabouts(table)",
        "tests/unit/ops/cuda/test_placed_tables.py::test_a_tensor_that_takes_the_place_of_another",
    ),
    Fault(
        "a tensor whose memory was exchanged is read where it was",
        PLACER,
        "known = held is not None and held.source() is table and held.lies == whereabouts(table)",
        "known = held is not None and held.source() is table",
        PLACES,
    ),
    Fault(
        "another loader's copy of another tensor is read",
        PLACER,
        "if copy is None or not copy.is_of(table):",
        "if copy is None:",
        PLACES,
    ),
    Fault(
        "a copy is not made anew where its source was changed",
        PLACER,
        "        if held.copy.version != version_of(table):\n",
        "        if held.copy.version > version_of(table):\n",
        "tests/unit/ops/cuda/test_placer.py::test_copies_follow_their_source",
    ),
    Fault(
        "a changed table is copied while it is read",
        PLACER,
        "                registry.runtime.synchronize()  # earlier batches may be reading the old values\n",
        "",
        PLACES,
    ),
    Fault(
        "small tensors are registered with what else lies on their pages",
        PLACER,
        "        if nbytes_of(array) >= MIN_REGISTER_BYTES:\n",
        "        if nbytes_of(array) > 0:\n",
        PLACES,
    ),
    Fault(
        "the budget of device memory is not used up",
        PLACER,
        "        self._left = max(0, self._left - nbytes_of(array))\n",
        "",
        "tests/unit/ops/cuda/test_placer.py::test_the_budget",
    ),
    Fault(
        "large tables come before small ones",
        PLACER,
        "for name, table in sorted(tables, key=lambda pair: nbytes_of(pair[1])):",
        "for name, table in sorted(tables, key=lambda pair: -nbytes_of(pair[1])):",
        PLACES,
    ),
    Fault(
        "two loaders over one sampler place their tables in two ways",
        PLACER,
        "        if self._held and features != self._features:\n",
        "        if False:\n",
        PLACES,
    ),
    Fault(
        "tensors that were freed pile up",
        PLACER,
        "    held.pop(key, None)\n",
        "    pass\n",
        "tests/unit/ops/cuda/test_placed_tables.py::test_pinned_memory_is_freed_when_nothing_reads_it_any_more",
    ),
    Fault(
        "memory mapped read-only is registered for writing",
        RUNTIME,
        "            if failure.code != INVALID_VALUE or not self._read_only:\n                raise\n",
        "            raise\n",
        PINS,
    ),
    Fault(
        "a changed header leaves old kernels in the cache",
        SOURCE,
        "        if included not in done:\n            pieces.append(_expand(included, folder, done))\n",
        "        if included not in done:\n            pieces.append(match[0])\n",
        "tests/unit/ops/cuda/test_source.py",
    ),
    Fault(
        "producers open a context on the first GPU",
        STREAMS,
        "        self._torch.set_device(self._device)\n",
        "        pass\n",
        "tests/unit/ops/cuda/test_cuda_streams.py::test_producers_choose_their_device_once",
    ),
    Fault(
        "tensors of a batch are written over while a stream reads them",
        STREAMS,
        "                tensor.record_stream(stream)\n",
        "                pass\n",
        SIDE,
    ),
    Fault(
        "the window of a batch overlaps the one before",
        TABLE,
        "        self.base -= self.width\n",
        "        self.base -= self.locals\n",
        KERNELS,
    ),
    Fault(
        "windows that have come to the bottom go on below it",
        TABLE,
        '            self._arrays["table"].fill_(-1)\n            self.base = WINDOW_TOP\n',
        "            self.base = WINDOW_TOP\n",
        KERNELS,
    ),
    Fault(
        "subgraphs of nodes are lost where lists grow",
        TABLE,
        'self._names = ["node"] + disjoint * ["seed_of"] + given_locals * ["local"]',
        'self._names = ["node"] + given_locals * ["local"]',
        KERNELS,
    ),
    Fault(
        "launches for a batch of other sizes are used again",
        WORKSPACE,
        "if self._must_forecast or not np.array_equal(sizes, self._sizes):",
        "if self._must_forecast or sizes.sum() != self._sizes.sum():",
        KERNELS,
    ),
    Fault(
        "small hops with weights are done by the block that knows none",
        WORKSPACE,
        "if self._forecast.must_ask(hop) or self._csc.weighted.any() or (fanouts < 0).any():",
        "if self._forecast.must_ask(hop) or (fanouts < 0).any():",
        "tests/kernels/test_cuda_attributes.py",
    ),
    Fault(
        "LABOR's small hops are drawn uniformly",
        WORKSPACE,
        "if self._plan.labor or self._plan.adaptive:\n            return False\n",
        "if self._plan.adaptive:\n            return False\n",
        "tests/loader/test_labor.py",
    ),
    Fault(
        "the GPU takes any neighbours where fan-outs adapt, and not the latest",
        "cuda/picks.cu",
        "      keep_latest(*batch, k, span, excluded);\n",
        "",
        "tests/loader/test_adaptive.py::test_the_latest_are_taken",
    ),
    Fault(
        "more picks than there is room for are entered",
        WORKSPACE,
        "        if edges > most:\n            raise ValueError(",
        "        if edges > 2 * most + 8:\n            raise ValueError(",
        SEAM,
    ),
]
