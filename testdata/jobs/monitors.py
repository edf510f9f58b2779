"""Trains with what logs GPU memory in other people's libraries, and writes what that logged.

    monitors.py lightning DIR    Lightning's DeviceStatsMonitor and Composer's MemoryMonitor: DIR/logged.json, and waits for DIR/go
    monitors.py transformers DIR  transformers' TrainerMemoryTracker: DIR/logged.json at the end
"""
import importlib.util
import json
import pathlib
import sys
import time
import types

import torch


def composer_report():
    """The report of Composer's own file. Composer itself needs forty packages, of which this file uses none."""
    core, loggers = types.ModuleType("composer.core"), types.ModuleType("composer.loggers")
    core.Callback, core.State, loggers.Logger = object, object, object
    utils = types.ModuleType("composer.utils")
    utils.dist = None
    sys.modules.update({"composer.core": core, "composer.loggers": loggers, "composer.utils": utils})
    place = importlib.util.find_spec("composer").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("memory_monitor", pathlib.Path(place) / "callbacks" / "memory_monitor.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module._get_memory_report()


def write(folder, logged):
    (folder / "logged.new").write_text(json.dumps(logged))
    (folder / "logged.new").rename(folder / "logged.json")


def lightning(folder):
    import pytorch_lightning as pl
    from pytorch_lightning.callbacks import DeviceStatsMonitor
    from pytorch_lightning.loggers.logger import Logger

    class Logged(Logger):
        name, version = "logged", 0

        def log_hyperparams(self, *_):
            pass

        def log_metrics(self, metrics, step):
            if step < 20 or not any(k.startswith("DeviceStatsMonitor.on_train_batch_end") for k in metrics):
                return
            write(folder, {"lightning": metrics, "composer": {"memory/" + k: v for k, v in composer_report().items()}})
            while not (folder / "go").exists():
                time.sleep(0.01)
            sys.exit(0)

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()) for _ in range(8)])

        def training_step(self, batch, _):
            return torch.nn.functional.mse_loss(self.net(batch[0]), batch[0])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1e-3)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(4096, 256)), batch_size=32)
    pl.Trainer(
        max_epochs=1, accelerator="gpu", devices=1, logger=Logged(), log_every_n_steps=10, callbacks=[DeviceStatsMonitor()],
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    ).fit(Net(), data)


def transformers(folder):
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 1 << 10

        def __getitem__(self, _):
            x = torch.randint(0, 500, (64,))
            return {"input_ids": x, "labels": x}

    model = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_positions=64, n_embd=256, n_layer=6, n_head=4))
    args = TrainingArguments(
        output_dir=str(folder / "out"), per_device_train_batch_size=4, max_steps=12, report_to=[], save_strategy="no", disable_tqdm=True,
        skip_memory_metrics=False,
    )
    write(folder, Trainer(model=model, args=args, train_dataset=Data()).train().metrics)


{"lightning": lightning, "transformers": transformers}[sys.argv[1]](pathlib.Path(sys.argv[2]))
