"""Trains with gputrace's callbacks and reads back what was logged by the loggers' own readers:

    train.py hugging_face|lightning|accelerate|keras recorded|failed|unrecorded

With failed, a request for memory fails in the training, which does not catch it. Prints a line of JSON: what PyTorch counted, and what each
logger has. They write into folders of the current one: logs, mlruns, wandb and .aim.
"""
import glob
import json
import os
import struct
import sys
import time

import torch

import gputrace
from gputrace import callbacks

STEPS = 60
FAILS = 40 if sys.argv[2] == "failed" else None
os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_DIR=".")
kept = []


def leak(x):
    time.sleep(0.05)  # figures are new once a second
    if len(kept) == FAILS:
        torch.empty(1 << 50, device="cuda")
    kept.append(torch.empty(1 << 16, device="cuda"))  # 256 KiB a step
    return x


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 12

    def __getitem__(self, i):
        x = torch.randint(0, 500, (64,))
        return {"input_ids": x, "labels": x}


def mlflow_run():
    import mlflow

    mlflow.set_tracking_uri("file://" + os.path.abspath("mlruns"))
    mlflow.set_experiment("training")
    return mlflow


def hugging_face():
    from aim.hugging_face import AimCallback
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    class Leaky(GPT2LMHeadModel):
        def forward(self, *args, **kwargs):
            leak(0)
            return super().forward(*args, **kwargs)

    os.environ["TENSORBOARD_LOGGING_DIR"] = "logs"
    mlflow_run()
    model = Leaky(GPT2Config(vocab_size=512, n_positions=64, n_embd=64, n_layer=2, n_head=2))
    args = TrainingArguments(output_dir="out", per_device_train_batch_size=4, max_steps=STEPS, report_to=["tensorboard", "mlflow", "wandb"],
                             save_strategy="no", logging_steps=20, disable_tqdm=True, remove_unused_columns=False)
    aim = AimCallback(repo=".", system_tracking_interval=None, capture_terminal_logs=False)
    trainer = Trainer(model=model, args=args, train_dataset=Data(), callbacks=[aim])
    callbacks.hugging_face(trainer, "gputrace")
    trainer.train()


def lightning():
    import pytorch_lightning as pl
    from aim.pytorch_lightning import AimLogger
    from pytorch_lightning.loggers import TensorBoardLogger, WandbLogger

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(256, 256)

        def training_step(self, batch, i):
            leak(0)
            return torch.nn.functional.mse_loss(self.net(batch[0]), batch[0])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-3, momentum=0.9)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(1024, 256)), batch_size=8)
    aim = AimLogger(repo=".", system_tracking_interval=None, capture_terminal_logs=False)
    loggers = [TensorBoardLogger("logs"), WandbLogger(save_dir=".", offline=True), aim]
    pl.Trainer(max_steps=STEPS, log_every_n_steps=20, accelerator="gpu", devices=1, logger=loggers, enable_checkpointing=False,
               enable_progress_bar=False,
               enable_model_summary=False, callbacks=[callbacks.lightning("gputrace")]).fit(Net(), data)


def accelerate():
    from accelerate import Accelerator

    mlflow_run()
    accelerator = Accelerator(log_with=["tensorboard", "mlflow", "wandb", "aim"], project_dir="logs")
    accelerator.init_trackers("training", config={}, init_kwargs={"aim": {"system_tracking_interval": None, "capture_terminal_logs": False}})
    model = torch.nn.Linear(256, 256)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9))
    with callbacks.accelerate(accelerator, "gputrace", step=STEPS) as memory:
        for step in range(STEPS):
            leak(0)
            if step % 10 == 0:
                memory.log(step)
            optimizer.zero_grad()
            accelerator.backward(model(torch.randn(8, 256, device="cuda")).square().mean())
            optimizer.step()
    accelerator.end_training()


def keras():
    os.environ.update(KERAS_BACKEND="torch", KERAS_TORCH_DEVICE="cpu")  # the stand-in compiles no kernels
    import aim
    import keras as k
    import wandb

    mlflow = mlflow_run()

    class Leaky(k.Sequential):
        def train_step(self, data):
            leak(0)
            return super().train_step(data)

    model = Leaky([k.layers.Dense(64, activation="relu"), k.layers.Dense(8)])
    model.compile(optimizer="sgd", loss="mse")
    run = aim.Run(repo=".", system_tracking_interval=None, capture_terminal_logs=False)
    with mlflow.start_run(), wandb.init(project="training"):
        memory = callbacks.keras("gputrace", every_steps=10, aim_run=run)
        model.fit(torch.randn(STEPS * 8, 64).numpy(), torch.randn(STEPS * 8, 8).numpy(), batch_size=8, verbose=0, callbacks=[memory])


