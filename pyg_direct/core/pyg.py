"""What the package uses of PyG that is private there, or that no public package of PyG exports.

A new version of PyG may change each of these names without notice. No other module of this package
names them, and `tests/unit/core/test_pyg.py` has a test for each, so that a version which changed
one shows which. Methods and attributes that PyG's own classes look up in our subclasses of them
have to stay in those subclasses; the same tests list them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from operator import attrgetter
from typing import Any
from weakref import ref

import torch
from torch_geometric.data import Data, EdgeAttr, EdgeLayout, HeteroData, TensorAttr

# How many nodes a type of remote stores has, as PyG counts them: a module for PyG's own use.
from torch_geometric.data import remote_backend_utils as remote_backend_utils

# What a pickled `Data` consists of, beside its stores.
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr

# Where PyG looks for the number of nodes: what is saved depends on whether it would find it.
from torch_geometric.data.storage import N_KEYS as N_KEYS

# The class of `Data.stores` and the others; exported by no package.
from torch_geometric.data.storage import BaseStorage as BaseStorage
from torch_geometric.data.storage import EdgeStorage, GlobalStorage, NodeStorage

# From the pointers of a CSC to the ids of a COO; `torch_geometric.utils` has no such function.
from torch_geometric.index import ptr2index as ptr2index

# Reads files that PyG saved, under each version's rules for pickles.
from torch_geometric.io.fs import torch_load as torch_load

# The parts of `ClusterData`: saved files hold this class.
from torch_geometric.loader.cluster import Partition as Partition

# The batches that PyG makes of remote stores, which are the user's.
from torch_geometric.loader.utils import (
    filter_custom_hetero_store as filter_custom_hetero_store,
)
from torch_geometric.loader.utils import filter_custom_store as filter_custom_store

# Selects entries of arrays and of `TensorFrame`, too.
from torch_geometric.loader.utils import index_select as index_select

# What PyG's loaders ask a sampler for before anything else.
from torch_geometric.sampler.base import DataType as DataType

# The values of `subgraph_type`; `torch_geometric.sampler` does not export the class.
from torch_geometric.sampler.base import SubgraphType as SubgraphType

# The rules of links and negatives; only what is drawn is ours.
from torch_geometric.sampler.neighbor_sampler import edge_sample as edge_sample
from torch_geometric.sampler.neighbor_sampler import node_sample as node_sample

# The relation between two node types where a user names none.
from torch_geometric.typing import DEFAULT_REL as DEFAULT_REL

# The keys of a dict of fan-outs after PyG has read it.
from torch_geometric.typing import EdgeTypeStr as EdgeTypeStr

# The class of torch-sparse, or a class without instances where that is not installed.
from torch_geometric.typing import SparseTensor as SparseTensor

# Counts nodes in `edge_index` where the user gives no number.
from torch_geometric.utils.num_nodes import maybe_num_nodes as maybe_num_nodes

# The fields of a store that hold edges.
SPARSE = ("adj", "adj_t")
TOPOLOGY = ("edge_index", *SPARSE)

# The fields of a store that are not attributes of its nodes or edges.
NOT_ATTRIBUTES = (*TOPOLOGY, "num_nodes")

# Lightning's data modules build their sampler by the name that they imported into this module.
DATA_MODULES = "torch_geometric.data.lightning.datamodule"

# The attributes of a store as the dict that they lie in. On the path of a batch PyG's own access,
# which looks for each name in what it has cached first, takes longer than all else. A call of it
# costs no frame of Python.
fields_of: Callable[[BaseStorage], dict[str, Any]] = attrgetter("_mapping")

# The name of the file that a GraphSAINT sampler saves its coefficients in.
saint_file_of: Callable[[Any], str] = attrgetter("_filename")


def stores_of(data: Data | HeteroData) -> dict[Any, BaseStorage]:
    """Return the stores of nodes and edges by type; the one store of a `Data` by None."""
    if isinstance(data, Data):
        return {None: data._store}
    return {**dict(data.node_items()), **dict(data.edge_items())}


def store_of(data: Data | HeteroData, key: Any) -> BaseStorage:
    """Return the store of a type, made if there is none yet; the one store of a `Data` by None."""
    store: BaseStorage = data._store if key is None else data[key]
    return store


def graph_classes() -> list[type]:
    """Return the classes that a pickled graph consists of, without those that torch loads already.

    PyG registers some, and `torch.serialization.safe_globals` forgets at its end all that it was
    given.
    """
    classes = [
        Data, HeteroData, DataEdgeAttr, DataTensorAttr, EdgeAttr, TensorAttr, EdgeLayout,
        BaseStorage, NodeStorage, EdgeStorage, GlobalStorage,
    ]  # fmt: skip
    known = torch.serialization.get_safe_globals()
    return [cls for cls in classes if cls not in known]


def graph_fields_of(data: HeteroData) -> dict[str, Any]:
    """Return the attributes that are of the graph, not of a type."""
    return dict(data._global_store)


def cat_dim(store: BaseStorage, name: str, value: Any) -> int:
    """Return the dimension along which an attribute is selected from, as its graph says.

    Only the graph that a store belongs to knows, and it is a weak reference of the store.
    """
    dim: int = store._parent().__cat_dim__(name, value, store)
    return dim


def with_counts(store: BaseStorage, num_nodes: int, num_edges: int) -> Data:
    """Return a copy of the graph of a store that says so many nodes and edges, whatever it tells.

    Of the edges nothing but the number is there.
    """
    counted: Data = shallow_copy(store._parent())
    edges = torch.zeros(2, 1, dtype=torch.int64).expand(2, num_edges)
    fields_of(store_of(counted, None)).update(num_nodes=num_nodes, edge_index=edges)
    return counted


def shallow_copy(data: Data | HeteroData) -> Any:
    """Return ``copy.copy(data)``; of a plain `Data` in half the time, for small batches."""
    if type(data) is not Data:
        return copy.copy(data)
    batch, store = Data.__new__(Data), GlobalStorage.__new__(GlobalStorage)
    fields = vars(store)
    fields.update(vars(data._store), _mapping=fields_of(data._store).copy(), _parent=ref(batch))
    fields.pop("_cached_attr", None)
    vars(batch).update(vars(data), _store=store)
    return batch
