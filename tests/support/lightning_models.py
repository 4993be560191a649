"""Models for Lightning, in a module that only tests of Lightning import."""

import torch
from pytorch_lightning import LightningModule, Trainer
from torch_geometric.data.lightning import LightningLinkData, LightningNodeData
from torch_geometric.nn import GraphSAGE

__all__ = ["Classifier", "LightningLinkData", "LightningNodeData", "Module", "Trainer"]


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.model = GraphSAGE(4, 8, num_layers=2, out_channels=2)
        self.seen = {"train": [], "val": []}

    def step(self, batch, stage):
        self.seen[stage].append(batch.input_id.tolist())
        out = self.model(batch.x, batch.edge_index)[: batch.batch_size]
        return torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])

    def training_step(self, batch, _):
        return self.step(batch, "train")

    def validation_step(self, batch, _):
        self.step(batch, "val")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Module(Classifier):
    """Builds its loader in a hook, by a function of the data and options."""

    def __init__(self, loader_of, data, **options):
        super().__init__()
        self.loader_of, self.data, self.options = loader_of, data, options

    def train_dataloader(self):
        return self.loader_of(self.data, **self.options)
