"""Faults in what all rooms share: arguments, narrow tables, threads, numbers with units."""

from __future__ import annotations

from ..fault import Fault

ARGUMENTS = "pyg_direct/core/arguments.py"
COOPERATION = "pyg_direct/core/cooperation.py"
LAZY = "pyg_direct/core/lazy_tensor.py"
QUANTIZED = "pyg_direct/core/quantized.py"
THREADS = "pyg_direct/core/threads.py"
BAD = "tests/loader/test_bad_arguments.py"
UNITS = "pyg_direct/core/units.py"

FAULTS: list[Fault] = [
    Fault(
        "a timeout that is not a number waits for ever",
        ARGUMENTS,
        "    if not _is_number(timeout) or not timeout >= 0:\n",
        "    if not _is_number(timeout) or timeout < 0:\n",
        f"{BAD}::test_the_node_loader_refuses",
    ),
    Fault(
        "a policy without a cache is ignored",
        ARGUMENTS,
        '        check_partner("cache_policy", "cache=", cache is not None)\n',
        "        pass\n",
        f"{BAD}::test_the_node_loader_refuses",
    ),
    Fault(
        "a key of 2^32 is taken for 0",
        ARGUMENTS,
        "isinstance(word, (int, np.integer)) and 0 <= word < 1 << 32 for word in words",
        "isinstance(word, (int, np.integer)) and 0 <= word <= 1 << 32 for word in words",
        "tests/unit/core/test_arguments.py::test_keys_are_two_words",
    ),
    Fault(
        "NumPy's False leaves seed edges out",
        ARGUMENTS,
        "    if value is None or (isinstance(value, (bool, np.bool_)) and not value):\n",
        "    if value is None or value is False:\n",
        "tests/unit/core/test_arguments.py::test_what_leaves_no_seed_edges_out",
    ),
    Fault(
        "a share of 0 is taken",
        ARGUMENTS,
        "    if not _is_number(value) or not 0 < value <= 1:\n",
        "    if not _is_number(value) or not 0 <= value <= 1:\n",
        "tests/unit/core/test_arguments.py::test_shares_are_above_0_and_at_most_1",
    ),
    Fault(
        "two graphs are taken for a pair of stores",
        ARGUMENTS,
        "    if stores and all(map(_is_graph, data)):\n",
        "    if False:\n",
        "tests/loader/test_wrong_positions.py::test_two_graphs_are_no_stores",
    ),
    Fault(
        "a batch of ranks cannot be sent to another process",
        COOPERATION,
        "        without = replace(self, group=None, channel=None)\n",
        "        without = replace(self, channel=None)\n",
        "tests/integration/test_cooperative_batches.py::test_the_union_is_the_batch_of_one_process",
    ),
    Fault(
        "positions of rows are copied to each process that shares a table",
        LAZY,
        "                part.share_memory_()  # type: ignore[no-untyped-call]\n",
        "                part.share_memory_()  # type: ignore[no-untyped-call]\n                break\n",
        "tests/unit/files/test_row_order.py::test_everything_else_reads_the_order_of_ids",
    ),
    Fault(
        "negative dimensions of an index decode all rows",
        LAZY,
        "args[0] in (0, -self.dim()):",
        "args[0] == 0:",
        "tests/unit/core/test_quantized.py::test_selected_rows_alone_are_decoded",
    ),
    Fault(
        "rows that are not finite are named by their places in a step",
        QUANTIZED,
        "        row = first + int(bad.nonzero()[0])\n",
        "        row = int(bad.nonzero()[0])\n",
        "tests/unit/core/test_quantized.py::test_what_is_refused",
    ),
    Fault(
        "a table in a file that was cut off is made longer, with zeros",
        QUANTIZED,
        '    np.load(path, mmap_mode="r")  # "r+" would make a file longer that was cut off\n',
        "",
        "tests/unit/core/test_quantized.py::test_a_file_that_was_cut_off_stays_what_it_is",
    ),
    Fault(
        "a full disk leaves a table that is none",
        QUANTIZED,
        "            with contextlib.suppress(OSError):\n                os.unlink(path)\n",
        "",
        "tests/unit/core/test_quantized.py::test_a_disk_that_gives_no_blocks",
    ),
    Fault(
        "a file system that cannot give blocks at once is refused",
        QUANTIZED,
        "if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):",
        "if error.errno not in (errno.EINVAL,):",
        "tests/unit/core/test_quantized.py::test_a_disk_that_gives_no_blocks",
    ),
    Fault(
        "a forked process waits for threads that it does not have",
        THREADS,
        "    _lock = threading.Lock()\n    _executor = None\n",
        "    _lock = threading.Lock()\n",
        "tests/unit/core/test_threads.py::test_a_forked_process_has_threads_of_its_own",
    ),
    Fault(
        "a failure in one thread returns while others write",
        THREADS,
        "            future.exception()  # wait: the tasks write to memory that the caller owns\n",
        "            pass\n",
        "tests/unit/core/test_threads.py::test_a_failure_is_raised_when_all_have_ended",
    ),
    Fault(
        "a failure in another thread than the first is lost",
        THREADS,
        "return results + [future.result() for future in futures]",
        "return results + [future.result() for future in futures if not future.exception()]",
        "tests/unit/core/test_threads.py::test_a_failure_is_raised_when_all_have_ended",
    ),
    Fault(
        "keep_memory(False) leaves glibc as it is",
        "pyg_direct/core/malloc.py",
        "        _kept = keep\n",
        "        _kept = False\n",
        "tests/unit/core/test_malloc.py::test_settings_are_taken_back_once",
    ),
    Fault(
        "a batch of keys that depend on others is made alone with those of its own",
        "pyg_direct/core/types.py",
        'made.variates = getattr(key, "variates", None)',
        "made.variates = None",
        "tests/integration/test_cooperative_batches.py::test_the_union_is_the_batch_of_one_process",
    ),
    Fault(
        "a share of a cache above 1 is taken",
        ARGUMENTS,
        "    if not sizes or (isinstance(cache, float) and not cache <= 1):\n",
        "    if not sizes:\n",
        f"{BAD}::test_the_node_loader_refuses",
    ),
    Fault(
        "a ratio of negatives that is no number is taken",
        ARGUMENTS,
        "        if not 0 <= ratio < math.inf:\n",
        "        if ratio < 0 or ratio == math.inf:\n",
        f"{BAD}::test_the_link_loader_refuses",
    ),
    Fault(
        "of two contradicting arguments of negatives one is ignored",
        ARGUMENTS,
        "        if ratio > 0 and neg_sampling is not None:\n",
        "        if False:\n",
        f"{BAD}::test_the_link_loader_refuses",
    ),
    Fault(
        "ids of seeds that are fractions are taken",
        ARGUMENTS,
        "input_id.shape != (num_seeds,) or input_id.is_floating_point() or input_id.is_complex()",
        "input_id.shape != (num_seeds,) or input_id.is_complex()",
        f"{BAD}::test_the_link_loader_refuses",
    ),
    Fault(
        "the last neighbours without times are any, also of the future",
        ARGUMENTS,
        '        check_partner("temporal_strategy=\'last\'", "time_attr", time_attr)\n',
        "        pass\n",
        "tests/loader/test_partners.py",
    ),
    Fault(
        "weights of the sources of triplets are ignored",
        ARGUMENTS,
        "if config is not None and config.src_weight is not None:",
        "if False:",
        "tests/loader/test_partners.py",
    ),
    Fault(
        "a window without times is ignored",
        ARGUMENTS,
        '    check_partner("time_window", "time_attr", time_attr)\n',
        "",
        "tests/loader/test_time_window.py::test_what_is_refused",
    ),
    Fault(
        "a window of 2^62 wraps",
        ARGUMENTS,
        "    if window >= MAX_WINDOW:\n",
        "    if window > 2 * MAX_WINDOW:\n",
        "tests/loader/test_time_window.py::test_what_is_refused",
    ),
    Fault(
        "very small numbers change their sign where they are quantized",
        QUANTIZED,
        "return scaled.clamp_(-LARGEST_INT8, LARGEST_INT8).to(torch.int8)",
        "return scaled.to(torch.int8)",
        "tests/unit/core/test_quantized.py::test_steps_make_no_difference",
    ),
    Fault(
        "small letters are no units of numbers",
        UNITS,
        "factor = COUNTS.get(text[-1:].upper(), 1)",
        "factor = COUNTS.get(text[-1:], 1)",
        "tests/unit/core/test_units.py::test_counts_are_exact",
    ),
    Fault(
        "numbers that are just below a unit have the next one",
        UNITS,
        "        if num_bytes >= factor:\n",
        "        if num_bytes >= factor / 2:\n",
        "tests/unit/core/test_units.py::test_sizes_have_the_largest_unit_that_is_not_above_them",
    ),
]
