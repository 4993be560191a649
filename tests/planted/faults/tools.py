"""Faults in the commands: plans, audits, conversions and generated graphs."""

from __future__ import annotations

from ..fault import Fault

AUDIT = "pyg_direct/tools/audit.py"
CHECKS = "pyg_direct/tools/audit_checks.py"
CONVERT = "pyg_direct/tools/convert.py"
GENERATE = "pyg_direct/tools/generate.py"
INFO = "pyg_direct/tools/info.py"
PLAN = "pyg_direct/tools/plan.py"
COOPERATIVE = "pyg_direct/tools/plan_cooperative.py"
OF_RANKS = "pyg_direct/tools/plan_ranks.py"

AUDITED = "tests/unit/tools/test_audit.py"
CONVERTED = "tests/unit/tools/test_convert.py"
GENERATED = "tests/unit/files/test_generate.py"
OF_INFO = "tests/unit/tools/test_info.py"
PLANNED = "tests/unit/tools/test_plan.py"
PLAN_OF_RANKS = "tests/unit/tools/test_plan_ranks.py"

FAULTS: list[Fault] = [
    Fault(
        "audit: the command ends with 0 where there are findings",
        AUDIT,
        "    sys.exit(0 if result.ok else 1)\n",
        "    sys.exit(0)\n",
        f"{AUDITED}::test_the_command_passes_its_arguments_on",
    ),
    Fault(
        "audit: the command ignores --time-window",
        AUDIT,
        "time_attr=args.time_attr, time_window=args.time_window,",
        "time_attr=args.time_attr,",
        f"{AUDITED}::test_the_command_passes_its_arguments_on",
    ),
    Fault(
        "audit: the command ignores --seed-time",
        AUDIT,
        "time = None if args.seed_time is None else torch.full((num_nodes,), args.seed_time)",
        "time = None",
        f"{AUDITED}::test_the_command_passes_its_arguments_on",
    ),
    Fault(
        "audit: the command looks at no weights",
        AUDIT,
        "result = audit(loader, args.batches, time_attr=args.time_attr, "
        "weight_attr=args.weight_attr)",
        "result = audit(loader, args.batches, time_attr=args.time_attr)",
        f"{AUDITED}::test_the_command_passes_its_arguments_on",
    ),
    Fault(
        "audit: leaks of the last hop are not found",
        CHECKS,
        "    for _ in range(hops - 1):\n",
        "    for _ in range(hops - 2):\n",
        f"{AUDITED}::test_one_planted_edge_from_the_future_is_found",
    ),
    Fault(
        "audit: the limit of a node is that of the seed that reaches it last",
        CHECKS,
        'far.scatter_reduce_(0, part.ends[1], before[part.near][part.ends[0]], "amin")',
        "far[part.ends[1]] = before[part.near][part.ends[0]]",
        f"{AUDITED}::test_a_message_may_reach_no_seed_that_is_earlier",
    ),
    Fault(
        "audit: weights that are no numbers pass",
        CHECKS,
        "                ~(drawn > 0),\n",
        "                drawn <= 0,\n",
        f"{AUDITED}::test_weights_that_are_no_numbers_are_found",
    ),
    Fault(
        "audit: negatives of a link have no limit of their own",
        CHECKS,
        "number = torch.arange(len(local)) % count",
        "number = (torch.arange(len(local)) * 0) % count",
        f"{AUDITED}::test_each_link_and_its_negatives_have_the_window_of_the_link",
    ),
    Fault(
        "audit: budgets of metapaths that meet in a type are those of the last",
        CHECKS,
        "            found[part.far] += budget\n",
        "            found[part.far] = budget\n",
        "tests/loader/test_adaptive.py::test_links",
    ),
    Fault(
        "audit: findings of later batches replace those of the first",
        AUDIT,
        "result.wrong[name] = result.wrong.get(name, 0) + found.wrong",
        "result.wrong[name] = found.wrong",
        f"{AUDITED}::test_a_message_may_reach_no_seed_that_is_earlier",
    ),
    Fault(
        "convert: --symmetrise is ignored beside --ogb",
        CONVERT,
        "        edges = [replace(edge, **changes) for edge in spec.edges]\n"
        "        return replace(spec, edges=edges)\n",
        "        return spec\n",
        f"{CONVERTED}::test_an_ogb_data_set_is_changed_as_well",
    ),
    Fault(
        "convert: --mask takes the ids for the attribute",
        CONVERT,
        "masks = {k: replace(v, lists_ids=True) for k, v in _attributes(args.mask).items()}",
        "masks = _attributes(args.mask)",
        f"{CONVERTED}::test_edges_and_attributes",
    ),
    Fault(
        "convert: --feature-scale is ignored",
        CONVERT,
        'STORED = ("feature_dtype", "feature_scale", "time_attr", "weight_attr")',
        'STORED = ("feature_dtype", "time_attr", "weight_attr")',
        f"{CONVERTED}::test_edges_and_attributes",
    ),
    Fault(
        "convert: columns of a packed table are taken for the key of an array",
        CONVERT,
        'TABLES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")',
        'TABLES = (".csv", ".tsv", ".parquet")',
        f"{CONVERTED}::test_edges_and_attributes",
    ),
    Fault(
        "convert: a file with a colon in its name is not found",
        CONVERT,
        "    if not colon or os.path.exists(text):\n",
        "    if not colon:\n",
        f"{CONVERTED}::test_edges_and_attributes",
    ),
    Fault(
        "convert: --overwrite is ignored",
        CONVERT,
        "                overwrite=args.overwrite,\n",
        "",
        f"{CONVERTED}::test_edges_and_attributes",
    ),
    Fault(
        "generate: --seed is ignored",
        GENERATE,
        "        seed=args.seed,\n",
        "",
        f"{GENERATED}::test_the_command",
    ),
    Fault(
        "generate: a wrong argument ends in a traceback",
        GENERATE,
        "    except (ValueError, FileExistsError) as error:\n",
        "    except FileExistsError as error:\n",
        f"{GENERATED}::test_the_command",
    ),
    Fault(
        "plan: --link-bytes-per-s is ignored",
        PLAN,
        'machine._replace(link_bytes_per_s=args.link_bytes_per_s, source="as given")',
        'machine._replace(source="as given")',
        f"{PLANNED}::test_the_command_with_degrees_and_a_link",
    ),
    Fault(
        "plan: nodes behind the last one with in-edges are forgotten",
        PLAN,
        "num_nodes=len(degrees))",
        "num_nodes=None)",
        f"{PLANNED}::test_the_command_with_degrees_and_a_link",
    ),
    Fault(
        "plan: --dtype is ignored for graphs with types",
        PLAN,
        "found[kind] = width * (x.size(-1) if isinstance(x, Tensor) else features)",
        "found[kind] = x.element_size() * x.size(-1) if isinstance(x, Tensor) else width * features",
        f"{PLANNED}::test_a_plan_of_a_typed_graph",
    ),
    Fault(
        "plan: sampling takes as long with many cores as with one",
        PLAN,
        'f"{sampling / question.cores:.1f} s with {question.cores}",',
        'f"{sampling:.1f} s with {question.cores}",',
        f"{PLANNED}::test_what_fits_where",
    ),
    Fault(
        "plan: what ranks send between layers counts once, not forward and backward",
        COOPERATIVE,
        "sent = (step.loading_bytes + 2 * step.layer_bytes) / ranks",
        "sent = (step.loading_bytes + step.layer_bytes) / ranks",
        f"{PLAN_OF_RANKS}::test_when_common_batches_pay",
    ),
    Fault(
        "plan: layers of ranks send what the layer behind does not read",
        COOPERATIVE,
        "        hop = len(widths) - layer\n",
        "        hop = len(widths) - layer + 1\n",
        "tests/integration/test_cooperative_counts.py::test_a_plan_counts_what_ranks_do",
    ),
    Fault(
        "plan: the largest rank is the mean one",
        COOPERATIVE,
        "float(edges.max() / max(1.0, edges.mean())),",
        "float(edges.mean() / max(1.0, edges.mean())),",
        f"{PLAN_OF_RANKS}::test_one_rank_that_owns_all_draws_all",
    ),
    Fault(
        "plan: link speeds of ranks are read as bytes",
        COOPERATIVE,
        "link = None if args.link is None else 1e9 * args.link",
        "link = args.link",
        f"{PLAN_OF_RANKS}::test_the_command_knows_owners_and_links",
    ),
    Fault(
        "plan: what ranks load alone is per rank, what they share of all",
        OF_RANKS,
        "saved = alone.row_bytes - step.common_bytes",
        "saved = alone.row_bytes / each - step.common_bytes",
        f"{PLAN_OF_RANKS}::test_when_sharing_rows_pays",
    ),
    Fault(
        "plan: a wrong list of numbers ends in a traceback",
        "pyg_direct/tools/plan.py",
        'parser.add_argument("--fanout", type=integers, default="15,10,5", help="of each hop")',
        'parser.add_argument("--fanout", type=eval, default="15,10,5", help="of each hop")',
        f"{PLANNED}::test_the_command_with_degrees_and_a_link",
    ),
    Fault(
        "info: a driver of the oldest branch that serves is called too old",
        INFO,
        "oldest is not None and _major(driver) < oldest:",
        "oldest is not None and _major(driver) <= oldest:",
        f"{OF_INFO}::test_a_machine_where_everything_fits",
    ),
    Fault(
        "info: a machine without a limit of page-locked memory is told of one",
        INFO,
        "    if UNLIMITED != limit < available:\n",
        "    if limit < available:\n",
        f"{OF_INFO}::test_a_machine_where_everything_fits",
    ),
    Fault(
        "info: a process that has some of the GPU's cores is told that it has none",
        INFO,
        "if gpu.cores and not gpu.cores & facts.cores:",
        "if gpu.cores and not gpu.cores <= facts.cores:",
        f"{OF_INFO}::test_a_machine_where_everything_fits",
    ),
    Fault(
        "info: --no-bandwidth measures",
        INFO,
        "print(report(bandwidth=not args.no_bandwidth))",
        "print(report())",
        f"{OF_INFO}::test_the_command_measures_unless_it_is_told_not_to",
    ),
    Fault(
        "info: what a loader refuses is told twice",
        INFO,
        "    if facts.refusal is not None and not explained:\n",
        "    if facts.refusal is not None:\n",
        f"{OF_INFO}::test_every_mismatch",
    ),
    Fault(
        "audit: windows of renamed seeds are said to be checked",
        AUDIT,
        "    if bounds_of(loader.input_data) is not law.bounds:\n",
        "    if False:\n",
        f"{AUDITED}::test_what_cannot_be_checked_is_told",
    ),
    Fault(
        "audit: induced subgraphs of adaptive fan-outs are found wrong",
        AUDIT,
        'adaptive=own and counted and keyed(sampler).settings.sampling == "adaptive",',
        'adaptive=own and keyed(sampler).settings.sampling == "adaptive",',
        f"{AUDITED}::test_what_cannot_be_checked_is_told",
    ),
    Fault(
        "audit: edges out of seeds are looked at as edges into them",
        CHECKS,
        "            if law.backward:\n",
        "            if False:\n",
        f"{AUDITED}::test_neighbours_that_edges_lead_to",
    ),
    Fault(
        "plan: a cache that has room for all rows is one",
        PLAN,
        "return self.topology_bytes <= self.room_bytes and 0 < rows < self.num_nodes",
        "return self.topology_bytes <= self.room_bytes and 0 < rows",
        "tests/unit/tools/test_plan_cache.py::test_the_command_prints_them",
    ),
    Fault(
        "plan: layers read the edges of one edge type for those of all hops",
        OF_RANKS,
        "int(counts.cumsum(1).sum()),",
        "int(counts.cumsum(0).sum()),",
        f"{PLAN_OF_RANKS}::test_edges_are_read_in_each_layer_that_needs_them",
    ),
    Fault(
        "plan: steps of ranks have seeds in common",
        OF_RANKS,
        "    num_seeds = asked.ranks * asked.batch_size\n",
        "    num_seeds = asked.batch_size\n",
        f"{PLAN_OF_RANKS}::test_seeds_alone_are_loaded_by_one_rank_each",
    ),
]
