"""For PyTorch Lightning: what the loader cost, logged at the end of each epoch."""

from __future__ import annotations

from typing import Any

from pytorch_lightning import Callback

from ..loading.base import DirectLoader


class LoaderStats(Callback):
    """Logs ``loader_waiting_share`` and ``loader_seeds_per_second`` after each training epoch.

    Works with the loaders of `pyg_direct` among the trainer's training loaders; others are passed
    over. ``loader.stats()`` has the rest.

    Example:
        >>> from pytorch_lightning import Trainer
        >>> trainer = Trainer(callbacks=[LoaderStats()], logger=False, enable_checkpointing=False)
    """

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the numbers of the epoch that ended."""
        loaders = trainer.train_dataloader
        for loader in loaders if isinstance(loaders, (list, tuple)) else [loaders]:
            epochs = loader.stats().epochs if isinstance(loader, DirectLoader) else ()
            if epochs:
                last = epochs[-1]
                total = last.waiting_seconds + last.working_seconds
                pl_module.log("loader_waiting_share", last.waiting_share)
                pl_module.log("loader_seeds_per_second", last.seeds / total if total else 0.0)
