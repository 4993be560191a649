"""Faults in epochs: which batch comes next, who makes it, and what is counted."""

from __future__ import annotations

from ..fault import Fault

BASE = "pyg_direct/loading/base.py"
KEYS = "pyg_direct/loading/batch_keys.py"
EPOCH = "pyg_direct/loading/epoch.py"
HASHES = "pyg_direct/core/fingerprint.py"
FORKED = "pyg_direct/loading/forked.py"
HOPS = "pyg_direct/loading/hops.py"
OPTIONS = "pyg_direct/loading/options.py"
ORDER = "pyg_direct/loading/order.py"
POSITIONS = "pyg_direct/loading/positions.py"
PREFETCHER = "pyg_direct/loading/prefetcher.py"
PRODUCING = "pyg_direct/loading/producing.py"
PROGRESS = "pyg_direct/loading/progress.py"
RECORDER = "pyg_direct/loading/recorder.py"
RESUMING = "pyg_direct/loading/resuming.py"
SEEDS = "pyg_direct/loading/seeds.py"
SHARES = "pyg_direct/loading/shares.py"
SITE = "pyg_direct/loading/site.py"
STAGES = "pyg_direct/loading/stages.py"
STATES = "pyg_direct/loading/states.py"
STATS = "pyg_direct/loading/stats.py"
STEPS = "pyg_direct/loading/steps.py"

ORDERS = "tests/loader/test_batch_order.py tests/unit/loading/test_progress.py"
RESUMED = "tests/unit/loading/test_progress.py tests/unit/loading/test_states.py"
PRODUCED = "tests/unit/loading/test_epoch.py tests/unit/loading/test_producers.py"
FETCHED = "tests/unit/loading/test_prefetcher.py tests/unit/loading/test_epoch.py"
COUNTED = "tests/unit/loading/test_stats.py"
RANKS = "tests/loader/test_ranks.py tests/unit/loading/test_shares.py"
CLUSTERS = "tests/loader/test_order.py"
NODES = "tests/loader/test_input_nodes.py"
PLACES = "tests/loader/test_places.py"
STAGED = "tests/unit/loading/test_stages.py"
INTERRUPTS = "tests/unit/loading/test_interrupts.py"

