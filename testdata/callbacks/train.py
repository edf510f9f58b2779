"""Trains with gputrace's callbacks and reads back what was logged by the loggers' own readers: callbacks.py hugging_face|lightning|accelerate|keras.

Prints a line of JSON: what PyTorch counted, and what TensorBoard and MLflow have. MLflow writes into the folder mlruns, TensorBoard into logs.
"""
import json
import os
import sys

import torch

import gputrace
from gputrace import callbacks

STEPS = 60
kept = []


def leak(x):
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
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    class Leaky(GPT2LMHeadModel):
        def forward(self, *args, **kwargs):
            leak(0)
            return super().forward(*args, **kwargs)

    os.environ["TENSORBOARD_LOGGING_DIR"] = "logs"
    mlflow_run()
    model = Leaky(GPT2Config(vocab_size=512, n_positions=64, n_embd=64, n_layer=2, n_head=2))
    args = TrainingArguments(output_dir="out", per_device_train_batch_size=4, max_steps=STEPS, report_to=["tensorboard", "mlflow"], save_strategy="no", logging_steps=20,
                             disable_tqdm=True, remove_unused_columns=False)
    trainer = Trainer(model=model, args=args, train_dataset=Data())
    callbacks.hugging_face(trainer, "gputrace")
    trainer.train()


def lightning():
    import pytorch_lightning as pl
    from pytorch_lightning.loggers import TensorBoardLogger

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
    pl.Trainer(max_steps=STEPS, accelerator="gpu", devices=1, logger=TensorBoardLogger("logs"), enable_checkpointing=False, enable_progress_bar=False,
               enable_model_summary=False, callbacks=[callbacks.lightning("gputrace")]).fit(Net(), data)


def accelerate():
    from accelerate import Accelerator

    mlflow_run()
    accelerator = Accelerator(log_with=["tensorboard", "mlflow"], project_dir="logs")
    accelerator.init_trackers("training", config={})
    model = torch.nn.Linear(256, 256)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9))
    with callbacks.accelerate(accelerator, "gputrace", step=STEPS):
        for _ in range(STEPS):
            leak(0)
            optimizer.zero_grad()
            accelerator.backward(model(torch.randn(8, 256, device="cuda")).square().mean())
            optimizer.step()
    accelerator.end_training()


def keras():
    os.environ.update(KERAS_BACKEND="torch", KERAS_TORCH_DEVICE="cpu")  # the stand-in compiles no kernels
    import keras as k

    mlflow = mlflow_run()

    class Keep(k.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            leak(0)

    model = k.Sequential([k.layers.Dense(64, activation="relu"), k.layers.Dense(8)])
    model.compile(optimizer="sgd", loss="mse")
    with mlflow.start_run():
        model.fit(torch.randn(STEPS * 8, 64).numpy(), torch.randn(STEPS * 8, 8).numpy(), batch_size=8, verbose=0, callbacks=[callbacks.keras("gputrace"), Keep()])


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


peak_before = torch.cuda.max_memory_allocated()
{"hugging_face": hugging_face, "lightning": lightning, "accelerate": accelerate, "keras": keras}[sys.argv[1]]()
recorded = gputrace.open("gputrace") if os.path.isdir("gputrace") else None
print(json.dumps({
    "torch_peak": torch.cuda.max_memory_allocated(), "torch_now": torch.cuda.memory_allocated(), "kept": len(kept),
    "sentence": recorded and recorded.sentence, "metrics": recorded and callbacks.metrics(recorded),
    "tensorboard": tensorboard_has(), "mlflow": mlflow_has(),
}), flush=True)
