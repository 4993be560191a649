"""What batches select from a graph's attributes is found anew once one of them is replaced."""

import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from pyg_direct import NeighborLoader
from pyg_direct.batch import roles
from pyg_direct.batch.roles import Attribute, KnownRoles, Roles


def graph(**attributes: Any) -> Data:
    edges = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]])
    return Data(x=torch.arange(5.0).view(5, 1), edge_index=edges, num_nodes=5, **attributes)


def test_roles_follow_from_shapes_and_names() -> None:
    data = graph(edge_attr=torch.zeros(5, 2), name="toy", scale=torch.ones(3))
    found = KnownRoles().of(None, data._store)
    assert found == Roles(node=(Attribute("x", 0),), edge=(Attribute("edge_attr", 0),))


def test_a_graph_may_name_another_dimension() -> None:
    class Columns(Data):
        def __cat_dim__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
            return 1 if key == "x" else super().__cat_dim__(key, value, *args, **kwargs)

    data = Columns(x=torch.zeros(2, 5), edge_index=graph().edge_index, num_nodes=5)
    assert KnownRoles().of(None, data._store).node == (Attribute("x", 1),)


def test_they_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(roles, "roles_in", lambda store, _: asked.append(store) or Roles((), ()))
    known, data = KnownRoles(), HeteroData({"a": {"x": torch.zeros(3)}, "b": {"x": torch.ones(3)}})
    for _ in range(3):
        for key in ("a", "b"):
            known.of(key, data[key])
    assert asked == [data["a"], data["b"]]


@pytest.mark.parametrize("change", ["another tensor", "a new name", "a removed name", "renamed"])
def test_a_change_of_the_graph_is_seen(change: str) -> None:
    known, data = KnownRoles(), graph(y=torch.arange(5))
    assert known.of(None, data._store).node == (Attribute("x", 0), Attribute("y", 0))
    if change == "another tensor":
        data.y = torch.ones(2)  # of the graph
        expected: Any = (Attribute("x", 0),)
    elif change == "a new name":
        data.z = torch.zeros(5)
        expected = (Attribute("x", 0), Attribute("y", 0), Attribute("z", 0))
    elif change == "a removed name":
        del data.x
        expected = (Attribute("y", 0),)
    else:
        data.z = data.y
        del data.y
        expected = (Attribute("x", 0), Attribute("z", 0))
    assert known.of(None, data._store).node == expected


def test_nothing_is_kept_alive() -> None:
    known, data = KnownRoles(), graph()
    known.of(None, data._store)
    alive = weakref.ref(data.x)
    del data.x
    gc.collect()
    assert alive() is None


def test_batches_follow_the_graph_in_mid_epoch() -> None:
    data = graph()
    loader = NeighborLoader(data, [-1], batch_size=1)
    batches = iter(loader)
    assert next(batches).x.shape == (2, 1)
    data.x, data.z = torch.arange(10.0).view(5, 2), torch.arange(5)
    batch = next(batches)
    assert torch.equal(batch.x, data.x[batch.n_id])
    assert torch.equal(batch.z, batch.n_id)
    del data.z
    assert "z" not in next(batches)


def test_they_stay_in_their_process() -> None:
    known, data = KnownRoles(), graph()
    known.of(None, data._store)
    assert pickle.loads(pickle.dumps(known))._known == {}