def tensorboard_has():
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    scalars, texts = {}, []
    for folder, _, files in os.walk("logs"):
        if any("tfevents" in f for f in files):
            events = EventAccumulator(folder).Reload()
            for tag in events.Tags()["scalars"]:
                if "gpu_memory" in tag:
                    scalars[tag[tag.index("gpu_memory"):]] = events.Scalars(tag)[-1].value
            for tag in events.Tags()["tensors"]:
                if "gputrace" in tag:
                    texts += [s.decode() for s in events.Tensors(tag)[-1].tensor_proto.string_val]
    return {"scalars": scalars, "texts": texts}


def mlflow_has():
    if not os.path.exists("mlruns"):
        return None
    client = mlflow_run().MlflowClient()
    runs = [r for e in client.search_experiments() for r in client.search_runs([e.experiment_id])]
    return {
        "runs": len(runs),
        "metrics": {k: v for r in runs for k, v in r.data.metrics.items() if "gpu_memory" in k},
        "artifacts": [a.path for r in runs for a in client.list_artifacts(r.info.run_id, "gputrace")],
    }


def wandb_has():
    """Read the log of the run, which is LevelDB's with a header of 7 bytes, with the library's own messages."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # waits until the service has written all
    (path,) = glob.glob("wandb/offline-run-*/*.wandb")
    with open(path, "rb") as file:
        data = file.read()
    at, part, found = 7, b"", {"summary": {}, "in_use": [], "pages": [], "holders": []}
    while at + 7 <= len(data):
        if (1 << 15) - at % (1 << 15) < 7:
            at += (1 << 15) - at % (1 << 15)
            continue
        length, kind = struct.unpack("<4xHB", data[at:at + 7])
        part += data[at + 7:at + 7 + length]
        at += 7 + length
        if kind not in (1, 4):  # it goes on in the next block
            continue
        record, part = Record.FromString(part), b""
        for item in record.summary.update:
            if "gpu_memory" in item.key and not item.key.startswith("train"):
                found["summary"][item.key] = json.loads(item.value_json)
        for item in record.history.item:
            if item.nested_key[0].endswith("gpu_memory/in_use_bytes"):
                found["in_use"].append(json.loads(item.value_json))
        if record.artifact.type == "gputrace":
            found["pages"] += [entry.path for entry in record.artifact.manifest.contents]
    for path in glob.glob(os.path.dirname(path) + "/files/media/table/gputrace/holders*.json"):
        with open(path) as file:
            found["holders"] += [row[1] for row in json.load(file)["data"]]
    return found


def aim_has():
    import aim
    from aim.storage.context import Context

    repo = aim.Repo(next(folder for folder in (".", "logs") if os.path.exists(os.path.join(folder, ".aim"))))
    repo._recreate_index()  # what "aim storage reindex" does
    found = {"runs": 0, "metrics": {}, "texts": [], "page": None}
    for run in repo.iter_runs():
        found["runs"] += 1
        for metric in run.metrics():
            if "gpu_memory" in metric.name:
                found["metrics"][metric.name] = float(metric.dataframe().sort_values("step")["value"].iloc[-1])
        found["texts"] += [text.data for text in run.get_text_sequence("gputrace", Context({})).values.sparse_list()[1]]
        found["page"] = run["gputrace", "page"]
    return found


try:
    {"hugging_face": hugging_face, "lightning": lightning, "accelerate": accelerate, "keras": keras}[sys.argv[1]]()
    raised = None
except torch.OutOfMemoryError as error:
    raised = str(error)
recorded = gputrace.open("gputrace") if os.path.isdir("gputrace") else None
print(json.dumps({
    "torch_peak": torch.cuda.max_memory_allocated(), "torch_now": torch.cuda.memory_allocated(), "kept": len(kept),
    "sentence": recorded and recorded.sentence, "metrics": recorded and callbacks.metrics(recorded), "raised": raised,
    "tensorboard": tensorboard_has(), "mlflow": mlflow_has(), "wandb": recorded and wandb_has(), "aim": recorded and aim_has(),
}), flush=True)