FAULTS = [
    Fault(
        "with seed= every epoch has the same order of seeds",
        PROGRESS,
        "key = rng.derive(self.seed, self.epoch, 0, rng.SHUFFLE_DOMAIN)",
        "key = rng.derive(self.seed, 0, 0, rng.SHUFFLE_DOMAIN)",
        ORDERS,
    ),
    Fault(
        "with seed= every epoch draws the same neighbours",
        PROGRESS,
        "began = (self.base_seed, 0 if self.seed is None else self.epoch, first)",
        "began = (self.base_seed, 0, first)",
        "tests/loader/test_epochs.py",
    ),
    Fault(
        "ranks have the same order of seeds in every epoch",
        PROGRESS,
        "key = rng.derive(self.base_seed, self.epoch, 0, rng.ORDER_DOMAIN)",
        "key = rng.derive(self.base_seed, 0, 0, rng.ORDER_DOMAIN)",
        "tests/loader/test_epochs.py",
    ),
    Fault(
        "without a seed ranks draw the same in every epoch",
        PROGRESS,
        "drawn = rng.as_seed(rng.derive(self.base_seed, 0, 0, rng.NEXT_SEED_DOMAIN))",
        "drawn = self.base_seed",
        "tests/loader/test_epochs.py",
    ),
    Fault(
        "resuming leaves torch's generator where the epoch had it",
        PROGRESS,
        "            torch.set_rng_state(ambient)\n",
        "            pass\n",
        RESUMED,
    ),
    Fault(
        "a resumed epoch that ended begins anew",
        PROGRESS,
        "self.resume, self.agreed = not self.finished, False",
        "self.resume, self.agreed = True, False",
        RESUMED,
    ),
    Fault(
        "an iterator from before a state was loaded writes to it",
        PROGRESS,
        "        self.resume, self.agreed = not self.finished, False\n        self.ticket += 1\n",
        "        self.resume, self.agreed = not self.finished, False\n",
        "tests/unit/loading/test_states.py::test_an_iterator_from_before_a_state_was_loaded_does_not_count",
    ),
    Fault(
        "a state of more batches than an epoch has is taken",
        PROGRESS,
        "if num_batches is not None and done > num_batches:",
        "if num_batches is not None and done > num_batches + 1:",
        "tests/loader/test_epochs.py",
    ),
    Fault(
        "recorder: nodes of one type only are counted",
        RECORDER,
        "            nodes += ids.numel()\n",
        "            nodes = ids.numel()\n",
        COUNTED,
    ),
    Fault(
        "recorder: edges of one type only are counted",
        RECORDER,
        "            edges += ends.shape[-1]\n",
        "            edges = ends.shape[-1]\n",
        COUNTED,
    ),
    Fault(
        "recorder: memory grows where nobody asks for what was counted",
        RECORDER,
        "        if len(epoch.made) >= MOST_MADE:\n",
        "        if len(epoch.made) >= 10**9:\n",
        COUNTED,
    ),
    Fault(
        "recorder: times of batches that nobody took pile up",
        RECORDER,
        "            self._finished.clear()\n",
        "",
        COUNTED,
    ),
    Fault(
        "recorder: events are recorded for ever after",
        RECORDER,
        "                self.epochs_with_events -= 1\n",
        "                pass\n",
        "tests/unit/loading/test_stats.py::test_events_are_recorded_on_request_only",
    ),
    Fault(
        "recorder: the ids of a batch count as gathered",
        RECORDER,
        '"edge_index", "n_id", "e_id", "input_id", "batch",',
        '"edge_index", "n_id", "input_id", "batch",',
        COUNTED,
    ),
    Fault(
        "stats: bytes of an attribute are those of the last epoch",
        STATS,
        "found[key] = found.get(key, 0) + value",
        "found[key] = value",
        "tests/loader/test_epochs.py",
    ),
    Fault(
        "stats of ranks lack the epochs that one rank has more",
        STATS,
        "longest = max(len(stats.epochs) for stats in every)",
        "longest = min(len(stats.epochs) for stats in every)",
        "tests/loader/test_epochs.py",
    ),
    Fault(
        "an epoch that could not begin is lost",
        BASE,
        "            self._progress.__dict__.update(before.__dict__)\n",
        "            pass\n",
        INTERRUPTS + " " + RESUMED,
    ),
    Fault(
        "persistent producers stay on the device they began on",
        BASE,
        "            self._iterator = None  # persistent producers keep to the device they began on\n",
        "            pass\n",
        PLACES,
    ),
    Fault(
        "a loader that is pickled takes its producers along",
        BASE,
        'state = {**self.__dict__, "_iterator": None, "_site": site, "_reusing": None}',
        'state = {**self.__dict__, "_site": site, "_reusing": None}',
        "tests/loader/test_epochs.py",
    ),
    Fault(
        "more producers than a GPU can use are started",
        BASE,
        "        threads = min(threads, backend.most_producers)\n",
        "",
        "tests/unit/ops/cuda/test_cuda_streams.py",
    ),
    Fault(
        "two calls for one batch draw the same",
        KEYS,
        "return rng.derive(rng.as_seed(self.key), 0, calls, rng.CALL_DOMAIN)",
        "return self.key",
        "tests/loader/test_collate.py",
    ),
    Fault(
        "batches of producers have gradients switched off",
        EPOCH,
        "with torch.inference_mode(task.inference), torch.set_grad_enabled(task.grad):",
        "with torch.inference_mode(task.inference), torch.set_grad_enabled(False):",
        "tests/unit/loading/test_prefetcher.py::test_modes_of_the_consumer_hold_in_the_producers",
    ),
    Fault(
        "of two iterators the one that was begun first counts, too",
        EPOCH,
        "progress if progress.ticket == self._ticket else SimpleNamespace()",
        "progress",
        RESUMED,
    ),
    Fault(
        "a failed batch comes again",
        EPOCH,
        "            steps.first, self._torn = following, False\n",
        "            self._torn = False\n",
        PRODUCED + " " + INTERRUPTS,
    ),
    Fault(
        "an interrupted call loses its batch",
        EPOCH,
        "        if self._torn:\n            self._ask_for(self._steps.left())\n",
        "",
        "tests/unit/loading/test_interrupts.py::test_an_interrupt_at_any_call_loses_no_batch",
    ),
    Fault(
        "the length of a resumed iterator is that of a whole epoch",
        EPOCH,
        "return self._order.ranks.steps(self._num_batches() - self._first)",
        "return self._order.ranks.steps(self._num_batches())",
        RESUMED,
    ),
    Fault(
        "seeds behind the first thousand may differ from a state's",
        HASHES,
        "at = torch.arange(count, device=flat.device) * (len(flat) - 1) // max(1, count - 1)",
        "at = torch.arange(count, device=flat.device)",
        "tests/loader/test_epochs.py",
    ),
    Fault(
        "torch has one thread after a loader worked in a forked child",
        FORKED,
        "            torch.set_num_threads(_given.threads)\n",
        "            pass\n",
        "tests/unit/loading/test_forks.py::test_a_child_gets_the_batches_of_its_parent",
    ),
    Fault(
        "hops of a transformed output are handed out",
        HOPS,
        "    if loader.transform_sampler_output:\n",
        "    if False:\n",
        "tests/unit/batch/test_edges.py tests/unit/models/test_accelerating_for_other_loaders.py",
    ),
    Fault(
        "prefetch and prefetch_factor that contradict are taken",
        OPTIONS,
        "if factor is not None and prefetch not in (DEFAULT_PREFETCH, factor):",
        "if factor is not None and prefetch not in (DEFAULT_PREFETCH, factor, 3, 4, 5):",
        "tests/loader/test_bad_arguments.py tests/loader/test_bad_input.py "
        "tests/loader/test_random_state.py",
    ),
    Fault(
        "batch_dependency without LABOR is ignored",
        OPTIONS,
        "    if count > 1:\n",
        "    if count > 2:\n",
        "tests/loader/test_labor.py::test_what_is_refused",
    ),
    Fault(
        "seeds of the last lanes are left out",
        ORDER,
        "lanes = torch.arange(-(-count // LANES) * LANES).view(LANES, -1).t().reshape(-1)",
        "lanes = torch.arange(count // LANES * LANES).view(LANES, -1).t().reshape(-1)",
        CLUSTERS,
    ),
    Fault(
        "seeds of a cluster always come in one order",
        ORDER,
        "order = torch.randperm(count, generator=own)\n",
        "order = torch.arange(count)\n",
        CLUSTERS,
    ),
    Fault(
        "clusters of ranks begin at the same place in each epoch",
        ORDER,
        "cluster = (cluster + int(torch.randint(CHUNK, (), generator=own))) // CHUNK",
        "cluster = (cluster + 0 * int(torch.randint(CHUNK, (), generator=own))) // CHUNK",
        "tests/loader/test_order.py::test_clusters_of_ranks_begin_elsewhere_in_each_epoch",
    ),
    Fault(
        "an array that a sampler uses again changes a batch",
        POSITIONS,
        "return batch.copy() if isinstance(batch, np.ndarray) else batch",
        "return batch",
        "tests/unit/loading/test_positions.py",
    ),
    Fault(
        "a shuffled epoch draws no random numbers at its end",
        POSITIONS,
        "            piece = EMPTY\n            _end(pieces)\n        yield batch\n",
        "            piece = EMPTY\n        yield batch\n",
        "tests/unit/loading/test_positions.py tests/loader/test_batch_order.py",
    ),
    Fault(
        "results of an epoch that was broken off come in the next",
        PREFETCHER,
        "    if results is not None and number >= board.first_wanted:\n",
        "    if results is not None:\n",
        "tests/unit/loading/test_prefetcher.py::test_results_of_an_iteration_that_was_broken_off_never_come",
    ),
    Fault(
        "a failure keeps what its batch was made of alive",
        PREFETCHER,
        "        error = self.error\n        del self.error\n",
        "        error = self.error\n",
        FETCHED + " tests/unit/loading/test_producers.py",
    ),
    Fault(
        "StopIteration of a transform ends the epoch",
        PREFETCHER,
        "        if isinstance(error, StopIteration):\n            stopped",
        "        if False:\n            stopped",
        "tests/unit/loading/test_producers.py",
    ),
    Fault(
        "a producer that could not start leaves the others waiting",
        PREFETCHER,
        "        board.stop()  # else the other threads would wait for tasks without a consumer\n",
        "",
        "tests/unit/loading/test_producers.py::test_a_producer_that_cannot_start_stops_the_others",
    ),
    Fault(
        "an iterator that went through a fork waits for ever",
        PREFETCHER,
        "        if self._pid != os.getpid():\n            raise NotReadyError(",
        "        if False:\n            raise NotReadyError(",
        FETCHED,
    ),
    Fault(
        "a timeout loses a batch",
        PREFETCHER,
        "        result = self._wait(self._fetched)\n        self._fetched += 1\n",
        "        self._fetched += 1\n        result = self._wait(self._fetched - 1)\n",
        FETCHED,
    ),
    Fault(
        "producers of two loaders start each other without end",
        PRODUCING,
        "        return *self.loaders, weakref.ref(loader)\n",
        "        return (weakref.ref(loader),)\n",
        "tests/unit/loading/test_producers.py",
    ),
    Fault(
        "a state of another class of loader is taken",
        RESUMING,
        '        drawing: dict[str, Any] = {"sampler": type(sampler).__name__}\n',
        "        drawing: dict[str, Any] = {}\n",
        "tests/loader/test_epochs.py",
    ),
    Fault(
        "ranks whose first batches differ train on them",
        PROGRESS,
        '            order.agree({"first_batch": of_positions(positions.ahead)})\n',
        "            pass\n",
        RANKS + " tests/integration/test_ranks.py",
    ),
    Fault(
        "a mask of integers is taken for ids of two nodes",
        SEEDS,
        "    return int(low) >= 0 and int(high) <= 1\n",
        "    return int(low) >= 0 and int(high) < 1\n",
        "tests/loader/test_input_nodes.py::test_a_mask_of_integers_is_refused",
    ),
    Fault(
        "seeds follow what the user writes to them later",
        SEEDS,
        "    return nodes.to(torch.int64, copy=True)\n",
        "    return nodes.to(torch.int64)\n",
        "tests/loader/test_user_memory.py " + NODES,
    ),
    Fault(
        "times of seeds are those of other positions",
        SEEDS,
        "    chosen.time = None if times is None else _at(times, positions)\n",
        "    chosen.time = None if times is None else times[: len(positions)]\n",
        "tests/loader/test_temporal.py tests/loader/test_contract.py tests/unit/loading/test_base.py",
    ),
    Fault(
        "input ids are those of other positions",
        SEEDS,
        "chosen.input_id = torch.from_numpy(positions) if ids is None else _at(ids, positions)",
        "chosen.input_id = torch.from_numpy(positions)",
        "tests/loader/test_input_nodes.py::test_input_nodes",
    ),
    Fault(
        "positions that are not integers are cut to such",
        SEEDS,
        'dtype.removeprefix("torch.").rstrip("0123456789") not in ("int", "uint"):',
        'dtype.removeprefix("torch.").rstrip("0123456789") not in ("int", "uint", "float"):',
        "tests/loader/test_wrong_positions.py",
    ),
    Fault(
        "ranks that lack a batch repeat the wrong one",
        SHARES,
        "return (self.rank - size) % (first + size)",
        "return self.rank % (first + size)",
        RANKS,
    ),
    Fault(
        "with tail=drop some ranks make one step more",
        SHARES,
        'if size == self.world_size or (self.rank < size and self.tail != "drop"):',
        "if size == self.world_size or self.rank < size:",
        "tests/loader/test_ranks.py::test_batches_are_those_of_a_single_process",
    ),
    Fault(
        "a loader in another process stays on this one's GPU",
        SITE,
        "        if not self._left_open or self._open:\n            return self\n",
        "        return self\n",
        PLACES,
    ),
    Fault(
        "a device that contradicts the sampler's is ignored",
        SITE,
        "    return wanted.index == here.index or None in (wanted.index, here.index)\n",
        "    return True\n",
        "tests/loader/test_epochs.py",
    ),
    Fault(
        "sampling arguments beside a sampler are ignored",
        SITE,
        "    if given:\n        raise ValueError(",
        "    if len(given) > 1:\n        raise ValueError(",
        "tests/loader/test_bad_input.py::test_sampling_arguments_beside_a_sampler",
    ),
    Fault(
        "the gather does not wait for its sample",
        STAGES,
        "                self._receive(product, ready)\n",
        "                pass\n",
        STAGED,
    ),
    Fault(
        "the host runs ahead of the device",
        STAGES,
        "        streams.synchronize(task.asked)\n",
        "",
        STAGED,
    ),
    Fault(
        "a state from before LABOR is refused",
        STATES,
        'defaults = SINCE_0_2 if "num_neighbors" in saved else {}',
        "defaults: dict[str, Any] = {}",
        "tests/loader/test_labor.py::test_a_state_from_before_labor_is_one_of_uniform_draws",
    ),
    Fault(
        "a state in the middle of an epoch that was never begun is taken",
        STATES,
        'if not state["finished"] and (state["epoch"] < 0 or state["default_state"] is None):',
        'if not state["finished"] and state["epoch"] < 0:',
        "tests/unit/loading/test_states.py",
    ),
    Fault(
        "a sampler that may not repeat itself is iterated anew",
        STEPS,
        "if type(sampler) not in REPEATABLE or own not in (None, generator):",
        "if own not in (None, generator):",
        INTERRUPTS,
    ),
    Fault(
        "batches that were drawn before an interruption are drawn anew",
        STEPS,
        "return chain([step for step in self._drawn if step[0] >= self.first], self)",
        "return chain([step for step in self._drawn if step[0] > self.first], self)",
        "tests/unit/loading/test_interrupts.py::test_an_interrupt_at_any_call_loses_no_batch",
    ),
]
